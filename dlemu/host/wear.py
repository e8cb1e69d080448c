"""What reached the drives under a folder while something ran, and how much of their life it took.

The block layer counts the bytes that a host sent to a drive, on every drive. An NVMe drive itself
counts what its hosts wrote, and most of them what they wrote to their flash. What cannot be known
is None, and `missing` says why: it is never zero.

Log 02h is of the NVM Express Base Specification (SMART / Health Information). C0h is of the Open
Compute Project's Datacenter NVMe SSD Specification. CAh is Intel's; Solidigm and Memblaze have it,
too. The ioctl is that of the kernel's linux/nvme_ioctl.h. Only the drive knows these counters: no
file of /sys has them.
"""

import ctypes
import errno
import fcntl
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import sub
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from dlemu.errors import reason_of, system_error
from dlemu.findings import Finding, note
from dlemu.host.devices import (
    PROC,
    SYS,
    BlockDevice,
    devices_under,
    existing,
    is_there,
    listed,
    mount_under,
    read_text,
    total,
)
from dlemu.host.place import describe_drive

PAGE = 512
"""Bytes of each of the pages."""
HEALTH, OCP, VENDOR = 0x02, 0xC0, 0xCA

DATA_UNIT = 512_000
"""Bytes; log 02h counts these, rounded up."""
VENDOR_UNIT = 32 * 2**20
"""Bytes; the counters of log CAh grow by one for so many."""

_OCP_GUID = bytes.fromhex("c5af1028eabff2a49c4f6f7cc914d5af")
"""AFD514C9-7C6F-4F9C-A4F2-BFEA2810AFC5, as the page stores it: little endian."""
_ITEM = 12
_NAND_WRITTEN, _HOST_WRITTEN = 0xF4, 0xF5
_HAVE_VENDOR_LOG = ("0x8086", "0x025e", "0x1c5f")
"""PCI vendors whose log CAh is known: Intel, Solidigm, Memblaze. Others use CAh for other pages."""

_CONTROLLER = re.compile(r"nvme\d+")
_ADMIN_COMMAND = 0xC0484E41  # _IOWR('N', 0x41, struct nvme_passthru_cmd)
_GET_LOG_PAGE = 0x02
_ALL_NAMESPACES = 0xFFFFFFFF
_TIMEOUT_MS = 5000


LEAST_BYTES = 100_000_000
"""Log 02h counts in steps of 512 kB, so smaller growths give no ratio to rely on."""
_LEAST_VENDOR_UNITS = 32
"""The same for log CAh: a step is 3 % of 1 GiB."""
_LEAST_WAF, _MOST_WAF = 0.5, 20.0
"""Bounds of what a drive may write for each byte: outside, the unit of a counter is another."""
_MOST_UUIDS = 3
"""Pages of several owners under one number are asked for by index: 0, 1, 2."""

OF_DRIVE = ("host_bytes_written", "media_bytes_written", "percentage_used")
"""Fields of DriveWear that only the drive itself counts."""

ReadLog = Callable[[str, int, int], bytes]
"""`read_log`, or what stands for it in a test."""
NO_DRIVE = note("no_drive_seen")
_DAY, _YEAR_DAYS = 86_400, 365
_COUNTED = ("block_bytes_written", *OF_DRIVE)


class Health(NamedTuple):
    """Log 02h."""

    percentage_used: int
    """Of the drive's rated life, by its maker's own estimate; above 100 the rating is exceeded."""
    available_spare: int
    """Per cent of the spare blocks that are left."""
    read_bytes: int
    """By hosts, over the drive's life, in whole DATA_UNITs."""
    written_bytes: int
    power_on_hours: int
    media_errors: int


class VendorWrites(NamedTuple):
    """What log CAh counts of writes, in units that cancel out in their ratio (VENDOR_UNIT)."""

    nand: int
    host: int


@dataclass(frozen=True)
class Snapshot:
    """A drive's counters at one moment; None where it tells none."""

    block_bytes: int | None
    health: Health | None = None
    ocp: int | None = None
    """Log C0h's physical media units written, whose unit is not known yet."""
    vendor: VendorWrites | None = None
    why_not: Finding | None = None
    """Why the drive's own counters are missing; None if they are not."""


_NOTHING = Snapshot(0, Health(0, 0, 0, 0, 0, 0), ocp=0, vendor=VendorWrites(0, 0))
"""Of a drive that is new."""


MediaSource = Literal["", "log C0h, in bytes", "log C0h, in data units of 512 kB", "log CAh"]
"""Which counter told the bytes that were written to flash."""
_OCP_UNITS: Mapping[int, MediaSource] = {
    1: "log C0h, in bytes",
    DATA_UNIT: "log C0h, in data units of 512 kB",
}


