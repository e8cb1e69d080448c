"""A first answer for the drive under a folder, or for a bucket, in a few minutes: `dlemu try`.

For each workload:

1. files   a dataset that is there, or a small one; it is read again and again, with O_DIRECT. A
           dataset of dlemu's is read instead of new files if the workload can read it. New ones lie
           in a folder of their own below the one that is tried, and are removed.
2. probe   64 readers for some seconds: what the storage gives at most
3. runs    the job as `dlemu run` emulates it: the first number that should fail, then as the search
           of search.py says, until the time of the workload is over

The answer is not the benchmark's. Epochs are short, so what is read ahead in the step left out is
a larger share of them; the interval says so. A cache in the drive or in a server may hold the
files; the text says so.
"""

import errno
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from dlemu.config.model import Workload, load_workload
from dlemu.config.published import command
from dlemu.config.types import Arguments, Listed, MostBytes, Seconds, Section, Use
from dlemu.datagen.counting import SURVEY
from dlemu.datagen.manifest import read_manifest
from dlemu.datagen.survey import Glance, as_found, find_foreign, folders_below
from dlemu.datagen.verify import verify
from dlemu.datagen.write import generate
from dlemu.dataset.layout import Layout, layout_of
from dlemu.dataset.rule import REACHED_BY, SizeCheck, datagen_command, measure_memory
from dlemu.errors import DatasetError, DlemuError, RunError, WorkloadError
from dlemu.findings import Finding, note, remark
from dlemu.host.devices import devices_under, lies_in_memory
from dlemu.judge.folders import hold
from dlemu.judge.header import host_of
from dlemu.loaders import most_of_job
from dlemu.ranks.world import Alone
from dlemu.report.words import note_line, telling, told
from dlemu.report.words.places import facts_of, lines_of
from dlemu.run.job import check_job, keep_survey
from dlemu.run.live import Live
from dlemu.run.workers import workers_of
from dlemu.sizing.answers import First, Sized, SizingRecord, Target, names_of
from dlemu.sizing.measured import (
    PROBE_READERS,
    START_SECONDS,
    Search,
    probed_rate,
    seconds_of_run,
)
from dlemu.sizing.search import (
    Goal,
    Point,
    Sizing,
    about_runs,
    answer,
    by_first_reads,
    search,
)
from dlemu.storage.owned import OwnedFolder, OwnedPlace, direct
from dlemu.storage.place import Place, place_of
from dlemu.terminal import Say, complain, say
from dlemu.units import (
    ceil_div,
    format_bytes,
    format_left,
)

WORKLOADS = ("unet3d_h100", "resnet50_h100", "cosmoflow_h100")
_WRITE_SHARE = 0.08
"""Of the whole time, for the files of one workload."""
_RUN_SHARE = 0.2
"""Of a workload's time, for one run."""
_LEAST_AHEAD = 12
"""A run has at least this many times the batches that are read ahead."""
_MOST_ACCELERATORS = 512
_SURELY_NONE = 0.5
"""Where 64 readers get less than this share of what one accelerator takes, no run is needed."""
_SHORTEST = 0.5
"""The last run may have this share of the steps of the others."""
_FASTER = 1.2
"""Second reads that are so many times as fast as the first come from a cache."""
NAME = "dlemu-try"
_MARK = "dlemu-try.json"
_OURS = re.compile(r"dlemu\.json|dlemu\.files\.npy|plan\.json|.*\.journal|img_\d+_of_\d+\.\w+")
"""Names of the files that are removed at the end; all others stay."""
_HEADROOM = 1.25
_SIZE_KEYS = (
    *("reader.data_loader", "reader.read_threads", "reader.batch_size", "metric.au"),
    *("train.computation_time", "train.epochs", "dataset.record_length_bytes"),
    *REACHED_BY,
)
_TIMING_SECONDS = 15.0
"""So much time must be left where the workers of a DataLoader are timed."""
_FREE_SHARE = 0.9
_LEAST_FILES = 2
_MOST_OBJECTS = 20_000
"""Of another tool, that are listed."""
_SEEDS = 64


