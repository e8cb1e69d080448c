"""What wear means, in words and figures: the line below a result, and the rate a drive sustains."""

from typing import TypedDict

from dlemu.host.drive_counters import LEAST_BYTES
from dlemu.host.wear import WearFields
from dlemu.terminal import is_verbose
from dlemu.units import format_bytes

_OWN = 1.5
"""More bytes of the drive than this for a byte of the files were not written for these files."""


class Sustained(TypedDict):
    """The write rate that uses up a drive's endurance in some years."""

    endurance_bytes: int
    """As it was given: a drive's PB are 10^15 bytes."""
    years: float
    duty: float
    """Share (0-1) of the time in which the drive is written at that rate."""
    bytes_per_second: float
    drive_writes_per_day: float | None
    """By the mean rate; None where the capacity is not known."""
    binary_bytes_per_second: float
    """The same if the endurance was meant in binary units (1 PB as 2^50 bytes), as 1PiB is."""
    binary_drive_writes_per_day: float | None


def sustained(
    endurance: int, *, capacity: int | None = None, years: float = 5.0, duty: float = 1.0
) -> Sustained:
    """Return the rate that uses up `endurance` bytes in so many years of 365 days.

    The drive is written in a share `duty` (0-1) of the time.
    """
    binary = endurance if is_binary(endurance) else endurance / 10**15 * 2**50
    days = years * 365
    seconds = duty * days * 86_400
    return Sustained(
        endurance_bytes=endurance,
        years=years,
        duty=duty,
        bytes_per_second=endurance / seconds,
        drive_writes_per_day=endurance / capacity / days if capacity else None,
        binary_bytes_per_second=binary / seconds,
        binary_drive_writes_per_day=binary / capacity / days if capacity else None,
    )


def is_binary(num_bytes: int) -> bool:
    """Return whether a size was given in binary units: as whole TiB that are no whole GB."""
    return num_bytes % 2**40 == 0 and num_bytes % 10**9 != 0


def has_writes(wear: WearFields) -> bool:
    """Return whether enough was written to be worth a line."""
    counts = (wear["file_bytes_written"], wear["block_bytes_written"], wear["host_bytes_written"])
    return max(count or 0 for count in counts) >= LEAST_BYTES


def belongs_to(wear: WearFields) -> bool:
    """Return whether a result's report shows its wear: of one that wrote files; with -v of all."""
    return has_writes(wear) and (wear["file_bytes_written"] != 0 or is_verbose())


def wear_line(wear: WearFields) -> str:
    """Return what was written to the drives, and what that does to them, as one line.

    What is not known is said once, with its reason.
    """
    if not wear["drives"] or wear["block_bytes_written"] is None:
        return f"wear: not known; {wear['missing']['block_bytes_written']}"
    if wear["file_bytes_written"] == 0:
        return f"wear: {_written(wear)}, none of it into files of this command"
    parts = [_written(wear), *_life(wear)]
    parts += [] if wear["waf"] is not None else [f"no WAF: {wear['missing']['waf']}"]
    return f"wear: {'; '.join(parts)}"


def _written(wear: WearFields) -> str:
    """Return "12.0 GiB written to nvme0n1 (1.01 x the files), 12.3 GiB to its flash, WAF 1.02"."""
    names = ", ".join(drive["name"] for drive in wear["drives"])
    block, host, media = (
        wear["block_bytes_written"],
        wear["host_bytes_written"],
        wear["media_bytes_written"],
    )
    assert block is not None
    # The drive's own count stands first: it has what other hosts wrote to it, too.
    text = f"{format_bytes(block if host is None else host)} written to {names}"
    amplification = wear["file_system_amplification"]
    if amplification is not None:
        others = "; the writes of other programs count" if amplification > _OWN else ""
        text += f" ({amplification:.2f} x the files' bytes{others})"
    if media is not None and wear["waf"] is not None:
        return f"{text}, {format_bytes(media)} to flash, WAF {wear['waf']:.2f}"
    return text


def _life(wear: WearFields) -> list[str]:
    """Return the share of the life that is used, the pace, and the years that are left."""
    parts = []
    if wear["percentage_used"] is not None:
        parts.append(f"{wear['percentage_used']}% of the life used")
    if wear["drive_writes_per_day"] is None:
        return parts
    pace = f"at this pace {wear['drive_writes_per_day']:.3g} drive writes a day"
    if wear["years_left"] is not None:
        new = " left" if wear["percentage_used"] is not None else " for a new drive"
        pace += f", {wear['years_left']:.3g} years{new}"
    return [*parts, pace]
