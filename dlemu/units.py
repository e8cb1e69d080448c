"""Bytes, seconds and rates to text, and "512GiB" to bytes."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

N = TypeVar("N", int, "NDArray[np.int64]")

PAGE_BYTES = 4096
"""Size and alignment of pages, of O_DIRECT's reads, and of what cuFile reads into GPU memory."""

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGTP]?)(i?)(B?)\s*", re.IGNORECASE)
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min|h|d|)\s*")
_SECONDS = {"": 1, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}
_ROUNDED_UP = 0.9995
"""From this share of a unit on, the unit is used: in the smaller one, three digits read "1e+03"."""


def parse_bytes(text: str | int | float) -> int:
    """Return the bytes that a size means: 4096, "512GiB" (2^30) or "1.5 TB" (10^12).

    A bare prefix ("64K") is binary, as in fio.

    Raises:
        ValueError: the text is no size.
    """
    size: float
    if isinstance(text, str):
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a size; write it like 4096, 64KiB, 512GiB or 1.5TB")
        number, prefix, binary, unit = match.groups()
        base = 1000 if unit and prefix and not binary else 1024
        size = float(number) * float(base) ** _POWERS[prefix.upper()]
    else:
        size = text
    if not (0 <= size < float("inf")):
        raise ValueError(f"{text!r} is not a size in bytes")
    return round(size)


def parse_seconds(text: str) -> float:
    """Return the seconds that a duration means: "90", "5ms", "45s", "30min", "3h" or "2d".

    Raises:
        ValueError: the text is no duration.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write it like 90, 5ms, 45s, 30min, 3h or 2d")
    return float(match[1]) * _SECONDS[match[2]]


def with_unit(value: object, *, least: int, units: tuple[str, str], per: str = "") -> object:
    """Return a size as it is; refuse a bare number below `least` bytes, which lacks its unit.

    Raises:
        ValueError: "=64 is 64 bytes; write 64GiB", to be put after the key's name.
    """
    bare = float(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if isinstance(bare, (int, float)) and not isinstance(bare, bool) and 0 < bare < least:
        unit = units[bare < 1024]
        raise ValueError(f"={value} is {bare:,.10g} bytes{per}; write {bare:.10g}{unit}")
    return value


def unmistakable(num_bytes: int, least: int) -> int | str:
    """Return a size that `with_unit` takes again: 4096 as "4096B" if that is below `least`."""
    return f"{num_bytes}B" if 0 < num_bytes < least else num_bytes


def format_bytes(num_bytes: float) -> str:
    """Return bytes in a binary unit, with one to four digits before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB" if num_bytes < 1024 else f"{num_bytes / 1024:,.1f} PiB"


def rate_unit(bytes_per_second: float) -> tuple[str, float]:
    """Return the decimal unit in which a rate is shown, and its bytes/s: ("GB/s", 1e9)."""
    for unit, size in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if abs(bytes_per_second) >= _ROUNDED_UP * size:
            return unit, size
    return "B/s", 1.0


def format_rate(bytes_per_second: float) -> str:
    """Return a rate in decimal units: "3.18 GB/s"."""
    unit, size = rate_unit(bytes_per_second)
    return f"{bytes_per_second / size:.{'0f' if size == 1 else '3g'}} {unit}"


def format_drive_bytes(num_bytes: float) -> str:
    """Return bytes in decimal units, as drives are sold: "3.84 TB"."""
    return format_rate(num_bytes).removesuffix("/s")


def format_seconds(seconds: float) -> str:
    """Return a duration in three digits or as a clock: "12 µs", "3.5 ms", "1:02:05"."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < _ROUNDED_UP:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_left(seconds: float, *, before: str = "") -> str:
    """Return the time that is left, behind `before`: "0:18 left"; "" under half a second."""
    if seconds < 0.5:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    clock = f"{minutes}:{rest:02}" if minutes < 60 else format_seconds(seconds)
    return f"{before}{clock} left"


def counted(number: int, noun: str) -> str:
    """Return "1 file", "2 files", "2 batches"."""
    more = "es" if noun.endswith(("tch", "s")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else more}"


def each_once(words: Iterable[object]) -> str:
    """Return words with commas, each once; what is empty or unknown is left out."""
    return ", ".join(dict.fromkeys(str(word) for word in words if word))


def ceil_div(number: N, divisor: int) -> N:
    """Return number / divisor, rounded up; for an array, of each element."""
    return -(-number // divisor)


def round_up(num_bytes: N, unit: int = PAGE_BYTES) -> N:
    """Return the least multiple of `unit` that is not smaller; for an array, of each element."""
    return ceil_div(num_bytes, unit) * unit
