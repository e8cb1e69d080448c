"""One run: a dataset, the ranks that read it, and the folder that tells what came of it.

What the command line, the sizing and library users all call. Every function here is called by all
ranks alike; only rank 0 makes the folder, writes the summary and speaks.
"""

import math
import platform
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.clock import Clock, WallClock
from dlemu.cold import make_cold
from dlemu.datagen import read_manifest, survey
from dlemu.enough import datagen_command
from dlemu.errors import DatasetError, DlemuError, RunError, WorkloadError
from dlemu.files import DatasetSize, Layout, layout_of
from dlemu.folders import hold_for_runs, keep_leftovers, make
from dlemu.loaders import Batch, Loader, check_loader, open_loader
from dlemu.metrics import Metrics, measure_run, whole_epochs
from dlemu.pagecache import OnFile
from dlemu.plan import EpochPlan, make_plan
from dlemu.proof import hidden_share, judge
from dlemu.records import (
    Steps,
    host_file,
    read_steps,
    write_config,
    write_steps,
    write_summary,
    write_text,
)
from dlemu.replay import draw_computation_times, replay_epoch
from dlemu.report import demand_line, render_run
from dlemu.settle import accelerators_of, num_accelerators, settle_size
from dlemu.terminal import complain, say
from dlemu.verdict import find_limit
from dlemu.watchdog import Watchdog
from dlemu.witness import Witness
from dlemu.workload import Workload
from dlemu.world import PeerError, World

Say = Callable[[str], None]


_MEET_EXPECTATION = {"PASS": "success", "FAIL": "fail", "NO VERDICT": "no verdict"}
"""DLIO's words, and one that it lacks."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to, on rank 0."""

    folder: Path
    metrics: Metrics
    summary: Mapping[str, Any]
    passed: bool


def find_dataset(
    workload: Workload, world: World, watchdog: Watchdog | None = None
) -> tuple[Workload, Layout, bool, tuple[str, ...]]:
    """Return the workload settled on what lies in its data folder, and the folder's layout.

    The bool tells whether a manifest vouches for sizes and places; the texts are worth showing.

    Raises:
        DatasetError: there is no dataset, or it does not fit the workload.
    """
    watchdog = watchdog or Watchdog(math.inf, world)
    auto = workload.dataset.num_files_train == "auto"
    accelerators = num_accelerators(workload, world)
    workload, size, _ = settle_size(workload, world, accelerators=accelerators)
    # If rank 0 fails here, leaving the world tells the others.
    found = None
    if world.rank == 0:
        with watchdog.phase(f"while looking at the dataset in {workload.data_folder}"):
            found = _look_at(workload, size if auto else None, watchdog.at)
    found = world.broadcast(found)
    assert found is not None
    return found


def _look_at(
    workload: Workload, wanted: DatasetSize | None, at: OnFile
) -> tuple[Workload, Layout, bool, tuple[str, ...]]:
    folder = workload.data_folder
    manifest = read_manifest(folder)
    if manifest is not None:
        have = manifest.layout.num_files
        if wanted is not None:
            if have < wanted.num_files:
                raise DatasetError(
                    f"{folder} has {have:,} files, dataset.num_files_train=auto asks for "
                    f"{wanted.num_files:,} (dlemu datasize says why); extend it with dlemu "
                    f"datagen, or set dataset.num_files_train={have}"
                )
            workload = workload.with_keys({"dataset.num_files_train": have})
        manifest.check(layout_of(workload), folder)
        return workload, layout_of(workload), True, ()
    if not folder.is_dir():
        raise DatasetError(
            f"dataset.data_folder {folder} is not there; generate it: "
            f"{datagen_command(workload, workload.num_files)}"
        )
    found = survey(folder, workload, at=at)
    return workload, found, False, (f"no manifest in {folder}: {found}",)


def check_job(workload: Workload, world: World) -> None:
    """Refuse what this rank's host cannot do, before anything is written, read or made cold.

    Raises:
        WorkloadError: a package or a GPU is missing, or too few files may be open.
    """
    own = accelerators_of(world.rank, world.num_ranks, num_accelerators(workload, world))
    if own:
        check_loader(workload, len(own))
        if workload.train.compute == "gpu":
            _find_gpus(workload, len(own))


def run_job(
    workload: Workload,
    *,
    world: World,
    clock: Clock | None = None,
    say: Say = say,
) -> Outcome | None:
    """Replay a workload and return what came of it on rank 0, None on the others.

    Raises:
        DlemuError: the workload, its dataset or the run failed; summary.json says so too.
    """
    with Watchdog(workload.output.stall_seconds, world) as watchdog:
        return _run_watched(workload, world, clock or WallClock.calibrate(), say, watchdog)


