"""Drives, and the places behind a mounted cache, in copies of /proc and /sys and on this host."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.host.devices import (
    DeviceCounters,
    Mount,
    counted_devices,
    devices_under,
    growth,
    mount_of,
    mount_under,
    network_read_bytes,
    parse_mountinfo,
    parse_mountstats,
)
from dlemu.host.intervals import PlaceCounts, WatchedPlaces, find_daemon
from tests.host.copies import STAT, Host
from tests.lab.drives import own_drive


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.disk("sda", "8:0")
    host.disk("sda2", "8:2", within="sda")
    host.mount("/", "8:2")
    return host


def test_a_partition_is_led_back_to_its_drive(host: Host) -> None:
    (device,) = devices_under(Path("/data"), proc=host.proc, sys=host.sys)
    assert device.name == "sda"
    assert device.counters() == DeviceCounters(
        reads=26742,
        read_bytes=2097258 * 512,
        busy_ms=3016,
        queue_ms=8529,
        in_flight=7,
        written_bytes=2775368 * 512,
    )
    device.stats[0].write_text("1 2 3")  # of another kernel
    assert device.counters() is None
    device.stats[0].unlink()
    assert device.counters() is None, "it was removed"


def test_the_drives_of_a_stack_are_named_once(host: Host, tmp_path: Path) -> None:
    """LVM over a RAID of partitions, which it has twice, and over a file on the system's drive."""
    for index in range(2):
        host.disk(f"nvme{index}n1", f"259:{index}")
        host.disk(f"nvme{index}n1p1", f"259:{index + 10}", within=f"nvme{index}n1")
    host.disk("md0", "9:0", "nvme0n1p1", "nvme1n1p1")
    image = tmp_path / "image"
    image.touch()
    host.loop("loop3", "7:3", image)
    host.disk("dm-1", "253:1", "md0")
    host.disk("dm-2", "253:2", "md0", "dm-1", "loop3")
    host.mount("/data", "253:2", "xfs", "/dev/mapper/vg-data rw")

    assert host.names("/data/unet3d") == ["nvme0n1", "nvme1n1", "sda"]
    assert host.names("/database") == ["sda"], "a mount point is whole words of a path"
    image.unlink()
    assert "loop3" in host.names("/data"), "a file of another container"


def test_dm_on_nvme_multipath_counts_the_hidden_paths(host: Host) -> None:
    host.disk("nvme0n1", "259:0")
    host.disk("nvme0n2", "259:5")
    for index, path in enumerate(("nvme0c0n1", "nvme0c1n1", "nvme0c1n2")):
        host.disk(path, f"259:{10 + index}")
    host.disk("dm-0", "253:0", "nvme0n1")
    host.mount("/data", "253:0")

    (device,) = devices_under(Path("/data"), proc=host.proc, sys=host.sys)

    def counted() -> tuple[int, int, int]:
        counters = device.counters()
        assert counters is not None
        return counters.reads, counters.busy_ms, counters.in_flight

    assert device.name == "nvme0n1"
    assert [path.parent.name for path in device.stats] == ["nvme0n1", "nvme0c0n1", "nvme0c1n1"]
    assert counted() == (26742, 3016, 7), "since Linux 6.2 the drive itself counts"
    drive, _, other = device.stats
    drive.write_text(re.sub(r"\d+", "0", STAT))
    assert counted() == (2 * 26742, 2 * 3016, 14)
    # A drive that has changed to its other path is busy on that one alone.
    other.write_text(STAT.replace(" 3016", " 4016"))
    assert counted() == (2 * 26742, 2 * 3016 + 1000, 14)


def test_btrfs_is_all_its_devices(host: Host) -> None:
    for index, name in enumerate(("sdb", "sdc", "sdd")):
        host.disk(name, f"8:{16 * (index + 1)}")
    for name in ("sdb", "sdd"):
        host.link(f"sys/fs/btrfs/f00d/devices/{name}", f"sys/devices/{name}")
    host.mount("/data", "0:44", "btrfs", "/dev/sdd rw,subvolid=5")
    host.mount("/other", "0:45", "bcachefs", "/dev/sdc rw")

    assert host.names("/data") == ["sdb", "sdd"]
    assert host.names("/other") == ["sdc"]


