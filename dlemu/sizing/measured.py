"""The search of `search.py` over real runs, for every target and workload asked for.

Every file is written as soon as possible, so that an interrupted search continues when the same
output.folder is named:

    sizing.json    the runs and answers so far (`answers.py`)
    runs/          each run's own folder
"""

import itertools
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dlemu.checkpoint.in_run import planned_in_run
from dlemu.checkpoint.plan import share_of
from dlemu.config.model import Workload
from dlemu.datagen.counting import SURVEY
from dlemu.datagen.manifest import read_manifest
from dlemu.datagen.survey import as_found, find_foreign, refuse_other
from dlemu.dataset.layout import Dataset, Layout, file_sizes
from dlemu.dataset.rule import SizeCheck, datagen_command, measure_memory
from dlemu.errors import DatasetError, RunError
from dlemu.findings import Finding, note, reason
from dlemu.host.devices import lies_in_memory
from dlemu.judge.bottleneck import limit_in_memory
from dlemu.judge.header import introduced
from dlemu.judge.metrics import passes
from dlemu.judge.outcome import Outcome, cached_too_much, judge_run, levels_of
from dlemu.judge.records import conditions_of
from dlemu.loaders import descriptors_needed, most_of_job, num_ranks_of
from dlemu.loaders.cache.folder import CacheFolder, entry_path
from dlemu.loaders.cache.host import uses_cache
from dlemu.ranks.world import World
from dlemu.report.words import note_line, sentence, told
from dlemu.report.words.places import facts_of, lines_of
from dlemu.run.forecast import probe_dataset
from dlemu.run.job import check_job, keep_survey, run_job
from dlemu.run.live import Live
from dlemu.sizing.answers import (
    FIRST_DATASET,
    Sized,
    SizingRecord,
    Target,
    find_jobs,
    hold_search,
    hosts_in,
    identity_of_job,
    settings_of,
)
from dlemu.sizing.formula import PredictionInput, predict
from dlemu.sizing.predict import known_rates, part_read, rate_at, supply_of
from dlemu.sizing.search import Event, Goal, Point, Sizing, about_runs, search
from dlemu.storage.probe import probe_rate
from dlemu.terminal import Say, silent
from dlemu.units import ceil_div

_PROBE_SECONDS = 3.0
PROBE_READERS = 64
STEADY_SECONDS = 600.0
"""Longest time for which size.steady measures on."""
START_SECONDS = 3.0
_LEAST_FED = 1e-3
"""About how long a run takes beside its steps."""

OnAnswer = Callable[[list[Sized], bool], None]


def size_all(
    workload: Workload,
    world: World,
    say: Say,
    *,
    on_answer: OnAnswer,
    live: Live | None = None,
) -> list[Sized]:
    """Size every target and workload; return all answers, on all ranks.

    Rank 0 calls `on_answer` after each, with those so far and whether it is the last.
    """
    if world.rank != 0:
        say = silent
    jobs = world.on_first(lambda: find_jobs(workload, say))
    for _, job in jobs:
        check_job(job.with_keys({"num_accelerators": world.num_ranks}), world)
    answers: list[Sized] = []
    live, hosts = live or Live(), hosts_in(world)

    def identities() -> dict[str, dict[str, str]]:
        own = ((f"{target.name}.{job.name}", job) for target, job in jobs)
        return {name: identity_of_job(job, hosts) for name, job in own}

    with ExitStack() as stack:
        record = world.on_first(
            lambda: stack.enter_context(hold_search(workload, world, say, identities))
        )
        for target, job in jobs:
            answers.append(Search(target, job, record, world, say, live).run())
            live.job = ""
            if world.rank == 0:
                is_last = len(answers) == len(jobs)
                try:
                    record.conclude(answers[-1], is_last=is_last)
                finally:  # a full disk hides no answer
                    on_answer(answers, is_last)
    return answers


