"""The closed form of a prediction: how many accelerators a storage feeds, with its error.

For N accelerators whose steps take `computation_time` t_c and `batch_bytes`:

    demand = batch_bytes / t_c
    AU(N)  = min( t_c / (t_c + a + o + σ (ln N + 0.577)),   step: all-reduce, overhead and barrier
                  drives · S / ((1 − h) · N · demand),      storage, helped by the page cache
                  server / ((1 − h) · N · demand),          what its servers give together
                  hosts · L / ((1 − h) · N · demand),       what the hosts' links carry
                  hosts · C / (N · demand) )                what the hosts can move

    a  what the job's all-reduce takes in a step beyond its compute (train.allreduce_time)
    o  overhead of a step that nothing overlaps, seconds
    σ  jitter of a step, seconds: the last of N accelerators is σ (ln N + 0.577) late at the barrier
    S  read rate of a drive, h the share of the bytes that the page cache serves
    L  payload of one host's links (client.nic_gbps)
    C  read rate of one host with this workload and loader

The datasheet gives S; one calibration measures the rest (`Calibration`). Every term has an error,
so every answer has a range. Source: docs/prediction.md, which also says how well it did.

The same arithmetic says what the published workloads read, and which of them storage limits: sizes
and times beside the datasheets of workloads/drive/ (docs/workloads.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from dlemu.config.compose import datasheet, known_workloads
from dlemu.config.model import Drive, Workload, load_workload
from dlemu.config.published import is_measured, real_h100s
from dlemu.dataset.layout import amount_of, layout_of
from dlemu.errors import WorkloadError
from dlemu.findings import Finding, note
from dlemu.judge.capacity import expect
from dlemu.judge.metrics import passes
from dlemu.units import ceil_div

ERROR = 0.36
"""Relative error of a rate, by datasheet or calibration: 90 % of the published cells are no further
off when their drive is left out of the fit (printed by `benchmarks.published`)."""

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
_SLOWEST, _FASTEST = "d3_s4520", "d7_ps1010"
_BOUNDS = ("gnn_rgat_h100",)
"""Rows whose demand is only known to be no larger: the row's file says why."""
_NOT_FELT = 0.01
"""Below this share of the slowest drive's rate, storage cannot be the limit."""
_ACCELERATORS = 8
"""Of a host: a drive that feeds these is not felt either."""


class WorkersOfHost(BaseModel):
    """What the workers of a plain DataLoader make on a host, whatever the storage."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    cpus: Annotated[int, Field(ge=1)]
    one: Positive
    """Samples per second of one worker, and of so many that the CPUs are full."""
    all: Positive


class Calibration(BaseModel):
    """What was measured on one host with one workload, loader and odirect setting: the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["calibration"] = "calibration"
    version: Literal[3] = 3
    host: str = ""
    """Its name."""
    host_cpus: Annotated[int, Field(ge=1)] | None = None
    """Its CPU cores; None: not known."""
    workload: str
    loader: str
    odirect: bool
    sample_bytes: Positive | None = None
    """Mean bytes of the samples it was measured with; None: unknown, not compared."""
    read_threads: Annotated[int, Field(ge=0)] | None = None
    overhead: Annotated[float, Field(ge=0)]
    """Seconds of a step beyond compute, where storage is not the limit (o)."""
    jitter: Annotated[float, Field(ge=0)] = 0.0
    """Scale of the step's jitter over the accelerators, seconds (σ); differs from site to site."""
    barrier: Annotated[float, Field(ge=0)] | None = None
    """Seconds in which two processes of this host meet (median); None: not measured."""
    host_read_bytes_per_second: Positive
    """What one host moves at full load, where storage is not the limit (C)."""
    drive_read_bytes_per_second: Positive | None = None
    """Rate of one drive, read cold in the loader's own pattern (S); None: use the datasheet."""
    page_cache_share: Share = 0.0
    """Share of the bytes that memory serves, 0 to 1 (h)."""
    error: Share = ERROR
    """Relative error of what is predicted from these figures."""
    overhead_limit: str | None = None
    """Limit of the run that gave the overhead, as in summary.json; None: it had none."""
    host_limit: str | None = None
    """Limit of the run that gave the host's rate; if not the host, the host may move more."""
    drive_limit: str | None = None
    """Limit of the cold read; if not the storage, the drive may give more."""
    drive_trend: str = "steady"
    """How its rate went on; of one that "fell" drive_read_bytes_per_second is the later one."""
    workers: WorkersOfHost | None = None
    """Of the workload's DataLoader; None: it asks for none, or what they do is not known."""
    measured_at: str = ""
    """When, as time of day; "" of an earlier version, as the next."""
    identity: Mapping[str, str] = {}
    """Host and versions, and storage and dataset of the cold read, as `host.same` tells them."""