def test_overlay_is_what_its_layers_lie_on(host: Host, tmp_path: Path) -> None:
    upper, lower = tmp_path / "upper", tmp_path / "a:low,er"
    upper.mkdir()
    lower.mkdir()
    host.disk("sdb", "8:16")
    host.mount(lower, "8:16")
    escaped = str(lower).replace(":", r"\134:").replace(",", r"\134,")
    options = f"rw,lowerdir={escaped}:/nowhere,upperdir={upper},workdir=/nowhere"
    host.mount("/data", "0:50", "overlay", f"overlay {options}")

    assert host.names("/data") == ["sda", "sdb"]
    counted = counted_devices(Path("/data"), proc=host.proc, sys=host.sys)
    assert [device.name for device in counted] == ["sda", "sdb"], "it has no counters of its own"
    host.lines.clear()
    host.mount("/", "0:50", "overlay", "overlay rw,lowerdir=/,upperdir=/")
    assert host.names("/data") == [], "its layers seem to lie on itself"


def test_nfs_counts_what_the_server_sent(host: Host) -> None:
    host.mount(r"/mnt/my\040data", "0:47", "nfs4", "server:/a rw,vers=4.2")
    host.write(
        "proc/self/mountstats",
        "device proc mounted on /proc with fstype proc\n"
        "device server:/a mounted on /mnt/my\\040data with fstype nfs4 statvers=1.1\n"
        "\topts:\trw,vers=4.2\n"
        "\tevents:\t1 2 3 4 5 6 7\n"
        "\tbytes:\t11 22 33 44 55 66 77 88\n"
        "\tper-op statistics\n"
        "\t        READ: 3 3 0 444 5555 0 1 1 0\n"
        "device server:/b mounted on /mnt/b with fstype nfs statvers=1.1\n"
        "\tbytes:\t1 2 3 4 5 6 7 8\n",
    )

    mount = mount_under(Path("/mnt/my data/unet3d"), proc=host.proc)
    assert mount is not None
    assert network_read_bytes(mount, proc=host.proc) == 55
    root = mount_under(Path("/"), proc=host.proc)
    assert root is not None
    assert network_read_bytes(root, proc=host.proc) is None


def test_a_mount_hides_those_made_before_it_on_the_folders_below() -> None:
    mounts = parse_mountinfo(
        "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "21 20 8:2 / /a/b rw - ext4 /dev/sda2 rw\n"
        "22 20 8:3 / /a rw - ext4 /dev/sda3 rw\n"
        "23 22 8:4 / /a rw - ext4 /dev/sda4 rw\n"
        "24 23 8:5 /srv /a/c rw - ext4 /dev/sda5 rw\n"
    )

    found = [mount_of(Path(path), mounts) for path in ("/a/b/x", "/a/c/x", "/b")]
    # The later of two on the same point, over the one below.
    assert [mount and mount.number for mount in found] == ["8:4", "8:5", "8:1"]


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    mount_of(Path("/a/b"), parse_mountinfo(text))
    parse_mountstats(text)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1))
def test_a_folder_of_any_name_is_found(name: str) -> None:
    escaped = re.sub(r"[ \t\n\\]", lambda match: f"\\{ord(match[0]):03o}", name)
    (mount,) = parse_mountinfo(f"20 1 8:1 / /{escaped} rw - ext4 /dev/sda1 rw\n")
    assert mount.point == f"/{name}"


@pytest.mark.root
def test_a_mounted_image_is_led_back_to_the_drive() -> None:
    build = Path.cwd() / "build"
    build.mkdir(exist_ok=True)
    with own_drive(1 << 24, images=build) as folder:
        mount = mount_under(folder)
        assert mount is not None
        assert mount.number.startswith("7:"), "a loop device"
        assert devices_under(folder) == devices_under(build)


FUSE = Mount("5", "1", "0:40", "/", "/mnt/cached", "rw", "fuse.rclone", "remote:", "rw")


