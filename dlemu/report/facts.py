"""Where and when a result was measured, in words for pages and pictures."""

from collections.abc import Iterator, Mapping
from typing import Any

from dlemu.judge.header import dataset_text, drives_text, host_text, place_of, storage_text
from dlemu.units import counted, each_once

Summary = Mapping[str, Any]
"""summary.json of a run. One that did not end lacks fields, so each may be missing here."""


def facts_of(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield names and values, "" where a value is not known."""
    place = place_of(summary)
    yield "measured", date_of(summary, long=True)
    yield "host", _host(summary, place)
    yield "storage", storage_text(place) if "file_system" in place else _devices(summary, place)
    yield "firmware", drives_text(place, "firmware")
    yield "dataset", dataset_text(summary.get("dataset") or {})
    yield "loader", _loader(summary)
    versions = summary.get("versions") or {}
    first = {"dlemu": versions.get("dlemu")} | versions
    yield "versions", ", ".join(f"{name} {value}" for name, value in first.items() if value)


def date_of(summary: Summary, *, long: bool = False) -> str:
    """Return the day of a run; with `long` also the time, "2026-11-21 23:54 to 23:58 UTC"."""
    start, end = (str(summary.get(name) or "") for name in ("start", "end"))
    if not long:
        return start[:10]
    if "T" not in start:
        return start
    (day, time), (last_day, last) = start.split("T", 1), (end.split("T", 1) * 2)[:2]
    if not end or (day, time[:5]) == (last_day, last[:5]):
        return f"{day} {time[:5]} UTC"
    return f"{day} {time[:5]} to {'' if last_day == day else f'{last_day} '}{last[:5]} UTC"


def drive_name(summary: Summary, folder: str) -> str:
    """Return what a title calls the storage: the drive's model, else its device and the folder."""
    place = place_of(summary)
    if model := drives_text(place, "model"):
        return f"{model} ({folder})"
    devices = _devices(summary, place)
    return f"{folder} ({devices})" if devices else folder


def _host(summary: Summary, place: Summary) -> str:
    measured: Summary = next(iter((summary.get("measured") or {}).get("hosts") or ()), {})
    known = {"host": summary.get("hostname"), "cpus": measured.get("usable_cpus")}
    known |= {key: value for key, value in place.items() if value}
    return host_text(known, summary.get("num_hosts"))


def _devices(summary: Summary, place: Summary) -> str:
    hosts = (summary.get("measured") or {}).get("hosts") or ()
    return drives_text(place, "name") or each_once(host.get("device") for host in hosts)


def _loader(summary: Summary) -> str:
    parts = [summary.get("data_loader")]
    if parts[0] and (reader := summary.get("reader")):
        parts.append(f"{counted(reader['read_threads'], 'worker')} for each accelerator")
        if place_of(summary).get("file_system") == "s3":
            parts.append(f"{reader['gets_in_flight']} GETs in flight each")
        else:
            ways = {
                True: "O_DIRECT",
                False: "through the page cache",
                "auto": "O_DIRECT if the data folder takes it",
            }
            parts.append(ways[reader["odirect"]])
    return each_once(parts)
