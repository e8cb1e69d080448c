"""A sweep over the data paths of targets, as vendors publish it for GPUDirect Storage.

1. places    each target with its NUMA node and its GPU, and what can be measured there
2. rounds    what is measured at once: a combination of path, pattern, block size, workers and depth
             on one target, or on all of them; under MPI each rank has a share of the targets
3. measure   each round for some seconds; cells.jsonl keeps those done, which are not measured again
"""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, model_validator

from dlemu.config.model import NamedDrive
from dlemu.config.types import Arguments, Listed, LocalPath, ResultsFolder, Size, Switch
from dlemu.errors import DAMAGE, DlemuError, RunError, in_short
from dlemu.findings import Finding, Tell, note
from dlemu.host.place import cpus_of_node, find_attachment, find_connection
from dlemu.host.same import age_of, identity_of, what_differs
from dlemu.host.wear import WearFields, WearWatch, combine_hosts, has_writes
from dlemu.judge.folders import recorded, versions
from dlemu.judge.records import JsonLines
from dlemu.judge.summary import time_of_day
from dlemu.ranks.world import Alone, World
from dlemu.storage.folder import local_place
from dlemu.storage.gpu import cuda
from dlemu.storage.gpu.cufile import lists_gpu
from dlemu.storage.owned import held
from dlemu.terminal import silent
from dlemu.tools.paths.blocks import TO_GPU, CellJob, CellSpec, DataPath, Pattern
from dlemu.tools.paths.cells import (
    SECTOR,
    SUM,
    Cell,
    OnBegin,
    PathUnusableError,
    RankTarget,
    least_block,
    measure,
    memory_rate,
    sum_of,
    works_of,
)
from dlemu.units import (
    PAGE_BYTES,
    counted,
    format_bytes,
)

CELLS = "cells.jsonl"
"""Keeps the cells that were measured."""
_LEAST_AGE_SECONDS = 60.0
"""Of a cell measured before, where its age is said."""
WEAR = "wear.jsonl"
"""Keeps what was written to the drives, a line for each command that wrote enough to tell."""

OnWear = Callable[[WearFields], object]


def _block(size: int) -> int:
    if size <= 0 or size % (PAGE_BYTES if size > PAGE_BYTES else SECTOR):
        raise ValueError(
            f"must be a multiple of {PAGE_BYTES} bytes, or of {SECTOR} below that, got {size}: "
            "O_DIRECT and cuFile take nothing else"
        )
    return size


def _pair(text: str) -> str:
    if not re.fullmatch(r".+:gpu\d{1,3}", text):
        raise ValueError(f"must be TARGET:gpuNUMBER, as /mnt/d0:gpu0, got {text}")
    return text


def _together(value: object) -> object:
    """Take true and false, also as texts, as "on" and "off"."""
    return {"true": "on", "false": "off"}.get(str(value).lower(), value)