@dataclass(frozen=True)
class Files:
    """The dataset that a workload reads in a try."""

    workload: Workload
    """With the keys that describe the dataset, and its folder."""
    layout: Layout
    written: bool
    """False: it was there already."""

    @property
    def num_bytes(self) -> float:
        """Bytes of its samples."""
        return self.layout.num_samples * self.layout.mean_bytes


@contextmanager
def scratch_folder(place: Place, *, keep: bool) -> Iterator[OwnedFolder]:
    """Yield a held folder for the files of a try; remove it in the end, whatever happens.

    Raises:
        DatasetError: the folder is none, lies in memory, cannot be written, or cannot be read with
            O_DIRECT.
        WorkloadError: another try uses it, or what has its name is somebody else's.
        RunError: the place does not answer.
    """
    own = _scratch_at(place)
    with ExitStack() as stack:
        try:
            fields = {"removed_by": "try"}
            stack.enter_context(own.passing(fields, telling(complain), keep=keep))
            is_cold = not place.has_page_cache or direct(own.path)
        except OSError as error:
            raise DatasetError.of_system(
                error, place.path, "cannot be written", "name another folder"
            ) from None
        if not is_cold:
            raise DatasetError(
                f"{place.path} has no O_DIRECT, so memory would answer for the drive; write a "
                "dataset of five times the memory instead: dlemu datasize, dlemu datagen, "
                "dlemu size"
            )
        yield own


def _scratch_at(place: Place) -> OwnedFolder:
    """Return the folder of a try in a place. Raises DatasetError as `scratch_folder` does."""
    folder, own = place.path, place.path / NAME
    if not place.has_paths:
        below = replace(place, path=own)
        return OwnedPlace(own, _MARK, _is_ours, "folder", is_named=False, place=below)
    if not folder.is_dir():
        raise DatasetError(f"{folder} is no folder; name one on the storage to be tried")
    if lies_in_memory(folder):
        raise DatasetError(
            f"{folder} lies in memory, where no drive is read; name a folder on the storage"
        )
    return OwnedFolder(own, _MARK, _is_ours, "folder", is_named=False)


def _is_ours(name: str) -> bool:
    """Return whether a try makes what has this path; foreign files keep their folders."""
    *folders, own = name.split("/")
    return name.endswith("/") or ".dlemu" in folders or _OURS.fullmatch(own) is not None


def find_files(place: Place, workload: Workload) -> Files | None:
    """Return a dataset in a folder, or one level below it, that the workload can read."""
    folder, kept = place.path, place.path / NAME / workload.name
    for path in (folder, kept, *folders_below(place, workload.name)):
        with suppress(DlemuError, OSError):  # damaged, or somebody else's: then files are written
            manifest = read_manifest(path, place.access)
            if manifest is None or manifest.layout.num_files < _LEAST_FILES:
                continue
            if path == kept and verify(path, full=False, access=place.access):
                continue  # a try that was stopped while it wrote or removed files
            layout = manifest.layout
            keys: dict[str, object] = {
                "dataset.data_folder": str(path.absolute()),
                "dataset.num_files_train": layout.num_files,
                "dataset.seed": layout.seed,
                "dataset.file_prefix": layout.prefix,
                "dataset.num_subfolders_train": layout.num_subfolders,
            }
            own = workload.with_keys(keys)
            manifest.check(layout_of(own), path)
            return Files(own, layout, written=False)
    with suppress(DlemuError, OSError):  # not what the user has said: then files are written
        return _foreign_files(place, workload)
    return None


def _foreign_files(place: Place, workload: Workload) -> Files | None:
    """Return files of another tool in a folder, if the workload trains on such samples.

    None also where there are many objects to list, or fewer bytes than a try would write.
    """
    if not place.has_paths:
        few = islice(place.list(""), _MOST_OBJECTS + 1)
        if sum(1 for _ in few) > _MOST_OBJECTS:
            return None
    found = Glance.at(place)
    if found is None or not found.is_like(workload):
        return None
    if found.num_samples * found.sample_bytes < _LEAST_FILES * _file_bytes(workload):
        return None
    keys: dict[str, object] = {"dataset.data_folder": str(place.path.absolute())}
    dataset = find_foreign(workload.with_keys(keys), place.access)
    return None if dataset is None else Files(dataset.workload, dataset.layout, written=False)


