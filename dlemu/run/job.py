"""One run: a dataset, the ranks that read it, and the folder that tells what came of it.

What the command line, the sizing and library users all call. Every function here is called by all
ranks alike; only rank 0 makes the folder, writes the summary and speaks.
"""

import platform
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.clock import Clock, WallClock
from dlemu.datagen.find import find_dataset
from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import EpochPlan, make_plan
from dlemu.dataset.rule import accelerators_of, num_accelerators
from dlemu.errors import DlemuError, RunError, WorkloadError
from dlemu.loaders import Batch, Loader, check_loader, open_loader
from dlemu.results.folders import hold_for_runs, keep_leftovers, make
from dlemu.results.metrics import Metrics, measure_run, whole_epochs
from dlemu.results.outcome import Outcome, summarize
from dlemu.results.records import (
    Steps,
    host_file,
    read_steps,
    write_config,
    write_steps,
    write_summary,
    write_text,
)
from dlemu.results.text import render_run
from dlemu.results.verdict import find_limit
from dlemu.run.cold import make_cold
from dlemu.run.replay import draw_computation_times, replay_epoch
from dlemu.run.watchdog import Watchdog
from dlemu.run.witness import Witness
from dlemu.terminal import complain, say
from dlemu.units import format_rate
from dlemu.workload.model import Workload
from dlemu.world.world import PeerError, World

Say = Callable[[str], None]


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
    dataset = find_dataset(workload, world, watch=watchdog.phase, at=watchdog.at)
    workload = dataset.workload
    accelerators = num_accelerators(workload, world)
    if world.rank == 0:
        make_plan(workload, dataset.layout, num_accelerators=accelerators, epoch=0)  # refuses early
    summary = _summary_start(workload, world, started, dataset.notes)
    with _shared_folder(workload, world, say, watchdog) as folder:
        try:
            return _run_in(folder, dataset, summary, world, clock, say, watchdog)
        except BaseException:
            if world.rank == 0:
                _say_whole_epochs(folder, workload, summary, say)
            raise


def _run_in(
    folder: Path,
    dataset: Dataset,
    summary: dict[str, Any],
    world: World,
    clock: Clock,
    say: Say,
    watchdog: Watchdog,
) -> Outcome | None:
    """Replay a workload, and write what came of it into its folder."""
    workload = dataset.workload
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
        witness, steps = _replay(dataset, folder, world, clock, say, watchdog)
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
    dataset: Dataset,
    folder: Path,
    world: World,
    clock: Clock,
    say: Say,
    watchdog: Watchdog,
) -> tuple[Witness, Steps]:
    """Run the epochs; return what was observed and (steps,) records of this rank."""
    workload, layout = dataset.workload, dataset.layout
    everyone = num_accelerators(workload, world)
    own = accelerators_of(world.rank, world.num_ranks, everyone)
    compute = watchdog.computing(
        _compute_on_gpu(workload, len(own), clock) or clock.sleep_until, clock
    )
    parts: list[Steps] = []
    loader: Loader = _Idle()
    if own:
        with watchdog.phase("while the loader was opened"):
            loader = open_loader(dataset, accelerators=own, keep=int(workload.reader.hands_over))
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
    from dlemu.gpu.compute import gpu_compute

    return gpu_compute(_find_gpus(workload, accelerators), clock)


def _find_gpus(workload: Workload, accelerators: int) -> range:
    """Return the GPUs that compute for so many accelerators.

    Raises:
        WorkloadError: PyTorch is missing, or there are no such GPUs.
    """
    from dlemu.gpu.compute import find_torch
    from dlemu.gpu.cuda import num_gpus

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
    seen = world.on_first(lambda: {path.name for path in folder.iterdir()})
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


def demand_line(workload: Workload, num_accelerators: int) -> str:
    """Return what the accelerators ask of the storage at full utilisation."""
    one = workload.demand
    if one == float("inf"):
        return "demand: no computation time, so as much as the storage gives"
    return (
        f"demand: {format_rate(one)} an accelerator, {format_rate(one * num_accelerators)} in all "
        f"at 100% utilisation"
    )
