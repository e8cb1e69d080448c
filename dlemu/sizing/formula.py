"""How many accelerators a storage feeds, in closed form: rates in, a number with its error out.

For N accelerators whose steps take `computation_time` t_c and `batch_bytes`:

    demand = batch_bytes / t_c
    AU(N)  = min( t_c / (t_c + o + σ (ln N + 0.577)),       step: overhead and barrier
                  drives · S / ((1 − h) · N · demand),      storage, helped by the page cache
                  hosts · C / (N · demand) )                what the hosts can move

o is a step's overhead that nothing overlaps, σ the jitter of a step (the last of N jittery
accelerators is σ (ln N + 0.577) late), S a drive's read rate, h the share of the bytes that the
page cache serves, C what one host moves for this workload with this loader. The datasheet gives
S; the rest is measured once (`Calibration`). Every term has an error, and so every answer a range.
docs/sizing.md says where these numbers come from and how well they did.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dlemu.errors import WorkloadError
from dlemu.results.metrics import passes
from dlemu.workload.model import Drive, Workload

ERROR = 0.36
"""Relative error of a rate, by a datasheet or by calibration: 90 % of the published cells are no
further off when their drive is left out of the fit (`benchmarks.published` prints it)."""
AU_NOISE = 0.0036
"""Two standard deviations of AU from run to run, 0 to 1 (published cells: median 0.18 points)."""
UNMEASURED_OVERHEAD = 0.014
"""Share of computation_time that a step's overhead may be where nobody measured it: the most in a
published cell whose AU is at its ceiling (`benchmarks.published` prints it)."""
DLIO_CORE_SECONDS = {"npz": (1.2, 4.3), "tfrecord": (2.6, 6.4)}
"""CPU cores of a host x seconds that DLIO took for a GB in published results: the cheapest host,
and the dearest of those that drives of ample rate fed (`benchmarks.published` prints them)."""
EXTRAPOLATED_ABOVE = 400
"""The barrier term has been compared with measurements up to 411 accelerators."""

_FIRST_ERROR = 0.2
_OF_THE_HOST = (None, "host cpu", "memory")
"""Limits of a run from memory that are the host's own; None: not recorded."""
_OF_THE_DRIVE = (None, "storage")

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Calibration(BaseModel):
    """What was measured of one host with one workload, loader and way of reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    workload: str
    loader: str
    odirect: bool
    sample_bytes: Positive | None = None
    """Mean size of the samples it was measured with; None: not known, and not compared."""
    read_threads: Annotated[int, Field(ge=0)] | None = None
    overhead: Annotated[float, Field(ge=0)]
    """Seconds of a step beyond compute, with storage that is not the limit (o)."""
    jitter: Annotated[float, Field(ge=0)] = 0.0
    """Scale in seconds of the step's jitter over the accelerators (σ); belongs to the site."""
    host_read_bytes_per_second: Positive
    """What one host moves at full load, the storage not being the limit (C)."""
    drive_read_bytes_per_second: Positive | None = None
    """Cold read of one drive in the loader's own pattern (S); None: the datasheet's rate."""
    page_cache_share: Share = 0.0
    """Share of the bytes that memory serves (h)."""
    error: Share = ERROR
    """Relative error of what is predicted from these figures."""
    overhead_limit: str | None = None
    """What bound the run that gave the overhead, as `verdict` names it; None: not recorded."""
    host_limit: str | None = None
    """What bound the run that gave the host's rate: unless it was the host itself, the host may
    move more."""
    drive_limit: str | None = None
    """What bound the cold read: unless it was the storage, the drive may give more."""

    @property
    def drive(self) -> Drive | None:
        """The drive that was read, None where none was."""
        if self.drive_read_bytes_per_second is None:
            return None
        rate = max(1, round(self.drive_read_bytes_per_second))
        # Not checked, for a drive may be slower than what a forgotten unit looks like.
        return Drive.model_construct(name="calibrated drive", read_bandwidth=rate)


