"""`dlemu size`: the search of `sizing` over real runs, its files, and the table of drives.

A folder keeps every point as soon as it is measured, so that a search that was interrupted goes on
where it was:

    points.jsonl   one line a run: target, workload, and its Point
    sizing.json    the answers
    <target>.<workload>.png and .svg, table.md, table.csv
    runs/          each run's own folder
"""

import csv
import io
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dlemu.datagen import read_manifest
from dlemu.devices import devices_under
from dlemu.errors import DatasetError, RunError, WorkloadError
from dlemu.files import STEPS_PER_EPOCH, dataset_size
from dlemu.job import Outcome, Say, run_job
from dlemu.records import write_json
from dlemu.settle import measure_memory
from dlemu.sizing import Event, Point, Sizing, search
from dlemu.units import format_rate, format_seconds
from dlemu.workload import Workload, load_workload
from dlemu.world import World


@dataclass(frozen=True)
class Target:
    """One storage to be sized."""

    name: str
    folder: str
    num_drives: int


@dataclass(frozen=True)
class Sized:
    """The answer for one target and workload."""

    target: Target
    workload: Workload
    sizing: Sizing
    dataset_bytes: float


def size_storage(workload: Workload, world: World, say: Say = print) -> int:
    """Search for the most accelerators of every target and workload; return the exit status.

    0: every search found at least one accelerator; 2: one alone fails somewhere.

    Raises:
        WorkloadError: a target is no folder, or the range of numbers is empty.
        DatasetError: a dataset is missing, or too small for a number that has to be tried.
    """
    folder = world.broadcast(_base_folder(workload))
    if world.rank != 0:
        say = _silent
    targets = find_targets(workload, world, say)
    jobs = [
        (target, _workload_for(workload, name, target))
        for target in targets
        for name in workload.size.workloads or (None,)
    ]
    sized = []
    for target, job in jobs:
        say(f"\n{job.name} on {target.name} ({target.folder})")
        answer = _size_one(job, target, folder, world, say)
        if answer is None:
            continue
        sized.append(answer)
        write_json(folder / "sizing.json", _as_json(sized))
        (folder / "table.md").write_text(render_table(sized, markdown=True))
        (folder / "table.csv").write_text(render_csv(sized))
        _plot(answer, folder, say)
        say(f"\n{render_sizing(answer)}")
    status = 0
    if world.rank == 0:
        if len(sized) > 1:
            _plot_all(sized, folder, say)
            say(f"\n{render_table(sized)}")
        say(f"results: {folder}")
        status = 2 if any(each.sizing.num_accelerators == 0 for each in sized) else 0
    return world.broadcast(status)


def find_targets(workload: Workload, world: World, say: Say = print) -> list[Target]:
    """Return the targets with their names and drive counts; two on one device are warned of.

    Raises:
        WorkloadError: a target is no folder, or names or drives do not fit the targets.
    """
    size = workload.size
    folders = size.targets or (str(workload.data_folder),)
    for key, values in (("size.names", size.names), ("size.drives", size.drives)):
        if values and len(values) != len(folders):
            raise WorkloadError(
                f"{key} must have one value a target ({len(folders)}), got {len(values)}"
            )
    targets: list[Target] = []
    devices_of: dict[str, tuple[str, ...]] = {}
    for number, folder in enumerate(folders):
        if not Path(folder).is_dir():
            raise WorkloadError(f"size.targets: {folder} is no folder; dlemu datagen makes it")
        devices = tuple(device.name for device in devices_under(Path(folder)))
        name = size.names[number] if size.names else Path(folder).name
        drives = size.drives[number] if size.drives else max(1, len(devices))
        for other, other_devices in devices_of.items():
            if set(devices) & set(other_devices):
                say(f"warning: {name} and {other} share {', '.join(devices)}: one drive, twice")
        devices_of[name] = devices
        targets.append(Target(name, folder, drives))
    return targets


def _size_one(
    workload: Workload, target: Target, folder: Path, world: World, say: Say
) -> Sized | None:
    """Search on rank 0, and run on the others what it orders. Return the answer on rank 0."""
    workload = _settled(workload)
    if world.rank != 0:
        while (order := world.broadcast(_no_order())) is not None:
            _carry_out(workload, order, world)
        return None
    name = f"{target.name}.{workload.name}"
    path = folder / "points.jsonl"
    known = _read_points(path, name)
    if known:
        say(f"continuing after {len(known)} runs in {path}")
    num_runs = len(known)

    def measure(number: int) -> Point:
        nonlocal num_runs
        begin = time.perf_counter()
        run_folder = folder / "runs" / f"{name}.{datetime.now():%Y%m%d-%H%M%S}.n{number}"
        order = _Order(number, workload.train.seed + num_runs, str(run_folder))
        world.broadcast(order)
        outcome = _carry_out(workload, order, world)
        assert outcome is not None
        point = _point(outcome, number, time.perf_counter() - begin)
        _append_point(path, name, point)
        num_runs += 1
        return point

    size = workload.size
    sizing = search(
        measure,
        threshold=100 * workload.metric.au,
        max_accelerators=size.max_accelerators,
        start=size.start or 1,
        confirm=size.confirm,
        known=known,
        on_event=lambda event: say(_describe(event)),
    )
    world.broadcast(_no_order())
    num_bytes = workload.num_files * workload.dataset.num_samples_per_file
    return Sized(target, workload, sizing, num_bytes * workload.dataset.mean_bytes)