class CachedHost(Host):
    """Two drives of two partitions each, and a FUSE mount."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.root = folder / "root"
        self.mount("/", "0:1", "rootfs", "none rw")
        for number, name in enumerate(("sda", "sdb")):
            self.disk(name, f"{number}:0")
            for part in (1, 2):
                point = self.root / f"{name}{part}"
                point.mkdir(parents=True)
                self.set(self.disk(f"{name}{part}", f"{number}:{part}", within=name), 0, 0)
                self.mount(point, f"{number}:{part}")
        (self.root / "cached").mkdir()
        self.mount(self.root / "cached", "0:40", "fuse.rclone", "remote: rw")

    def set(self, disk: Path, read: int, written: int) -> None:
        """Set what a device has read and written, in sectors."""
        (disk / "stat").write_text(f"1 0 {read} 0 1 0 {written} 0 0 0 0\n")

    def watch(self, origin: str | None, *devices: str) -> WatchedPlaces:
        return WatchedPlaces(
            self.root / "cached",
            None if origin is None else self.root / origin,
            [self.root / each for each in devices],
            proc=self.proc,
            sys=self.sys,
        )

    def process(self, pid: int, *words: str, fuse: str | None = None) -> None:
        """Add a process; `fuse` is what fdinfo tells of its descriptor of /dev/fuse."""
        self.write(f"proc/{pid}/cmdline", "\0".join(words) + "\0")
        self.link(f"proc/{pid}/fd/3", "/dev/null")
        if fuse is not None:
            self.link(f"proc/{pid}/fd/7", "/dev/fuse")
            self.write(f"proc/{pid}/fdinfo/7", fuse)


@pytest.fixture
def cached(tmp_path: Path) -> CachedHost:
    return CachedHost(tmp_path)


def test_the_places_tell_where_bytes_came_from(cached: CachedHost) -> None:
    watch = cached.watch("sda1", "sdb1", "sdb2")
    before = watch.counts()
    cached.set(cached.sys / "devices/sda/sda1", 100, 7)
    cached.set(cached.sys / "devices/sdb/sdb1", 20, 100)
    cached.set(cached.sys / "devices/sdb/sdb2", 1, 2)

    grown = growth(watch.counts(), before)

    assert grown == PlaceCounts(100 * 512, 21 * 512, 102 * 512, None)
    assert growth(before, watch.counts()) == PlaceCounts(), "counters that have begun anew"
    assert [note for note in watch.notes() if note.kind != "fuse_process_unseen"] == []


def test_a_drive_that_is_both_is_not_told_apart(cached: CachedHost) -> None:
    watch = cached.watch("sda1", "sda1")
    assert watch.counts().origin_read_bytes is None
    assert watch.counts().cache_read_bytes == 0
    (note, _) = watch.notes()
    assert (note.kind, note.figures["drives"]) == ("origin_on_cache_drive", ["sda1"])


def test_an_origin_that_nobody_counts_is_said(cached: CachedHost) -> None:
    watch = cached.watch("cached", "cached")
    assert watch.counts() == PlaceCounts()
    origin, cache, daemon = watch.notes()
    assert (origin.kind, origin.figures["file_system"]) == ("origin_uncounted", "fuse.rclone")
    assert (cache.kind, daemon.kind) == ("no_cache_drive", "fuse_process_unseen")


def test_the_kernel_names_the_mount_s_process(cached: CachedHost) -> None:
    cached.process(10, "rclone", "mount", "x", FUSE.point, fuse="pos:\t0\nfuse_connection:\t41\n")
    cached.process(11, "rclone", fuse="pos:\t0\nfuse_connection:\t40\n")
    assert find_daemon(FUSE, proc=cached.proc) == 11
    ext4 = Mount("5", "1", "8:1", "/", "/data", "rw", "ext4", "/dev/sda1", "rw")
    assert find_daemon(ext4, proc=cached.proc) is find_daemon(None, proc=cached.proc) is None


def test_an_older_kernel_leaves_the_words_of_the_command(cached: CachedHost) -> None:
    cached.process(12, "cat", FUSE.point)
    assert find_daemon(FUSE, proc=cached.proc) is None
    cached.process(13, "sshfs", "a:", "/mnt/other", fuse="pos:\t0\n")
    assert find_daemon(FUSE, proc=cached.proc) == 13, "the only one"
    cached.process(14, "gcsfuse", "b", "/mnt/third", fuse="pos:\t0\n")
    assert find_daemon(FUSE, proc=cached.proc) is None, "one of two"
    cached.process(15, "rclone", "mount", "x", FUSE.point, fuse="pos:\t0\n")
    assert find_daemon(FUSE, proc=cached.proc) == 15
