"""What a drive counts of its own wear, at one moment: by the block layer, and by its log pages."""

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from dlemu.host.devices import SYS, BlockDevice
from dlemu.host.nvme import (
    DATA_UNIT,
    HEALTH,
    OCP,
    VENDOR,
    Health,
    VendorWrites,
    controller_of,
    has_vendor_log,
    parse_health,
    parse_ocp,
    parse_vendor,
    read_log,
)
from dlemu.host.place import describe_drive
from dlemu.units import format_bytes

LEAST_BYTES = 100_000_000
"""Log 02h counts in steps of 512 kB, so smaller growths give no ratio to rely on."""
_LEAST_VENDOR_UNITS = 32
"""The same for log CAh: a step is 3 % of 1 GiB."""
_LEAST_WAF, _MOST_WAF = 0.5, 20.0
"""Bounds of what a drive may write for each byte: outside, the unit of a counter is another."""
_MOST_UUIDS = 3
"""Pages of several owners under one number are asked for by index: 0, 1, 2."""

ReadLog = Callable[[str, int, int], bytes]
"""`nvme.read_log`, or what stands for it in a test."""


@dataclass(frozen=True)
class Snapshot:
    """A drive's counters at one moment; None where it tells none."""

    block_bytes: int | None
    health: Health | None = None
    ocp: int | None = None
    """Log C0h's physical media units written, whose unit is not known yet."""
    vendor: VendorWrites | None = None
    why_not: str = ""
    """Why the drive's own counters are missing, "" if they are not."""


def look(device: BlockDevice, *, read: ReadLog = read_log, sys: Path = SYS) -> Snapshot:
    """Return a drive's counters now."""
    counters = device.counters()
    block_bytes = None if counters is None else counters.written_bytes
    controller = controller_of(device.name, sys=sys)
    if controller is None:
        why = f"{device.name} is no NVMe drive (smartctl -A /dev/{device.name} may tell more)"
        return Snapshot(block_bytes, why_not=why)
    try:
        health = parse_health(read(controller, HEALTH, 0))
    except OSError as error:
        return Snapshot(block_bytes, why_not=_why_not(controller, error))
    return Snapshot(
        block_bytes,
        health,
        ocp=_ask(controller, OCP, parse_ocp, read),
        vendor=_ask(controller, VENDOR, parse_vendor, read)
        if has_vendor_log(controller, sys=sys)
        else None,
    )


def media_bytes(
    host_bytes: int, ocp: int | None, vendor: VendorWrites | None
) -> tuple[int | None, str]:
    """Return the bytes written to flash and the counter that told; or None, and why not.

    Args:
        host_bytes: written by hosts at the same time, by log 02h.
        ocp: growth of log C0h's counter. Drives count bytes, or data units of 512 000 bytes; a unit
            is believed if it makes 0.5 to 20 times the bytes of the hosts.
        vendor: growth of log CAh's counters. Their ratio needs no unit.
    """
    if ocp is None and vendor is None:
        return None, "the drive has neither log C0h of OCP nor a log CAh that is known"
    if host_bytes < LEAST_BYTES:
        written, least = format_bytes(host_bytes), format_bytes(LEAST_BYTES)
        return None, f"{written} were written, and less than {least} give no ratio"
    if ocp is not None:
        for unit, name in ((1, "bytes"), (DATA_UNIT, "data units of 512 kB")):
            if _LEAST_WAF * host_bytes <= ocp * unit <= _MOST_WAF * host_bytes:
                return ocp * unit, f"log C0h, in {name}"
    if vendor is not None and vendor.host >= _LEAST_VENDOR_UNITS:
        return round(host_bytes * vendor.nand / vendor.host), "log CAh"
    if ocp is not None:
        return None, (
            f"the unit of log C0h is unknown: it grew by {ocp:,} while {host_bytes:,} bytes were "
            "written, so WAF is not reported"
        )
    return None, f"log CAh counts in steps of 32 MiB, and {_LEAST_VENDOR_UNITS} are needed"


class Lifetime(TypedDict):
    """A drive's counters so far; None where nobody can tell, and `missing` says why."""

    name: str
    model: str
    capacity_bytes: int
    block_bytes_written: int | None
    """Sent to it since this host started."""
    host_bytes_written: int | None
    """Received from hosts over its life; the rest is of its life, too."""
    host_bytes_read: int | None
    media_bytes_written: int | None
    media_source: str
    """Which counter said so; "" if none."""
    waf: float | None
    percentage_used: int | None
    available_spare: int | None
    power_on_hours: int | None
    media_errors: int | None
    missing: str


def lifetime(device: BlockDevice, *, read: ReadLog = read_log, sys: Path = SYS) -> Lifetime:
    """Return what a drive has counted over its life."""
    now, drive = look(device, read=read, sys=sys), describe_drive(device.name, sys=sys)
    health = now.health
    media, source = None, now.why_not
    if health is not None:
        media, source = media_bytes(health.written_bytes, now.ocp, now.vendor)
    return Lifetime(
        name=device.name,
        model=drive.model,
        capacity_bytes=drive.size_bytes,
        block_bytes_written=now.block_bytes,
        host_bytes_written=health.written_bytes if health else None,
        host_bytes_read=health.read_bytes if health else None,
        media_bytes_written=media,
        media_source="" if media is None else source,
        waf=media / health.written_bytes if health and media is not None else None,
        percentage_used=health.percentage_used if health else None,
        available_spare=health.available_spare if health else None,
        power_on_hours=health.power_on_hours if health else None,
        media_errors=health.media_errors if health else None,
        missing=source if media is None else "",
    )


def flush(folder: Path) -> None:
    """Write the dirty pages of a folder's file system to its drive (syncfs(2))."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            ctypes.CDLL(None).syncfs(descriptor)
        finally:
            os.close(descriptor)


def _ask(controller: str, log: int, parse: Callable[[bytes], Any], read: ReadLog) -> Any:
    """Return what a page says; None if the drive has no page of this kind."""
    for index in range(_MOST_UUIDS):
        try:
            found = parse(read(controller, log, index))
        except OSError:  # the first refusal does not end it: index 0 may be another owner's
            continue
        if found is not None:
            return found
    return None


def _why_not(controller: str, error: OSError) -> str:
    """Return why a drive's own counters cannot be read, and what helps."""
    path = f"/dev/{controller}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"asking {path} needs CAP_SYS_ADMIN; run as root, or read the counters with "
            f"sudo nvme smart-log {path} before and after"
        )
    if error.errno in (errno.ENOENT, errno.ENXIO):
        return f"{path} is not here; a container needs --device={path}"
    return f"{path} does not answer ({error.strerror or error}); try nvme smart-log {path}"