@dataclass(frozen=True)
class _Order:
    """What rank 0 tells the others to run."""

    num_accelerators: int
    seed: int
    folder: str


def _no_order() -> _Order | None:
    return None


def _carry_out(workload: Workload, order: _Order, world: World) -> Outcome | None:
    """Make one run on all ranks."""
    _check_dataset(workload, order.num_accelerators, world)
    outcome = run_job(
        workload.with_keys(
            {
                "num_accelerators": order.num_accelerators,
                "train.seed": order.seed,
                "output.folder": order.folder,
            }
        ),
        world=world,
        say=_silent,
    )
    if outcome is not None and outcome.summary["status"] != "complete":
        raise RunError(str(outcome.summary.get("error")))
    return outcome


def _settled(workload: Workload) -> Workload:
    """Return the workload with the number of files that lie in its folder.

    Raises:
        DatasetError: there is no dataset.
    """
    if workload.dataset.num_files_train == "auto":
        manifest = read_manifest(workload.data_folder)
        if manifest is None:
            raise DatasetError(
                f"{workload.data_folder} holds no dataset of dlemu's; write it: dlemu datagen "
                f"workload={workload.name} dataset.data_folder={workload.data_folder} "
                "num_accelerators=N dataset.num_files_train=auto"
            )
        workload = workload.with_keys({"dataset.num_files_train": manifest.layout.num_files})
    if workload.size.quick:
        workload = workload.with_keys({"reader.odirect": True})
    return workload


def _check_dataset(workload: Workload, number: int, world: World) -> None:
    """Refuse a dataset that is too small for so many accelerators, unless the search is quick."""
    memory = measure_memory(workload, world)
    size = dataset_size(workload, num_accelerators=number, host_memory=memory.num_bytes)
    if workload.num_files >= size.num_files or workload.size.quick:
        return
    why = f"{STEPS_PER_EPOCH} steps an epoch" if size.won == "steps" else "5 x memory"
    raise DatasetError(
        f"{number} accelerators need {size.num_files} files ({why}), {workload.data_folder} has "
        f"{workload.num_files}; write them: dlemu datagen workload={workload.name} "
        f"dataset.data_folder={workload.data_folder} num_accelerators={number} "
        "dataset.num_files_train=auto, or take size.quick=true and a result that says so"
    )


def _point(outcome: Outcome, number: int, seconds: float) -> Point:
    metrics = outcome.metrics
    return Point(
        num_accelerators=number,
        au_percentage=metrics.au_percentage,
        samples_per_second=metrics.samples_per_second,
        read_bytes_per_second=metrics.read_bytes_per_second,
        limit=outcome.summary["limit"]["name"],
        seconds=seconds,
    )


def _describe(event: Event) -> str:
    """Return a line for the run just made, and what comes next."""
    parts = []
    if event.point is not None:
        point = event.point
        parts.append(
            f"  {point.num_accelerators:>4} accelerators: AU {point.au_percentage:6.2f}%, "
            f"{point.samples_per_second:.1f} samples/s, "
            f"{format_rate(point.read_bytes_per_second)}, limit {point.limit}"
        )
    then = "done" if event.next is None else f"next {event.next}"
    parts.append(f"  {then}: {event.reason}")
    return "\n".join(parts)


def render_sizing(sized: Sized) -> str:
    """Return one answer as text."""
    sizing, workload = sized.sizing, sized.workload
    low, high = sizing.interval
    upper = "no upper bound" if high is None else f"{high:.2f}"
    runs = ", ".join(f"{point.au_percentage:.2f}" for point in sizing.confirmations)
    best = sizing.confirmations[-1] if sizing.confirmations else sizing.points[-1]
    number = f"at least {sizing.num_accelerators}" if sizing.at_least else sizing.num_accelerators
    lines = [
        f"{sized.target.name} feeds {number} {workload.name} accelerators "
        f"(N* {sizing.real_accelerators:.2f}, 95% interval {low:.2f} to {upper})",
        f"at {best.num_accelerators}: {format_rate(best.read_bytes_per_second)}, "
        f"{best.samples_per_second:.1f} samples/s"
        + (f", utilisation of the confirming runs {runs}%" if runs else ""),
        f"limit: {sizing.limit}; {len(sizing.points)} runs in {format_seconds(sizing.seconds)}",
    ]
    if sizing.at_least:
        lines.append("the host, not the storage, was the limit: this is no number of the drive")
    if workload.size.quick:
        lines.append("quick: the dataset is smaller than the rule asks for, read with O_DIRECT")
    return "\n".join(lines)


