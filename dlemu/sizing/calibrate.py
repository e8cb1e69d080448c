"""`dlemu calibrate`: what this host moves for a workload, and what the storage gives its loader.

1. one     one accelerator on a dataset in memory: the overhead and the jitter of a step
2. full    several that do not compute, on the same dataset: what this host moves
3. target  several that do not compute, on the target, cold: what the storage gives

`dlemu predict predict.calibration=FILE` takes the result file.
"""

import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.config.keys import all_keys
from dlemu.config.model import Workload, read_by
from dlemu.config.published import command
from dlemu.datagen.counting import SURVEY
from dlemu.datagen.manifest import read_manifest
from dlemu.datagen.survey import as_found, find_foreign, named_below
from dlemu.datagen.write import generate
from dlemu.dataset.layout import Layout
from dlemu.dataset.rule import datagen_command
from dlemu.errors import DatasetError, DlemuError, RunError, WorkloadError
from dlemu.host.devices import lies_in_memory, listed, read_text
from dlemu.host.same import identity_of
from dlemu.judge.bottleneck import limit_in_memory
from dlemu.judge.folders import recorded, versions
from dlemu.judge.header import introduced
from dlemu.judge.outcome import Outcome
from dlemu.judge.records import Steps, read_steps, write_json
from dlemu.judge.summary import time_of_day
from dlemu.ranks.cost import barrier_cost
from dlemu.ranks.world import World
from dlemu.report.words import calibrated_rate, note_line, telling, told
from dlemu.report.words.places import facts_of, lines_of
from dlemu.run.forecast import probe_dataset
from dlemu.run.job import check_job, keep_survey, run_job
from dlemu.run.live import Live
from dlemu.run.workers import TwoRates
from dlemu.sizing.answers import identity_of_job
from dlemu.sizing.formula import Calibration, WorkersOfHost, step_overhead
from dlemu.sizing.predict import dataloader_of
from dlemu.storage.owned import OwnedFolder, held
from dlemu.terminal import Say, complain, say, silent
from dlemu.units import ceil_div, format_bytes

_IN_MEMORY = Path("/dev/shm")
_SCRATCH, _MARK = "dlemu-calibrate.", "dlemu-calibrate.json"
_SECONDS = 20.0
"""About how long each of the three runs reads."""
_MEMORY_BYTES = 8 << 30
"""Most bytes that are written to memory, and the largest share of what is free there."""
_MEMORY_SHARE = 0.25
_MIN_CACHED, _MOST_CACHED = 0.05, 0.5
"""Shares of the target's bytes that memory served. Above the second, no rate of a drive is told."""
_LEAST_STEPS = 20
_LEAST_BATCHES = 4
_MOST_EPOCHS = 50
_PROBE_READERS = 16
_PROBE_SECONDS = 2.0


def calibrate_host(
    workload: Workload,
    world: World,
    say: Say = say,
    live: Live | None = None,
) -> Iterator[dict[str, Any]]:
    """Make the three runs on all ranks; yield the document on rank 0, then write the calibration.

    So it is shown before it is written: the disk may have become full.

    Raises:
        RunError: a run failed, or the file cannot be written.
    """
    if world.rank != 0:
        say = silent
    check_job(workload, world)
    with ExitStack() as stack:  # on rank 0, which is the last to need the scratch folder
        if world.rank == 0:
            given = workload.output.folder
            record = stack.enter_context(recorded(given, "calibration", world, workload))

        def prepare() -> tuple[Workload, Workload, Layout | None, Path]:
            scratch = stack.enter_context(_scratch_folder())
            job, target = _find_target(workload)
            return job, _for_memory(job, world, scratch), target, scratch

        workload, memory, target, scratch = world.on_first(prepare)
        if world.rank == 0:
            num_files = target.num_files if target else None
            head = introduced(workload, host=world.host, num_files=num_files)
            say(lines_of(facts_of(head)))
            if target is not None:
                dataset = as_found(workload, target)
                keep_survey(dataset, record.folder / SURVEY)
                for line in dataset.notes:
                    say(note_line(line))
        calibration = _Calibrator(workload, world, say, scratch, live or Live()).calibrate(
            memory, target
        )
        if calibration is not None:
            stored = calibration.model_dump(mode="json")
            document = {"demand_bytes_per_second": workload.demand, **stored}
            document["dataloader"] = dataloader_of(workload, calibration, 1)
            yield document
            path = record.folder / f"calibration.{workload.name}.json"
            write_json(path, stored)
            record.complete(document)
            more: dict[str, object] = {"predict.calibration": path}
            if calibration.drive_read_bytes_per_second is None:
                more["drive"] = "d7_ps1010"  # an example
            predicts = command("predict", workload, _keys_of_both(), more)
            say(told("calibrated", path=str(path), command=predicts))