PredictedLimit = Literal[
    "storage", "server", "network", "host cpu", "step overhead", "all-reduce", "barrier", "none"
]
"""`none`: AU is at its ceiling."""
AU_NOISE = 0.0036
"""Two standard deviations of AU from run to run, 0 to 1 (published cells: median 0.18 points)."""
UNMEASURED_OVERHEAD = 0.014
"""Largest overhead of a step, as a share of computation_time, that is assumed where it was not
measured: the largest in a published cell at its AU ceiling (printed by `benchmarks.published`)."""
DLIO_CORE_SECONDS = {
    ("npz", False): (1.2, 4.3),
    ("tfrecord", False): (2.8, 6.4),
    ("tfrecord", True): (2.6, 5.1),
}
"""CPU cores of a host x seconds that DLIO needs for a GB in published results, by format, and
whether files have many samples: the cheapest host, and the dearest of those whose drives were fast
enough (printed by `benchmarks.published`)."""
DLIO_DRIVE_SHARE = (0.75, 1.25)
"""Share of their datasheets that drives give to DLIO in published results: all that the host does
not limit lie between, but for two (printed by `benchmarks.published`). By the rule memory may hold
a fifth of a dataset: so drives seem to give up to 1.25."""
LINK_PAYLOAD = (1448 / 1538, 8948 / 9038)
"""Share of a link's rate that is payload, in TCP over Ethernet with frames of 1500 and 9000 bytes:
a frame has 52 bytes of headers of IP and TCP, and costs 38 more on the wire."""
EXTRAPOLATED_ABOVE = 400
"""The barrier term was compared with measurements up to 411 accelerators."""


@dataclass(frozen=True)
class Reads:
    """What storage gives for a batch of one accelerator."""

    num_bytes: float
    """Those that are read, not only those that are used."""
    num_calls: float

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Return the reads of a workload."""
        reader, dataset, used = workload.reader, workload.dataset, workload.bytes_per_step
        if dataset.columns:
            one = workload.with_keys({"dataset.num_files_train": 1})
            amount = amount_of(one, layout_of(one))
            return cls(used * amount.read / amount.useful, reader.batch_size * amount.reads)
        if workload.streamed:
            return cls(used, used / reader.transfer_size)
        pieces = ceil_div(math.ceil(dataset.mean_bytes), reader.piece_bytes)
        return cls(used, reader.batch_size * pieces)

    @property
    def size(self) -> float:
        """Mean bytes of a read."""
        return self.num_bytes / self.num_calls

    def rate_of(self, drive: Drive) -> float:
        """Return the bytes per second that a drive gives: its IOPS bound small reads.

        Raises:
            WorkloadError: the drive's rate is not given.
        """
        return min(drive.read_rate, (drive.random_read_iops or math.inf) * self.size)


@dataclass(frozen=True, kw_only=True)
class PredictionInput:
    """A job and the storage that it reads."""

    computation_time: float
    """Seconds that an accelerator computes on a batch."""
    allreduce_time: float = 0.0
    """Seconds of the job's all-reduce in each step."""
    batch_bytes: float
    """Bytes of a batch in storage."""
    threshold: float
    """Least AU that passes, in percent."""
    drive_read_bytes_per_second: float
    """What a drive gives to such reads, by its datasheet."""
    num_drives: int = 1
    """Drives over all hosts."""
    num_hosts: int = 1
    nic_gbps: float | None = None
    """Gb/s of all links of one host, in each direction; None: taken as unlimited, as the next."""
    server_read_bytes_per_second: float | None = None
    """What the storage's servers give together."""
    accelerators: int | None = None
    """Number to predict AU and rate for; None: the most that pass."""

    def __post_init__(self) -> None:
        if self.computation_time <= 0:
            raise WorkloadError("train.computation_time must be above 0 for a prediction, got 0")

    @classmethod
    def of(cls, workload: Workload, drive: Drive) -> Self:
        """Return the input for a workload that reads `workload.drives` such drives.

        Where server.read_bandwidth is given, the drives may have no rate: then they are no limit.

        Raises:
            WorkloadError: the drive's rate is not given, or a number is not above 0.
        """
        server, reads = workload.server.read_bandwidth, Reads.of(workload)
        return cls(
            computation_time=workload.train.computation_time.mean,
            allreduce_time=workload.train.allreduce_time,
            batch_bytes=reads.num_bytes,
            threshold=100 * workload.metric.au,
            drive_read_bytes_per_second=math.inf
            if drive.read_bandwidth is None and server is not None
            else reads.rate_of(drive),
            num_drives=workload.drives,
            num_hosts=workload.num_hosts,
            nic_gbps=workload.client.nic_gbps,
            server_read_bytes_per_second=server,
            accelerators=workload.predict.accelerators,
        )

    @property
    def demand(self) -> float:
        """Bytes per second that one accelerator takes if it never waits."""
        return self.batch_bytes / self.computation_time


