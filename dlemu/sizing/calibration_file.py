"""The file of `dlemu calibrate`: what was measured on one host, for the formula of `formula.py`."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dlemu.errors import WorkloadError

ERROR = 0.36
"""Relative error of a rate, by datasheet or calibration: 90 % of the published cells are no further
off when their drive is left out of the fit (printed by `benchmarks.published`)."""

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Calibration(BaseModel):
    """What was measured on one host with one workload, loader and odirect setting: the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

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

    @classmethod
    def parse(cls, text: str | bytes, *, path: str) -> Self:
        """Return the calibration in a file's text; errors name `path`."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise WorkloadError(
                f"{path} is not a calibration{f', {key}' if key else ''}: {first['msg']}; "
                "write it with dlemu calibrate"
            ) from None