def _free(place: Place) -> float:
    """Return the bytes that are free in a place; inf where there is no bound."""
    room = place.room()
    return math.inf if room is None else room[1]


def plan_files(
    place: Place, workloads: list[Workload], max_bytes: int, *, most_each: float
) -> list[Files]:
    """Return the files to write for each workload, `max_bytes` together, `most_each` for one.

    Raises:
        RunError: there is no room for the fewest files that make sense.
    """
    free = _free(place)
    room = min(max_bytes, _FREE_SHARE * free)
    least = sum(_LEAST_FILES * _file_bytes(workload) for workload in workloads)
    if least > room:
        remedy = "raise max_bytes" if room == max_bytes else "free space"
        most = f"dlemu try may write {format_bytes(room)} to {place.path}"
        if not math.isinf(free):
            most += f", which has {format_bytes(free)} free"
        raise RunError(
            f"{most}; {format_bytes(least)} are needed: {remedy}, or name fewer workloads"
        )
    planned: list[Files] = []
    for left, workload in zip(range(len(workloads), 0, -1), workloads, strict=True):
        rest = sum(_LEAST_FILES * _file_bytes(other) for other in workloads[len(planned) + 1 :])
        share = min(max(room / left, _LEAST_FILES * _file_bytes(workload)), room - rest, most_each)
        number = max(_LEAST_FILES, int(share / _file_bytes(workload)))
        room -= number * _file_bytes(workload)
        planned.append(_planned(place.path / NAME, workload, number))
    return planned


def _file_bytes(workload: Workload) -> float:
    return workload.dataset.num_samples_per_file * workload.dataset.mean_bytes


def _planned(own: Path, workload: Workload, num_files: int) -> Files:
    """Return the dataset of so many files whose mean sample is nearest to the workload's."""
    keys: dict[str, object] = {
        "dataset.data_folder": str((own / workload.name).absolute()),
        "dataset.num_files_train": num_files,
        "dataset.num_subfolders_train": 0,
        "dataset.file_prefix": "img",
    }

    def of(seed: int) -> Workload:
        return workload.with_keys({**keys, "dataset.seed": seed})

    def off(planned: Workload) -> float:
        layout = layout_of(planned)
        samples = np.arange(min(layout.num_samples, 1 << 16))
        return abs(float(layout.sizes(samples).mean()) - layout.mean_bytes)

    spread = workload.dataset.record_length_bytes_stdev > 0
    chosen = min(map(of, range(_SEEDS)), key=off) if spread else of(0)
    return Files(chosen, layout_of(chosen), written=True)


def full_measurement(
    place: Place,
    files: Files,
    number: int,
    most: int,
    *,
    feeds: float,
    write_rate: float,
) -> tuple[str, tuple[str, ...]]:
    """Return what the full measurement below a folder needs, and its commands: none without room.

    It is of `number` accelerators, and `most` at most; the storage `feeds` so many, as a real
    number. The files of this try will be removed.
    Where the dataset of the rule has no room, it is a quick search.
    """
    free = _free(place)
    if place.has_paths:
        own = (path for path in (place.path / NAME).rglob("*") if path.is_file())
        free += sum(path.lstat().st_blocks * 512 for path in own)
    job, have = _job(place, files)
    if files.layout.is_foreign:
        free = 0.0  # nothing is written into a dataset of another tool
    for quick in (False, True):
        job = job.with_keys({"size.quick": quick, "train.epochs": 1 if quick else 5})
        check = SizeCheck(job, layout_of(job), measure_memory(job, Alone()))
        num_files = check.files_for(max(1, round(_HEADROOM * most)))
        num_bytes = max(0, num_files - have) * _file_bytes(job)
        if num_bytes <= free:
            break
    else:
        if files.layout.is_foreign:
            return told("full_needs_files", num_files=num_files, have_files=have), ()
        return told("full_needs_room", needed_bytes=num_bytes, free_bytes=free), ()
    more: dict[str, object] = {"dataset.data_folder": job.data_folder}
    if quick:
        more["size.quick"] = True
    if quick and num_bytes:  # else those that are there are enough
        several = ((n, max(0, n - have) * _file_bytes(job)) for n in (5 * num_files, 2 * num_files))
        fits = (each for each in several if each[1] <= free / 2)
        num_files, num_bytes = next(fits, (num_files, num_bytes))
    num_files = max(have, num_files)
    samples = num_files * job.dataset.num_samples_per_file
    steps = samples / (job.reader.batch_size * max(1, number))
    each = seconds_of_run(job, steps, max(1, number), feeds)
    takes = told(
        "full_takes",
        seconds=about_runs(job.size.confirm) * each,
        is_quick=quick,
        written_bytes=num_bytes,
        write_seconds=num_bytes / write_rate if num_bytes else 0.0,
    )
    size = command("size", job, _SIZE_KEYS, more)
    return takes, (datagen_command(job, num_files), size) if num_bytes else (size,)


