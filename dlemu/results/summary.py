"""The fields of summary.json: of one run (Summary), and of several runs (RunsSummary).

In Python the fields are attributes; `of` reads them from the file's object, `as_json` writes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Self

from dlemu.results.records import UNFINISHED

Verdict = Literal["PASS", "FAIL", "NO VERDICT"]
LimitName = Literal["storage", "host cpu", "loader", "barrier", "oversleep", "none", "unclear"]


def time_of_day() -> str:
    """Return the time as summaries have it: UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class JsonObject:
    """A JSON object with known fields. A field that is missing in the file is None.

    Fields that are not known here (of another version) and the order of all fields are kept.
    """

    NEEDED: ClassVar[tuple[str, ...]] = ()
    """Fields without which an object is damaged."""
    LATER: ClassVar[tuple[str, ...]] = ()
    """Fields that a new object has only after they were set."""

    as_read: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """The object as it stood in the file; None if it was not read from one."""

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """Return the object for what JSON has; the types of the values are not checked.

        Raises:
            KeyError: a field is missing that is needed.
        """
        for name in cls.NEEDED:
            tree[name]
        known = {each.name: tree.get(each.name) for each in fields(cls)}
        return cls(**known | cls._parts(tree) | {"as_read": tree})

    @classmethod
    def _parts(cls, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that are objects themselves."""
        return {}

    def as_json(self) -> dict[str, Any]:
        """Return the fields as they are written."""
        written = dict(self.as_read or {})
        for each in fields(self):
            value = getattr(self, each.name)
            wanted = self.as_read is None and each.name not in self.LATER
            if each.name != "as_read" and (wanted or value is not None or each.name in written):
                written[each.name] = _plain(value)
        return written


def _plain(value: Any) -> Any:
    if isinstance(value, JsonObject):
        return value.as_json()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class Limit(JsonObject):
    """The resource that limited a run."""

    NEEDED: ClassVar[tuple[str, ...]] = ("name", "evidence")

    name: LimitName
    evidence: str
    advice: str = ""
    explains: float | None = None
    """Share (0-1) of the loss that the evidence accounts for; None for `none` and `unclear`."""


@dataclass(frozen=True, kw_only=True)
class Metric(JsonObject):
    """AU and throughput of a run, by DLIO's names; means and standard deviations over epochs."""

    edition: str
    """MLPerf Storage's edition whose rules apply, "v1.0" or "v2.0"."""
    train_au_percentage: Sequence[float]
    """AU of each epoch, 0 to 100."""
    train_au_mean_percentage: float
    train_au_stdev_percentage: float
    train_au_meet_expectation: str
    """"success", "fail" or "no verdict"."""
    train_hidden_share: float
    """The largest share (0-1) of the counted steps that the steps left out can read for."""
    train_throughput_samples_per_second: Sequence[float]
    """Of each epoch, over all accelerators."""
    train_throughput_mean_samples_per_second: float
    train_throughput_stdev_samples_per_second: float
    train_io_mean_MB_per_second: float
    """Nominal bytes, in MiB/s: the name is DLIO's."""
    train_io_stdev_MB_per_second: float


@dataclass(frozen=True, kw_only=True)
class Measured(JsonObject):
    """What was counted during the epochs. A value is None where nobody can tell."""

    storage_read_bytes: int | None
    """Delivered by storage: not from the page cache."""
    path: str
    """PathBytes.mode: the path that the bytes took to memory, "host" or cuFile's."""
    path_bytes: Mapping[str, Any]
    """The fields of PathBytes."""
    device_read_bytes: int | None
    """Of all drives under the data folder, whoever read."""
    page_cache_share: float | None
    """Share (0-1) of the bytes that came from memory."""
    page_cache_share_per_epoch: Sequence[float | None]
    resident_share_before: float | None
    """Share (0-1) of the dataset's pages that were in memory before the first epoch."""
    host_cpu_percentage: float | None
    """Of all CPUs of the hosts, by whatever ran there; mean over hosts."""
    hosts: Sequence[Mapping[str, Any]]
    """The fields of HostEvidence, of each host."""
    read_seconds: float
    """In read calls, sum over all workers; the next two likewise."""
    decode_seconds: float
    hand_over_seconds: float
    worker_seconds: float
    """Seconds of the epochs x workers."""
    read_bytes: int | None = None
    """Really read by the loaders, all epochs. This and what follows come from the steps alone."""
    read_bytes_per_second: float | None = None
    whole_epoch_au_percentage: Sequence[float] | None = None
    """AU of each epoch with its first step, 0 to 100."""
    first_step_seconds: Sequence[float] | None = None
    """Of each epoch, mean over accelerators."""

    @property
    def counted(self) -> bool:
        """Whether the hosts were watched: not in one's own loop, nor in a run that failed."""
        return self.as_read is None or "page_cache_share" in self.as_read


@dataclass(frozen=True, kw_only=True)
class Summary(JsonObject):
    """summary.json of one run."""

    LATER: ClassVar[tuple[str, ...]] = ("error", "verdict", "reasons", "remarks", "end")

    status: str
    """"complete", or one of UNFINISHED."""
    workload: str
    """Its name."""
    data_loader: str
    """reader.data_loader, and reader.decode."""
    decode: str
    loop: str | None
    """train.loop; older runs do not have it."""
    hand_over: str | None
    """"batch" or "none"; older runs do not have it."""
    num_accelerators: int
    num_ranks: int
    num_hosts: int
    hostname: str
    """Of rank 0."""
    start: str
    """By `time_of_day`, as `end`."""
    metric: Metric
    """Without fields where the run did not end, as `measured`."""
    measured: Measured
    limit: Limit | None
    ignored: Sequence[str]
    """Keys of the workload that have no effect."""
    notes: Sequence[str]
    versions: Mapping[str, str]
    """Of dlemu, Python, the kernel and the libraries that read."""
    error: str | None = None
    """Why the run did not end."""
    verdict: Verdict | None = None
    reasons: Sequence[str] | None = None
    """Why there is no verdict."""
    remarks: Sequence[str] | None = None
    """What the verdict's line says as well."""
    end: str | None = None

    @classmethod
    def _parts(cls, tree: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "metric": Metric.of(tree.get("metric") or {}),
            "measured": Measured.of(tree.get("measured") or {}),
            "limit": Limit.of(tree["limit"]) if tree.get("limit") else None,
        }

    @property
    def unfinished(self) -> bool:
        """Whether the run did not end well."""
        return self.status in UNFINISHED


@dataclass(frozen=True, kw_only=True)
class RunRow(JsonObject):
    """One run of several."""

    NEEDED: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    """Its folder within theirs, "run.1" or "warmup.1"."""
    status: str
    """As in the run's Summary, and the next three too."""
    verdict: Verdict | None
    start: str
    end: str | None
    gap_seconds: float | None
    """Since the end of the run before; None for the first one."""
    au_percentage: float
    samples_per_second: float
    nominal_MiB_per_second: float
    page_cache_share: float | None
    limit: str
    epochs_under: str
    """The epochs under the threshold, as text; "" if there is none."""


@dataclass(frozen=True, kw_only=True)
class Spread(JsonObject):
    """Mean, standard deviation (n - 1) and 95 % interval of the mean; None for one value."""

    mean: float
    sd: float | None
    interval: Sequence[float] | None


@dataclass(frozen=True, kw_only=True)
class RunsSummary(JsonObject):
    """summary.json of several runs; each run's own lies in its folder."""

    LATER: ClassVar[tuple[str, ...]] = (
        "error", "verdict", "passed", "reasons", "repeatability_percentage", "au_percentage",
        "samples_per_second", "end",
    )  # fmt: skip

    status: str
    """As a run's."""
    label: str
    division: str
    """"closed" or "open"."""
    workload: str
    start: str
    runs: Sequence[RunRow]
    error: str | None = None
    verdict: Verdict | None = None
    passed: bool | None = None
    """None where they did not end."""
    reasons: Sequence[str] | None = None
    repeatability_percentage: float | None = None
    """The largest distance of a run's samples/s from their mean."""
    au_percentage: Spread | None = None
    samples_per_second: Spread | None = None
    end: str | None = None

    @classmethod
    def _parts(cls, tree: Mapping[str, Any]) -> dict[str, Any]:
        return {"runs": [RunRow.of(row) for row in tree.get("runs") or ()]}