def describe_event(event: Event) -> str:
    """Return a line about the run just made, and one about what comes next."""
    lines = []
    if (point := event.point) is not None:
        run = told(
            "run_of_a_search",
            num_accelerators=point.num_accelerators,
            au_percentage=point.au_percentage,
            au_with_stalls_percentage=point.au_with_stalls_percentage,
            samples_per_second=point.samples_per_second,
            bytes_per_second=point.read_bytes_per_second,
            cached_share=point.page_cache_share,
            limit=point.limit,
            seconds=point.seconds,
        )
        lines.append(run)
    lines.append(told("comes_next", num_accelerators=event.next, why=event.reason.fields))
    return "\n".join(lines)


class Search:
    """One search: rank 0 decides and keeps the log, all ranks carry out the runs."""

    _enough: SizeCheck
    """What the dataset is enough for."""
    _points: list[Point]
    """The runs so far, on rank 0."""
    _bound: Finding | None
    """Why size.max_accelerators is lower than was asked; empty: it is not."""
    _first, _expected = 1, 1.0
    """The first number to try, and how many accelerators the storage is expected to feed."""

    def __init__(
        self,
        target: Target,
        workload: Workload,
        record: SizingRecord,
        world: World,
        say: Say,
        live: Live,
    ) -> None:
        self._target, self._workload = target, workload
        self._record, self._folder = record, record.folder
        self._world, self._say, self._live = world, say, live
        self._name = f"{target.name}.{workload.name}"
        self._hosts = hosts_in(world)

    def run(self) -> Sized:
        """Look at the dataset, read the log and search; return the answer, on all ranks."""
        world, given = self._world, self._workload
        self._workload, layout, self._bound = world.on_first(lambda: settle(given, world))
        if world.rank == 0:
            own = introduced(self._workload, host=world.host, num_hosts=world.num_hosts)
            self._say(lines_of(facts_of(own)))
            dataset = as_found(self._workload, layout)
            for line in dataset.notes:
                self._say(note_line(line))
        memory = measure_memory(self._workload, world)
        self._enough = SizeCheck(self._workload, layout, memory)
        self._points = world.on_first(self._runs_before)
        if not self._points:
            with self._live.doing("probing the drive"):
                self._first, self._expected = first_number(
                    self._target, self._enough, world, self._say
                )
        if world.rank == 0:
            self._introduce()
            self._bound_by_dataset()
            self._record.add(self._name)
            keep_survey(as_found(given, layout), self._folder / f"{self._name}.{SURVEY}")
            return world.broadcast(self._decide())
        message: Mapping[str, object] | Sized = {}
        while not isinstance(message := world.broadcast(message), Sized):
            self._carry_out(message)
        return message

    def _runs_before(self) -> list[Point]:
        settings = settings_of(self._workload, self._world)
        return self._record.open(self._name, settings, identity_of_job(self._workload, self._hosts))

    def _bound_by_dataset(self) -> None:
        """Search no further than the dataset allows; refuse one that is too small for 1."""
        most, asked = self._enough.most_accelerators, self._workload.size.max_accelerators
        if most == 0:
            self._enough.check(1, expected=self._expected)
        if most >= asked:
            return
        # A smaller dataset than this one may have been enough for more, in a quick search.
        tried = [point.num_accelerators for point in self._points]
        most = min(asked, max([most, *tried]))
        self._bound = reason("too_few_files", **asdict(self._enough.bound(self._expected)))
        self._workload = self._workload.with_keys({"size.max_accelerators": most})

    def _decide(self) -> Sized:
        """Make the runs that the search asks for; return what they say."""
        workload, layout = self._workload, self._enough.layout
        goal = Goal(
            threshold=100 * workload.metric.au,
            max_accelerators=workload.size.max_accelerators,
            start=self._first,
            confirm=workload.size.confirm,
            steady_seconds=STEADY_SECONDS if workload.size.steady else 0.0,
        )
        found = search(self._measure, goal, known=tuple(self._points), on_event=self._keep)
        most = max(point.num_accelerators for point in found.points)
        return self.answer(
            found,
            dataset_bytes=layout.num_samples * layout.mean_bytes,
            read_ahead_share=self._enough.read_ahead_share(most) if workload.size.quick else None,
            bound=self._bound,
        )

    def answer(self, found: Sizing, **more: Any) -> Sized:
        """Return the answer with what it is for; `more` are its other fields."""
        return Sized(
            num_accelerators=found.num_accelerators,
            real_accelerators=found.real_accelerators,
            at_least=found.at_least,
            fewest_failed=found.fewest_failed,
            threshold=found.threshold,
            points=found.points,
            confirmations=found.confirmations,
            interval=found.interval,
            low=found.low,
            high=found.high,
            is_computed=found.is_computed,
            limit=found.limit,
            evidence=found.evidence,
            disagree=found.disagree,
            first_reads=found.first_reads,
            phases=found.phases,
            target=self._target,
            workload=self._workload,
            folder=self._folder,
            conditions=conditions_of(self._folder, self._name),
            **more,
        )

    def _keep(self, event: Event) -> None:
        self._say(describe_event(event))  # first: the disk may be full
        if event.point is not None:
            self._record.add(self._name, event.point)
            self._points.append(event.point)

    def _measure(self, number: int, layout: Layout | None = None) -> Point:
        """Make one run on all ranks; with a `layout`, of its files."""
        num_runs = len(self._points)
        keys: dict[str, object] = {
            "num_accelerators": number,
            "train.seed": self._workload.train.seed + num_runs,
            "output.folder": str(self._run_folder(num_runs + 1, number)),
        }
        self._live.job = self._state(number)
        begin = time.perf_counter()
        self._world.broadcast(keys)
        outcome = self._carry_out(keys, layout)
        assert outcome is not None
        in_memory = lies_in_memory(self._workload.data_folder)
        seconds = time.perf_counter() - begin
        return point_of(self._workload, outcome, seconds, in_memory=in_memory)

    def _state(self, number: int) -> str:
        """Return how far the search is: "run 3 of about 8, trying 12 accelerators, ..."."""
        points, asked = self._points, 100 * self._workload.metric.au
        about = about_runs(self._workload.size.confirm, len(points))
        passing = [p.num_accelerators for p in points if passes(p.au_percentage, asked)]
        return told(
            "trying",
            number=len(points) + 1,
            num_runs=about,
            num_accelerators=number,
            most_passed=max(passing, default=None),
        )

    def _carry_out(
        self, keys: Mapping[str, object], layout: Layout | None = None
    ) -> Outcome | None:
        """Make the run that these keys describe; all ranks call it."""
        # A long first step would read ahead of the steps that count.
        workload = self._workload.with_keys({**keys, "train.first_step_time": None})
        if layout is None and self._enough.layout.is_foreign:
            layout = self._enough.layout  # which was surveyed once
        if layout is not None:
            workload = workload.with_keys({"dataset.num_files_train": layout.num_files})
        outcome = run_job(workload, world=self._world, say=silent, live=self._live, layout=layout)
        if outcome and (reason := cached_too_much(self._workload, outcome.summary)):
            raise RunError(sentence(reason))
        return outcome

    def _run_folder(self, number: int, accelerators: int) -> Path:
        """Return a new folder for this run; a run that was cut short keeps its own."""
        name = f"{self._name}.{number:02}.n{accelerators}"
        folder = self._folder / "runs" / name
        again = (folder.with_name(f"{name}-{more}") for more in itertools.count(2))
        return next(each for each in itertools.chain([folder], again) if not each.exists())

    def _introduce(self) -> None:
        workload = self._workload
        au, demand = workload.metric.au, workload.demand
        head = told("search_begins", name=self._name, bytes_per_second=demand, needed_au=au)
        self._say(f"\n{head}")
        if self._bound:
            most, why = workload.size.max_accelerators, self._bound.fields
            self._say(told("most_accelerators_here", num_accelerators=most, why=why))
        if self._points:
            going_on = told(
                "going_on_after",
                num_runs=len(self._points),
                folder=str(self._folder),
                age_seconds=self._record.age,
            )
            self._say(going_on)
        elif self._enough.most_accelerators:
            for each in plan_of(self._enough, self._first, self._expected):
                self._say(sentence(each))
        if workload.workflow.checkpoint:
            steps = self._enough.num_steps(self._first)
            planned = planned_in_run(workload, self._first, steps)
            self._say(told("written_in_first_run", planned=planned.fields))


