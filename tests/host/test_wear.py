"""Wear: log pages of drives, and drives whose pages are frozen.

The pages are made by the offsets of the NVM Express Base Specification (02h), of OCP's Datacenter
NVMe SSD Specification (C0h) and of Intel's additional SMART attributes (CAh).
"""

import ctypes
import errno
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.findings import Finding, note
from dlemu.host import wear as nvme
from dlemu.host.devices import BlockDevice
from dlemu.host.wear import (
    HEALTH,
    OCP,
    VENDOR,
    DriveWear,
    DriveWrites,
    VendorWrites,
    WearWatch,
    combine_hosts,
    is_binary,
    lifetime,
    look,
    media_bytes,
)
from dlemu.report.words import sentence
from tests.host.copies import Host

GB = 10**9


Pages = Mapping[tuple[int, int], bytes | OSError]
"""By log and the index of its owner: a page, or why the drive refuses it."""


class Watched(Host):
    """A watch of one NVMe drive, whose pages are those of `pages`; they may change."""

    def __init__(self, folder: Path, pages: Pages | None = None, vendor: str = "0x8086") -> None:
        super().__init__(folder)
        self.pages = pages or {}
        self.mount("/", "259:0", "xfs")
        disk, controller = self.disk("nvme0n1", "259:0"), self.sys / "devices" / "nvme0"
        self.link(disk / "device", controller)
        self.link("sys/class/nvme/nvme0", controller)
        self.write(disk / "size", f"{7_681_501_126_656 // 512}\n")
        self.write(controller / "model", "SOLIDIGM SB5PH27X076T\n")
        self.write(controller / "device" / "vendor", f"{vendor}\n")
        self.drive = BlockDevice("nvme0n1", (disk / "stat",))
        self.sectors(0)
        self.watch = WearWatch(folder, read=self.read, proc=self.proc, sys=self.sys)

    def sectors(self, num: int) -> None:
        self.write(self.drive.stats[0], f"0 0 0 0 0 0 {num} 0 0 0 0\n")

    def read(self, controller: str, log: int, uuid_index: int) -> bytes:
        assert controller == "nvme0"
        page = self.pages.get((log, uuid_index), OSError(errno.ENODATA, "the drive refuses"))
        if isinstance(page, OSError):
            raise page
        return page


def test_a_drive_that_tells_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dlemu.host.wear.time.monotonic", lambda: now[0])
    flushed: list[Path] = []
    monkeypatch.setattr("dlemu.host.wear.flush", flushed.append)
    host = Watched(tmp_path, {(HEALTH, 0): health_page(written=1000), (OCP, 0): ocp_page(7 * GB)})
    host.watch.start()
    now[0] += 864.0  # a hundredth of a day
    host.sectors(20_000_000)
    ocp = ocp_page(7 * GB + 12_288_000_000)
    host.pages = {(HEALTH, 0): health_page(written=21_000, used=10), (OCP, 0): ocp}

    wear = combine_hosts([host.watch.finish(file_bytes=10 * GB)], endurance=14_016 * 10**12)

    assert (wear["seconds"], wear["waf"], wear["percentage_used"]) == (864, 1.2, 10)
    assert wear["block_bytes_written"] == wear["host_bytes_written"] == 10_240_000_000
    assert wear["media_bytes_written"] == 12_288_000_000
    assert wear["file_system_amplification"] == 1.024
    capacity = 7_681_501_126_656 // 512 * 512
    assert wear["drive_writes_per_day"] == pytest.approx(1024 * GB / capacity)
    assert wear["years_left"] == pytest.approx(0.9 * 14_016e12 / (1024e9 * 365))
    assert wear["missing"] == {}
    (drive,) = wear["drives"]
    assert (drive["name"], drive["model"]) == ("nvme0n1", "SOLIDIGM SB5PH27X076T")
    assert flushed == [tmp_path, tmp_path], "what is not written yet is not counted"
    assert drive["media_source"] == "log C0h, in bytes"


def test_a_size_in_whole_tib_is_binary_unless_it_is_in_whole_gb_too() -> None:
    sizes = (2**40, 10**9 * 2**40, 10**15, 5)
    assert [is_binary(size) for size in sizes] == [True, False, False, False]


def test_pages_of_several_owners_are_told_apart_by_index(tmp_path: Path) -> None:
    pages = {(HEALTH, 0): health_page(written=1), (OCP, 0): bytes(512)}
    host = Watched(tmp_path, {**pages, (OCP, 2): ocp_page(42), (VENDOR, 1): vendor_page(5, 4)})
    found = look(host.drive, read=host.read, sys=host.sys)
    assert (found.ocp, found.vendor) == (42, VendorWrites(5, 4))


