"""The words of caches in front of a dataset, and of loaders: how they are set, what they note."""

from collections.abc import Callable, Mapping
from typing import Any

from dlemu.units import counted, format_bytes, format_rate, format_seconds


def origin_at(origin: Mapping[str, Any] | str) -> str:
    """Return "at 2 GB/s and 5 ms a file" of a finding `emulated_at`; "" where there is none.

    Earlier versions stored the text itself.
    """
    if isinstance(origin, str):
        return origin
    rate, latency = (origin["figures"][name] for name in ("bytes_per_second", "latency_seconds"))
    parts = [] if rate is None else [format_rate(rate)]
    parts += [f"{format_seconds(latency)} a file"] if latency else []
    return f"at {' and '.join(parts)}"


def _opened(f: Any) -> str:
    parts = []
    if f.folder is not None:
        parts = [
            f"{f.folder}, {format_bytes(f.capacity_bytes)} for {counted(f.files, 'file')} "
            f"of {format_bytes(f.dataset_bytes)}, {format_bytes(f.free_bytes)} are free",
            f"cache.policy={f.policy}, cache.fill={f.fill}",
            f"{counted(f.kept, 'file')} there at the start",
        ]
    parts += [f"origin emulated {origin_at(f.origin)}"] if f.origin else []
    if f.copied_bytes is not None:
        parts.append(f"{format_bytes(f.copied_bytes)} are copied before the epochs")
    return ", ".join(parts)


CACHES: Mapping[str, Callable[[Any], str]] = {
    "cache_emptied": lambda f: (
        f"cache.folder {f.folder} was emptied: the host was started anew before all of its files "
        "were on the drive"
    ),
    "cache_on_data_drive": lambda f: (
        f"the data folder and cache.folder are on one drive ({', '.join(f.drives)}): "
        f"{'' if f.misses_are_slower else 'a hit is no faster than a miss, and '}fills slow the "
        "reads"
    ),
    "cache_opened": _opened,
    "emulated_at": lambda f: origin_at({"figures": vars(f)}),
    "gds_through_host": lambda f: f"reader.gds=prefer, read through the host: {f.error}",
    "origin_emulated": lambda f: f"origin emulated {origin_at(f.how)}",
}