def settle(workload: Workload, world: World) -> tuple[Workload, Layout, Finding | None]:
    """Return the workload for its files, their layout, and why size.max_accelerators is lower."""
    access = workload.access
    manifest = read_manifest(workload.data_folder, access, with_files=workload.place.has_paths)
    keys: dict[str, object] = {}
    if manifest is None:
        found = find_foreign(workload, access)
        if found is None:
            raise DatasetError(
                f"{workload.data_folder} holds no whole dataset of dlemu's; write one, here for "
                f"{FIRST_DATASET} accelerators, more need more files: "
                f"{datagen_command(workload, 'auto', num_accelerators=FIRST_DATASET)}"
            )
        workload, layout = found.workload, found.layout
    else:
        refuse_other(workload)
        layout, number = manifest.layout, "dataset.num_files_train"
        if number not in workload.given or workload.dataset.num_files_train == "auto":
            keys[number] = layout.num_files
    if workload.size.quick:
        keys["reader.odirect"] = True
    workload = workload.with_keys(keys)
    bound = None
    most = most_of_job(workload, world, workload.size.max_accelerators)
    if 0 < most < workload.size.max_accelerators:
        workload = workload.with_keys({"size.max_accelerators": most})
        ranks = num_ranks_of(workload, world, most + 1)
        need = descriptors_needed(workload, ceil_div(most + 1, ranks))
        bound = reason("too_many_open_files", num_accelerators=most + 1, num_open_files=need)
    if workload.workflow.checkpoint and workload.checkpoint.mode == "subset":
        most = share_of(workload.model, None, "subset").total
        if most < workload.size.max_accelerators:
            workload = workload.with_keys({"size.max_accelerators": most})
            bound = reason("model_spread", num_accelerators=most)
    return workload, layout, bound


