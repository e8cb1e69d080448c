"""Seconds of the parts of writing and of reading files, which can be added up."""

from dataclasses import astuple, dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What both have; the sum of several files with `+`."""

    num_bytes: int = 0
    open: float = 0.0

    def __add__(self, other: Self) -> Self:
        sums = map(sum, zip(astuple(self), astuple(other), strict=True))
        return type(self)(**dict(zip(self.__dataclass_fields__, sums, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTimes(Times):
    """Seconds of the parts of writing a file."""

    write: float = 0.0
    """From the first to the last write call, without `waited`."""
    waited: float = 0.0
    """For bytes that were not made yet; with several threads, their mean."""
    fsync: float = 0.0
    """Of the file, and of the folder where it is synced."""
    close: float = 0.0
    """Closing the file, and giving it its name."""
    generation: float = 0.0
    """CPU seconds of the thread that made the bytes, since the file before ended; they pass beside
    the others."""

    @property
    def seconds(self) -> float:
        """All that passed while the file was written."""
        return self.open + self.write + self.waited + self.fsync + self.close


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimes(Times):
    """Seconds of the parts of reading a file."""

    read: float = 0.0
    """From the first to the last read call, without `compare`."""
    compare: float = 0.0
    """Making the bytes again and comparing them."""
    close: float = 0.0
