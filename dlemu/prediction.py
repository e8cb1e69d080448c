"""How many accelerators a storage feeds, in closed form: rates in, a number with its error out.

For N accelerators whose steps take `computation_time` t_c and `batch_bytes`:

    demand = batch_bytes / t_c
    AU(N)  = min( t_c / (t_c + o + σ (ln N + 0.577)),       step: overhead and barrier
                  drives · S / ((1 − h) · N · demand),      storage, helped by the page cache
                  hosts · C / (N · demand) )                what the hosts can move

o is a step's overhead that nothing overlaps, σ the jitter of a step (the last of N jittery
accelerators is σ (ln N + 0.577) late), S a drive's read rate, h the share of the bytes that the
page cache serves, C what one host moves for this workload with this loader. The datasheet gives
S; the rest is measured once (`Calibration`), and without it the answer is a range of ±30 %.
docs/sizing.md says where these numbers come from and how well they did.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dlemu.errors import WorkloadError
from dlemu.workload import Drive, Workload

DATASHEET_ERROR = 0.30
"""Relative error of a prediction from a datasheet alone (docs/sizing.md)."""
CALIBRATED_ERROR = 0.20
"""Relative error that 90 % of the published cells stay under (`benchmarks.published`: 19.7 %)."""
EXTRAPOLATED_ABOVE = 400
"""The barrier term has been compared with measurements up to 411 accelerators."""

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
    error: Share = CALIBRATED_ERROR
    """Relative error of what is predicted from these figures."""

    @property
    def drive(self) -> Drive | None:
        """The drive that was read, None where none was."""
        if self.drive_read_bytes_per_second is None:
            return None
        return Drive(name="calibrated drive", read_bandwidth=int(self.drive_read_bytes_per_second))


class CalibrationFile(BaseModel):
    """What `dlemu calibrate` writes: the calibrations of one host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    host: str
    calibrations: tuple[Calibration, ...]

    @classmethod
    def parse(cls, text: str, *, path: str) -> Self:
        """Return the calibrations in a file's text; the path is for the error's sake.

        Raises:
            WorkloadError: it is no calibration file.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise WorkloadError(
                f"{path} is not a calibration{f', {key}' if key else ''}: {first['msg']}; "
                "write it with dlemu calibrate"
            ) from None

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
        """Return what a workload asks for, with its `drives` of this kind."""
        return cls(
            computation_time=workload.train.computation_time.mean,
            batch_bytes=workload.bytes_per_step,
            threshold=100 * workload.metric.au,
            drive_read_bytes_per_second=drive.read_bandwidth,
            num_drives=workload.drives,
            num_hosts=workload.num_hosts,
            accelerators=workload.predict.accelerators,
        )

    @property
    def demand(self) -> float:
        """Bytes per second that one accelerator takes when it never waits."""
        return self.batch_bytes / self.computation_time


@dataclass(frozen=True)
class Prediction:
    """The answer and its error band; where none passes, AU and rate are those of one."""

    num_accelerators: int
    """The most that pass, or as many as were asked about."""
    low: int
    """The most that pass if every rate is as much lower as it may be; `high` likewise."""
    high: int
    real_accelerators: float
    """The most that pass, as a real number: what is left over shows."""
    au_percentage: float
    au_low: float
    au_high: float
    read_bytes_per_second: float
    read_low: float
    read_high: float
    limit: str
    """`storage`, `host cpu`, `step overhead`, `barrier`; `none` where AU is at its ceiling."""
    calibrated: bool
    """False: no host was measured, only the datasheet speaks, and hosts are taken as unlimited."""
    extrapolated: bool
    """More accelerators than the barrier term has been compared with."""


def predict(job: PredictionInput, calibration: Calibration | None = None) -> Prediction:
    """Return what this storage feeds: the most accelerators, or AU at the number asked about."""
    mean, low, high = (_Rates.of(job, calibration, sign) for sign in (0, -1, 1))
    threshold = job.threshold / 100
    real = mean.most(threshold)
    num_accelerators = job.accelerators if job.accelerators is not None else _floor(real)
    running = max(1, num_accelerators)
    return Prediction(
        num_accelerators=num_accelerators,
        low=_floor(low.most(threshold)),
        high=_floor(high.most(threshold)),
        real_accelerators=real,
        au_percentage=100 * mean.au(running),
        au_low=100 * low.au(running),
        au_high=100 * high.au(running),
        read_bytes_per_second=running * mean.au(running) * job.demand,
        read_low=running * low.au(running) * job.demand,
        read_high=running * high.au(running) * job.demand,
        # What stands in the way of the next one; for a number that was given, of these.
        limit=mean.limit(running + (job.accelerators is None and num_accelerators > 0), threshold),
        calibrated=calibration is not None,
        extrapolated=running > EXTRAPOLATED_ABOVE,
    )


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
    )


@dataclass(frozen=True)
class _Rates:
    """The closed form's terms; storage and hosts in accelerators fed at AU 100 %."""

    storage: float
    hosts: float
    computation_time: float
    overhead: float
    jitter: float

    @classmethod
    def of(cls, job: PredictionInput, calibration: Calibration | None, sign: int) -> Self:
        """Return the terms as they are (sign 0), or at the far end of their error (-1, 1)."""
        drive, storage_error = job.drive_read_bytes_per_second, DATASHEET_ERROR
        cached, hosts, overhead, jitter = 0.0, math.inf, 0.0, 0.0
        if calibration is not None:
            cached, overhead = calibration.page_cache_share, calibration.overhead
            jitter = calibration.jitter
            hosts = job.num_hosts * calibration.host_read_bytes_per_second / job.demand
            hosts *= 1 + sign * calibration.error
            if calibration.drive_read_bytes_per_second is not None:
                drive, storage_error = calibration.drive_read_bytes_per_second, calibration.error
        storage = job.num_drives * drive / (1 - cached) / job.demand * (1 + sign * storage_error)
        return cls(storage, hosts, job.computation_time, overhead, jitter)

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
        """Return the real number of accelerators at which AU falls to the threshold."""
        spare = self.computation_time * (1 / threshold - 1) - self.overhead
        if self.jitter > 0:
            met = math.exp(min(700.0, spare / self.jitter - np.euler_gamma))
        else:
            met = math.inf if spare >= 0 else 0.0
        return min(self.storage / threshold, self.hosts / threshold, met)

    def limit(self, num_accelerators: int, threshold: float) -> str:
        """Return the name of the smallest term."""
        terms = {
            self.storage / num_accelerators: "storage",
            self.hosts / num_accelerators: "host cpu",
        }
        ceiling = self.ceiling(num_accelerators)
        if min(terms) < ceiling:
            return terms[min(terms)]
        if ceiling >= threshold:
            return "none"
        return "barrier" if self.late(num_accelerators) > self.overhead else "step overhead"


def _floor(accelerators: float) -> int:
    """Round down, but not for a rounding error's sake."""
    return math.floor(accelerators * (1 + 1e-12))