class DriveWear(TypedDict, total=False):
    """The counters of one drive; None: it does not have them, or they cannot be read."""

    host: str
    """Where it was read."""
    name: str
    """As the kernel names it: nvme0n1."""
    model: str
    capacity_bytes: int
    block_bytes_written: int | None
    """Sent to the drive by this host's block layer, by any process."""
    host_bytes_written: int | None
    """Received from hosts, by the drive's own count (log 02h, in steps of 512 kB)."""
    media_bytes_written: int | None
    """Written to its flash, by its own count."""
    media_source: MediaSource
    """Which counter said so; "" if none."""
    percentage_used: int | None
    """Of its life, by its maker's estimate, at the end."""
    missing: dict[str, Mapping[str, Any]]
    """Why a field is None, by name: the fields of a finding. Earlier versions stored a text."""


class Lifetime(DriveWear):
    """The same over its life, but for the block layer, which counts since the host started."""

    host_bytes_read: int | None
    """By its own count, as all fields here."""
    waf: float | None
    available_spare: int | None
    power_on_hours: int | None
    media_errors: int | None


def parse_health(page: bytes) -> Health:
    """Return what log 02h says; `page` has PAGE bytes."""
    return Health(
        percentage_used=page[5],
        available_spare=page[3],
        read_bytes=_number(page, 32, 16) * DATA_UNIT,
        written_bytes=_number(page, 48, 16) * DATA_UNIT,
        power_on_hours=_number(page, 128, 16),
        media_errors=_number(page, 160, 16),
    )


def parse_ocp(page: bytes) -> int | None:
    """Return the physical media units written by log C0h; None if it is another vendor's page.

    The specification counts bytes, but drives differ: see `media_bytes`.
    """
    return _number(page, 0, 16) if page[496:PAGE] == _OCP_GUID else None


def parse_vendor(page: bytes) -> VendorWrites | None:
    """Return the writes that log CAh counts; None if it has not each of both counters once."""
    found: dict[int, list[int]] = {_NAND_WRITTEN: [], _HOST_WRITTEN: []}
    for start in range(0, PAGE - _ITEM + 1, _ITEM):
        if page[start] in found:
            found[page[start]].append(_number(page, start + 5, 6))
    match found[_NAND_WRITTEN], found[_HOST_WRITTEN]:
        case [nand], [host]:
            return VendorWrites(nand, host)
    return None


def controller_of(drive: str, *, sys: Path = SYS) -> str | None:
    """Return the name of the controller behind a drive: "nvme0" of "nvme0n1"; None if it has none.

    With multipath a drive belongs to a subsystem; its first controller that is in use is taken.
    """
    if not re.fullmatch(r"nvme\d+n\d+", drive):
        return None
    device = sys / "class" / "block" / drive / "device"
    if not is_there(device):
        return None
    folder = device.resolve()
    if _CONTROLLER.fullmatch(folder.name):
        return folder.name
    names = [path.name for path in listed(folder, "nvme*") if _CONTROLLER.fullmatch(path.name)]
    in_use = [name for name in names if read_text(folder / name / "state").strip() == "live"]
    return next(iter(in_use or names), None)


def has_vendor_log(controller: str, *, sys: Path = SYS) -> bool:
    """Return whether the maker of a drive is one whose log CAh `parse_vendor` understands."""
    vendor = sys / "class" / "nvme" / controller / "device" / "vendor"
    return read_text(vendor).strip() in _HAVE_VENDOR_LOG


