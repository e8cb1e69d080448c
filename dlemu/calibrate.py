"""`dlemu calibrate`: what this host moves for a workload, and what the storage gives its reads.

Three runs: one accelerator on a dataset in memory (overhead and jitter of a step), many on the same
one without computing (what the host moves), and the target read cold, without computing, in the
loader's own pattern. The result file is what `dlemu predict predict.calibration=FILE` takes.
"""

import math
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from dlemu.datagen import generate
from dlemu.errors import RunError
from dlemu.files import layout_of
from dlemu.job import Outcome, Say, run_job
from dlemu.prediction import Calibration, CalibrationFile
from dlemu.prediction import calibrate as fit
from dlemu.records import read_steps
from dlemu.units import format_bytes, format_rate, format_seconds
from dlemu.workload import Workload
from dlemu.world import World

_IN_MEMORY = Path("/dev/shm")
_SECONDS = 60.0
"""About how long each of the three runs may take."""
_LEAST_STEPS = 20
_MEMORY_SHARE = 0.25
"""Part of what is free in memory that the dataset there may take."""


def calibrate_host(workload: Workload, world: World, say: Say = print) -> int:
    """Make the three runs on all ranks and write the calibration; return the exit status.

    Raises:
        RunError: memory has no room for a few batches.
        DlemuError: a run failed.
    """
    if world.rank != 0:
        say = _silent
    scratch = world.broadcast(
        Path(tempfile.mkdtemp(prefix="dlemu-calibrate.", dir=_IN_MEMORY))
        if world.rank == 0
        else None
    )
    assert scratch is not None
    try:
        calibration = _calibrate(workload, world, say, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if calibration is not None:
        path = Path(workload.output.folder or ".") / f"calibration.{workload.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        file = CalibrationFile(host=world.host, calibrations=(calibration,))
        path.write_text(file.model_dump_json(indent=2) + "\n")
        say(f"\n{render_calibration(workload, calibration)}\nresult: {path}")
        say(f"dlemu predict workload={workload.name} predict.calibration={path}")
    return 0


def render_calibration(workload: Workload, calibration: Calibration) -> str:
    """Return the figures of a calibration as text."""
    drive = calibration.drive_read_bytes_per_second
    host = calibration.host_read_bytes_per_second
    return "\n".join(
        [
            f"{workload.name}, reader.data_loader={calibration.loader}",
            f"overhead of a step       {format_seconds(calibration.overhead)}",
            f"jitter of a step         {format_seconds(calibration.jitter)}",
            f"this host moves          {format_rate(host)}, enough for "
            f"{host / workload.demand:.1f} accelerators",
            f"the target gives         {'-' if drive is None else format_rate(drive)}"
            + ("" if drive is None else f", enough for {drive / workload.demand:.1f}"),
        ]
    )


def _calibrate(workload: Workload, world: World, say: Say, scratch: Path) -> Calibration | None:
    reader, train = workload.reader, workload.train
    in_memory = _small(workload, world, scratch)
    say(
        f"1/3 one accelerator, {in_memory.num_files} files in memory "
        f"({format_bytes(in_memory.num_files * _file_bytes(workload))})"
    )
    generate(in_memory, world=world)
    steps = max(_LEAST_STEPS, int(_SECONDS / max(train.computation_time.mean, 1e-3)))
    have = in_memory.num_files * workload.dataset.num_samples_per_file // reader.batch_size
    one = _run(
        in_memory,
        world,
        scratch / "one",
        {
            "num_accelerators": 1,
            "train.epochs": max(1, min(50, steps // have)),
        },
    )
    most = max(1, have // _LEAST_STEPS)
    # Readers enough to keep every CPU busy.
    per_host = -(-(os.cpu_count() or 1) // max(1, reader.read_threads))
    many = max(1, min(most, max(2, world.num_ranks, world.num_hosts * per_host)))
    say(f"2/3 {many} accelerators that do not compute, from memory")
    full = _run(
        in_memory,
        world,
        scratch / "full",
        {
            "num_accelerators": many,
            "train.computation_time": 0.0,
            "train.epochs": 3,
        },
    )
    target = None
    if workload.dataset.data_folder is not None:
        say(f"3/3 {many} accelerators that do not compute, from {workload.data_folder}")
        target = _run(
            workload,
            world,
            scratch / "target",
            {
                "num_accelerators": many,
                "train.computation_time": 0.0,
                "train.epochs": 1,
                "train.total_training_steps": _steps_for(workload, many),
            },
        )
    else:
        say("3/3 left out: dataset.data_folder is not set")
    if one is None or full is None:
        return None
    step_times = read_steps(one.folder)
    inside = step_times[step_times["step"] > 0]
    seconds = inside["wait"] + inside["compute"] + inside["barrier"]
    over = np.maximum(seconds - inside["computation_time"], 0)
    # Gumbel's scale, from the spread of the middle half: a single hiccup is not jitter.
    low, high = np.quantile(over, [0.25, 0.75])
    jitter = float(high - low) / (math.log(math.log(4)) - math.log(math.log(4 / 3)))
    measured = fit(
        workload=workload.name,
        loader=reader.data_loader,
        odirect=reader.odirect is True,
        computation_time=train.computation_time.mean,
        batch_bytes=workload.bytes_per_step,
        one_au_percentage=one.metrics.au_percentage,
        full_accelerators=1,
        full_au_percentage=100.0,
        jitter=jitter,
    )
    rates = {"host_read_bytes_per_second": full.metrics.read_bytes_per_second}
    if target is not None:
        rates["drive_read_bytes_per_second"] = (
            target.metrics.read_bytes_per_second / workload.drives
        )
    return measured.model_copy(update=rates)


def _run(workload: Workload, world: World, folder: Path, keys: dict[str, object]) -> Outcome | None:
    workload = workload.with_keys({**keys, "output.folder": str(folder)})
    outcome = run_job(workload, world=world, say=_silent)
    if outcome is not None and outcome.summary["status"] != "complete":
        raise RunError(str(outcome.summary.get("error")))
    return outcome


def _small(workload: Workload, world: World, scratch: Path) -> Workload:
    """Return the workload on as many files as memory has room for, up to a minute's reading."""
    room = world.broadcast(shutil.disk_usage(scratch).free * _MEMORY_SHARE)
    per_file = workload.dataset.num_samples_per_file
    needed = math.ceil(2 * _LEAST_STEPS * workload.reader.batch_size / per_file)
    fitting = int(room / _file_bytes(workload))
    if fitting * per_file < 4 * workload.reader.batch_size:
        raise RunError(
            f"{_IN_MEMORY} has room for {fitting} files of {format_bytes(_file_bytes(workload))}, "
            "calibrate needs 4 batches there; free memory, or scale dataset.record_length_bytes "
            "and train.computation_time down together"
        )
    num_files = max(min(fitting, needed), -(-4 * workload.reader.batch_size // per_file))
    small = workload.with_keys(
        {
            "dataset.num_files_train": num_files,
            "dataset.data_folder": str(scratch / "data"),
            "storage.storage_root": "/",
            "reader.odirect": False,  # memory does not take it, and would not be cold either
        }
    )
    layout_of(small)
    return small


def _file_bytes(workload: Workload) -> float:
    return workload.dataset.mean_bytes * workload.dataset.num_samples_per_file


def _steps_for(workload: Workload, accelerators: int) -> int:
    """Return the steps of about 30 GB, or of what there is."""
    return max(_LEAST_STEPS, int(30e9 / (workload.bytes_per_step * accelerators)))


def _silent(text: str) -> None:
    """The calibration speaks, its runs do not."""
