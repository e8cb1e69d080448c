"""What `dlemu size` is asked to search, in the table's order, and the answers as one document.

A search keeps in sizing.json, written after each run, what it needs to continue after any end:

status        "incomplete" until all searches have answers; then "complete", or "failed"
answers       of the searches that have ended
unfinished    by "<target>.<workload>", the runs of the others
settings      by the same names, what the runs depend on
identities    by the same names, which storage, dataset, host and versions they are of
updated       when the last run ended
wanted        what is searched for, in a folder that nobody named: the same command finds it
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from pydantic import TypeAdapter

from dlemu.config.model import Workload, load_workload
from dlemu.config.published import real_h100s, value_of
from dlemu.datagen.manifest import read_manifest
from dlemu.dataset.rule import datagen_command
from dlemu.errors import DAMAGE, DlemuError, WorkloadError, in_short
from dlemu.findings import Finding, fields_of, note
from dlemu.host.devices import devices_under
from dlemu.host.same import (
    age_of,
    dataset_identity,
    identity_of,
    what_differs,
    why_not_taken,
)
from dlemu.judge.folders import Record, hold, versions
from dlemu.judge.records import SIZING, check_writable, conditions_of, damaged, read_sizing
from dlemu.judge.summary import time_of_day
from dlemu.plugins import is_url
from dlemu.ranks.world import World
from dlemu.report.words import sentence, told
from dlemu.sizing.search import Point, Sizing
from dlemu.storage.files import read_regular
from dlemu.terminal import Say

_NOT_HERE = {
    "num_accelerators": "it is what is searched for; size.start says where to begin",
    "accelerators_per_rank": "the search spreads its accelerators over the ranks",
    "runs": "size.confirm says how many runs confirm the answer",
    "warmup": "the first run is known to be cold",
}

FIRST_DATASET = 8
"""A dataset is proposed for this many accelerators where nothing is known of the storage."""
_PARENT = Path("outputs") / "size"
_SECTIONS = ("dataset", "reader", "train", "metric", "dali", "cache", "origin")
# A search may ask for a larger dataset; another threshold needs no other runs.
_MAY_CHANGE = {"dataset.num_files_train", "metric.au"}

_POINT = TypeAdapter(Point)


@dataclass(frozen=True)
class Target:
    """One storage to be sized."""

    name: str
    folder: str
    num_drives: int


def find_jobs(workload: Workload, say: Say) -> list[tuple[Target, Workload]]:
    """Return what is to be searched, in the table's order."""
    for key, remedy in _NOT_HERE.items():
        if key in workload.given:
            raise WorkloadError(f"{key} has no place in dlemu size: {remedy}")
    size = workload.size
    if size.start is not None and size.start > size.max_accelerators:
        raise WorkloadError(
            f"size.start must be at most size.max_accelerators={size.max_accelerators}, "
            f"got {size.start}"
        )
    return [
        job
        for target in find_targets(workload, say)
        for name in size.workloads or (workload.name,)
        for job in _cold_and_warm(target, _workload_for(workload, name, target))
    ]


def answers_twice(workload: Workload) -> bool:
    """Return whether a cache is sized cold and warm: not if the user chose one of both."""
    return workload.cache.folder is not None and "cache.warm" not in workload.given


def _cold_and_warm(target: Target, workload: Workload) -> Iterator[tuple[Target, Workload]]:
    """Yield the searches for a target: with a cache, for its first epoch and for warm ones."""
    if not answers_twice(workload):
        yield target, workload
        return
    cold, warm = (replace(target, name=f"{target.name}-{name}") for name in ("cold", "warm"))
    yield cold, workload.with_keys({"cache.warm": False, "train.epochs": 1})
    yield warm, workload.with_keys({"cache.warm": True})


def find_targets(workload: Workload, say: Say) -> list[Target]:
    """Return the targets with their names and drive counts; warn of two on one device."""
    size = workload.size
    folders = size.targets or (str(workload.data_folder),)
    key = "size.targets" if size.targets else "dataset.data_folder"
    for name, values in (("size.names", size.names), ("size.drives", size.drives)):
        if values and len(values) != len(folders):
            raise WorkloadError(
                f"{name} must have one value for each target ({len(folders)}), got {len(values)}"
            )
    names = size.names or names_of(folders)
    for number, name in enumerate(names):
        if name in names[:number]:
            raise WorkloadError(f"size.targets names {name} twice; give each a name: size.names")
    targets: list[Target] = []
    seen: dict[str, set[str]] = {}
    for number, (name, folder) in enumerate(zip(names, folders, strict=True)):
        if not is_url(folder) and not Path(folder).is_dir():
            there = {"dataset.data_folder": folder, "storage.storage_root": "./"}
            made = datagen_command(
                workload.with_keys(there), "auto", num_accelerators=FIRST_DATASET
            )
            raise WorkloadError(
                f"{key}: {folder} is no folder; this writes a dataset there, for "
                f"{FIRST_DATASET} accelerators: {made}"
            )
        devices = set()
        if not is_url(folder):
            devices = {device.name for device in devices_under(Path(folder))}
        for other, others in seen.items():
            if shared := ", ".join(sorted(devices & others)):
                say(told("one_drive_twice", name=name, other=other, drives=shared))
        seen[name] = devices
        drives = size.drives[number] if size.drives else max(1, len(devices))
        targets.append(Target(name, folder, drives))
    return targets


