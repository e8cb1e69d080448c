"""Seconds of the parts of an I/O, which can be added up."""

from dataclasses import astuple, dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of the parts of writing or reading a file; the sum of several files with `+`."""

    num_bytes: int = 0
    open: float = 0.0

    def __add__(self, other: Self) -> Self:
        sums = map(sum, zip(astuple(self), astuple(other), strict=True))
        return type(self)(**dict(zip(self.__dataclass_fields__, sums, strict=True)))
