"""`dlemu size`: the search of `sizing` over real runs, for every target and workload asked for.

Every file is written as soon as it can be, so that a search that was interrupted goes on where it
was when the same output.folder is named:

    <target>.<workload>.jsonl          one line a run (`search_log`)
    <target>.<workload>.png and .svg   AU and GB/s over the accelerators
    runs/                              each run's own folder
    sizing.json                        the answer; a list where there are several
    table.md, table.csv, table.png …   the table of drives
"""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dlemu.datagen import read_manifest
from dlemu.dataset.enough import Enough, datagen_command
from dlemu.dataset.layout import Layout
from dlemu.dataset.settle import measure_memory
from dlemu.errors import DatasetError, RunError
from dlemu.host.devices import lies_in_memory
from dlemu.loaders.descriptors import most_accelerators, needed
from dlemu.results.bottleneck import limit_in_memory
from dlemu.results.folders import hold
from dlemu.results.judgement import cached_too_much
from dlemu.results.metrics import passes
from dlemu.results.outcome import Outcome
from dlemu.results.records import check_writable, write_json, write_text
from dlemu.results.summary import Summary
from dlemu.run.job import Say, check_job, run_job
from dlemu.sizing.answers import (
    Sized,
    as_json,
    describe_event,
    render_csv,
    render_sizing,
    render_table,
)
from dlemu.sizing.formula import PredictionInput, predict
from dlemu.sizing.log import SearchLog, settings_of
from dlemu.sizing.predict import known_rates
from dlemu.sizing.search import Event, Point, search
from dlemu.sizing.targets import Target, find_jobs
from dlemu.storage.probe import probe_rate
from dlemu.terminal import say
from dlemu.units import ceil_div, counted, format_bytes, format_rate
from dlemu.workload.model import Workload
from dlemu.world.world import World

T = TypeVar("T")

_ANSWER = "sizing.json"
_PROBE_SECONDS = 3.0
_PROBE_READERS = 64
_PROBE_FILES = 512
_FIRST_DATASET = 8
"""Accelerators that a dataset is proposed for where nothing is known of the storage."""


def size_storage(workload: Workload, world: World, say: Say = say) -> int:
    """Search for the most accelerators of every target and workload; return the exit status.

    0: every search found at least one accelerator; 2: one alone fails somewhere.

    Raises:
        WorkloadError: a target is no folder, or the range of numbers is empty.
        DatasetError: a dataset is missing, or too small for a number that has to be tried.
    """
    if world.rank != 0:
        say = _silent
    jobs = world.on_first(lambda: find_jobs(workload, say))
    for _, job in jobs:
        check_job(job.with_keys({"num_accelerators": world.num_ranks}), world)
    sized: list[Sized] = []
    with ExitStack() as stack:
        folder = world.on_first(lambda: stack.enter_context(hold(workload.output.folder, "size")))
        for target, job in jobs:
            answer = _Search(target, job, folder, world, say).run()
            if answer is not None:
                sized.append(answer)
                _write(sized, folder, say)
    if world.rank == 0 and len(sized) > 1:
        say(f"\n{render_table(sized)}")
    say(f"results: {folder}")
    return world.broadcast(2 if any(each.sizing.num_accelerators == 0 for each in sized) else 0)


@dataclass(frozen=True)
class _Order:
    """What rank 0 tells the others to run."""

    num_accelerators: int
    seed: int
    folder: str