def _job(place: Place, files: Files) -> tuple[Workload, int]:
    """Return the workload with the folder of its full dataset, and the files that are there."""
    workload, folder = files.workload, place.path
    if not files.written and not workload.data_folder.is_relative_to((folder / NAME).absolute()):
        return workload, files.layout.num_files
    target = folder / workload.name
    there = target.exists() if place.has_paths else any(place.list(workload.name))
    if there:  # another dataset, or something else
        target = folder / f"{workload.name}.full"
    return workload.with_keys({"dataset.data_folder": str(target), "dataset.seed": 0}), 0


class TryOutput(Section, strict=False):
    """Where the results of a try go."""

    folder: str | None = None
    """Folder for sizing.json, the tables and the runs; None: outputs/try/<date>-<time>."""


class Trial(Arguments):
    """What `dlemu try` is asked for."""

    folder: Annotated[Path, Use(by="")]
    seconds: Annotated[Seconds, Field(ge=10, le=3600)] = 180.0
    """About how long it may take, all workloads together."""
    max_bytes: MostBytes = 8 << 30
    """Most bytes of files that are written; less where space is short."""
    keep: bool = False
    """Leave the files for another try."""
    workloads: Listed[str] = WORKLOADS
    """Workloads that are tried, also as workload=; their other keys hold for all of them."""
    output: TryOutput = TryOutput()
    jobs: Annotated[tuple[Workload, ...], Use(by="")] = ()
    # The workloads, with the other keys that were given.

    def place(self) -> Place:
        """Return the place of the folder, as the keys `storage.*` reach it.

        Raises:
            WorkloadError: a value is missing or refused.
        """
        place = place_of(self.folder)
        return place_of(self.folder, place.reach(self.jobs[0].storage if self.jobs else None))


def try_storage(
    trial: Trial,
    say: Say = say,
    *,
    on_answer: Callable[[list[Sized]], None] = lambda answers: None,
) -> list[Sized]:
    """Find a first answer for each workload; return them as those of `dlemu size`.

    sizing.json has those so far, and after each `on_answer` is called with them.

    Raises:
        DatasetError: the folder cannot be used.
        RunError: there is no room, or a run failed.
    """
    end = time.perf_counter() + trial.seconds
    target = trial.place()
    with (
        scratch_folder(target, keep=trial.keep) as scratch,
        hold(trial.output.folder, "try") as results,
        SizingRecord(results, tried=trial.folder).failing() as record,
    ):
        own = scratch.path
        begins = told(
            "try_begins",
            folder=str(trial.folder),
            seconds=trial.seconds,
            most_bytes=trial.max_bytes,
            scratch=str(own),
        )
        say(begins)
        say(lines_of(facts_of({"system": [host_of(target, "")]})))
        datasets, rate = _datasets(trial, target, scratch, say)
        (name,) = names_of([str(trial.folder)])
        answers: list[Sized] = []
        for place, (job, files) in enumerate(zip(trial.jobs, datasets, strict=True)):
            share = (end - time.perf_counter()) / (len(datasets) - place)
            drives = len(devices_under(own)) if target.has_paths else 1
            storage = Target(name, str(files.workload.data_folder), drives)
            until = time.perf_counter() + share
            one = _Try(storage, files, record, until=until, end=end, say=say, access=target.access)
            say(f"{place + 1}/{len(datasets)} {one.describe()}")
            dataset = as_found(files.workload, files.layout)
            keep_survey(dataset, results / f"{name}.{files.workload.name}.{SURVEY}")
            for line in dataset.notes:
                say(note_line(line))
            found = one.find()
            number = found.num_accelerators
            needs, commands = full_measurement(
                target,
                files,
                number,
                found.high or number,
                feeds=found.real_accelerators or max(1, number),
                write_rate=rate,
            )
            reads, asked = files.workload.reader.data_loader, job.reader.data_loader
            instead = remark("other_loader", reads=reads, asked=asked)
            first = First(
                finding=None if reads == asked else instead,
                dataloader=one.dataloader(job, number),
                written=files.written,
                commands=commands,
                full=needs,
            )
            answers.append(one.answer(found, dataset_bytes=files.num_bytes, first=first))
            record.conclude(answers[-1], is_last=len(answers) == len(datasets))
            on_answer(answers)
        return answers