def _keys_of_both() -> list[str]:
    """Return the keys that a prediction depends on, and that a calibration is found by."""
    groups = ("dataset", "reader", "train", "metric")
    both = (key for key in all_keys() if {"predict", "calibrate"} <= {*read_by(key)})
    return [*(key for key in both if key.partition(".")[0] in groups), "drives"]


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """Make a folder in memory; clean those that killed calibrations have left."""

    def owned(path: Path) -> OwnedFolder:
        return OwnedFolder(path, _MARK, lambda name: name != _MARK, "folder", is_named=False)

    for left in map(owned, _IN_MEMORY.glob(f"{_SCRATCH}*")):
        with suppress(OSError, DlemuError), held(left.path):  # in use, or somebody else's
            if left.fields() is not None:
                left.clean()
    own = owned(_IN_MEMORY / f"{_SCRATCH}{os.getpid()}.{secrets.token_hex(4)}")
    with own.passing({"removed_by": "calibrate"}, telling(complain)):
        yield own.path


def _find_target(workload: Workload) -> tuple[Workload, Layout | None]:
    """Return the workload that reads the target's dataset, and its layout; None: no target."""
    if workload.dataset.data_folder is None:
        return workload, None
    if not workload.place.has_paths:
        raise WorkloadError(
            f"dlemu calibrate reads files, and {workload.data_folder} is {workload.place.word}; "
            "leave it out to calibrate the host alone, or measure it: dlemu size"
        )
    manifest = read_manifest(workload.data_folder)
    below = named_below(workload.place) if manifest is None else ""
    found = find_foreign(workload) if manifest is None and not below else None
    if manifest is None and found is None:
        raise DatasetError(
            f"{workload.data_folder} holds no whole dataset of dlemu's; "
            + (below or f"write some files: {datagen_command(workload, _few_files(workload))}")
        )
    if lies_in_memory(workload.data_folder):
        raise DatasetError(
            f"{workload.data_folder} lies in memory, where no storage is read; name a folder "
            "on the storage, or leave dataset.data_folder out to calibrate the host alone"
        )
    if found is not None:
        return found.workload, found.layout
    assert manifest is not None
    return workload, manifest.layout


def _few_files(workload: Workload) -> int:
    """Return the files of a dataset for the cold read: no more than a calibration has in memory."""
    file_bytes = workload.dataset.mean_bytes * workload.dataset.num_samples_per_file
    return max(_least_files(workload), int(_MEMORY_BYTES / file_bytes))


def _least_files(workload: Workload) -> int:
    """Return the files of the fewest batches that a run needs."""
    per_file = workload.dataset.num_samples_per_file
    return ceil_div(_LEAST_BATCHES * workload.reader.batch_size, per_file)


def _for_memory(workload: Workload, world: World, scratch: Path) -> Workload:
    """Return the workload with a dataset in `scratch` that fits into memory."""
    if world.num_hosts > 1:
        raise WorkloadError(
            f"dlemu calibrate measures one host, not {world.num_hosts}: start it on one, and give "
            "dlemu predict num_hosts"
        )
    if workload.train.computation_time.mean == 0:
        raise WorkloadError("train.computation_time must be above 0 for a calibration, got 0")
    room = min(_MEMORY_SHARE * shutil.disk_usage(_IN_MEMORY).free, _MEMORY_BYTES)
    batch, per_file = workload.reader.batch_size, workload.dataset.num_samples_per_file
    file_bytes = workload.dataset.mean_bytes * per_file
    fitting = int(room / file_bytes)
    least = _least_files(workload)
    if fitting < least:
        raise RunError(
            f"{_IN_MEMORY} may take {fitting} files of {format_bytes(file_bytes)} "
            f"({format_bytes(room)}), calibrate needs {least} there, {_LEAST_BATCHES} batches; "
            "free memory, or scale dataset.record_length_bytes and train.computation_time down"
        )
    wanted = ceil_div(_readers(workload, world) * _LEAST_STEPS * batch, per_file)
    return workload.with_keys(
        {
            "dataset.num_files_train": max(least, min(fitting, wanted)),
            "dataset.data_folder": str(scratch / "data"),
            "storage.storage_root": "/",
            "train.total_training_steps": -1,
            # Not every kernel's tmpfs takes O_DIRECT.
            "reader.odirect": "auto" if workload.reader.odirect else False,
        }
    )