def read_log(controller: str, log: int, uuid_index: int = 0) -> bytes:
    """Return the PAGE bytes of a log page, asked of /dev/<controller>.

    A drive with pages of several owners under one number tells them apart by `uuid_index`.

    Raises:
        OSError: there is no such device, it may not be asked (this needs CAP_SYS_ADMIN), or the
            drive refuses; then the errno is ENODATA.
    """
    page = ctypes.create_string_buffer(PAGE)
    command = _Command(
        opcode=_GET_LOG_PAGE,
        nsid=_ALL_NAMESPACES,
        addr=ctypes.addressof(page),
        data_len=PAGE,
        cdw10=log | (PAGE // 4 - 1) << 16,
        cdw14=uuid_index,
        timeout_ms=_TIMEOUT_MS,
    )
    path = f"/dev/{controller}"
    device = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = fcntl.ioctl(device, _ADMIN_COMMAND, command)
    except OSError as error:
        raise system_error(error.errno or 0, path) from None
    finally:
        os.close(device)
    if status != 0:
        refused = f"the drive refuses log {log:02X}h (NVMe status {status:#x})"
        raise OSError(errno.ENODATA, refused, path)
    return page.raw


def look(device: BlockDevice, *, read: ReadLog = read_log, sys: Path = SYS) -> Snapshot:
    """Return a drive's counters now."""
    counters = device.counters()
    block_bytes = None if counters is None else counters.written_bytes
    controller = controller_of(device.name, sys=sys)
    if controller is None:
        return Snapshot(block_bytes, why_not=note("no_nvme", drive=device.name))
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
) -> tuple[int, MediaSource] | Finding:
    """Return the bytes written to flash and the counter that told; or why they are not known.

    Args:
        host_bytes: written by hosts at the same time, by log 02h.
        ocp: growth of log C0h's counter. Drives count bytes, or data units of 512 000 bytes; a unit
            is believed if it makes 0.5 to 20 times the bytes of the hosts.
        vendor: growth of log CAh's counters. Their ratio needs no unit.
    """
    if ocp is None and vendor is None:
        return note("no_flash_counter")
    if host_bytes < LEAST_BYTES:
        return note("too_little_for_ratio", bytes=host_bytes, least=LEAST_BYTES)
    if ocp is not None:
        for unit, source in _OCP_UNITS.items():
            if _LEAST_WAF * host_bytes <= ocp * unit <= _MOST_WAF * host_bytes:
                return ocp * unit, source
    if vendor is not None and vendor.host >= _LEAST_VENDOR_UNITS:
        return round(host_bytes * vendor.nand / vendor.host), "log CAh"
    if ocp is not None:
        return note("unit_unknown", grown=ocp, bytes=host_bytes)
    return note("too_few_steps", least=_LEAST_VENDOR_UNITS)


def grown(name: str, before: Snapshot, after: Snapshot, *, sys: Path = SYS) -> DriveWear:
    """Return what a drive counted between two snapshots."""
    missing: dict[str, Mapping[str, Any]] = {}
    block = host = media = None
    if before.block_bytes is not None and after.block_bytes is not None:
        block = after.block_bytes - before.block_bytes
    else:
        missing["block_bytes_written"] = note("block_device_uncounted").fields
    source: MediaSource = ""
    if before.health is None or after.health is None:
        why = after.why_not or before.why_not or NO_DRIVE
        missing |= dict.fromkeys(OF_DRIVE, why.fields)
    else:
        host = after.health.written_bytes - before.health.written_bytes
        ocp = None if before.ocp is None or after.ocp is None else after.ocp - before.ocp
        vendor = None
        if before.vendor is not None and after.vendor is not None:
            vendor = VendorWrites(*map(sub, after.vendor, before.vendor))
        told = media_bytes(host, ocp, vendor)
        if isinstance(told, Finding):
            missing["media_bytes_written"] = told.fields
        else:
            media, source = told
    drive = describe_drive(name, sys=sys)
    return DriveWear(
        host=socket.gethostname(),
        name=name,
        model=drive["model"],
        capacity_bytes=drive["size_bytes"],
        block_bytes_written=block,
        host_bytes_written=host,
        media_bytes_written=media,
        media_source=source,
        percentage_used=None if after.health is None else after.health.percentage_used,
        missing=missing,
    )


def lifetime(device: BlockDevice, *, read: ReadLog = read_log, sys: Path = SYS) -> Lifetime:
    """Return what a drive has counted over its life."""
    now = look(device, read=read, sys=sys)
    wear, health = grown(device.name, _NOTHING, now, sys=sys), now.health
    media, host = wear["media_bytes_written"], wear["host_bytes_written"]
    return {
        **wear,
        "host_bytes_read": health and health.read_bytes,
        "waf": media / host if media is not None and host else None,
        "available_spare": health and health.available_spare,
        "power_on_hours": health and health.power_on_hours,
        "media_errors": health and health.media_errors,
    }


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


def _why_not(controller: str, error: OSError) -> Finding:
    """Return why a drive's own counters cannot be read, and what helps."""
    path = f"/dev/{controller}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return note("counters_refused", path=path)
    if error.errno in (errno.ENOENT, errno.ENXIO):
        return note("device_not_here", path=path)
    return note("counters_silent", path=path, error=reason_of(error))


class _Command(ctypes.Structure):
    """struct nvme_passthru_cmd, 72 bytes."""

    _fields_ = (
        ("opcode", ctypes.c_uint8),
        ("flags", ctypes.c_uint8),
        ("rsvd1", ctypes.c_uint16),
        *((name, ctypes.c_uint32) for name in ("nsid", "cdw2", "cdw3")),
        *((name, ctypes.c_uint64) for name in ("metadata", "addr")),
        *((name, ctypes.c_uint32) for name in ("metadata_len", "data_len")),
        *((f"cdw{number}", ctypes.c_uint32) for number in range(10, 16)),
        *((name, ctypes.c_uint32) for name in ("timeout_ms", "result")),
    )