def _run_watched(
    workload: Workload, world: World, clock: Clock, say: Say, watchdog: Watchdog
) -> Outcome | None:
    started = datetime.now(UTC)
    if world.rank != 0:
        say = _say_nothing
    check_job(workload, world)
    workload = _with_seed(workload, world)
    workload, layout, known, notes = find_dataset(workload, world, watchdog)
    accelerators = num_accelerators(workload, world)
    if world.rank == 0:
        make_plan(workload, layout, num_accelerators=accelerators, epoch=0)  # refuses early
    summary = _summary_start(workload, world, started, notes)
    with _shared_folder(workload, world, say, watchdog) as folder:
        try:
            return _run_in(folder, workload, layout, known, summary, world, clock, say, watchdog)
        except BaseException:
            if world.rank == 0:
                _say_whole_epochs(folder, workload, summary, say)
            raise


def _run_in(
    folder: Path,
    workload: Workload,
    layout: Layout,
    known: bool,
    summary: dict[str, Any],
    world: World,
    clock: Clock,
    say: Say,
    watchdog: Watchdog,
) -> Outcome | None:
    """Replay a workload, and write what came of it into its folder."""
    writing = f"while {folder} was written to"
    if world.rank == 0:
        with watchdog.phase(writing):
            write_summary(folder, summary)

    def record(error: BaseException) -> None:
        if world.rank == 0:
            with watchdog.phase(writing):
                _write_failure(folder, summary, error)

    watchdog.record = record
    try:
        witness, steps = _replay(workload, layout, known, folder, world, clock, say, watchdog)
        parts = world.gather(steps)
        _collect(folder, world, parts)
        evidence = witness.gather(parts)
    except KeyboardInterrupt as interrupt:
        record(interrupt)  # first: launchers kill soon
        try:
            world.barrier(timeout=0)
        except PeerError as failure:  # for which the launcher has interrupted this rank
            record(failure)
            raise failure from None
        except RunError:
            pass
        raise
    except BaseException as error:
        record(error)
        raise
    if parts is None or evidence is None:
        return None
    try:
        metrics = measure_run(workload, parts)
        limit = find_limit(evidence.evidence())
        measured = evidence.measured | _whole_epochs(metrics)
        summary |= summarize(workload, metrics, {"measured": measured}) | {
            "status": "complete",
            "end": datetime.now(UTC).isoformat(timespec="seconds"),
            "measured": measured,
            "limit": asdict(limit),
            "notes": [*summary["notes"], *evidence.notes],
        }
        with watchdog.phase(writing):
            write_summary(folder, summary)
    except BaseException as error:
        _write_failure(folder, summary, error)
        raise
    return Outcome(folder, metrics, summary, summary["verdict"] == "PASS")