class _Calibrator:
    """The three runs; all ranks call them alike."""

    def __init__(
        self, workload: Workload, world: World, say: Say, scratch: Path, live: Live
    ) -> None:
        self._workload, self._world, self._scratch = workload, world, scratch
        self._say, self._live = say, live

    def calibrate(self, memory: Workload, target: Layout | None) -> Calibration | None:
        """Return the figures on rank 0, None on the others."""
        many = _readers(self._workload, self._world)
        size = _num_samples(memory) * memory.dataset.mean_bytes
        self._begin(told("calibrates_one", num_files=memory.num_files, num_bytes=size))
        with self._live.doing("writing the files"):
            generate(memory, world=self._world)
        one = self._one(memory)
        self._begin(told("calibrates_many", num_accelerators=many))
        full = self._full(memory, many)
        read = self._target(target)
        if not (one and full):
            return None
        with self._live.doing("timing the workers of a DataLoader"):
            made = TwoRates.of_this_host(self._workload)
        return self._conclude(one, full, read, made)

    def _one(self, memory: Workload) -> Outcome | None:
        num_steps = _num_samples(memory) // memory.reader.batch_size
        epochs = _epochs(num_steps * memory.train.computation_time.mean)
        return self._run(memory, "one", {"num_accelerators": 1, "train.epochs": epochs})

    def _full(self, memory: Workload, many: int) -> Outcome | None:
        # Smaller batches where memory is short: the bytes that are moved stay the same.
        batch = _num_samples(memory) // (many * _LEAST_STEPS)
        keys = {
            "num_accelerators": many,
            "train.computation_time": 0.0,
            "reader.batch_size": max(1, min(memory.reader.batch_size, batch)),
        }
        first = self._run(memory, "first", keys)
        seconds = self._world.broadcast(first and sum(e.seconds for e in first.metrics.epochs))
        return self._run(memory, "full", {**keys, "train.epochs": _epochs(seconds or 1.0)})

    def _target(self, layout: Layout | None) -> Outcome | None:
        if layout is None:
            self._say(told("calibrates_no_target"))
            return None
        workload = self._workload
        with self._live.doing("probing the drive"):
            probed = self._world.on_first(
                lambda: probe_dataset(
                    as_found(workload, layout), num_readers=_PROBE_READERS, seconds=_PROBE_SECONDS
                )
            )
        rate = probed or workload.demand
        batches = layout.num_samples // workload.reader.batch_size
        # About as many as the storage may feed: fewer would not fill its queues.
        number = max(1, min(round(rate / workload.demand), batches // _LEAST_STEPS))
        num_steps = round(_SECONDS * rate / (workload.bytes_per_step * number))
        folder = str(workload.data_folder)
        self._begin(told("calibrates_target", num_accelerators=number, folder=folder))
        keys = {
            "dataset.num_files_train": layout.num_files,
            "num_accelerators": number,
            "train.computation_time": 0.0,
            "train.epochs": 1,
            "train.total_training_steps": max(_LEAST_STEPS, min(batches // number, num_steps)),
        }
        return self._run(workload, "target", keys, layout if layout.is_foreign else None)

    def _run(
        self,
        workload: Workload,
        name: str,
        keys: Mapping[str, object],
        layout: Layout | None = None,
    ) -> Outcome | None:
        keys = {
            **keys,
            "output.folder": str(self._scratch / name),
            "workflow.checkpoint": False,  # writing would slow down what is measured
            "train.first_step_time": None,
            "train.allreduce_time": 0.0,  # of the job: a prediction adds it
        }
        job = workload.with_keys(keys)
        return run_job(job, world=self._world, say=silent, live=self._live, layout=layout)

    def _begin(self, text: str) -> None:
        """Say what is measured next."""
        self._live.job = text
        self._say(text)

    def _conclude(
        self, one: Outcome, full: Outcome, read: Outcome | None, made: TwoRates | None
    ) -> Calibration:
        workload = self._workload
        share, drive, drive_limit = 0.0, None, None
        steady: Mapping[str, Any] = {"trend": "steady"}
        if read is not None:
            found = read.summary["measured"]["page_cache_share"]
            share = found or 0.0
            if found is None and "objects" not in read.summary["measured"]:
                self._say(told("from_memory_unknown"))
            if share > _MIN_CACHED:
                self._say(told("target_from_memory", share=share))
            if share > _MOST_CACHED:
                share, read = 0.0, None
        if read is not None:
            drive = _payload_rate(workload, read) * (1 - share) / workload.drives
            drive_limit = str(read.summary["limit"]["name"])
            steady = read.summary["measured"].get("steady") or steady
            if steady["trend"] == "fell":
                drive *= steady["levels"][-1]["share"]
            for line in calibrated_rate(read.summary["measured"]):
                self._say(line)
            if drive_limit != "storage":
                self._say(told("target_not_the_limit", limit=read.summary["limit"]))
        jitter = _jitter(read_steps(one.folder))
        return Calibration(
            host=self._world.host,
            host_cpus=_cores(),
            workload=workload.name,
            loader=workload.reader.data_loader,
            odirect=workload.reader.odirect is True,
            sample_bytes=workload.dataset.mean_bytes,
            read_threads=workload.reader.read_threads,
            overhead=step_overhead(
                workload.train.computation_time.mean, one.metrics.au_percentage, jitter
            ),
            jitter=jitter,
            barrier=barrier_cost().median,
            host_read_bytes_per_second=_payload_rate(workload, full),
            drive_read_bytes_per_second=drive,
            page_cache_share=share,
            overhead_limit=limit_in_memory(one.summary["limit"]["name"]),
            host_limit=limit_in_memory(full.summary["limit"]["name"]),
            drive_limit=drive_limit,
            drive_trend=steady["trend"],
            workers=None if made is None else WorkersOfHost(**vars(made)),
            measured_at=time_of_day(),
            identity=self._identity(),
        )

    def _identity(self) -> dict[str, str]:
        if self._workload.dataset.data_folder is None:
            return identity_of(None, hosts=[self._world.host], versions=versions())
        return identity_of_job(self._workload, [self._world.host])


def _jitter(steps: Steps) -> float:
    """Return the jitter of a step (σ) in seconds: the Gumbel scale of its time beyond compute."""
    inside = steps[steps["step"] > 0]
    over = inside["wait"] + inside["compute"] + inside["barrier"] - inside["computation_time"]
    low, high = np.quantile(over, [0.25, 0.75])  # a single long step does not move them
    return float(high - low) / (math.log(math.log(4)) - math.log(math.log(4 / 3)))


def _payload_rate(workload: Workload, outcome: Outcome) -> float:
    """Return bytes of samples per second: a prediction's demand counts the same bytes."""
    epochs = outcome.metrics.epochs
    samples = sum(epoch.num_samples for epoch in epochs) / sum(epoch.seconds for epoch in epochs)
    return samples * workload.dataset.mean_bytes


def _readers(workload: Workload, world: World) -> int:
    """Return the accelerators whose workers keep all CPUs of the host busy."""
    cpus = os.cpu_count() or 1
    return max(2, world.num_ranks, ceil_div(cpus, max(1, workload.reader.read_threads)))


def _cores() -> int | None:
    """Return the cores of this host, without their further threads; None: the kernel hides them."""
    cpus = listed(Path("/sys/devices/system/cpu"), "cpu[0-9]*/topology/thread_siblings_list")
    return len({read_text(path) for path in cpus} - {""}) or None


def _num_samples(workload: Workload) -> int:
    return workload.num_files * workload.dataset.num_samples_per_file


def _epochs(seconds: float) -> int:
    """Return how many epochs of this length fill the time of a run."""
    return max(1, min(_MOST_EPOCHS, round(_SECONDS / max(seconds, 1e-3))))