@dataclass(frozen=True)
class Prediction:
    """The answer with its range. Where no number passes, AU and rate are those of one accelerator.

    `low` and `high`: every figure as much worse, or better, as its error allows.
    """

    num_accelerators: int
    """The most that pass, or the number that was asked about."""
    low: int
    high: int | None
    """None: nothing known limits it."""
    real_accelerators: float
    """The most that pass, as a real number (N*)."""
    at_least: bool
    """The figure that decides was itself limited by something else: there may be more."""
    au_percentage: float
    """AU with `num_accelerators`, 0 to 100."""
    au_low: float
    au_high: float
    read_bytes_per_second: float
    """Read rate of all `num_accelerators` together."""
    read_low: float
    read_high: float
    limit: PredictedLimit | str
    """Where the deciding figure was itself limited: by what."""
    feeds: dict[str, float]
    """Accelerators that each of storage, server, network and host feeds, as a real number; without
    those that are taken as unlimited."""
    calibrated: bool
    """False: from the datasheet alone, no host was measured."""
    extrapolated: bool
    """There are more accelerators than the barrier term was compared with."""


def predict(job: PredictionInput, calibration: Calibration | None = None) -> Prediction:
    """Return the most accelerators that pass, or AU and rate of the number asked about."""
    mean, low, high = (_Terms.of(job, calibration, sign) for sign in (0, -1, 1))
    most = mean.number(job.threshold)
    assert most is not None, "the figures themselves are finite"
    num_accelerators = most if job.accelerators is None else job.accelerators
    running = max(1, num_accelerators)
    # The limit is what stops one accelerator more; of a number asked about, what limits that.
    limited = running + (job.accelerators is None and num_accelerators > 0)
    limit, _ = mean.limit(limited, job.threshold)
    _, at_least = mean.limit(most + 1, job.threshold)
    real, least, best = (each.most(job.threshold / 100) for each in (mean, low, high))
    best = math.inf if high.number(job.threshold) is None else best
    found = expect(real, between=(least, best), passes=most)
    return Prediction(
        num_accelerators=num_accelerators,
        low=found.low,
        high=found.high,
        real_accelerators=found.real_accelerators or real,
        at_least=at_least,
        au_percentage=100 * mean.au(running),
        au_low=100 * low.au(running),
        au_high=100 * high.au(running),
        read_bytes_per_second=running * mean.au(running) * job.demand,
        read_low=running * low.au(running) * job.demand,
        read_high=running * high.au(running) * job.demand,
        limit=limit,
        feeds={
            name: number / (job.threshold / 100)
            for name, number in mean.feeds.items()
            if not math.isinf(number)
        },
        calibrated=calibration is not None,
        extrapolated=running > EXTRAPOLATED_ABOVE,
    )


@dataclass(frozen=True)
class Published:
    """What a published DLIO run would show on the same storage."""

    host_cpus: int
    num_accelerators: int
    low: int
    high: int
    figure: Literal["drive", "host", "either"]
    """What that measures; `either` where the ranges overlap."""


def dlio_files(workload: Workload) -> tuple[str, bool]:
    """Return what DLIO_CORE_SECONDS calls the files of a workload."""
    many = workload.dataset.format, True
    has_many = workload.dataset.num_samples_per_file > 1 and many in DLIO_CORE_SECONDS
    return workload.dataset.format, has_many


def published(workload: Workload, job: PredictionInput, cpus: int) -> Published | None:
    """Return what a run published on hosts of so many cores shows; None: of no such files."""
    if (seconds := DLIO_CORE_SECONDS.get(dlio_files(workload))) is None:
        return None
    host = (1e9 * cpus / seconds[1], 1e9 * cpus / seconds[0])
    mean, low, high = (_Terms.of(job, None, sign, host) for sign in (0, -1, 1))
    figure: Literal["drive", "host", "either"] = "either"
    if high.feeds["host cpu"] < low.feeds["storage"]:
        figure = "host"
    elif low.feeds["host cpu"] > high.feeds["storage"]:
        figure = "drive"
    number, least, most = (terms.number(job.threshold) or 0 for terms in (mean, low, high))
    return Published(cpus, number, least, most, figure)