class Sweep(Arguments):
    """The keys of `dlemu paths`; every combination of their values is a cell."""

    target: Listed[LocalPath] = ()
    """Folders, instead of FOLDER: a local drive, a remote mount. A block device is read only."""
    together: Annotated[Literal["off", "on", "both"] | None, BeforeValidator(_together)] = None
    """Measure all targets at the same time, and their sum; "both": each alone as well. None: on
    with pairs and under mpirun, where each rank has a share of the targets, else off."""
    pairs: Listed[Annotated[str, AfterValidator(_pair)]] = ()
    """Targets, each with the GPU that its bytes go to: [/mnt/d0:gpu0,/mnt/d1:gpu1]."""
    gpu: Annotated[int, Field(ge=0, lt=1000)] | None = None
    """Number of the GPU for all targets. None: the nearest to each one's drive."""
    seconds: Annotated[float, Field(gt=0, le=86_400)] = 45.0
    """Seconds of each measurement, as in the published tables."""
    io_sizes: Listed[Annotated[Size, AfterValidator(_block)]] = tuple(
        kib << 10 for kib in (4, 16, 64, 128, 512, 1024, 4096)
    )
    """Bytes of a block; 512B where the device allows it."""
    queue_depths: Listed[Annotated[int, Field(ge=1, le=4096)]] | None = None
    """Blocks that each worker has in flight; compares processes and io_uring. None: one, and no
    path that is for more."""
    workers: Listed[Annotated[int, Field(ge=1, le=1024)]] = (8,)
    """Processes that read or write at once."""
    patterns: Listed[Pattern] = ("seq_read", "random_read")
    """Writing wears drives, so it must be asked for."""
    paths: Listed[DataPath] | None = None
    """None: all that work here. One that is named and does not work is an error."""
    file_size: Size | None = None
    """Bytes of each worker's file, or part of a block device. None: 2 GiB, less if that would take
    over a quarter of the free space, and more if the largest block at the greatest depth needs it;
    an equal part of the device."""
    drive: NamedDrive | None = None
    """Datasheet of the targets' drives, to compare with."""
    drives: Annotated[int, Field(ge=1)] = 1
    """Number of such drives below each target."""
    output: ResultsFolder = Path("outputs/paths")
    """Folder for cells.jsonl, summary.json, paths.csv and pictures. The same command goes on there
    where it was interrupted."""
    progress: Switch = "on"
    """Show on stderr what is being measured."""

    @model_validator(mode="after")
    def _places(self) -> Self:
        if self.file_size is not None and self.file_size < self.least_bytes:
            deep = "" if max(self.depths) == 1 else " x the largest of queue_depths"
            raise ValueError(
                f"file_size must be at least the largest of io_sizes{deep}, {self.least_bytes} "
                f"bytes, got {self.file_size}"
            )
        named = [target for target, _ in self.targets]
        if self.pairs and (self.target or self.gpu is not None):
            raise ValueError("pairs name target and gpu; leave out the folder, target= and gpu=")
        if not named:
            raise ValueError("no target to measure; write dlemu paths FOLDER")
        if twice := next((each for each in named if named.count(each) > 1), None):
            raise ValueError(f"target {twice} is named twice; name it once")
        return self

    @property
    def targets(self) -> tuple[tuple[Path, int | None], ...]:
        """Each target, and the GPU that is asked for; None: the nearest."""
        pairs = [pair.rpartition(":gpu") for pair in self.pairs]
        named = ((Path(target), int(number)) for target, _, number in pairs)
        return (*named, *((target, self.gpu) for target in self.target))

    @property
    def depths(self) -> tuple[int, ...]:
        """Blocks that each worker has in flight."""
        return self.queue_depths or (1,)

    @property
    def least_bytes(self) -> int:
        """Bytes of each worker that may be in flight at once."""
        return max(self.io_sizes) * max(self.depths)

    @property
    def compared(self) -> tuple[DataPath, ...]:
        """Paths to measure where none are named; with one block in flight io_uring is no news."""
        if self.queue_depths is not None:
            return "host_direct", "host_io_uring"
        return "host_buffered", "host_direct", *(TO_GPU if lists_gpu() else ())