class _Search:
    """One search: rank 0 decides and keeps, all ranks run what it orders."""

    def __init__(
        self, target: Target, workload: Workload, folder: Path, world: World, say: Say
    ) -> None:
        self._target, self._world, self._say = target, world, say
        self._name = f"{target.name}.{workload.name}"
        self._folder = folder
        self._workload, self._layout = world.on_first(lambda: _settled(workload))
        memory = measure_memory(workload, world)
        self._enough = Enough(self._workload, self._layout, memory.num_bytes)
        self._estimate = 1.0
        self._bound = ""
        most = most_accelerators(self._workload) * world.num_ranks
        if 0 < most < self._workload.size.max_accelerators:
            self._workload = self._workload.with_keys({"size.max_accelerators": most})
            self._bound = _too_few_files(self._workload, world)

    def run(self) -> Sized | None:
        """Return the answer on rank 0, None on the others."""
        workload, world = self._workload, self._world
        path = self._folder / f"{self._name}.jsonl"
        log = world.on_first(lambda: SearchLog(path, settings_of(workload, world)))
        world.on_first(lambda: check_writable(self._folder / _ANSWER))
        start = 1 if log.points else self._start()
        if world.rank != 0:
            while (order := self._next_order(None)) is not None:
                self._carry_out(order)
            return None
        self._introduce(len(log.points))
        in_memory = lies_in_memory(workload.data_folder)

        def measure(number: int) -> Point:
            self._check_dataset(number, log.points)
            order = self._next_order(
                _Order(
                    number,
                    workload.train.seed + len(log.points),
                    str(self._run_folder(len(log.points) + 1, number)),
                )
            )
            assert order is not None
            begin = time.perf_counter()
            outcome = self._carry_out(order)
            assert outcome is not None
            return point_of(outcome, time.perf_counter() - begin, in_memory=in_memory)

        def keep(event: Event) -> None:
            self._say(describe_event(event))  # first: the disk may be full
            if event.point is not None:
                log.append(event.point)

        sizing = search(
            measure,
            threshold=100 * workload.metric.au,
            max_accelerators=workload.size.max_accelerators,
            start=start,
            confirm=workload.size.confirm,
            known=tuple(log.points),
            on_event=keep,
        )
        self._next_order(None)
        most = max(point.num_accelerators for point in sizing.points)
        return Sized(
            self._target,
            workload,
            sizing,
            self._layout.num_samples * self._layout.mean_bytes,
            self._enough.read_ahead_share(most) if workload.size.quick else None,
            self._bound,
        )

    def _check_dataset(self, number: int, points: Sequence[Point]) -> None:
        """Refuse a dataset that is too small for so many, with what is known so far.

        Raises:
            DatasetError: with the command that writes a dataset large enough.
        """
        try:
            self._enough.check(number, expected=self._estimate)
        except DatasetError as error:
            threshold = 100 * self._workload.metric.au
            passing = [p.num_accelerators for p in points if passes(p.au_percentage, threshold)]
            if not passing:
                raise
            raise DatasetError(
                f"at least {counted(max(passing), 'accelerator')}, where the dataset ends the "
                f"search: {error}"
            ) from None

    def _next_order(self, order: _Order | None) -> _Order | None:
        """Hand rank 0's order to all; None ends the search."""
        return self._world.broadcast(order)

    def _carry_out(self, order: _Order) -> Outcome | None:
        keys = {
            "num_accelerators": order.num_accelerators,
            "train.seed": order.seed,
            "output.folder": order.folder,
        }
        outcome = run_job(self._workload.with_keys(keys), world=self._world, say=_silent)
        if outcome is not None:
            measured = Summary.of(outcome.summary).measured
            reason = cached_too_much(self._workload, measured)
            if reason:
                raise RunError(reason)
        return outcome

    def _run_folder(self, number: int, accelerators: int) -> Path:
        """Return a folder of this run's own; one that was cut short keeps its own."""
        folder = self._folder / "runs" / f"{self._name}.{number:02}.n{accelerators}"
        again = 1
        while folder.exists():
            again += 1
            folder = folder.with_name(f"{self._name}.{number:02}.n{accelerators}-{again}")
        return folder

    def _introduce(self, num_known: int) -> None:
        workload, layout = self._workload, self._layout
        self._say(
            f"\n{workload.name} on {self._target.name} ({workload.data_folder}, "
            f"{self._target.num_drives} x drive): {layout.num_files:,} files, "
            f"{format_bytes(layout.num_samples * layout.mean_bytes)}; an accelerator takes "
            f"{format_rate(workload.demand)} at AU 100%, {100 * workload.metric.au:g}% is asked"
        )
        if self._bound:
            self._say(f"size.max_accelerators={workload.size.max_accelerators} here: {self._bound}")
        if num_known:
            self._say(f"going on after {num_known} runs in {self._folder}")

    def _start(self) -> int:
        """Return the first number to try, from what says most: the user, a prediction, a probe."""
        workload = self._workload
        size = workload.size
        if size.start is not None:
            return size.start
        drive, calibration = known_rates(workload)
        if drive is not None:
            prediction = predict(PredictionInput.of(workload, drive), calibration)
            self._estimate = prediction.real_accelerators
            self._say(f"the prediction for {drive.name} is {self._estimate:.1f} accelerators")
        else:
            self._estimate = self._probe()
        most = min(size.max_accelerators, self._enough.most)
        # The first that should fail: it says where the threshold is met, one that passes does not.
        return max(1, min(math.floor(self._estimate) + 1, most))

    def _probe(self) -> float:
        """Return how many accelerators a cold read by many readers would feed."""
        rate = 0.0
        if self._world.local_rank == 0:
            step = max(1, self._layout.num_files // _PROBE_FILES)
            files = range(0, self._layout.num_files, step)
            rate = (
                probe_rate(
                    [self._workload.data_folder / self._layout.path(file) for file in files],
                    num_readers=_PROBE_READERS,
                    seconds=_PROBE_SECONDS,
                )
                or 0.0
            )
        total = math.fsum(self._world.all_gather(rate))
        feeds = total / self._workload.demand / self._workload.metric.au
        self._say(
            f"{self._target.name}: {_PROBE_READERS} readers at once get {format_rate(total)}, as "
            f"much as {feeds:.1f} accelerators take at AU {100 * self._workload.metric.au:g}%"
        )
        return feeds


def _too_few_files(workload: Workload, world: World) -> str:
    """Return why no more than size.max_accelerators can be run."""
    more = workload.size.max_accelerators + 1
    need = needed(workload, ceil_div(more, world.num_ranks))
    return (
        f"{more} need {need} open files in a rank, more than a process may have here; use more "
        f"ranks, or raise the limit as root: ulimit -n {need}"
    )


def _settled(workload: Workload) -> tuple[Workload, Layout]:
    """Return the workload with the number of files that lie in its folder, and their layout.

    Raises:
        DatasetError: there is no dataset.
    """
    manifest = read_manifest(workload.data_folder)
    if manifest is None:
        raise DatasetError(
            f"{workload.data_folder} holds no whole dataset of dlemu's; write one, here for "
            f"{_FIRST_DATASET} accelerators, more need more files: "
            f"{datagen_command(workload, 'auto', num_accelerators=_FIRST_DATASET)}"
        )
    keys: dict[str, object] = {}
    if workload.dataset.num_files_train == "auto" or (
        "dataset.num_files_train" not in workload.given
    ):
        keys["dataset.num_files_train"] = manifest.layout.num_files
    if workload.size.quick:
        keys["reader.odirect"] = True
    return workload.with_keys(keys), manifest.layout


def point_of(outcome: Outcome, seconds: float, *, in_memory: bool) -> Point:
    """Return what a search needs of a run; what memory serves is never the storage's limit."""
    summary, metrics = Summary.of(outcome.summary), outcome.metrics
    assert summary.limit is not None, "the run has ended"
    limit, evidence = str(summary.limit.name), summary.limit.evidence
    if in_memory and limit_in_memory(limit) != limit:
        limit, evidence = limit_in_memory(limit), "the target lies in memory: no drive was read"
    return Point(
        num_accelerators=metrics.num_accelerators,
        au_percentage=metrics.au_percentage,
        samples_per_second=metrics.samples_per_second,
        read_bytes_per_second=metrics.read_bytes_per_second,
        limit=limit,
        evidence=evidence,
        page_cache_share=summary.measured.page_cache_share,
        seconds=seconds,
    )


def _write(sized: list[Sized], folder: Path, say: Say) -> None:
    """Write and show what is known so far; the last answer is new."""
    answer = sized[-1]
    say(f"\n{render_sizing(answer)}")
    write_json(folder / _ANSWER, as_json(sized))
    write_text(folder / "table.md", render_table(sized, markdown=True))
    write_text(folder / "table.csv", render_csv(sized))
    try:
        from dlemu.sizing.plots import plot_sizing, plot_table
    except ModuleNotFoundError:
        say("no plot: matplotlib is missing (pip install 'dlemu[plot]')")
        return
    plot_sizing(answer, folder / f"{answer.target.name}.{answer.workload.name}")
    if len(sized) > 1:
        plot_table(sized, folder / "table")


def _silent(text: str) -> None:
    """The search speaks, its runs do not."""
