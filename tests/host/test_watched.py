"""The places behind a mounted cache, in small copies of /proc and /sys."""

from pathlib import Path

import pytest

from dlemu.host.devices import Mount, growth, total
from dlemu.host.intervals import PlaceCounts, WatchedPlaces, find_daemon
from tests.host.test_devices import Host

FUSE = Mount("5", "1", "0:40", "/", "/mnt/cached", "rw", "fuse.rclone", "remote:", "rw")


class CachedHost(Host):
    """Two drives of two partitions each, and a FUSE mount."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.root = folder / "root"
        self.mount("/", "0:1", "rootfs", "none rw")
        for number, name in enumerate(("sda", "nvme0n1")):
            self.disk(name, f"{number}:0")
            for part in (1, 2):
                point = self.root / f"{name}-{part}"
                point.mkdir(parents=True)
                partition = f"{name}{'p' if name[-2:] == 'n1' else ''}{part}"
                self.set(self.disk(partition, f"{number}:{part}", within=name), 0, 0)
                self.mount(point, f"{number}:{part}")
        cached = self.root / "cached"
        cached.mkdir()
        self.mount(cached, "0:40", "fuse.rclone", "remote: rw")

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
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fdinfo").mkdir()
        (folder / "cmdline").write_text("\0".join(words) + "\0")
        (folder / "fd" / "3").symlink_to("/dev/null")
        if fuse is not None:
            (folder / "fd" / "7").symlink_to("/dev/fuse")
            (folder / "fdinfo" / "7").write_text(fuse)


@pytest.fixture
def host(tmp_path: Path) -> CachedHost:
    return CachedHost(tmp_path)


def test_the_places_tell_where_bytes_came_from(host: CachedHost) -> None:
    watch = host.watch("sda-1", "nvme0n1-1", "nvme0n1-2")
    before = watch.counts()
    host.set(host.sys / "devices/sda/sda1", 100, 7)
    host.set(host.sys / "devices/nvme0n1/nvme0n1p1", 20, 100)
    host.set(host.sys / "devices/nvme0n1/nvme0n1p2", 1, 2)

    grown = growth(watch.counts(), before)

    assert grown == PlaceCounts(100 * 512, 21 * 512, 102 * 512, None)
    assert growth(before, watch.counts()) == PlaceCounts(), "counters that have begun anew"
    assert [note for note in watch.notes() if "FUSE" not in note] == []


def test_a_drive_that_is_both_is_not_told_apart(host: CachedHost) -> None:
    watch = host.watch("sda-1", "sda-1")
    assert watch.counts().origin_read_bytes is None
    assert watch.counts().cache_read_bytes == 0
    (note, _) = watch.notes()
    assert "lie on one drive (sda1)" in note and "not known" in note


def test_an_origin_that_nobody_counts_is_said(host: CachedHost) -> None:
    watch = host.watch("cached", "cached")
    assert watch.counts() == PlaceCounts()
    origin, cache, daemon = watch.notes()
    assert origin.startswith("cache.origin") and "(fuse.rclone)" in origin
    assert cache.startswith("no drive is seen under cache.devices")
    assert "run as that user or as root" in daemon


def test_what_one_host_does_not_know_is_unknown() -> None:
    one, two = PlaceCounts(1, 2, 3, 0.5), PlaceCounts(10, None, 30, 0.25)
    assert total([one, two]) == PlaceCounts(11, None, 33, 0.75)
    assert total([one]) == one


def test_the_kernel_names_the_mount_s_process(host: CachedHost) -> None:
    host.process(10, "rclone", "mount", "x", FUSE.point, fuse="pos:\t0\nfuse_connection:\t41\n")
    host.process(11, "rclone", fuse="pos:\t0\nfuse_connection:\t40\n")
    assert find_daemon(FUSE, proc=host.proc) == 11


def test_an_older_kernel_leaves_the_words_of_the_command(host: CachedHost) -> None:
    host.process(12, "cat", FUSE.point)
    assert find_daemon(FUSE, proc=host.proc) is None
    host.process(13, "sshfs", "a:", "/mnt/other", fuse="pos:\t0\n")
    assert find_daemon(FUSE, proc=host.proc) == 13, "the only one"
    host.process(14, "gcsfuse", "b", "/mnt/third", fuse="pos:\t0\n")
    assert find_daemon(FUSE, proc=host.proc) is None, "one of two"
    host.process(15, "rclone", "mount", "x", FUSE.point, fuse="pos:\t0\n")
    assert find_daemon(FUSE, proc=host.proc) == 15


def test_other_mounts_have_no_process(host: CachedHost) -> None:
    host.process(16, "rclone", fuse="pos:\t0\n")
    ext4 = Mount("5", "1", "8:1", "/", "/data", "rw", "ext4", "/dev/sda1", "rw")
    assert find_daemon(ext4, proc=host.proc) is None
    assert find_daemon(None, proc=host.proc) is None