_COLUMNS = ("workload", "target", "drives", "accelerators", "dataset GiB", "AU (%)", "MiB/s")


def render_table(sized: Sequence[Sized], *, markdown: bool = False) -> str:
    """Return the table of drives, like the published ones."""
    rows = [_COLUMNS, *(_cells(each) for each in sized)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    if not markdown:
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
    marked = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([marked[0], "|---" * len(_COLUMNS) + "|", *marked[1:]]) + "\n"


def render_csv(sized: Sequence[Sized]) -> str:
    """Return the same table as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(_cells(each) for each in sized)
    return out.getvalue()


def _cells(sized: Sized) -> tuple[str, ...]:
    sizing = sized.sizing
    shown = sizing.confirmations or sizing.points[-1:]
    mark = "≥ " if sizing.at_least else ""
    rate = sum(point.samples_per_second for point in shown) / len(shown)
    return (
        sized.workload.name,
        sized.target.name,
        str(sized.target.num_drives),
        f"{mark}{sizing.num_accelerators}",
        f"{sized.dataset_bytes / 2**30:.0f}",
        " ".join(f"{point.au_percentage:.2f}" for point in shown),
        f"{rate * sized.workload.dataset.mean_bytes / 2**20:.2f}",
    )


def _as_json(sized: Sequence[Sized]) -> Any:
    """Return the answers for sizing.json: one object, or a list where there are several."""
    answers = [
        {
            "workload": each.workload.name,
            "target": each.target.name,
            "data_folder": each.target.folder,
            "drives": each.target.num_drives,
            "num_accelerators": each.sizing.num_accelerators,
            "real_accelerators": each.sizing.real_accelerators,
            "at_least": each.sizing.at_least,
            "interval": each.sizing.interval,
            "threshold": each.sizing.threshold,
            "limit": each.sizing.limit,
            "quick": each.workload.size.quick,
            "dataset_bytes": each.dataset_bytes,
            "seconds": each.sizing.seconds,
            "points": [asdict(point) for point in each.sizing.points],
            "confirmations": [asdict(point) for point in each.sizing.confirmations],
        }
        for each in sized
    ]
    return answers[0] if len(answers) == 1 else answers


def _workload_for(workload: Workload, name: str | None, target: Target) -> Workload:
    """Return the workload of one cell of the table, with the user's own keys laid over it."""
    keys: dict[str, object] = {}
    if name is not None and name != workload.name:
        tree = workload.model_dump()
        for key in workload.given:
            value: Any = tree
            for part in key.split("."):
                value = value[part]
            keys[key] = value
        workload = load_workload(name, keys)
    folder = Path(target.folder)
    # One folder may hold a dataset for each workload.
    if (folder / workload.name).is_dir():
        folder /= workload.name
    return workload.with_keys({"dataset.data_folder": str(folder)})


def _base_folder(workload: Workload) -> Path:
    if workload.output.folder is not None:
        folder = Path(workload.output.folder)
    else:
        folder = Path("outputs") / "size" / f"{datetime.now():%Y%m%d-%H%M%S}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkloadError(
            f"output.folder {folder} cannot be written ({error.strerror}); set output.folder"
        ) from None
    return folder


def _append_point(path: Path, name: str, point: Point) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"search": name} | asdict(point)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _read_points(path: Path, name: str) -> list[Point]:
    """Return the points of a search that was interrupted; a line cut short is left out."""
    if not path.exists():
        return []
    points = []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            record = json.loads(line)
            if record.pop("search") == name:
                points.append(Point(**record))
    return points


def _plot(sized: Sized, folder: Path, say: Callable[[str], None]) -> None:
    """Draw AU and GB/s over N, where matplotlib is installed."""
    try:
        from dlemu.plots import plot_sizing
    except ModuleNotFoundError:
        say("no plot: matplotlib is missing (pip install 'dlemu[plot]')")
        return
    plot_sizing(
        sized.sizing,
        folder / f"{sized.target.name}.{sized.workload.name}",
        title=f"{sized.workload.name} on {sized.target.name}",
    )


def _plot_all(sized: Sequence[Sized], folder: Path, say: Callable[[str], None]) -> None:
    try:
        from dlemu.plots import plot_table
    except ModuleNotFoundError:
        return
    plot_table(
        [(s.workload.name, s.target.name, s.sizing.num_accelerators) for s in sized],
        folder / "table",
    )


def _silent(text: str) -> None:
    """The search speaks, its runs do not."""