def _workload_for(workload: Workload, name: str, target: Target) -> Workload:
    """Return the named workload on a target, with the keys that the user gave."""
    if name != workload.name:
        tree = workload.model_dump()
        given = {key: value_of(tree, key) for key in workload.given}
        # A key without a value here has no effect (`Workload.ignored`).
        workload = load_workload(name, {k: v for k, v in given.items() if v is not None})
    if workload.train.computation_time.mean == 0:
        raise WorkloadError(
            f"train.computation_time of {workload.name} must be above 0 for a search: accelerators "
            "that do not compute are never busy"
        )
    place = target.folder
    # A target may hold the dataset of each workload in a folder of that name.
    if not is_url(place) and Path(place, workload.name).is_dir():
        place = str(Path(place, workload.name))
    return workload.with_keys({"dataset.data_folder": place, "storage.storage_root": "./"})


def names_of(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the last parts of the folders' paths: as few as make the names different."""
    parts = [Path(folder).absolute().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = tuple("-".join(part[-length:]).strip("/-") or "root" for part in parts)
        if len(set(names)) == len(names):
            break
    return names


@dataclass(frozen=True, kw_only=True)
class First:
    """What an answer of `dlemu try` has beside that of a search."""

    finding: Finding | None
    """What read the files, where that is not what the workload asks for."""
    dataloader: Finding | None
    """What a DataLoader makes whatever the storage; None: none is asked, or it is not known."""
    written: bool
    """Whether they were written for this, and removed."""
    commands: tuple[str, ...]
    """Of the full measurement, the dataset's first; empty: there is no room for it."""
    full: str
    """What that needs."""


@dataclass(frozen=True, kw_only=True)
class Sized(Sizing):
    """The answer for one target and workload; `dlemu.show` makes text and a table of it."""

    target: Target
    workload: Workload
    """As it was run: with the number of files that were found."""
    folder: Path
    """Where the results lie: sizing.json, the tables, the plots, and each run's folder in runs/."""
    dataset_bytes: float
    """Bytes of the dataset that was read."""
    read_ahead_share: float | None = None
    """Largest share of an epoch, 0 to 1, that is read inside the step left out. None: the dataset
    is as large as the rule asks for."""
    bound: Finding | None = None
    """Why the search lowered size.max_accelerators; None: it did not."""
    first: First | None = None
    """Of an answer of `dlemu try`."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Host, drive and day of the runs, as their summaries have them."""

    @property
    def name(self) -> str:
        """Of its search."""
        return f"{self.target.name}.{self.workload.name}"

    @property
    def shown(self) -> tuple[Point, ...]:
        """The runs that the answer shows: those that passed with its number; for 0 the last."""
        return self.confirmations or (() if self.num_accelerators else self.points[-1:])

    def mean(self, name: str) -> float | None:
        """Return the mean over the shown runs of a field of `Point`; None where no run was made."""
        return fmean(getattr(point, name) for point in self.shown) if self.shown else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the shown runs' verdicts say as well, the last one of each kind; and doubts."""
        found = [each for point in self.shown or self.points for each in point.findings]
        if self.first is not None:
            own = (self.first.finding, self.first.dataloader)
            found += [each for each in own if each is not None]
        if self.disagree:
            (more, slower), (fewer, faster) = self.disagree
            found.append(
                note(
                    "runs_disagree",
                    num_accelerators=(fewer, more),
                    bytes_per_second=(faster, slower),
                )
            )
        if self.first_reads is not None:
            rate, of_objects = self.first_reads, is_url(self.target.folder)
            found.append(note("second_reads_faster", bytes_per_second=rate, of_objects=of_objects))
        return tuple({(each.kind, each.figures.get("text")): each for each in found}.values())

    @property
    def document(self) -> dict[str, Any]:
        """The content of sizing.json, where this is the only answer."""
        return document_of([self])

    @property
    def fields(self) -> dict[str, Any]:
        """One of the answers in sizing.json."""
        same = (
            *("num_accelerators", "real_accelerators", "at_least", "fewest_failed", "interval"),
            *("low", "high", "is_computed", "storage_seconds"),
        )
        return {
            "workload": self.workload.name,
            "target": self.target.name,
            "data_folder": self.target.folder,
            "drives": self.target.num_drives,
            **{name: getattr(self, name) for name in (*same, "threshold", "limit")},
            "evidence": fields_of(self.evidence),
            "phases": [asdict(phase) for phase in self.phases],
            "bound": self.bound and self.bound.fields,
            "quick": self.workload.size.quick,
            "demand_bytes_per_second": self.workload.demand,
            "findings": fields_of(self.findings),
            "read_ahead_share": self.read_ahead_share,
            "dataset_bytes": self.dataset_bytes,
            "sample_bytes": self.workload.dataset.mean_bytes,
            "seconds": self.seconds,
            "points": [asdict(point) for point in self.points],
            "confirmations": [asdict(point) for point in self.confirmations],
            "first": None if self.first is None else asdict(self.first),
            "real_h100s": real_h100s(
                self.workload, self.real_accelerators, self.limit or "", at_least=self.at_least
            ),
            "conditions": dict(self.conditions),
        }


def document_of(answers: Sequence[Sized], tried: Path | None = None) -> dict[str, Any]:
    """Return the content of sizing.json; `tried` is the folder of `dlemu try`."""
    return {
        "kind": "sizing",
        "status": "complete",
        "tried": None if tried is None else str(tried),
        "answers": [answer.fields for answer in answers],
        "unfinished": {},
    }


class SizingRecord:
    """The document of the searches in a folder, on rank 0. It survives `kill -9` at any moment."""

    def __init__(
        self, folder: Path, wanted: dict[str, Any] | None = None, *, tried: Path | None = None
    ) -> None:
        """Read what an earlier command has left there; nothing is written before the first run.

        `wanted`: what is searched for, if somebody has to find it. `tried`: as in `document_of`.

        Raises:
            RunError: it is damaged, or cannot be written.
        """
        check_writable(folder / SIZING)
        self.folder, self._wanted = folder, {} if wanted is None else {"wanted": wanted}
        self._document = document_of([], tried)
        before = self._document | {"settings": {}} | read_sizing(folder)
        ended = {f"{each['target']}.{each['workload']}": each for each in before["answers"]}
        self._searches: dict[str, Any] = ended | before["unfinished"]
        self._settings = before["settings"]
        self._identities: dict[str, Any] = dict(before.get("identities") or {})
        self.age = age_of(before.get("updated"))
        """Seconds since the last run that was found here; None: not known."""
        self._record = Record(folder, self._document, name=SIZING)

    def open(
        self, name: str, settings: Mapping[str, Any], identity: Mapping[str, str]
    ) -> list[Point]:
        """Return the runs of a search that were made before.

        Raises:
            WorkloadError: they were made with other settings, or are of another storage, dataset
                or host. A dataset that was extended is the same.
            RunError: the document is damaged.
        """
        wanted = json.loads(json.dumps(settings))
        try:
            found = dict(self._settings.get(name, wanted))
            points = [_POINT.validate_python(each) for each in self._points(name)]
        except DAMAGE as error:
            raise damaged(self.folder / SIZING, in_short(error)) from None
        for key in {**wanted, **found}:
            if found.get(key) != wanted.get(key):
                raise WorkloadError(
                    f"output.folder {self.folder} holds runs with {key}={found.get(key)}, "
                    f"now it is {wanted.get(key)}; name another output.folder, or set it back"
                )
        before = self._identities.get(name)
        if points and (why := what_differs(before, identity, may_grow=True)):
            raise WorkloadError(
                f"output.folder {self.folder} holds runs that do not count here: {sentence(why)}; "
                "name another output.folder"
            )
        self._settings[name], self._identities[name] = wanted, dict(identity)
        return points

    def _points(self, name: str) -> list[Any]:
        return list(self._searches.get(name, {"points": ()})["points"])

    def add(self, name: str, *new: Point) -> None:
        """Keep the runs of a search that has no answer yet: none as it begins."""
        points = [*self._points(name), *map(asdict, new)]
        conditions = conditions_of(self.folder, name)
        self._searches[name] = {"points": points, "conditions": conditions}
        self._write("incomplete")

    def conclude(self, answer: Sized, *, is_last: bool) -> None:
        """Keep an answer."""
        self._searches.pop(answer.name, None)
        self._searches[answer.name] = answer.fields
        self._write("complete" if is_last else "incomplete")

    def _write(self, status: str) -> None:
        ended = {name: each for name, each in self._searches.items() if "workload" in each}
        self._document |= {
            "status": status,
            "answers": list(ended.values()),
            "unfinished": {n: each for n, each in self._searches.items() if n not in ended},
            "settings": self._settings,
            "identities": self._identities,
            "updated": time_of_day(),
            **self._wanted,
        }
        if status == "complete":
            self._document.pop("wanted", None)
        self._record.write()

    @contextmanager
    def failing(self) -> Iterator[Self]:
        """Note why the searches did not end, if one has begun."""
        try:
            yield self
        except BaseException as error:
            if "settings" in self._document:
                self._record.fail(error)
            raise


def settings_of(workload: Workload, world: World) -> dict[str, Any]:
    """Return, by dotted key, what the runs of a search depend on."""
    tree = workload.model_dump(mode="json", include=set(_SECTIONS))
    settings: dict[str, Any] = {
        "num_ranks": world.num_ranks,
        "num_hosts": world.num_hosts,
        "host_memory": workload.host_memory,
        "output.drop_caches": workload.output.drop_caches,
    }
    if workload.workflow.checkpoint:
        settings["workflow.checkpoint"] = True
        tree |= workload.model_dump(mode="json", include={"model", "checkpoint"})
    for section, keys in tree.items():
        settings |= {f"{section}.{key}": value for key, value in keys.items()}
    return {key: value for key, value in settings.items() if key not in _MAY_CHANGE}


def hosts_in(world: World) -> list[str]:
    """Return the names of a job's hosts; all ranks call it."""
    return list(dict.fromkeys(world.all_gather(world.host)))


def identity_of_job(job: Workload, hosts: Sequence[str]) -> dict[str, str]:
    """Return which storage, dataset and hosts the runs of a job are of."""
    place, manifest = job.reach(), None
    with suppress(DlemuError, OSError):  # the search will say it
        manifest = read_manifest(job.data_folder, place.access, with_files=False)
    servers = None if place.has_paths else place.servers
    own = identity_of(job.data_folder, hosts=hosts, versions=versions(), servers=servers)
    return own if manifest is None else own | dataset_identity(vars(manifest.layout))


@contextmanager
def hold_search(
    workload: Workload,
    world: World,
    say: Say,
    identities: Callable[[], Mapping[str, Mapping[str, str]]] = dict,
) -> Iterator[SizingRecord]:
    """Yield the record for a search, in a held folder.

    That is output.folder, else the newest with the same search that has not ended, else a new one.
    A search of another storage, dataset or host, or one that is old, is not the same.

    Raises:
        WorkloadError: the folder cannot be made, or another command holds it.
        RunError: sizing.json there is damaged, or cannot be written.
    """
    with ExitStack() as stack:
        if workload.output.folder is not None:
            folder = stack.enter_context(hold(workload.output.folder, "size"))
            yield stack.enter_context(SizingRecord(folder).failing())
            return
        wanted = _wanted(workload, world)
        for folder, document in _unfinished(wanted):
            age, before = age_of(document.get("updated")), document.get("identities") or {}
            now = identities()
            others = (what_differs(before.get(name), now.get(name, {})) for name in before or [""])
            if why := why_not_taken(folder, next(filter(None, others), None), age):
                say(sentence(why))
                continue
            try:
                stack.enter_context(hold(folder, "size"))
            except WorkloadError:  # another dlemu searches there
                continue
            say(told("same_search_goes_on", folder=str(folder), age_seconds=age))
            break
        else:
            folder = stack.enter_context(hold(None, "size"))
        yield stack.enter_context(SizingRecord(folder, wanted).failing())


def _wanted(workload: Workload, world: World) -> dict[str, Any]:
    """Return what tells one search from another: its keys, but not how many files there are."""
    tree = workload.model_dump(mode="json", exclude={"output", "ignored", "given"})
    tree["dataset"].pop("num_files_train")  # a search may ask for a larger dataset
    tree["size"]["targets"] = [str(Path(target).resolve()) for target in workload.size.targets]
    if not workload.size.targets:
        tree["dataset"]["data_folder"] = str(workload.data_folder.resolve())
    searched: dict[str, Any] = json.loads(json.dumps({"num_ranks": world.num_ranks, **tree}))
    return searched


def _unfinished(wanted: dict[str, Any]) -> list[tuple[Path, dict[str, Any]]]:
    """Return folder and document of the same search that has not ended, the newest first."""
    found = []
    for path in _PARENT.glob(f"*/{SIZING}"):
        with suppress(OSError, DlemuError, *DAMAGE):
            document = json.loads(read_regular(path))
            if document.get("wanted") == wanted:
                found.append((path.stat().st_mtime, path.parent, document))
    found.sort(key=lambda each: each[:2], reverse=True)
    return [(folder, document) for _, folder, document in found]
