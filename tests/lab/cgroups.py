"""Hold child processes to a read rate, a CPU quota or a memory limit, with a cgroup of their own.

For tests whose answer is known beforehand. They need root and writable cgroups, of edition 1 or 2,
and skip with the reason where there are none.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlemu.host.devices import parse_mountinfo
from tests.lab.waiting import until

_numbers = itertools.count()


@dataclass(frozen=True)
class Group:
    """A cgroup; what enters it, its later children included, is held to its limit."""

    folder: Path

    def enter(self, pid: int = 0) -> None:
        """Move a process in; without a pid the calling one, as Popen's preexec_fn wants it."""
        (self.folder / "cgroup.procs").write_text(f"{pid}\n")


@dataclass(frozen=True)
class Throttle(Group):
    """A cgroup whose processes read disks at set rates; cached reads are not held."""

    edition: int
    writes: bool

    def hold(self, folder: Path, bytes_per_second: int) -> None:
        """Hold reads of the disk under a folder to a rate, and writes to the same where asked."""
        number = disk_of(folder)
        for what in ("read", "write") if self.writes else ("read",):
            if self.edition == 1:
                file = f"blkio.throttle.{what}_bps_device"
                _limit(self, file, f"{number} {bytes_per_second}")
            else:
                _limit(self, "io.max", f"{number} {what[0]}bps={bytes_per_second}")


@contextlib.contextmanager
def throttled(*rates: tuple[Path, int], writes: bool = False) -> Iterator[Throttle]:
    """Hold reads from the disk under each folder to the bytes per second beside it.

    `writes`: hold them as well. Only direct ones are held everywhere.
    """
    with _group("blkio", "io") as (group, edition):
        made = Throttle(group.folder, edition, writes)
        for folder, rate in rates:
            made.hold(folder, rate)
        yield made


@contextlib.contextmanager
def cpu_quota(cores: float, *, period_us: int = 100_000) -> Iterator[Group]:
    """Hold CPU time to that of a number of cores."""
    quota_us = round(cores * period_us)
    with _group("cpu", "cpu") as (group, edition):
        if edition == 1:
            _limit(group, "cpu.cfs_period_us", str(period_us))
            _limit(group, "cpu.cfs_quota_us", str(quota_us))
        else:
            _limit(group, "cpu.max", f"{quota_us} {period_us}")
        yield group


@dataclass(frozen=True)
class Freezer(Group):
    """A cgroup whose processes can be stopped all at once, without a signal."""

    file: str
    words: tuple[str, str]
    """What freezes, and what thaws."""

    def freeze(self) -> None:
        (self.folder / self.file).write_text(self.words[0])

    def thaw(self) -> None:
        (self.folder / self.file).write_text(self.words[1])


@contextlib.contextmanager
def freezer() -> Iterator[Freezer]:
    """Make a cgroup that can be frozen; it is thawed at the end."""
    with _group("freezer", "cpu") as (group, edition):
        v1 = edition == 1
        words = ("FROZEN", "THAWED") if v1 else ("1", "0")
        made = Freezer(group.folder, "freezer.state" if v1 else "cgroup.freeze", words)
        try:
            yield made
        finally:
            made.thaw()


@contextlib.contextmanager
def _group(name_1: str, name_2: str) -> Iterator[tuple[Group, int]]:
    """Make a fresh cgroup for a controller, named differently in the two editions."""
    if os.geteuid() != 0:
        pytest.skip("only root may make cgroups")
    top, edition = _hierarchy(name_1, name_2)
    folder = top / f"dlemu-test-{os.getpid()}-{next(_numbers)}"
    try:
        if edition == 2:
            (top / "cgroup.subtree_control").write_text(f"+{name_2}")
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"cgroups under {top} cannot be written: {error.strerror}")
    try:
        yield Group(folder), edition
    finally:
        _remove(folder)


def _hierarchy(name_1: str, name_2: str) -> tuple[Path, int]:
    mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    for mount in mounts:
        if mount.kind == "cgroup" and name_1 in mount.options.split(","):
            return Path(mount.point), 1
    for mount in mounts:
        controllers = Path(mount.point, "cgroup.controllers")
        if mount.kind == "cgroup2" and name_2 in controllers.read_text().split():
            return Path(mount.point), 2
    pytest.skip(f"no cgroup hierarchy has the controller {name_1} or {name_2}")


def _limit(group: Group, name: str, text: str) -> None:
    try:
        (group.folder / name).write_text(text)
    except OSError as error:
        pytest.skip(f"{group.folder / name} does not take {text!r}: {error.strerror}")


def disk_of(folder: Path) -> str:
    """Return "major:minor" of the whole disk under a folder: partitions cannot be throttled."""
    device = os.stat(folder).st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not node.exists():
        pytest.skip(f"{folder} is not on a block device")
    disk = node.resolve()
    if (disk / "partition").exists():
        disk = disk.parent
    return (disk / "dev").read_text().strip()


def _remove(folder: Path) -> None:
    """Move what is left in a group to the one above, and remove it."""

    def removed() -> bool:
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has just ended
                (folder.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):  # the kernel holds processes that have ended
            folder.rmdir()
        return not folder.exists()

    until(removed, f"the end of {folder}")