def run_paths(
    sweep: Sweep,
    on_event: Tell,
    on_begin: OnBegin = lambda phase: None,
    on_wear: OnWear = lambda wear: None,
    *,
    world: World | None = None,
) -> list[Cell]:
    """Measure the cells that the output folder lacks; return all, on ranks other than 0 none.

    `on_event` gets what is found, `on_begin` what is done next, `on_wear` what was written; all on
    rank 0 only. All ranks call it.
    """
    world = Alone() if world is None else world
    if world.rank != 0:
        on_event = on_begin = silent
    with ExitStack() as stack:
        places = _places(sweep, world, stack, dry=False)
        rounds = list(_rounds(sweep, places, world))  # what cannot be is refused before a word
        for found in _notes_of(places):
            on_event(found)
        wanted = [each for cells in rounds for each in cells]
        if world.rank == 0:
            record = stack.enter_context(recorded(sweep.output, "paths", world, key="output"))
        known = _known_cells(sweep, places, world, on_event)
        plan = SweepPlan.of(sweep, rounds, known)
        on_event(plan.summary)
        for cell in _measure_all(sweep, plan.left, places, world, on_event, on_begin, on_wear):
            known[cell.asked] = cell
        if world.rank != 0:
            return []
        shapes = {each.shape for each in wanted}
        # Earlier sweeps of other targets, or of the same with other queues, join the table.
        others = [each for each in known if each not in wanted and each.shape in shapes]
        cells = [known[each] for each in (*others, *wanted)]
        record.complete(document_of(cells, sweep.output))
        return cells


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep will measure."""

    seconds: float
    """Of each round."""
    left: Sequence[Sequence[CellSpec]]
    """The rounds that are to be measured."""
    num_cells: int
    num_known: int
    """Of these, that were measured before."""
    notes: Sequence[Finding] = ()
    """On the targets, and on what was measured before; where nothing is measured now."""

    @classmethod
    def of(
        cls,
        sweep: Sweep,
        rounds: Sequence[Sequence[CellSpec]],
        known: Mapping[CellSpec, Cell],
        notes: Sequence[Finding] = (),
    ) -> Self:
        """Return the plan; `known` are the cells that were measured before."""
        asked = [each for cells in rounds for each in cells if each.target != SUM]
        left = [cells for cells in rounds if not known.keys() >= {*cells}]
        return cls(sweep.seconds, left, len(asked), sum(each in known for each in asked), notes)

    @property
    def summary(self) -> Finding:
        """How many cells there are, and how long those take that are left."""
        return note(
            "cells_planned",
            cells=self.num_cells,
            known=self.num_known,
            left=len(self.left),
            seconds=self.seconds,
        )


def plan_paths(sweep: Sweep, world: World) -> SweepPlan:
    """Return what `run_paths` would measure, without writing anything; all ranks call it."""
    notes = list[Finding]()
    with ExitStack() as stack:
        places = _places(sweep, world, stack, dry=True)
        rounds = list(_rounds(sweep, places, world))
        notes += _notes_of(places)
        known = _known_cells(sweep, places, world, notes.append)
    return SweepPlan.of(sweep, rounds, known, notes)


def _notes_of(places: Sequence[RankTarget]) -> list[Finding]:
    return [note for place in places for note in place.notes]


def document_of(cells: Sequence[Cell], folder: Path) -> dict[str, Any]:
    """Return the document of a sweep, with the day of its last cell."""
    kept = folder / CELLS
    last = datetime.fromtimestamp(kept.stat().st_mtime, UTC) if kept.exists() else datetime.now(UTC)
    rows = [asdict(cell) for cell in cells]
    return {"kind": "paths", "day": last.date().isoformat(), "cells": rows}


def _places(sweep: Sweep, world: World, stack: ExitStack, *, dry: bool) -> list[RankTarget]:
    """Return all targets in order of rank; of several ranks that fail, the first says why."""
    found, error = list[RankTarget](), None
    try:
        found = _own_places(sweep, world, stack, dry=dry)
    except DlemuError as failure:
        error = failure
    all_found = world.all_gather((found, error is not None))
    failed = [rank for rank, (_, is_failed) in enumerate(all_found) if is_failed]
    if error is not None and failed[0] == world.rank:
        raise error
    if failed:
        world.barrier()  # raises what the rank that failed tells
    return [each for found, _ in all_found for each in found]


def _own_places(sweep: Sweep, world: World, stack: ExitStack, *, dry: bool) -> list[RankTarget]:
    """Return this rank's share of the host's targets, and hold them; a rank may have none."""
    memory = memory_rate() if world.local_rank == 0 and not dry else 0.0  # the others wait
    rates = world.all_gather((world.host, memory))
    memory = max(rate for host, rate in rates if host == world.host)
    share = sweep.targets[world.local_rank :: world.num_local_ranks]
    writes = next((pattern for pattern in sweep.patterns if pattern.endswith("write")), None)
    for target, _ in share:
        if not (place := local_place(target)).is_there():
            raise RunError(
                f"target {target} is no folder and no block device", remedy="create or mount it"
            )
        if writes and not place.takes_files:
            raise RunError(
                f"patterns={writes} would overwrite the block device {target}, which is only read",
                remedy="leave it out, or name a folder",
            )
        # The files of two sweeps would have the same names. The results hold their own folder.
        is_output = world.rank == 0 and target.resolve() == sweep.output.resolve()
        if target.is_dir() and not is_output:
            stack.enter_context(held(target, key="target"))
    return [_place(sweep, target, gpu, world, memory) for target, gpu in share]


def _place(sweep: Sweep, target: Path, gpu: int | None, world: World, memory: float) -> RankTarget:
    name = f"{world.host}:{target}" if world.num_hosts > 1 else str(target)
    notes: list[Finding] = []
    least = _least_blocks(sweep, target, notes)
    gpus: list[str] = []
    if least.keys() & {*TO_GPU}:
        with suppress(RunError):
            gpus = [cuda.pci_address(number) for number in range(cuda.num_gpus())]
    if gpu is not None and gpu >= len(gpus):
        raise RunError(
            f"gpu {gpu} for target {target}: there {'is' if len(gpus) == 1 else 'are'} "
            f"{counted(len(gpus), 'GPU')} that can be read into",
            remedy="name another, or leave it out",
        )
    attached = find_attachment(target, gpus)
    text, queues = find_connection(target) or ("", None)
    if sweep.queue_depths is None and len(sweep.targets) == 1:
        text = ""
    usable = os.sched_getaffinity(0)
    near = usable.intersection(() if attached.node is None else cpus_of_node(attached.node))
    nearest = gpu is None and attached.gpu is not None
    if gpus:
        gpu = gpu if gpu is not None else attached.gpu or 0
    if text or near or gpus:
        notes.append(
            note(
                "target_attached",
                target=name,
                connection=text,
                numa_node=attached.node if near else None,
                gpu=gpu if gpus else None,
                address=gpus[gpu or 0] if gpus else None,
                is_nearest=nearest,
            )
        )
    num_cpus = os.cpu_count() or 1
    if world.num_ranks > 1 and len(usable) < num_cpus:
        notes.append(note("rank_bound", target=name, usable=len(usable), cpus=num_cpus))
    # Paths vary fastest: what is compared is measured shortly after each other.
    cells = [
        CellSpec(
            target=name,
            path=path,
            pattern=pattern,
            io_size=io_size,
            workers=workers,
            seconds=sweep.seconds,
            queue_depth=depth,
            queues=queues,
            gpu=gpu if path in TO_GPU else None,
        )
        for pattern, workers, io_size, depth, path in itertools.product(
            sweep.patterns, sweep.workers, sweep.io_sizes, sweep.depths, least
        )
        if io_size >= least[path]
    ]
    return RankTarget(
        name=name,
        target=target,
        rank=world.rank,
        host=world.host,
        cells=cells,
        attached=attached,
        identity=identity_of(target, hosts=[world.host], versions=versions()),
        cpus=tuple(sorted(near)),
        notes=notes,
        memory_rate=memory,
        drive=sweep.drive,
        drives=sweep.drives,
    )


def _least_blocks(sweep: Sweep, target: Path, notes: list[Finding]) -> dict[DataPath, int]:
    """Return the bytes of the smallest block of each path that works; a note on what does not.

    Raises:
        RunError: a path that was asked for does not work.
    """
    least: dict[DataPath, int] = {}
    for path in sweep.paths or sweep.compared:
        try:
            least[path] = least_block(path, target)
        except PathUnusableError as error:
            if sweep.paths is not None:
                raise RunError(
                    f"paths={path} does not work on {target}: {error}", remedy="leave it out"
                ) from None
            notes.append(note("path_left_out", target=str(target), path=path, error=str(error)))
    for path, size in itertools.product(least, sweep.io_sizes):
        if size < least[path]:
            where = {"target": str(target), "path": path}
            bounds = {"size": size, "least": least[path], "by_the_device": path != "cufile"}
            notes.append(note("blocks_too_small", **where, **bounds))
    return least


def _rounds(sweep: Sweep, places: Sequence[RankTarget], world: World) -> Iterator[list[CellSpec]]:
    """Yield the cells that are measured at once; behind those of several targets that of the sum.

    Of what is measured together, each target must be able to do it.
    """
    together = sweep.together
    if together is None:
        by_itself = sweep.pairs or world.num_ranks > 1
        together = "on" if len(places) > 1 and by_itself else "off"
    elif together != "off" and len(places) == 1:
        raise RunError(f"together={together} needs several targets", remedy="write target=A,B")
    by_shape: dict[CellSpec, list[CellSpec]] = {}
    for cell in itertools.chain.from_iterable(place.cells for place in places):
        by_shape.setdefault(cell.shape, []).append(cell)
    for cells in by_shape.values():
        if together != "on":
            yield from ([cell] for cell in cells)
        if together != "off" and len(cells) == len(places):
            names = tuple(cell.target for cell in cells)
            at_once = [replace(cell, together=names) for cell in cells]
            yield [*at_once, sum_of(at_once[0])]


def _measure_all(
    sweep: Sweep,
    rounds: Sequence[Sequence[CellSpec]],
    places: Sequence[RankTarget],
    world: World,
    on_event: Tell,
    on_begin: OnBegin,
    on_wear: OnWear,
) -> Iterator[Cell]:
    """Yield the cells of all rounds as they are measured, each once it is kept; on rank 0 only."""
    own = [place for place in places if place.rank == world.rank]
    wanted = {each.target for cells in rounds for each in cells}
    folders = [place.target for place in own if place.target.is_dir()]
    watch, written = WearWatch(*folders), 0
    store = JsonLines(sweep.output / CELLS)
    if world.rank == 0:
        watch.start()
    with ExitStack() as files:
        on_begin("writing files")
        # Several hosts may share a folder.
        first = "dlemu_paths" + (f".{world.host_index}" if world.num_hosts > 1 else "")
        bounds = max(sweep.workers), sweep.least_bytes, sweep.file_size
        make: dict[str, Callable[[CellSpec], CellJob]] = {}
        for place in own:
            if place.name in wanted:
                made = files.enter_context(works_of(place, *bounds, first, on_event))
                make[place.name], num_bytes = made
                written += num_bytes
        for number, cells in enumerate(rounds, 1):
            one, left = cells[0], (len(rounds) - number) * sweep.seconds
            on_begin(f"{one.path} {one.pattern} {format_bytes(one.io_size)}")
            works = [make[each.target](each) for each in cells if each.target in make]
            named = {each.target for each in cells}
            for cell in measure(works, places, world):
                on_event(_measured(cell, left))
                of = {place.name: dict(place.identity) for place in places if place.name in named}
                store.append({**asdict(cell), "identities": of, "end": time_of_day()})
                if cell.target in make and cell.pattern.endswith("write"):
                    written += cell.num_ios * cell.io_size
                yield cell
    if world.rank == 0:
        wear = combine_hosts([watch.finish(file_bytes=written)])
        if has_writes(wear):
            JsonLines(sweep.output / WEAR).append({"end": time_of_day(), **wear})
            on_wear(wear)


def _measured(cell: Cell, left_seconds: float) -> Finding:
    return note(
        "cell_measured",
        target=cell.target,
        path=cell.path,
        pattern=cell.pattern,
        io_size=cell.io_size,
        workers=cell.workers,
        queue_depth=cell.queue_depth,
        bytes_per_second=cell.gib_per_second * 2**30,
        latency_p99=cell.latency_p99,
        cpu_seconds_per_gb=cell.cpu_seconds_per_gb,
        left_seconds=left_seconds,
    )


_CELL = TypeAdapter(Cell)


def _known_cells(
    sweep: Sweep, places: Sequence[RankTarget], world: World, on_event: Tell
) -> dict[CellSpec, Cell]:
    """Return the cells that were measured before and hold now; say how old the oldest is.

    One of another drive or host does not hold, though its target has the same name.
    """
    return world.on_first(lambda: _holding_cells(JsonLines(sweep.output / CELLS), places, on_event))


def _holding_cells(
    store: JsonLines, places: Sequence[RankTarget], on_event: Tell
) -> dict[CellSpec, Cell]:
    now = {each.name: each.identity for each in places}
    known, others, ages = dict[CellSpec, Cell](), list[Finding](), [0.0]
    for cell, row in zip(cells_of(store), store.values, strict=True):
        before = row.get("identities", {})
        names = before.keys() & now.keys() if cell.target == SUM else {cell.target} & now.keys()
        why = next(filter(None, (what_differs(before.get(n), now[n]) for n in names)), None)
        if why is not None:
            others.append(why)
            continue
        known[cell.asked] = cell
        if names:
            ages.append(age_of(row.get("end")) or 0.0)
    for number, why in enumerate(others):
        if why not in others[:number]:
            same = {"cells": others.count(why), "file": str(store.path)}
            on_event(note("cells_of_others", **same, differs=why.fields))
    if max(ages) >= _LEAST_AGE_SECONDS:
        on_event(note("oldest_cell", file=str(store.path), age_seconds=max(ages)))
    return known


def cells_of(store: JsonLines) -> list[Cell]:
    """Return the finished cells of a cells.jsonl."""
    try:
        return [_CELL.validate_python(value) for value in store.values]
    except DAMAGE as error:
        raise RunError(
            f"{store.path} is damaged: {in_short(error)}",
            remedy="remove it, and what it held is measured again",
        ) from None
