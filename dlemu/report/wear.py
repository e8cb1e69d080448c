"""`dlemu wear`: what drives counted over their life, and the write rate that they sustain."""

from collections.abc import Iterator, Mapping
from typing import Any

from dlemu.report.blocks import Block, Facts, Lines, Table, Verdict
from dlemu.results.wear import is_binary
from dlemu.units import counted, format_bytes, format_drive_bytes, format_rate

Fields = Mapping[str, Any]


def present_wear(document: Fields) -> list[Block]:
    """Return the blocks of `drives`, with the fields of Lifetime, and of `sustained` or None."""
    drives, rate = document["drives"], document["sustained"]
    blocks: list[Block] = [] if rate is None else [_verdict(rate)]
    rows = [] if rate is None else list(_rates(rate))
    if len(rows) > 1 or any(pace != "unknown" for *_, pace in rows):
        title = "makers mean either by a petabyte" if len(rows) > 1 else ""
        heads = ("a petabyte is", "rate", "drive writes per day")
        blocks.append(Table(title=title, heads=heads, rows=rows))
    for drive in drives:
        head = _name(drive)
        blocks.append(Lines([head]) if blocks else Verdict(head))
        blocks.append(Facts(list(_life(drive))))
    return blocks


def _verdict(rate: Fields) -> Verdict:
    size, unit = rate["endurance_bytes"] / 1e15, "PB"
    if is_binary(rate["endurance_bytes"]):
        size, unit = rate["endurance_bytes"] / 2**50, "PiB"
    return Verdict(
        f"an endurance of {size:g} {unit} sustains {format_rate(rate['bytes_per_second'])} for "
        f"{rate['years']:g} years, written {100 * rate['duty']:g}% of the time"
    )


def _rates(rate: Fields) -> Iterator[tuple[str, str, str]]:
    """Yield the rate in decimal and in binary units; a binary endurance has one meaning."""
    units = [("10^15 bytes", ""), ("2^50 bytes", "binary_")]
    if is_binary(rate["endurance_bytes"]):
        del units[0]
    for meaning, kind in units:
        pace = rate[f"{kind}drive_writes_per_day"]
        shown = format_rate(rate[f"{kind}bytes_per_second"])
        yield meaning, shown, "unknown" if pace is None else f"{pace:.2f}"


def _name(drive: Fields) -> str:
    about = [drive["model"], format_drive_bytes(drive["capacity_bytes"])]
    return f"{drive['name']} ({', '.join(filter(None, about))})"


def _life(drive: Fields) -> Iterator[tuple[str, str]]:
    """Yield what a drive has counted over its life, or why nothing is known."""
    if drive["host_bytes_written"] is None:
        if drive["block_bytes_written"] is not None:
            yield "since the host started", f"{format_bytes(drive['block_bytes_written'])} written"
        yield "own counters", f"unknown: {drive['missing']['host_bytes_written']}"
        return
    yield "written by hosts", format_bytes(drive["host_bytes_written"])
    media, source = drive["media_bytes_written"], drive["media_source"]
    known = media is not None
    yield "written to flash", f"{format_bytes(media)} ({source})" if known else "unknown"
    missing = drive["missing"].get("media_bytes_written")
    yield "WAF", f"{drive['waf']:.2f}" if known else f"unknown: {missing}"
    yield "life used", f"{drive['percentage_used']}%"
    yield "spare blocks left", f"{drive['available_spare']}%"
    yield "powered on", counted(drive["power_on_hours"] or 0, "hour")
    yield "media errors", f"{drive['media_errors'] or 0:,}"