def point_of(workload: Workload, outcome: Outcome, seconds: float, *, in_memory: bool) -> Point:
    """Return what a search needs of a run; what memory serves is never the storage's limit."""
    metrics, found = outcome.metrics, outcome.summary["limit"]
    cost, levels = metrics.checkpoints, levels_of(outcome.summary)
    steady = outcome.summary["measured"].get("steady")
    limit, evidence = found["name"], tuple(map(Finding.of, found["evidence"]))
    judgement = judge_run(workload, metrics, outcome.summary)
    told = [
        each
        for each in judgement["findings"]
        # Beside what the storage feeds: what a DataLoader makes, whatever the storage.
        if each["weight"] in ("weakens", "remark") or each["kind"] == "workers_make"
    ]
    if in_memory and limit_in_memory(limit) != limit:
        limit, evidence = limit_in_memory(limit), (note("target_in_memory"),)
    return Point(
        num_accelerators=metrics.num_accelerators,
        au_percentage=metrics.au_percentage,
        samples_per_second=metrics.samples_per_second,
        read_bytes_per_second=metrics.read_bytes_per_second,
        limit=limit,
        evidence=evidence,
        page_cache_share=outcome.summary["measured"]["page_cache_share"],
        seconds=seconds,
        au_with_stalls_percentage=None if cost is None else cost["au_with_stalls_percentage"],
        findings=tuple(map(Finding.of, told)),
        whole_au_percentage=metrics.whole_run_au_percentage,
        noise=metrics.au_noise,
        agrees=steady is None or steady["rounds_agree"],
        levels=tuple(levels) if len(levels) > 1 and limit == "storage" else (),
    )


# --- before the runs ------------------------------------------------------------------------------