def test_the_counters_of_a_drive_s_life(tmp_path: Path) -> None:
    host = Watched(tmp_path, {(HEALTH, 0): health_page(written=10**6, read=7, used=2, spare=90)})
    told = lifetime(host.drive, read=host.read, sys=host.sys)
    assert (told["host_bytes_written"], told["host_bytes_read"]) == (512 * GB, 3_584_000)
    assert (told["percentage_used"], told["available_spare"], told["media_errors"]) == (2, 90, 3)
    assert told["power_on_hours"] == 742
    assert (told["waf"], told["media_source"]) == (None, "")
    assert told["missing"]["media_bytes_written"]["kind"] == "no_flash_counter"

    host.pages = {**host.pages, (OCP, 0): ocp_page(768 * GB)}
    told = lifetime(host.drive, read=host.read, sys=host.sys)
    assert (told["waf"], told["media_source"], told["missing"]) == (1.5, "log C0h, in bytes", {})

    host.pages = {}
    told = lifetime(host.drive, read=host.read, sys=host.sys)
    assert (told["host_bytes_written"], told["percentage_used"]) == (None, None)
    assert told["missing"]["host_bytes_written"]["kind"] == "counters_silent"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errno.EACCES, ("CAP_SYS_ADMIN", "run as root", "nvme smart-log /dev/nvme0")),
        (errno.EPERM, ("CAP_SYS_ADMIN",)),
        (errno.ENOENT, ("/dev/nvme0 is not here", "--device=/dev/nvme0")),
        (errno.EIO, ("/dev/nvme0 does not answer",)),
    ],
)
def test_a_drive_that_may_not_be_asked_says_why_and_no_zero(
    tmp_path: Path, error: int, words: tuple[str, ...]
) -> None:
    host = Watched(tmp_path, {(HEALTH, 0): OSError(error, os.strerror(error))})
    host.watch.start()
    host.sectors(2_000_000)

    wear = combine_hosts([host.watch.finish()])

    assert wear["block_bytes_written"] == 1_024_000_000
    for field in ("host_bytes_written", "media_bytes_written", "percentage_used", "waf"):
        assert wear[field] is None
        why = sentence(wear["missing"][field])
        assert all(word in why for word in words) and "\n" not in why
    assert wear["missing"]["years_left"]["kind"] == "endurance_unset"
    assert wear["missing"]["file_system_amplification"]["kind"] == "no_file_written"


def test_a_drive_of_a_known_maker_tells_its_waf_by_log_cah(tmp_path: Path) -> None:
    pages = {(HEALTH, 0): health_page(written=0), (VENDOR, 0): vendor_page(1000, 1000)}
    host = Watched(tmp_path, {**pages})
    host.watch.start()
    host.pages = {(HEALTH, 0): health_page(written=10_000), (VENDOR, 0): vendor_page(1300, 1200)}

    wear = combine_hosts([host.watch.finish()])

    assert (wear["waf"], wear["drives"][0]["media_source"]) == (1.5, "log CAh")


X = 10 * GB


