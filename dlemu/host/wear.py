"""What reached the drives under a folder while something ran, and how much of their life it took.

`drive_counters` says who counts. What cannot be known is None, and `missing` says why: it is never
zero.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from dlemu.host.devices import PROC, SYS, BlockDevice, devices_under, existing, mount_under, total
from dlemu.host.drive_counters import (
    LEAST_BYTES,
    OF_DRIVE,
    DriveWear,
    ReadLog,
    Snapshot,
    flush,
    grown,
    look,
    read_log,
)
from dlemu.units import format_bytes

NO_DRIVE = "no drive is seen"
_DAY, _YEAR_DAYS = 86_400, 365
_COUNTED = ("block_bytes_written", *OF_DRIVE)


class WearFields(TypedDict, total=False):
    """`measured.wear` in summary.json: what was written to the drives meanwhile, over all hosts.

    A field is None where it cannot be known; `missing` has its reason, in one line.
    """

    seconds: float
    """From start to finish, the longest of the hosts."""
    block_bytes_written: int | None
    """Sent to all drives by the block layer: the files, the file system's own data, and whatever
    other processes wrote."""
    host_bytes_written: int | None
    media_bytes_written: int | None
    waf: float | None
    """Write amplification: media bytes / host bytes, by the drives' own counters."""
    percentage_used: int | None
    """Of the drive with the highest."""
    file_bytes_written: int
    """Bytes of the files that dlemu wrote."""
    file_system_amplification: float | None
    """Block bytes / file bytes: metadata, journal, the copies and the parity of a RAID."""
    drive_writes_per_day: float | None
    """Times that the drives' capacity would be written in a day at this pace."""
    endurance_bytes: int | None
    """Rated writes of all drives: drive.endurance of each."""
    years_left: float | None
    """Until these are used up at this pace; of new drives if percentage_used is not known."""
    drives: Sequence[DriveWear]
    missing: dict[str, str]


class Written(NamedTuple):
    """What was written to the drives of one host."""

    drives: Sequence[DriveWear]
    seconds: float
    file_bytes: int = 0
    """Bytes of the files that dlemu wrote."""
    no_drive: str = NO_DRIVE
    """Why `drives` is empty, where it is."""


class WearWatch:
    """Reads the counters of the drives under folders before and after what writes to them.

    Both methods flush the folders' file systems, so that what was written is counted.
    """

    def __init__(
        self, *folders: Path, read: ReadLog = read_log, proc: Path = PROC, sys: Path = SYS
    ) -> None:
        self._folders = [existing(folder) for folder in folders]
        self._read, self._proc, self._sys = read, proc, sys
        self._devices: list[BlockDevice] = []
        self._before: list[Snapshot] = []
        self._began = time.monotonic()

    def start(self) -> None:
        """Read the counters, as that from which `finish` counts."""
        self._devices = devices_under(*self._folders, proc=self._proc, sys=self._sys)
        self._before = self._look()
        self._began = time.monotonic()

    def finish(self, *, file_bytes: int = 0) -> Written:
        """Return what was written since `start`, `file_bytes` of it into files."""
        now = self._look()
        seconds = time.monotonic() - self._began
        drives = [
            grown(device.name, *pair, sys=self._sys)
            for device, *pair in zip(self._devices, self._before, now, strict=True)
        ]
        return Written(drives, seconds, file_bytes, self._no_drive())

    def _look(self) -> list[Snapshot]:
        if self._devices:  # else there is nothing to count, and a server may take its time
            for folder in self._folders:
                flush(folder)
        return [look(each, read=self._read, sys=self._sys) for each in self._devices]

    def _no_drive(self) -> str:
        mounts = [mount_under(each, proc=self._proc) for each in self._folders]
        kinds = ", ".join(dict.fromkeys(mount.kind for mount in mounts if mount is not None))
        return f"no drive is seen under the folder ({kinds or 'unknown file system'})"


def combine_hosts(hosts: Sequence[Written | None], *, endurance: int | None = None) -> WearFields:
    """Return what the drives of all hosts counted together; None is a rank that did not watch.

    `endurance` are the bytes that each drive may take in its life (drive.endurance).
    """
    known = [host for host in hosts if host is not None]
    drives = [drive for host in known for drive in host.drives]
    missing = {
        field: why if drive["name"] in why else f"{drive['name']}: {why}"
        for drive in reversed(drives)
        for field, why in drive["missing"].items()
    }
    if not drives:
        missing = dict.fromkeys(_COUNTED, next((host.no_drive for host in known), NO_DRIVE))
    used = [n for drive in drives if (n := drive["percentage_used"]) is not None]
    wear = WearFields(
        seconds=max((host.seconds for host in known), default=0.0),
        block_bytes_written=_sum([drive["block_bytes_written"] for drive in drives]),
        host_bytes_written=_sum([drive["host_bytes_written"] for drive in drives]),
        media_bytes_written=_sum([drive["media_bytes_written"] for drive in drives]),
        percentage_used=max(used, default=None) if len(used) == len(drives) else None,
        file_bytes_written=sum(host.file_bytes for host in known),
        endurance_bytes=endurance * len(drives) if endurance and drives else None,
        drives=drives,
        missing=missing,
    )
    _add_ratios(wear)
    return wear


def _add_ratios(wear: WearFields) -> None:
    """Add what follows from the bytes, each None with its reason where it cannot be computed."""
    block, host, media, files = (
        wear["block_bytes_written"],
        wear["host_bytes_written"],
        wear["media_bytes_written"],
        wear["file_bytes_written"],
    )
    missing = wear["missing"]
    wear["waf"] = media / host if media is not None and host else None
    if wear["waf"] is None:
        why = missing.get("media_bytes_written") or missing.get("host_bytes_written")
        missing["waf"] = why or "nothing was written"
    wear["file_system_amplification"] = block / files if block is not None and files else None
    if wear["file_system_amplification"] is None:
        why = missing.get("block_bytes_written", "") if files else "no file was written"
        missing["file_system_amplification"] = why
    # Log 02h also has what other hosts wrote; the block layer is there on every drive.
    written = block if host is None else host
    capacity = sum(drive["capacity_bytes"] for drive in wear["drives"])
    days = wear["seconds"] / _DAY
    wear["drive_writes_per_day"] = wear["years_left"] = None
    if written is None or not capacity or not days:
        missing["drive_writes_per_day"] = missing.get("block_bytes_written", "unknown capacity")
    elif written < LEAST_BYTES:
        missing["drive_writes_per_day"] = f"{format_bytes(written)} are too little for a pace"
    else:
        wear["drive_writes_per_day"] = written / capacity / days
    rated = wear["endurance_bytes"]
    if wear["drive_writes_per_day"] is None:
        missing["years_left"] = missing["drive_writes_per_day"]
    elif not rated:
        missing["years_left"] = "drive.endurance is not set"
    else:
        assert written
        left = max(0.0, 1 - (wear["percentage_used"] or 0) / 100)
        wear["years_left"] = left * rated / (written / days * _YEAR_DAYS)


def _sum(values: Sequence[int | None]) -> int | None:
    return total(values) if values else None


def has_writes(wear: WearFields) -> bool:
    """Return whether enough was written to be worth a line."""
    counts = (wear["file_bytes_written"], wear["block_bytes_written"], wear["host_bytes_written"])
    return max(count or 0 for count in counts) >= LEAST_BYTES


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