def first_number(target: Target, enough: SizeCheck, world: World, say: Say) -> tuple[int, float]:
    """Return the first number to try, and how many accelerators the storage is expected to feed.

    In this order: what the user says (size.start), a prediction, a probe. All ranks call it.
    """
    workload = enough.workload
    # Start with the first that should fail: a failing run tells where AU meets the threshold.
    most = max(1, min(workload.size.max_accelerators, enough.most_accelerators))
    if workload.size.start is not None:
        return min(workload.size.start, most), 1.0
    drive, calibration = world.on_first(lambda: known_rates(workload))
    if drive is not None and not uses_cache(workload):
        job = PredictionInput.of(workload, drive)
        job = replace(job, num_hosts=max(world.num_hosts, workload.num_hosts))
        expected = predict(job, calibration).real_accelerators
        say(told("predicted_for", drive=drive.name, num_accelerators=expected))
    else:
        access = world.on_first(lambda: workload.access)
        own = cached = 0.0
        if world.local_rank == 0:
            dataset = as_found(workload, enough.layout, access)
            own = min(probed_rate(dataset), workload.origin.read_bandwidth or math.inf)
            cached = _cache_rate(dataset)
        rates = world.all_gather((own, cached))
        rate, cached = (math.fsum(each) for each in zip(*rates, strict=True))
        origin, has_cache = rate, workload.cache.folder is not None
        if has_cache:
            rate = _with_cache(workload, rate, cached)
        expected = rate / workload.demand / workload.metric.au
        probed = told(
            "probed",
            target=target.name,
            num_readers=PROBE_READERS,
            bytes_per_second=origin,
            with_cache_bytes_per_second=rate if has_cache else None,
            num_accelerators=expected,
            needed_au=workload.metric.au,
        )
        say(probed)
    return max(1, min(math.floor(expected) + 1, most)), expected


def _cache_rate(dataset: Dataset) -> float:
    """Return bytes per second that a probe gets of what this host's cache holds; 0: nothing."""
    workload = dataset.workload
    if workload.cache.folder is None or workload.cache.warm is not True:
        return 0.0
    folder = CacheFolder(workload, dataset.layout, file_sizes(dataset), claim=False)
    paths = [Path(entry_path(str(folder.path), *entry)) for entry in folder.entries()]
    if not paths:
        return 0.0
    return probe_rate(paths, num_readers=PROBE_READERS, seconds=_PROBE_SECONDS) or 0.0


def _with_cache(workload: Workload, origin: float, cached: float) -> float:
    """Return bytes per second that an origin and the cache before it should give.

    `cached` is the rate of the caches by a probe; the key drive, which says the same, comes first.
    """
    drive, reads, writes = workload.drive, cached, math.inf
    if drive is not None:
        reads = workload.drives * drive.read_bandwidth if drive.read_bandwidth else cached
        writes = workload.drives * (drive.write_bandwidth or math.inf)
    warm = workload.cache.warm is True
    if not origin or (warm and not reads):  # nothing tells more than the origin does
        return origin
    # The search begins by about what the origin feeds.
    part = part_read(workload, math.ceil(origin / workload.demand))
    given = supply_of(workload, origin=origin, reads=reads or math.inf, writes=writes, part=part)
    return rate_at(given.warm if warm else given.cold, workload.metric.au)


def probed_rate(dataset: Dataset, *, once: bool = False) -> float:
    """Return bytes per second that PROBE_READERS threads get from a dataset, 0 if nothing.

    `once`: no part of it is read twice.
    """
    readers, seconds = PROBE_READERS, _PROBE_SECONDS
    return probe_dataset(dataset, num_readers=readers, seconds=seconds, once=once) or 0.0


def plan_of(enough: SizeCheck, first: int, expected: float) -> list[Finding]:
    """Return what the search will take, and before it what the files are not enough for.

    `first` is the first number to try, `expected` an estimate of what the storage feeds.
    """
    workload, most = enough.workload, enough.most_accelerators
    found = []
    if math.floor(expected) > most and most < workload.size.max_accelerators:
        bound = asdict(enough.bound(expected))
        found.append(note("may_feed_more", num_accelerators=math.floor(expected), **bound))
    steps, runs = enough.num_steps(first), about_runs(workload.size.confirm)
    plan = note(
        "search_plan",
        num_runs=runs,
        seconds_a_run=seconds_of_run(workload, steps, first, expected),
        num_steps=steps,
        num_epochs=workload.train.epochs,
    )
    return [*found, plan]


def seconds_of_run(workload: Workload, steps: float, number: int, feeds: float) -> float:
    """Return about how long a run of `number` accelerators takes, whose epochs have so many steps.

    `feeds` is how many the storage feeds at the required AU: more of them wait for it.
    """
    train, slower = workload.train, max(1.0, number / max(feeds, _LEAST_FED))
    seconds = train.epochs * steps * train.computation_time.mean / workload.metric.au
    return START_SECONDS + slower * seconds
