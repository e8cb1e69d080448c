"""Log pages of NVMe drives, made by the offsets of their specifications, and a host that has them.

The offsets are those of the NVM Express Base Specification (02h), of OCP's Datacenter NVMe SSD
Specification (C0h) and of Intel's additional SMART attributes (CAh).
"""

import errno
import uuid
from collections.abc import Mapping
from pathlib import Path

OCP_GUID = uuid.UUID("AFD514C9-7C6F-4F9C-A4F2-BFEA2810AFC5")


def health_page(*, written: int, read: int = 0, used: int = 0, spare: int = 100) -> bytes:
    """Return log 02h; `written` and `read` in data units."""
    page = bytearray(512)
    page[3], page[4], page[5] = spare, 10, used
    page[32:48] = read.to_bytes(16, "little")
    page[48:64] = written.to_bytes(16, "little")
    page[128:144] = (742).to_bytes(16, "little")
    page[160:176] = (3).to_bytes(16, "little")
    return bytes(page)


def ocp_page(written: int, guid: uuid.UUID = OCP_GUID) -> bytes:
    """Return log C0h."""
    page = bytearray(512)
    page[0:16] = written.to_bytes(16, "little")
    page[494:496] = (4).to_bytes(2, "little")
    page[496:512] = guid.bytes[::-1]
    return bytes(page)


def vendor_page(nand: int, host: int, *, first: int = 0xAB) -> bytes:
    """Return log CAh, with some of the items that stand before the two."""
    page = bytearray(512)
    items = {first: 0, 0xAC: 0, 0xAD: 7, 0xEA: 0, 0xF4: nand, 0xF5: host, 0xF8: 9}
    for index, (number, raw) in enumerate(items.items()):
        page[12 * index] = number
        page[12 * index + 3] = 100
        page[12 * index + 5 : 12 * index + 11] = raw.to_bytes(6, "little")
    return bytes(page)


class Drives:
    """Answers for controllers: their pages may change, or be errors."""

    def __init__(self, pages: Mapping[tuple[str, int, int], bytes | OSError]) -> None:
        self.pages = dict(pages)

    def read(self, controller: str, log: int, uuid_index: int) -> bytes:
        missing = OSError(errno.ENODATA, "the drive refuses")
        page = self.pages.get((controller, log, uuid_index), missing)
        if isinstance(page, OSError):
            raise page
        return page


def add_nvme(sys: Path, name: str = "nvme0n1", vendor: str = "0x8086") -> None:
    """Make a drive of one namespace below a copy of /sys, as the kernel shows it."""
    controller = name.removesuffix("n1")
    folder = sys / "devices" / "pci" / "nvme" / controller
    disk = folder / name
    disk.mkdir(parents=True)
    (disk / "device").symlink_to(folder)
    (disk / "size").write_text(f"{7_681_501_126_656 // 512}\n")
    (folder / "model").write_text("SOLIDIGM SB5PH27X076T\n")
    (folder / "state").write_text("live\n")
    (folder / "device").mkdir()
    (folder / "device" / "vendor").write_text(f"{vendor}\n")
    for kind, target in (("block", disk), ("nvme", folder)):
        link = sys / "class" / kind / target.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
