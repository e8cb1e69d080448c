"""The log pages in which an NVMe drive counts what was written to it, and how they are read.

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
from dataclasses import dataclass
from pathlib import Path

from dlemu.host.devices import SYS, read_text

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


@dataclass(frozen=True)
class Health:
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


@dataclass(frozen=True)
class VendorWrites:
    """What log CAh counts of writes, in units that cancel out in their ratio (VENDOR_UNIT)."""

    nand: int
    host: int


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

    The specification counts bytes, but drives differ: see `wear.media_bytes`.
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
    if not device.exists():
        return None
    folder = device.resolve()
    if _CONTROLLER.fullmatch(folder.name):
        return folder.name
    names = sorted(path.name for path in folder.glob("nvme*") if _CONTROLLER.fullmatch(path.name))
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
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(device)
    if status != 0:
        refused = f"the drive refuses log {log:02X}h (NVMe status {status:#x})"
        raise OSError(errno.ENODATA, refused, path)
    return page.raw


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