def summarize(workload: Workload, metrics: Metrics, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of summary.json that follow from the steps, by DLIO's names.

    `summary` is what is known beside them: `measured`, and `status` where the run failed.
    """
    judgement = judge(workload, metrics, summary)
    au = [epoch.au_percentage for epoch in metrics.epochs]
    rate = [epoch.samples_per_second for epoch in metrics.epochs]
    nominal = [each * workload.dataset.mean_bytes / 2**20 for each in rate]
    return {
        "num_accelerators": metrics.num_accelerators,
        "verdict": judgement.verdict,
        "reasons": list(judgement.reasons),
        "remarks": [*judgement.remarks, *([judgement.hidden] if judgement.hidden else [])],
        "metric": {
            "edition": metrics.edition,
            "train_au_percentage": au,
            "train_au_mean_percentage": float(np.mean(au)),
            "train_au_stdev_percentage": float(np.std(au)),
            "train_au_meet_expectation": _MEET_EXPECTATION[judgement.verdict],
            "train_hidden_share": hidden_share(workload, metrics),
            "train_throughput_samples_per_second": rate,
            "train_throughput_mean_samples_per_second": float(np.mean(rate)),
            "train_throughput_stdev_samples_per_second": float(np.std(rate)),
            "train_io_mean_MB_per_second": float(np.mean(nominal)),
            "train_io_stdev_MB_per_second": float(np.std(nominal)),
        },
    }


def _say_whole_epochs(folder: Path, workload: Workload, summary: dict[str, Any], say: Say) -> None:
    """Show the epochs that a run has ended which itself did not end, if there are any."""
    with suppress(DlemuError):
        steps = whole_epochs(read_steps(folder), summary["num_accelerators"])
        metrics = measure_run(workload, steps)
        told = summary | summarize(workload, metrics, summary)
        say(f"\n{render_run(workload, metrics, told)}\nresults: {folder}")


def _whole_epochs(metrics: Metrics) -> dict[str, Any]:
    return {
        "read_bytes": metrics.read_bytes,
        "read_bytes_per_second": metrics.read_bytes_per_second,
        "whole_epoch_au_percentage": [e.whole_epoch_au_percentage for e in metrics.epochs],
        "first_step_seconds": [epoch.first_step_seconds for epoch in metrics.epochs],
    }


def _replay(
    workload: Workload,
    layout: Layout,
    known: bool,
    folder: Path,
    world: World,
    clock: Clock,
    say: Say,
    watchdog: Watchdog,
) -> tuple[Witness, Steps]:
    """Run the epochs; return what was observed and (steps,) records of this rank."""
    everyone = num_accelerators(workload, world)
    own = accelerators_of(world.rank, world.num_ranks, everyone)
    compute = watchdog.computing(
        _compute_on_gpu(workload, len(own), clock) or clock.sleep_until, clock
    )
    parts: list[Steps] = []
    loader: Loader = _Idle()
    if own:
        with watchdog.phase("while the loader was opened"):
            loader = open_loader(
                workload,
                layout,
                workload.data_folder,
                accelerators=own,
                known_places=known,
                keep=int(workload.reader.hands_over),
            )
        watchdog.pids = loader.pids
    with _closing(loader):
        make_cold(workload, layout, world, direct=loader.direct, watchdog=watchdog, say=say)
        say(demand_line(workload, everyone))
        with Witness(workload, layout, folder, world, loader, own, watchdog) as witness:
            world.barrier()  # each rank watches itself so far; from now on they meet in time
            watchdog.expect(
                compute=workload.train.computation_time.longest,
                prepare=workload.reader.batch_size * workload.reader.preprocess_time.longest,
            )
            for epoch in range(workload.train.epochs):
                plan = make_plan(workload, layout, num_accelerators=everyone, epoch=epoch)
                times = draw_computation_times(
                    workload.train.computation_time,
                    num_steps=plan.num_steps,
                    accelerators=own,
                    epoch=epoch,
                    seed=workload.train.seed,
                )
                watchdog.barrier()
                with watchdog.phase(f"in epoch {epoch + 1}", loader.waiting_for):
                    witness.begin(epoch)
                    steps = replay_epoch(
                        loader.epoch(epoch, plan),
                        epoch=epoch,
                        computation_times=times,
                        barrier=watchdog.barrier,
                        clock=clock,
                        on_step=watchdog.step,
                        compute=compute,
                    )
                    witness.end(epoch)
                parts.append(steps.ravel())
                with watchdog.phase(f"while {folder} was written to"):
                    write_steps(folder, world.rank, np.concatenate(parts))
                if world.rank == 0:  # others may have no accelerator to speak of
                    say(_epoch_line(epoch, steps, workload))
            steps = np.concatenate(parts)
            lost = steps["wait"].sum() + steps["barrier"].sum()
            share = lost / max(lost + steps["compute"].sum(), 1e-9)
            lost_share = max(world.all_gather(float(share)))
            with watchdog.phase("in the probe"):
                witness.probe(lost_share)
    return witness, steps


def _compute_on_gpu(
    workload: Workload, accelerators: int, clock: Clock
) -> Callable[[float], None] | None:
    """Return what keeps this rank's GPUs busy until a deadline, None where compute is a sleep."""
    if workload.train.compute == "sleep" or accelerators == 0:
        return None
    from dlemu.gpu_compute import gpu_compute

    return gpu_compute(_find_gpus(workload, accelerators), clock)


def _find_gpus(workload: Workload, accelerators: int) -> range:
    """Return the GPUs that compute for so many accelerators.

    Raises:
        WorkloadError: PyTorch is missing, or there are no such GPUs.
    """
    from dlemu.cuda import num_gpus
    from dlemu.gpu_compute import find_torch

    try:
        num = workload.dali.gpus_per_host or num_gpus()
    except RunError as error:
        raise WorkloadError(f"train.compute=gpu: {error}; or set train.compute=sleep") from None
    gpus = range(max(1, min(num, accelerators)))
    find_torch(gpus)
    return gpus


def _epoch_line(epoch: int, steps: Steps, workload: Workload) -> str:
    seconds = steps["wait"] + steps["compute"] + steps["barrier"]
    samples = steps["num_samples"].sum() / max(seconds.sum(axis=0).max(), 1e-9)
    au = 100 * steps["computation_time"][1:].sum() / max(seconds[1:].sum(), 1e-9)
    return (
        f"epoch {epoch + 1} of {workload.train.epochs}: {len(steps)} steps, utilisation "
        f"{au:.2f}% on rank 0, {samples:.2f} samples/s there"
    )


def _with_seed(workload: Workload, world: World) -> Workload:
    """Return the workload with a seed of this run's own where a shuffle is `random`."""
    reader = workload.reader
    if "random" not in (reader.file_shuffle, reader.sample_shuffle):
        return workload
    return workload.with_keys({"train.seed": world.broadcast(secrets.randbits(31))})


@contextmanager
def _shared_folder(
    workload: Workload, world: World, say: Say, watchdog: Watchdog
) -> Iterator[Path]:
    """Yield the run's folder, made and held by rank 0 and known to all."""
    making = "while the run's folder was made"
    with ExitStack() as stack:
        own = None
        if world.rank == 0:
            with watchdog.phase(making):
                own = stack.enter_context(hold_for_runs(workload, say))
                write_config(own, workload)
        folder = world.broadcast(own)
        assert folder is not None
        # Hosts that do not share the folder keep their own records until rank 0 gathers them.
        if world.local_rank == 0 and world.rank != 0:
            with watchdog.phase(making):
                keep_leftovers(folder)
                stack.enter_context(make(folder))
        world.barrier()
        yield folder


def _collect(folder: Path, world: World, parts: Sequence[Steps] | None) -> None:
    """Write the records that rank 0 does not see: of hosts that do not share its folder."""
    if world.num_hosts == 1:
        return
    seen = world.broadcast({path.name for path in folder.iterdir()} if world.rank == 0 else None)
    assert seen is not None
    own = host_file(folder, world.rank)
    unseen = world.local_rank == 0 and own.name not in seen
    hosts = world.gather(own.read_text() if unseen else None)
    for rank, (steps, lines) in enumerate(zip(parts or (), hosts or (), strict=True)):
        if f"steps.{rank}.npy" not in seen:
            write_steps(folder, rank, steps)
        if lines is not None:
            write_text(host_file(folder, rank), lines)


def _summary_start(
    workload: Workload, world: World, started: datetime, notes: tuple[str, ...]
) -> dict[str, Any]:
    extra = []
    if workload.reader.data_loader == "tensorflow":
        extra.append("reader.data_loader tensorflow: read by dlemu's threads in tf.data's order")
    return {
        "status": "incomplete",
        "workload": workload.name,
        "data_loader": workload.reader.data_loader,
        "decode": workload.reader.decode,
        "loop": workload.train.loop,
        "hand_over": "batch" if workload.reader.hands_over else "none",
        "num_accelerators": num_accelerators(workload, world),
        "num_ranks": world.num_ranks,
        "num_hosts": world.num_hosts,
        "hostname": world.host,
        "start": started.isoformat(timespec="seconds"),
        "metric": {},
        "measured": {},
        "limit": None,
        "ignored": list(workload.ignored),
        "notes": [*world.notes, *notes, *extra],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of dlemu, Python, the kernel and the libraries that read."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in ("dlemu", "numpy", "h5py", "torch", "mpi4py", "nvidia-dali-cuda130"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _write_failure(folder: Path, summary: dict[str, Any], error: BaseException) -> None:
    """Record that the run came to nothing; the disk may be what failed."""
    interrupted = isinstance(error, (KeyboardInterrupt, SystemExit))
    text = str(error) if isinstance(error, DlemuError) else repr(error)
    summary |= {
        "status": "incomplete" if interrupted else "failed",
        "error": "interrupted" if interrupted else text,
        "end": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        write_summary(folder, summary)
    except RunError as second:
        if str(folder) not in text:  # else the user is told of the disk already
            complain(str(second))


class _Idle:
    """The loader of a rank that emulates no accelerator: there are more ranks than those."""

    direct = True

    def epoch(self, epoch: int, plan: EpochPlan) -> Iterator[list[Batch]]:
        return iter([[] for _ in range(plan.num_steps)])

    def waiting_for(self) -> str:
        return "has no accelerator to read for"

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


class _closing:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __enter__(self) -> Loader:
        return self._loader

    def __exit__(self, *_: object) -> None:
        self._loader.close()


def _say_nothing(text: str) -> None:
    """Ranks other than 0 are silent."""