def _number(page: bytes, start: int, size: int) -> int:
    return int.from_bytes(page[start : start + size], "little")


class WearFields(TypedDict, total=False):
    """`measured.wear` in summary.json: what was written to the drives meanwhile, over all hosts.

    A field is None where it cannot be known; `missing` has the reason, as that of a drive does.
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
    missing: dict[str, Mapping[str, Any]]


class DriveWrites(NamedTuple):
    """Bytes that were written to the drives of one host."""

    drives: Sequence[DriveWear]
    seconds: float
    file_bytes: int = 0
    """Bytes of the files that dlemu wrote."""
    no_drive: Finding = NO_DRIVE
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

    def finish(self, *, file_bytes: int = 0) -> DriveWrites:
        """Return what was written since `start`, `file_bytes` of it into files."""
        now = self._look()
        seconds = time.monotonic() - self._began
        drives = [
            grown(device.name, *pair, sys=self._sys)
            for device, *pair in zip(self._devices, self._before, now, strict=True)
        ]
        return DriveWrites(drives, seconds, file_bytes, self._no_drive())

    def _look(self) -> list[Snapshot]:
        if self._devices:  # else there is nothing to count, and a server may take its time
            for folder in self._folders:
                flush(folder)
        return [look(each, read=self._read, sys=self._sys) for each in self._devices]

    def _no_drive(self) -> Finding:
        mounts = [mount_under(each, proc=self._proc) for each in self._folders]
        kinds = ", ".join(dict.fromkeys(mount.kind for mount in mounts if mount is not None))
        return note("no_drive_under_folder", file_system=kinds or None)


def combine_hosts(
    hosts: Sequence[DriveWrites | None], *, endurance: int | None = None
) -> WearFields:
    """Return what the drives of all hosts counted together; None is a rank that did not watch.

    `endurance` are the bytes that each drive may take in its life (drive.endurance).
    """
    known = [host for host in hosts if host is not None]
    drives = [drive for host in known for drive in host.drives]
    missing = {
        field: _of_drive(drive["name"], why)
        for drive in reversed(drives)
        for field, why in drive["missing"].items()
    }
    if not drives:
        no_drive = next((host.no_drive for host in known), NO_DRIVE)
        missing = dict.fromkeys(_COUNTED, no_drive.fields)
    used = [n for drive in drives if (n := drive["percentage_used"]) is not None]
    wear = WearFields(
        seconds=max((host.seconds for host in known), default=0.0),
        block_bytes_written=total([drive["block_bytes_written"] for drive in drives]),
        host_bytes_written=total([drive["host_bytes_written"] for drive in drives]),
        media_bytes_written=total([drive["media_bytes_written"] for drive in drives]),
        percentage_used=max(used, default=None) if len(used) == len(drives) else None,
        file_bytes_written=sum(host.file_bytes for host in known),
        endurance_bytes=endurance * len(drives) if endurance and drives else None,
        drives=drives,
        missing=missing,
    )
    _add_ratios(wear)
    return wear


def _of_drive(name: str, why: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return why a figure of one of several drives is not known, with the drive's name."""
    return why if why["kind"] == "no_nvme" else note("of_drive", drive=name, why=why).fields


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
        missing["waf"] = why or note("nothing_written").fields
    wear["file_system_amplification"] = block / files if block is not None and files else None
    if wear["file_system_amplification"] is None:
        why = missing.get("block_bytes_written") if files else None
        missing["file_system_amplification"] = why or note("no_file_written").fields
    # Log 02h also has what other hosts wrote; the block layer is there on every drive.
    written = block if host is None else host
    capacity = sum(drive["capacity_bytes"] for drive in wear["drives"])
    days = wear["seconds"] / _DAY
    wear["drive_writes_per_day"] = wear["years_left"] = None
    if written is None or not capacity or not days:
        why = missing.get("block_bytes_written")
        missing["drive_writes_per_day"] = why or note("capacity_unknown").fields
    elif written < LEAST_BYTES:
        missing["drive_writes_per_day"] = note("too_little_for_pace", bytes=written).fields
    else:
        wear["drive_writes_per_day"] = written / capacity / days
    rated = wear["endurance_bytes"]
    if wear["drive_writes_per_day"] is None:
        missing["years_left"] = missing["drive_writes_per_day"]
    elif not rated:
        missing["years_left"] = note("endurance_unset").fields
    else:
        assert written
        left = max(0.0, 1 - (wear["percentage_used"] or 0) / 100)
        wear["years_left"] = left * rated / (written / days * _YEAR_DAYS)


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