def step_overhead(computation_time: float, au_percentage: float, jitter: float) -> float:
    """Return the overhead of a step (o), seconds, from AU where storage is not the limit."""
    step = computation_time * 100 / au_percentage
    return max(0.0, step - computation_time - jitter * np.euler_gamma)


@dataclass(frozen=True)
class _Rate:
    """What a resource moves in a second, and how well that is known."""

    value: float
    error: float = ERROR
    """Relative."""
    bound_by: str | None = None
    """What limited it when it was measured, if not the resource itself: there may be more."""

    def at(self, sign: int) -> float:
        """Return the rate as it is (sign 0), or at the worse (-1) or better (1) end."""
        if sign > 0 and self.bound_by is not None:
            return math.inf
        return self.value * (1 + sign * self.error)


_UNLIMITED = _Rate(math.inf)


def _between(low: float, high: float, *, sign: int) -> _Rate:
    """Return the low (-1) or the high (1) end, or their geometric mean: the ends are far apart."""
    return _Rate({-1: low, 0: math.sqrt(low * high), 1: high}[sign], error=0.0)


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """The terms of the formula. Times are seconds."""

    feeds: dict[str, float]
    """Accelerators that each resource feeds at AU 100 %, by its name as a limit."""
    bound_by: dict[str, str | None]
    """What limited the measured rate of a resource, if not the resource itself."""
    computation_time: float
    allreduce: float = 0.0
    overhead: float = 0.0
    jitter: float = 0.0

    @classmethod
    def of(
        cls,
        job: PredictionInput,
        calibration: Calibration | None,
        sign: int,
        dlio: tuple[float, float] | None = None,
    ) -> Self:
        """Return the terms as they are (sign 0), or all at the worse (-1) or better (1) end.

        `dlio`: the least and the most that a host moves which runs DLIO.
        """
        drive, host = _Rate(job.drive_read_bytes_per_second), _UNLIMITED
        overhead = UNMEASURED_OVERHEAD * job.computation_time if sign < 0 else 0.0
        jitter = cached = 0.0
        if calibration is not None:
            drive, host = _measured_rates(calibration, drive)
            error, cached = calibration.error, calibration.page_cache_share
            overhead = calibration.overhead * (1 - sign * error)
            overhead = max(0.0, overhead - sign * AU_NOISE * job.computation_time)
            jitter = calibration.jitter * (1 - sign * error)
        elif dlio is not None:
            shares = (share * drive.value for share in DLIO_DRIVE_SHARE)
            drive, host = _between(*shares, sign=sign), _between(*dlio, sign=sign)
        given = job.server_read_bytes_per_second
        server = _UNLIMITED if given is None else _Rate(given)
        link = math.inf if job.nic_gbps is None else job.nic_gbps * 1e9 / 8
        missed = job.demand * (1 - cached)
        return cls(
            feeds={
                "host cpu": job.num_hosts * host.at(sign) / job.demand,
                "storage": job.num_drives * drive.at(sign) / missed,
                "server": server.at(sign) / missed,
                "network": job.num_hosts * link * LINK_PAYLOAD[sign > 0] / missed,
            },
            bound_by={"host cpu": host.bound_by, "storage": drive.bound_by},
            computation_time=job.computation_time,
            allreduce=job.allreduce_time,
            overhead=overhead,
            jitter=jitter,
        )

    @property
    def fed(self) -> float:
        """Accelerators that all of these feed at AU 100 %."""
        return min(self.feeds.values())

    def late(self, num_accelerators: float) -> float:
        """Return how many seconds the last accelerator is late at the barrier."""
        return float(self.jitter * (math.log(num_accelerators) + np.euler_gamma))

    def ceiling(self, num_accelerators: float) -> float:
        """Return AU, 0 to 1, if storage and hosts were no limit."""
        step = self.computation_time + self.allreduce + self.overhead + self.late(num_accelerators)
        return self.computation_time / step

    def au(self, num_accelerators: int) -> float:
        """Return AU, 0 to 1."""
        return min(self.ceiling(num_accelerators), self.fed / num_accelerators)

    def most(self, threshold: float) -> float:
        """Return the real number of accelerators at which AU (0 to 1) falls to the threshold."""
        spare = self.computation_time * (1 / threshold - 1) - self.allreduce - self.overhead
        if self.jitter > 0:
            met = math.exp(min(700.0, spare / self.jitter - np.euler_gamma))
        else:
            met = math.inf if spare >= 0 else 0.0
        return min(self.fed / threshold, met)

    def number(self, threshold: float) -> int | None:
        """Return the most accelerators that pass a threshold in percent; None: unlimited."""
        # `metrics.passes` rounds to two decimals: AU may be up to 0.005 below the threshold.
        real = self.most(max(round(threshold, 2) - 0.005, threshold / 2) / 100)
        if math.isinf(self.fed) and real > EXTRAPOLATED_ABOVE:
            return None
        number = math.floor(real)
        if number > 0 and not passes(100 * self.au(number), threshold):
            number -= 1
        return number

    def limit(self, num_accelerators: int, threshold: float) -> tuple[str, bool]:
        """Return the smallest term, or what limited its figure: then more may be possible, True."""
        ceiling = self.ceiling(num_accelerators)
        if self.fed / num_accelerators < ceiling:
            name = min(self.feeds, key=lambda each: self.feeds[each])
            bound_by = self.bound_by.get(name)
            return bound_by or name, bound_by is not None
        if passes(100 * ceiling, threshold):
            return "none", False
        beyond = {
            "step overhead": self.overhead,
            "all-reduce": self.allreduce,
            "barrier": self.late(num_accelerators),
        }
        return max(beyond, key=lambda each: beyond[each]), False