class CalibrationFile(BaseModel):
    """What `dlemu calibrate` writes: the calibrations of one host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1, 2] = 2
    """1 did not record what bound the figures."""
    host: str
    calibrations: tuple[Calibration, ...]

    @classmethod
    def parse(cls, text: str | bytes, *, path: str) -> Self:
        """Return the calibrations in a file's text; the path is for the error's sake.

        Raises:
            WorkloadError: it is no calibration file.
        """
        try:
            return cls.model_validate_json(text)._with_todays_error()
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise WorkloadError(
                f"{path} is not a calibration{f', {key}' if key else ''}: {first['msg']}; "
                "write it with dlemu calibrate"
            ) from None

    def _with_todays_error(self) -> Self:
        """Return it with a band that holds: version 1 wrote the residual of the fit, 0.2."""
        if self.version > 1:
            return self
        known = tuple(
            each.model_copy(update={"error": ERROR}) if each.error == _FIRST_ERROR else each
            for each in self.calibrations
        )
        return self.model_copy(update={"calibrations": known})

    def find(self, *, workload: str, loader: str, odirect: bool) -> Calibration:
        """Return the calibration of this very job: host rates cannot be carried over.

        Raises:
            WorkloadError: none fits.
        """
        asked = (workload, loader, odirect)
        for found in self.calibrations:
            if asked == (found.workload, found.loader, found.odirect):
                return found
        raise WorkloadError(
            f"predict.calibration has nothing for {workload} with reader.data_loader={loader} and "
            f"reader.odirect={str(odirect).lower()}; measure it with dlemu calibrate"
        )


@dataclass(frozen=True)
class PublishedHost:
    """What a host moves with the tool of published results, bytes per second."""

    low: float
    high: float

    @classmethod
    def of(cls, dataset_format: str, cpus: int) -> Self:
        """Return what so many CPU cores move with DLIO.

        Raises:
            WorkloadError: no published result has this format.
        """
        if dataset_format not in DLIO_CORE_SECONDS:
            raise WorkloadError(
                "predict.tool=dlio is known for dataset.format "
                f"{' and '.join(DLIO_CORE_SECONDS)}, got {dataset_format}; leave predict.tool out"
            )
        cheapest, dearest = DLIO_CORE_SECONDS[dataset_format]
        return cls(1e9 * cpus / dearest, 1e9 * cpus / cheapest)

    @property
    def mean(self) -> float:
        """The geometric mean: the ends are factors apart."""
        return math.sqrt(self.low * self.high)


@dataclass(frozen=True, kw_only=True)
class PredictionInput:
    """A job and the storage it is to read from."""

    computation_time: float
    """Seconds that an accelerator computes on a batch."""
    batch_bytes: float
    """Bytes of a batch as stored."""
    threshold: float
    """Least AU that passes, in percent."""
    drive_read_bytes_per_second: float
    """A drive's sequential read rate by its datasheet."""
    num_drives: int = 1
    """Drives over all hosts."""
    num_hosts: int = 1
    accelerators: int | None = None
    """Accelerators to predict for; None: the most that pass."""
    published_host: PublishedHost | None = None
    """The host of published results (`predict.tool=dlio`); None: dlemu reads."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 100:
            raise WorkloadError(
                "metric.au must be above 0 and at most 1 (100 %), "
                f"got {self.threshold / 100:g}; MLPerf Storage asks for 0.9 or 0.7"
            )
        for key, value in (
            ("train.computation_time", self.computation_time),
            ("reader.batch_size x dataset.record_length_bytes", self.batch_bytes),
            ("drive.read_bandwidth", self.drive_read_bytes_per_second),
            ("drives", self.num_drives),
            ("num_hosts", self.num_hosts),
            ("predict.accelerators", 1 if self.accelerators is None else self.accelerators),
        ):
            if not 0 < value < math.inf:
                raise WorkloadError(f"{key} must be above 0 for a prediction, got {value:g}")

    @classmethod
    def of(cls, workload: Workload, drive: Drive) -> Self:
        """Return what a workload asks for, with its `drives` of this kind.

        Raises:
            WorkloadError: predict.tool and predict.host_cpus do not fit each other.
        """
        return cls(
            computation_time=workload.train.computation_time.mean,
            batch_bytes=workload.bytes_per_step,
            threshold=100 * workload.metric.au,
            drive_read_bytes_per_second=drive.read_bandwidth,
            num_drives=workload.drives,
            num_hosts=workload.num_hosts,
            accelerators=workload.predict.accelerators,
            published_host=_published_host(workload),
        )

    @property
    def demand(self) -> float:
        """Bytes per second that one accelerator takes when it never waits."""
        return self.batch_bytes / self.computation_time


def _published_host(workload: Workload) -> PublishedHost | None:
    """Return the host that a published result was measured with, None where dlemu reads."""
    cpus = workload.predict.host_cpus
    if workload.predict.tool == "dlemu":
        if cpus is not None:
            raise WorkloadError(
                f"predict.host_cpus={cpus} has an effect with predict.tool=dlio only: what a host "
                "moves with dlemu is measured by dlemu calibrate"
            )
        return None
    if workload.predict.calibration is not None:
        raise WorkloadError(
            "predict.calibration was measured with dlemu, not with predict.tool=dlio; leave out "
            "one of the two"
        )
    if cpus is None:
        raise WorkloadError(
            "predict.tool=dlio needs predict.host_cpus, the CPU cores of one host, from 1 to 4096"
        )
    return PublishedHost.of(workload.dataset.format, cpus)


@dataclass(frozen=True)
class Prediction:
    """The answer and its error band; where none passes, AU and rate are those of one."""

    num_accelerators: int
    """The most that pass, or as many as were asked about."""
    low: int
    """The most that pass if every figure is as much worse as it may be; `high` likewise."""
    high: int | None
    """None: nothing known bounds it."""
    real_accelerators: float
    """The most that pass, as a real number: what is left over shows."""
    at_least: bool
    """The figure that decides was itself held back by something else: there may be more."""
    au_percentage: float
    au_low: float
    au_high: float
    read_bytes_per_second: float
    read_low: float
    read_high: float
    limit: str
    """`storage`, `host cpu`, `step overhead`, `barrier`; `none` where AU is at its ceiling; where
    the figure was held back, by what."""
    calibrated: bool
    """False: no host was measured, only the datasheet speaks."""
    extrapolated: bool
    """More accelerators than the barrier term has been compared with."""
    published_figure: Literal["drive", "host", "either"] | None = None
    """What a figure published with `predict.tool=dlio` measures here; None: dlemu reads."""


def predict(job: PredictionInput, calibration: Calibration | None = None) -> Prediction:
    """Return what this storage feeds: the most accelerators, or AU at the number asked about."""
    mean, low, high = (_Rates.of(job, calibration, sign) for sign in (0, -1, 1))
    most = mean.number(job.threshold)
    assert most is not None, "the figures themselves are finite"
    num_accelerators = most if job.accelerators is None else job.accelerators
    running = max(1, num_accelerators)
    # What stands in the way of the next one; for a number that was given, of these.
    asked = running + (job.accelerators is None and num_accelerators > 0)
    limit, _ = mean.limit(asked, job.threshold)
    _, at_least = mean.limit(most + 1, job.threshold)
    return Prediction(
        num_accelerators=num_accelerators,
        low=low.number(job.threshold) or 0,
        high=high.number(job.threshold),
        real_accelerators=mean.most(job.threshold / 100),
        at_least=at_least,
        au_percentage=100 * mean.au(running),
        au_low=100 * low.au(running),
        au_high=100 * high.au(running),
        read_bytes_per_second=running * mean.au(running) * job.demand,
        read_low=running * low.au(running) * job.demand,
        read_high=running * high.au(running) * job.demand,
        limit=limit,
        calibrated=calibration is not None,
        extrapolated=running > EXTRAPOLATED_ABOVE,
        published_figure=None if job.published_host is None else _published_figure(low, high),
    )


def _published_figure(low: "_Rates", high: "_Rates") -> Literal["drive", "host", "either"]:
    """Return which of the two bounds a published figure, if either surely does."""
    if high.hosts < low.storage:
        return "host"
    return "drive" if low.hosts > high.storage else "either"


def calibrate(
    *,
    workload: str,
    loader: str,
    odirect: bool,
    computation_time: float,
    batch_bytes: float,
    one_au_percentage: float,
    full_accelerators: int,
    full_au_percentage: float,
    jitter: float = 0.0,
    drive_read_bytes_per_second: float | None = None,
    page_cache_share: float = 0.0,
    overhead_limit: str | None = None,
    host_limit: str | None = None,
    drive_limit: str | None = None,
) -> Calibration:
    """Return the figures behind two runs on storage that is not the limit.

    One run has one accelerator, the other so many that AU falls: the host is at its limit. Where
    it did not fall, the host's rate is what was reached, and so too low rather than too high.
    """
    step = computation_time * 100 / one_au_percentage
    demand = batch_bytes / computation_time
    return Calibration(
        workload=workload,
        loader=loader,
        odirect=odirect,
        overhead=max(0.0, step - computation_time - jitter * np.euler_gamma),
        jitter=jitter,
        host_read_bytes_per_second=full_accelerators * full_au_percentage / 100 * demand,
        drive_read_bytes_per_second=drive_read_bytes_per_second,
        page_cache_share=page_cache_share,
        overhead_limit=overhead_limit,
        host_limit=host_limit,
        drive_limit=drive_limit,
    )


@dataclass(frozen=True, kw_only=True)
class _Rates:
    """The closed form's terms; storage and hosts in accelerators fed at AU 100 %."""

    storage: float
    hosts: float
    computation_time: float
    overhead: float
    jitter: float
    storage_bound_by: str | None = None
    """What held the storage's figure back, where it was not the storage."""
    hosts_bound_by: str | None = None
    """What held the hosts' figure back, where it was not the host."""

    @classmethod
    def of(cls, job: PredictionInput, calibration: Calibration | None, sign: int) -> Self:
        """Return the terms as they are (sign 0), or at the far end of their error (-1, 1)."""
        if calibration is not None:
            return cls._calibrated(job, calibration, sign)
        hosts = math.inf
        if job.published_host is not None:
            host = job.published_host
            moved = {-1: host.low, 0: host.mean, 1: host.high}[sign]
            hosts = job.num_hosts * moved / job.demand
        storage = job.num_drives * job.drive_read_bytes_per_second / job.demand
        return cls(
            storage=storage * (1 + sign * ERROR),
            hosts=hosts,
            computation_time=job.computation_time,
            overhead=UNMEASURED_OVERHEAD * job.computation_time if sign < 0 else 0.0,
            jitter=0.0,
        )

    @classmethod
    def _calibrated(cls, job: PredictionInput, found: Calibration, sign: int) -> Self:
        drive, storage_error = found.drive_read_bytes_per_second, found.error
        if drive is None:
            drive, storage_error = job.drive_read_bytes_per_second, ERROR
        storage = job.num_drives * drive / (1 - found.page_cache_share) / job.demand
        storage *= 1 + sign * storage_error
        hosts = job.num_hosts * found.host_read_bytes_per_second / job.demand
        hosts *= 1 + sign * found.error
        drive_bound_by = None if found.drive_limit in _OF_THE_DRIVE else found.drive_limit
        host_bound_by = None if found.host_limit in _OF_THE_HOST else found.host_limit
        # A figure that something else held back is no upper bound.
        if sign > 0 and drive_bound_by:
            storage = math.inf
        if sign > 0 and host_bound_by:
            hosts = math.inf
        overhead = found.overhead * (1 - sign * found.error)
        return cls(
            storage=storage,
            hosts=hosts,
            computation_time=job.computation_time,
            overhead=max(0.0, overhead - sign * AU_NOISE * job.computation_time),
            jitter=found.jitter * (1 - sign * found.error),
            storage_bound_by=drive_bound_by,
            hosts_bound_by=host_bound_by,
        )

    def late(self, num_accelerators: float) -> float:
        """Return by how many seconds the last of so many accelerators is late at the barrier."""
        return float(self.jitter * (math.log(num_accelerators) + np.euler_gamma))

    def ceiling(self, num_accelerators: float) -> float:
        """Return AU with storage and hosts without limit."""
        step = self.computation_time + self.overhead + self.late(num_accelerators)
        return self.computation_time / step

    def au(self, num_accelerators: int) -> float:
        """Return AU, 0 to 1."""
        rate = min(self.storage, self.hosts) / num_accelerators
        return min(self.ceiling(num_accelerators), rate)

    def most(self, threshold: float) -> float:
        """Return the real number of accelerators at which AU (0 to 1) falls to the threshold."""
        spare = self.computation_time * (1 / threshold - 1) - self.overhead
        if self.jitter > 0:
            met = math.exp(min(700.0, spare / self.jitter - np.euler_gamma))
        else:
            met = math.inf if spare >= 0 else 0.0
        return min(self.storage / threshold, self.hosts / threshold, met)

    def number(self, threshold: float) -> int | None:
        """Return the most accelerators that pass a threshold in percent; None: no bound."""
        # AU that lacks up to half a hundredth is rounded up to the threshold (`metrics.passes`).
        real = self.most(max(round(threshold, 2) - 0.005, threshold / 2) / 100)
        if math.isinf(min(self.storage, self.hosts)) and real > EXTRAPOLATED_ABOVE:
            return None
        number = math.floor(real)
        if number > 0 and not passes(100 * self.au(number), threshold):
            number -= 1
        return number

    def limit(self, num_accelerators: int, threshold: float) -> tuple[str, bool]:
        """Return the name of the smallest term, and whether more may be possible.

        That is so where the term's figure was itself held back by something else, which is then
        the name. The threshold is in percent.
        """
        ceiling = self.ceiling(num_accelerators)
        if min(self.storage, self.hosts) / num_accelerators < ceiling:
            if self.storage < self.hosts:
                return self.storage_bound_by or "storage", self.storage_bound_by is not None
            return self.hosts_bound_by or "host cpu", self.hosts_bound_by is not None
        if passes(100 * ceiling, threshold):
            return "none", False
        late = self.late(num_accelerators) > self.overhead
        return "barrier" if late else "step overhead", False
