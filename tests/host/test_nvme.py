"""The parsers of NVMe log pages, and the way from a drive to its controller."""

import ctypes
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.host import drive_counters as nvme
from tests.host.log_pages import add_nvme, health_page, ocp_page, vendor_page

PAGES = st.binary(min_size=512, max_size=512)


def test_log_02h() -> None:
    page = health_page(written=64_663_716, read=203_913_228, used=7, spare=99)

    assert nvme.parse_health(page) == nvme.Health(
        percentage_used=7,
        available_spare=99,
        read_bytes=203_913_228 * 512_000,
        written_bytes=64_663_716 * 512_000,
        power_on_hours=742,
        media_errors=3,
    )


def test_log_c0h_is_taken_by_its_guid_alone() -> None:
    assert nvme.parse_ocp(ocp_page(2**70)) == 2**70
    # The same number in the order in which it is written, and zeros.
    other = uuid.UUID(bytes=ocp_page(0)[496:512])
    assert nvme.parse_ocp(ocp_page(2**70, other)) is None
    assert nvme.parse_ocp(bytes(512)) is None


def test_log_cah_is_found_by_the_items_numbers() -> None:
    assert nvme.parse_vendor(vendor_page(2**47, 108)) == nvme.VendorWrites(2**47, 108)
    assert nvme.parse_vendor(bytes(512)) is None


def test_a_page_that_has_a_counter_twice_is_not_the_known_log_cah() -> None:
    assert nvme.parse_vendor(vendor_page(110, 108, first=0xF4)) is not None  # a dict has it once
    twice = bytearray(vendor_page(110, 108))
    twice[0] = 0xF4
    assert nvme.parse_vendor(bytes(twice)) is None


@given(page=PAGES)
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


def test_a_drive_leads_to_its_controller(tmp_path: Path) -> None:
    add_nvme(tmp_path, vendor="0x025e")
    add_nvme(tmp_path, "nvme1n1", vendor="0x144d")

    assert nvme.controller_of("nvme0n1", sys=tmp_path) == "nvme0"
    assert nvme.has_vendor_log("nvme0", sys=tmp_path)
    assert nvme.controller_of("nvme1n1", sys=tmp_path) == "nvme1"
    assert not nvme.has_vendor_log("nvme1", sys=tmp_path)


@pytest.mark.parametrize("name", ["sda", "vda", "nvme7n1", "nvme0c0n1", "md0"])
def test_other_drives_have_none(tmp_path: Path, name: str) -> None:
    add_nvme(tmp_path)
    assert nvme.controller_of(name, sys=tmp_path) is None


def test_with_multipath_a_controller_in_use_is_taken(tmp_path: Path) -> None:
    subsystem = tmp_path / "devices" / "virtual" / "nvme-subsystem" / "nvme-subsys0"
    disk = subsystem / "nvme0n1"
    disk.mkdir(parents=True)
    (disk / "device").symlink_to(subsystem)
    (tmp_path / "class" / "block").mkdir(parents=True)
    (tmp_path / "class" / "block" / "nvme0n1").symlink_to(disk)
    for name, state in (("nvme0", "connecting"), ("nvme3", "live"), ("nvme4", "live")):
        (subsystem / name).mkdir()
        (subsystem / name / "state").write_text(f"{state}\n")

    assert nvme.controller_of("nvme0n1", sys=tmp_path) == "nvme3"
    (subsystem / "nvme3" / "state").write_text("dead\n")
    (subsystem / "nvme4" / "state").write_text("dead\n")
    assert nvme.controller_of("nvme0n1", sys=tmp_path) == "nvme0"