def _measured_rates(calibration: Calibration, datasheet: _Rate) -> tuple[_Rate, _Rate]:
    """Return the rates of a drive and of a host; the datasheet's where no drive was read."""
    error, drive = calibration.error, datasheet
    if calibration.drive_read_bytes_per_second is not None:
        limit = calibration.drive_limit
        bound_by = None if limit == "storage" else limit
        drive = _Rate(calibration.drive_read_bytes_per_second, error, bound_by)
    limit = calibration.host_limit
    bound_by = None if limit in ("host cpu", "memory") else limit
    return drive, _Rate(calibration.host_read_bytes_per_second, error, bound_by)


def workload_rows(begins: Sequence[str] = ("",)) -> list[dict[str, object]]:
    """Return what an accelerator reads of each published workload whose name begins so."""
    names = (name for name in known_workloads() if name.startswith(tuple(begins)))
    return [row_of(load_workload(name)) for name in names]


def row_of(workload: Workload) -> dict[str, object]:
    """Return what an accelerator reads of a workload; sizes in bytes, times in seconds."""
    reads, step = Reads.of(workload), workload.train.computation_time.mean
    return {
        "workload": workload.name,
        "sample_bytes": workload.dataset.mean_bytes,
        "format": workload.dataset.format,
        "access": workload.reader.access or "stream",
        "batch_size": workload.reader.batch_size,
        "step_seconds": step,
        "step_measured": is_measured(workload.name),
        "bytes_per_second": reads.num_bytes / step,
        "useful_bytes_per_second": workload.demand,
        "reads_per_second": reads.num_calls / step,
        "threshold": workload.metric.au,
        "limited_by_storage": limited(workload).fields,
        "real_h100s": real_h100s(workload, 1 / drives_for_one(workload, _fastest()), "storage"),
    }


def _fastest() -> Drive:
    return Drive.model_validate(datasheet(_FASTEST))


def drives_for_one(workload: Workload, drive: Drive) -> float:
    """Return how many such drives one accelerator needs at AU 100 %."""
    reads = Reads.of(workload)
    return reads.num_bytes / workload.train.computation_time.mean / reads.rate_of(drive)


def limited(workload: Workload) -> Finding:
    """Return whether storage matters, with the number that says so."""
    slow, fast = (Drive.model_validate(datasheet(name)) for name in (_SLOWEST, _FASTEST))
    slow_ones, fast_ones = (drives_for_one(workload, drive) for drive in (slow, fast))
    if slow_ones < _NOT_FELT:
        rate = slow_ones * Reads.of(workload).rate_of(slow)
        return note("any_drive_is_enough", bytes_per_second=rate)
    if slow_ones * _ACCELERATORS < 1:
        return note("slow_drive_feeds", drive=slow.name, num_accelerators=1 / slow_ones)
    if workload.name in _BOUNDS:
        return note("at_most_so_many_drives", drive=fast.name, num_drives=fast_ones)
    if fast_ones < 1:
        return note("fast_drive_feeds", drive=fast.name, num_accelerators=1 / fast_ones)
    return note("one_needs_drives", drive=fast.name, num_drives=fast_ones)