@pytest.mark.parametrize(
    ("ocp", "vendor", "media", "said"),
    [
        (X, None, X, "in bytes"),
        (X // 2, None, X // 2, "in bytes"),
        (20 * X, None, 20 * X, "in bytes"),
        (20 * X + 1, None, None, "unit of log C0h is unknown"),
        (X // 2 - 1, None, None, "unit of log C0h is unknown"),
        (20_000, None, 20_000 * 512_000, "data units"),
        (0, None, None, "unit of log C0h is unknown"),
        (X // 32, VendorWrites(330, 300), X * 11 // 10, "log CAh"),
        (X, VendorWrites(600, 300), X, "in bytes"),
        (None, VendorWrites(33, 32), X * 33 // 32, "log CAh"),
        (None, VendorWrites(31, 31), None, "steps of 32 MiB"),
        (None, None, None, "neither"),
    ],
)
def test_a_unit_is_believed_only_if_it_fits_what_was_written(
    ocp: int | None, vendor: VendorWrites | None, media: int | None, said: str
) -> None:
    found = media_bytes(X, ocp, vendor)
    if isinstance(found, Finding):
        assert media is None and said in sentence(found)
    else:
        assert found[0] == media and said in found[1]


def test_what_is_less_than_the_counters_steps_gives_no_ratio() -> None:
    assert media_bytes(10**8, 10**8, None) == (10**8, "log C0h, in bytes")
    why = media_bytes(10**8 - 1, 10**8, None)
    assert isinstance(why, Finding) and "95.4 MiB were written" in sentence(why)


def drive(name: str, host: int | None, media: int | None, used: int | None) -> DriveWear:
    missing: dict[str, Mapping[str, Any]] = {}
    if host is None:
        missing = {"host_bytes_written": note("no_nvme", drive=name).fields}
    return DriveWear(
        host="node1",
        name=name,
        model="",
        capacity_bytes=10**12,
        block_bytes_written=GB,
        host_bytes_written=host,
        media_bytes_written=media,
        media_source="",
        percentage_used=used,
        missing=missing,
    )


def test_the_drives_of_all_hosts_are_taken_together() -> None:
    drives = [drive("nvme0n1", 2 * GB, 3 * GB, 4), drive("nvme1n1", 2 * GB, 5 * GB, 9)]
    hosts = [DriveWrites(drives[:1], 86_400.0, GB), DriveWrites(drives[1:], 8_640.0, GB)]
    wear = combine_hosts(hosts, endurance=10**15)
    assert (wear["seconds"], wear["file_bytes_written"]) == (86_400.0, 2 * GB)
    assert (wear["host_bytes_written"], wear["waf"], wear["percentage_used"]) == (4 * GB, 2.0, 9)
    assert wear["endurance_bytes"] == 2 * 10**15
    assert wear["drive_writes_per_day"] == 0.002
    assert wear["years_left"] == pytest.approx(0.91 * 2e15 / (4e9 * 365))


def test_one_drive_that_cannot_tell_leaves_the_sum_unknown() -> None:
    drives = [drive("nvme0n1", GB, GB, 4), drive("sda", None, None, None)]
    wear = combine_hosts([DriveWrites(drives, 60.0), None])
    assert (wear["host_bytes_written"], wear["media_bytes_written"]) == (None, None)
    assert wear["percentage_used"] is None
    assert wear["missing"]["waf"] == note("no_nvme", drive="sda").fields
    assert wear["drive_writes_per_day"] == pytest.approx(2e9 / 2e12 * 1440)  # by the block layer


def test_log_c0h_is_taken_by_its_guid_alone() -> None:
    assert nvme.parse_ocp(ocp_page(2**70)) == 2**70
    # The same number in the order in which it is written, and zeros.
    other = uuid.UUID(bytes=ocp_page(0)[496:512])
    assert nvme.parse_ocp(ocp_page(2**70, other)) is None
    assert nvme.parse_ocp(bytes(512)) is None


def test_log_cah_is_found_by_the_items_numbers() -> None:
    assert nvme.parse_vendor(vendor_page(2**47, 108)) == nvme.VendorWrites(2**47, 108)
    assert nvme.parse_vendor(bytes(512)) is None
    twice = bytearray(vendor_page(110, 108))
    twice[0] = 0xF4
    assert nvme.parse_vendor(bytes(twice)) is None, "it has a counter twice"


@given(page=st.binary(min_size=512, max_size=512))
def test_no_page_breaks_the_parsers(page: bytes) -> None:
    health = nvme.parse_health(page)
    assert 0 <= health.percentage_used <= 255
    assert health.written_bytes % nvme.DATA_UNIT == 0
    assert nvme.parse_ocp(page) is None or page.endswith(ocp_page(0)[496:])
    vendor = nvme.parse_vendor(page)
    assert vendor is None or max(vendor.nand, vendor.host) < 2**48


def test_the_command_has_the_kernel_s_size() -> None:
    assert ctypes.sizeof(nvme._Command) == 72 == nvme._ADMIN_COMMAND >> 16 & 0x3FFF
    assert (nvme._Command.addr.offset, nvme._Command.cdw10.offset) == (24, 40)


@pytest.mark.parametrize("name", ["nvme99", "null"])
def test_a_device_that_is_not_there_or_no_nvme_is_named(name: str) -> None:
    with pytest.raises(OSError, match=f"/dev/{name}"):
        nvme.read_log(name, nvme.HEALTH)


@pytest.mark.parametrize("name", ["sda", "vda", "nvme7n1", "nvme0c0n1", "md0"])
def test_other_drives_have_none(tmp_path: Path, name: str) -> None:
    host = Watched(tmp_path, vendor="0x144d")
    assert nvme.controller_of(name, sys=host.sys) is None
    assert not nvme.has_vendor_log("nvme0", sys=host.sys)


def test_with_multipath_a_controller_in_use_is_taken(tmp_path: Path) -> None:
    host = Host(tmp_path)
    subsystem = host.sys / "devices/virtual/nvme-subsystem/nvme-subsys0"
    host.link(host.disk("nvme0n1", "259:0") / "device", subsystem)
    for name, state in (("nvme0", "connecting"), ("nvme3", "live"), ("nvme4", "live")):
        host.write(subsystem / name / "state", f"{state}\n")

    assert nvme.controller_of("nvme0n1", sys=host.sys) == "nvme3"
    for name in ("nvme3", "nvme4"):
        host.write(subsystem / name / "state", "dead\n")
    assert nvme.controller_of("nvme0n1", sys=host.sys) == "nvme0"


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


def vendor_page(nand: int, host: int) -> bytes:
    """Return log CAh, with some of the items that stand before the two."""
    page = bytearray(512)
    items = {0xAB: 0, 0xAC: 0, 0xAD: 7, 0xEA: 0, 0xF4: nand, 0xF5: host, 0xF8: 9}
    for index, (number, raw) in enumerate(items.items()):
        page[12 * index] = number
        page[12 * index + 3] = 100
        page[12 * index + 5 : 12 * index + 11] = raw.to_bytes(6, "little")
    return bytes(page)