def _write_rate(place: Place) -> float:
    """Return bytes per second that can be written; inf if nothing: `plan_files` then refuses."""
    try:
        return place.write_rate(seconds=1.0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return math.inf


def load_jobs(names: Sequence[str], keys: dict[str, Any]) -> tuple[Workload, ...]:
    """Return the workloads of a try, with keys that hold for all of them."""
    jobs = tuple(load_workload(name, keys) for name in names)
    for job in jobs:
        if job.train.computation_time.mean == 0:
            raise WorkloadError(f"train.computation_time of {job.name} must be above 0")
    return jobs


def _datasets(
    trial: Trial, place: Place, scratch: OwnedFolder, say: Say
) -> tuple[list[Files], float]:
    """Return the files that each workload reads, those that are there or such as are planned.

    Also the bytes per second that can be written. What another try has left, and this one does not
    read, is removed first.
    """
    jobs = [_readable(workload, place, say) for workload in trial.jobs]
    there = [find_files(place, job) for job in jobs]
    read = {found.workload.data_folder for found in there if found is not None}
    for name in scratch.folders():
        if scratch.path.absolute() / name not in read:
            scratch.discard(name, telling(say))
    rate = _write_rate(replace(place, path=scratch.path))
    missing = [job for job, found in zip(jobs, there, strict=True) if found is None]
    most_each = _WRITE_SHARE * trial.seconds * rate
    planned = iter(plan_files(place, missing, trial.max_bytes, most_each=most_each))
    return [next(planned) if found is None else found for found in there], rate


def _readable(workload: Workload, place: Place, say: Say) -> Workload:
    """Return the workload as a try reads it: directly, by a loader that is installed."""
    workload = workload.with_keys(
        {
            "dataset.data_folder": str((place.path / NAME / workload.name).absolute()),
            "reader.odirect": place.has_page_cache,
            "train.epochs": 1,
            "train.first_step_time": None,  # a short run would have read much of its data in it
            "workflow.checkpoint": False,
            "output.drop_caches": False,
        }
    )
    try:
        check_job(workload, Alone())
    except WorkloadError as error:
        if not workload.reader.loader.is_dataloader:
            raise
        say(told("threads_read_instead", workload=workload.name, why=str(error)))
        return workload.with_keys({"reader.data_loader": "threads"})
    return workload


class _TimeIsUp(Exception):
    """Another run would take longer than there is time."""


class _Try(Search):
    """The search of a workload on few files, in a given time. They are written where missing."""

    def __init__(
        self,
        target: Target,
        files: Files,
        record: SizingRecord,
        *,
        until: float,
        end: float,
        say: Say,
        access: Any = None,
    ) -> None:
        # Steps of a run: for a share of the time, but many more than are read ahead.
        step = files.workload.train.computation_time.mean / files.workload.metric.au
        fitting = math.floor(_RUN_SHARE * (until - time.perf_counter()) / step)
        self._num_steps = max(_LEAST_AHEAD * files.workload.batches_in_flight, fitting)
        workload = files.workload.with_keys({"train.total_training_steps": self._num_steps})
        self._files, self._until, self._end, self._access = files, until, end, access

        def tell(text: str) -> None:
            say(f"{text}{self._left()}")

        super().__init__(target, workload, record, Alone(), tell, Live())
        self._points = self._runs_before()

    def dataloader(self, asked: Workload, number: int) -> Finding | None:
        """Return what a DataLoader makes whatever the storage; None: none is asked, or no time."""
        timed = self._end - time.perf_counter() > _TIMING_SECONDS
        found = workers_of(asked, max(1, number), timed=timed)
        return note("workers_make", **found) if found else None

    def describe(self) -> str:
        """Return what is read, and whether it is written first."""
        layout, folder = self._files.layout, self._workload.data_folder
        reads = told(
            "try_reads",
            workload=self._workload.name,
            num_files=layout.num_files,
            num_bytes=self._files.num_bytes,
            folder="" if self._files.written else str(folder),
        )
        return f"{reads}{self._left()}"

    def find(self) -> Sizing:
        """Return the answer for the workload."""
        if self._files.written:
            generate(self._files.workload, world=Alone())
        dataset = as_found(self._workload, self._files.layout, self._access)
        rate = probed_rate(dataset, once=True)
        threshold = 100 * self._workload.metric.au
        taken = self._workload.metric.au * self._workload.demand
        self._expected = rate / taken
        probed = told(
            "probed_of_try",
            num_readers=PROBE_READERS,
            bytes_per_second=rate,
            num_accelerators=self._expected,
        )
        self._say(probed)
        if 0 < self._expected < _SURELY_NONE:
            return Sizing(
                num_accelerators=0,
                real_accelerators=self._expected,
                at_least=False,
                threshold=threshold,
                interval=(0.7 * self._expected, 1.1 * self._expected),
                low=0,
                high=0,
                is_computed=True,
                limit="storage",
                evidence=(
                    note(
                        "probe_below_one",
                        num_readers=PROBE_READERS,
                        bytes_per_second=rate,
                        needed_bytes_per_second=taken,
                    ),
                ),
            )
        most = most_of_job(self._workload, Alone(), _MOST_ACCELERATORS) or _MOST_ACCELERATORS
        start = max(1, min(math.floor(self._expected) + 1, most))
        goal = Goal(threshold, most, start, confirm=1, is_short=True)
        self._record.add(self._name)
        try:
            found = search(self._measure, goal, on_event=self._keep)
        except _TimeIsUp:
            self._say(told("no_time_is_left"))
            found = answer(self._points, goal)
        moved = max(p.num_accelerators * p.au_percentage for p in self._points) / threshold
        if moved > _FASTER * self._expected > 0 and not self._points[0].levels:
            is_cached = probed_rate(dataset) > _FASTER * rate
            found = by_first_reads(found, self._expected, rate) if is_cached else found
        return found

    def _measure(self, number: int, layout: Layout | None = None) -> Point:
        """Make one run, a shorter one if there is little time; none if there is too little."""
        feeds, points = self._expected, self._points
        if points:
            feeds = points[-1].num_accelerators * points[-1].au_percentage / 100
        slower = max(1.0, number / max(feeds, 0.1))
        step = self._workload.train.computation_time.mean * slower
        num_steps = self._num_steps
        if points:
            left = self._until - time.perf_counter() - START_SECONDS
            num_steps = min(num_steps, math.floor(left / step))
        if num_steps < _SHORTEST * self._num_steps:
            raise _TimeIsUp
        self._workload = self._workload.with_keys({"train.total_training_steps": num_steps})
        files = self._num_files(number, num_steps)
        return super()._measure(number, self._files.layout.repeated(files))

    def _num_files(self, accelerators: int, num_steps: int) -> int:
        """Return the files of an epoch; where files hold many samples, each stream ends in one."""
        layout = self._files.layout
        samples = num_steps * self._workload.reader.batch_size * accelerators
        streams = self._workload.reader.num_streams * accelerators
        more = streams if layout.samples_per_file > 1 else 0
        return ceil_div(samples * layout.num_files, layout.num_samples) + more

    def _left(self) -> str:
        return format_left(self._end - time.perf_counter(), before="; ")
