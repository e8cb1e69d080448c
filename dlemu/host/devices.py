"""The mount and the drives under a folder, and their counters: mountinfo, mountstats and /sys.

The kernel documents them in Documentation/filesystems/proc.rst (mountinfo, mountstats) and
Documentation/ABI/stable/sysfs-block (stat, slaves). `proc` and `sys` are arguments, so that a copy
of another host's files can be read.

`growth` and `total` are of counters of any kind: numbers, records of counters, and tables of them
by name. What one of them does not know, or a table lacks, is unknown: None, or left out of the
table.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import Any, TypeVar

PROC = Path("/proc")
SYS = Path("/sys")

_WORD = r"([^ \n]*)"
_MOUNT = re.compile(
    rf"^{_WORD} {_WORD} {_WORD} {_WORD} {_WORD} {_WORD} (?:.*? )?- {_WORD} {_WORD} {_WORD}", re.M
)
SECTOR = 512  # bytes; /sys counts these, whatever the drive's own sector size is
IN_MEMORY = ("tmpfs", "ramfs")
"""File systems that never read a drive."""
_FOLDERS_LOOKED_INTO = 16
"""Folders that `files_below` opens."""
_LOOKED_AT = (32, 8)
"""Links and folders of each, and other entries, that it looks at: over a network each look is a
round trip, and a file is seldom a mount of its own."""
_MOST_LISTED, _MOST_LISTED_BELOW = 1024, 128
"""Entries of the first folder, and of each below it, that are listed at most."""
T = TypeVar("T")


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo, without what the kernel has between `flags` and `kind`."""

    id: str
    parent: str
    number: str
    """Device as "major:minor"; the major number is 0 where no single block device is mounted."""
    root: str
    """The part of the file system that is mounted: "/", or the folder of a bind mount."""
    point: str
    """The folder on which it is mounted."""
    flags: str
    """Options of the mount, as "rw,noatime"."""
    kind: str
    """File system type: ext4, nfs4, overlay."""
    source: str
    """The source of the mount: a device, or a server's export."""
    options: str
    """Options of the file system, as "rw,lowerdir=/a:/b,upperdir=/c"."""


@dataclass(frozen=True)
class DeviceCounters:
    """A drive's counters since the host started; both times wrap around at 2^32 ms."""

    reads: int
    """Requests completed."""
    read_bytes: int
    busy_ms: int
    """Time with at least one request in flight. A drive that serves many requests at once can be
    busy all the time and still not be at its limit."""
    queue_ms: int
    """Time in flight, summed over all requests. Its growth, divided by the time passed, is the mean
    number of requests in flight."""
    in_flight: int
    """Requests in flight at this moment."""
    written_bytes: int


@dataclass(frozen=True)
class BlockDevice:
    """A drive as users know it: nvme0n1, sda, vda."""

    name: str
    stats: tuple[Path, ...]
    """Its stat file; with NVMe multipath, those of its paths behind it."""

    def counters(self) -> DeviceCounters | None:
        """Return the drive's counters; None if the kernel does not provide them."""
        try:
            rows = [
                [int(word) for word in path.read_text(encoding="ascii").split()]
                for path in self.stats
            ]
        except (OSError, ValueError):
            return None
        own, *paths = rows
        # Before Linux 6.2 only the paths of NVMe multipath count, and not the drive.
        columns = list(zip(*([own] if any(own) or not paths else paths), strict=False))
        if len(columns) < 11:
            return None
        return DeviceCounters(
            reads=sum(columns[0]),
            read_bytes=sum(columns[2]) * SECTOR,
            busy_ms=sum(columns[9]),
            queue_ms=sum(columns[10]),
            in_flight=sum(columns[8]),
            written_bytes=sum(columns[6]) * SECTOR,
        )


def devices_under(*places: Path, proc: Path = PROC, sys: Path = SYS) -> list[BlockDevice]:
    """Return the physical drives that hold these folders, by name; none for tmpfs and networks.

    Those of a dataset are the drives below its files, wherever links and mounts lead: `files_below`
    says which are looked at. Of a block device such as /dev/nvme0n1p1 its own. A partition is
    resolved to its drive; md, dm, LVM and multipath to their members; a loop device to the drives
    under its file; overlay to the drives under those of its layers that are visible.
    """
    mounts = read_mounts(proc=proc)
    disks: list[Path] = []
    for place in places:
        if place.is_block_device():
            for device in _named_device(place, sys):
                disks += _members(device, mounts, sys, set())
        else:
            for file in files_below(place):
                disks += _disks_under(file.resolve(), mounts, sys, set())
    return _block_devices(disks, sys)


def counted_devices(place: Path, *, proc: Path = PROC, sys: Path = SYS) -> list[BlockDevice]:
    """Return the block devices that count what is read in a folder and nowhere else, by name.

    They are those that are mounted: a partition, a loop device, a volume of LVM. Of a block device
    it is the device itself; of an overlay, whose layers have several, the drives below.
    """
    if place.is_block_device():
        return _block_devices(_named_device(place, sys), sys)
    mount = mount_under(place, proc=proc)
    if mount is None or mount.kind == "overlay":
        return devices_under(place, proc=proc, sys=sys)
    return _block_devices(_mounted_devices(mount, sys), sys)


def mount_under(folder: Path, *, proc: Path = PROC) -> Mount | None:
    """Return the mount that a folder's files lie on; None if mountinfo does not list it.

    Of several it is that of the first file of a sample.
    """
    return mount_of(next(files_below(folder)).resolve(), read_mounts(proc=proc))


def files_below(folder: Path) -> Iterator[Path]:
    """Yield a file of a folder's on each file system that holds some of them.

    A sample is looked at, of `train/` where a dataset has one; links are followed. Where there is
    no file yet, that is the folder in which the files will lie.
    """
    if not folder.is_dir() or folder.resolve() == Path("/"):
        yield folder
        return
    start = folder / "train" if (folder / "train").is_dir() else folder
    found = set[int]()
    left, seen = [start], 0
    while left and seen < _FOLDERS_LOOKED_INTO:
        most = _MOST_LISTED_BELOW if seen else _MOST_LISTED
        seen += 1
        names: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(left.pop(0)) as entries:
            names += islice(entries, most)
        plain = [entry for entry in names if entry.is_file(follow_symlinks=False)]
        apart = names if len(plain) < len(names) else []
        kinds = [entry for entry in apart if not entry.is_file(follow_symlinks=False)], plain
        few = (each[:: len(each) // most + 1] for each, most in zip(kinds, _LOOKED_AT, strict=True))
        for entry in chain.from_iterable(few):
            with suppress(OSError):  # a broken link
                if entry.is_dir():
                    left.append(Path(entry.path))
                    continue
                device = entry.stat().st_dev if entry.is_file() else None
            if device is not None and device not in found:
                found.add(device)
                yield Path(entry.path)
    if not found:
        yield start


def existing(folder: Path) -> Path:
    """Return a folder, or of one that is not there yet the nearest above it."""
    folder = folder.absolute()
    return next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))


def lies_in_memory(folder: Path) -> bool:
    """Return whether a folder lies on tmpfs or ramfs: reading its files never waits for a drive."""
    mount = mount_under(folder)
    return mount is not None and mount.kind in IN_MEMORY


def memory_below(names: Iterable[str], *, proc: Path = PROC, sys: Path = SYS) -> list[str]:
    """Return those of these drives that are memory: "loop1 over tmpfs", "ram0", "zram0"."""
    mounts, found = read_mounts(proc=proc), []
    for name in names:
        if re.fullmatch(r"z?ram\d+", name):
            found.append(name)
        backing_file = sys / "class" / "block" / name / "loop" / "backing_file"
        file = Path(read_text(backing_file).rstrip("\n"))
        mount = mount_of(file.resolve(), mounts) if os.path.isfile(file) else None
        if mount is not None and mount.kind in IN_MEMORY:
            name = f"{name} over {mount.kind}"
            found.append(name)
    return found


def network_read_bytes(mount: Mount | None, *, proc: Path = PROC) -> int | None:
    """Return the bytes that an NFS mount has read from its server; None for other file systems."""
    if mount is None or not mount.kind.startswith("nfs"):
        return None
    return parse_mountstats(read_text(proc / "self" / "mountstats")).get(mount.point)


def read_mounts(*, proc: Path = PROC) -> list[Mount]:
    """Return the mounts that this process sees, in the kernel's order."""
    return parse_mountinfo(read_text(proc / "self" / "mountinfo"))


def parse_mountinfo(text: str) -> list[Mount]:
    """Return the mounts of a mountinfo file; lines of another form are skipped."""
    return [*_parsed(text)]


@lru_cache(maxsize=2)
def _parsed(text: str) -> tuple[Mount, ...]:
    # A host is asked many times in a row, and what it mounts seldom changes.
    return tuple(Mount(*map(_unescape, words)) for words in _MOUNT.findall(text))


def mount_of(path: Path, mounts: list[Mount]) -> Mount | None:
    """Return the mount that an absolute path without symbolic links lies on.

    The longest mount point may be wrong: a later mount on a parent folder hides it. So follow the
    path as the kernel does: from each mount to the first of its child mounts on the path.
    """
    # Text is compared ten times as fast as paths.
    below = f"{path}/" if path != Path("/") else "/"
    on_the_way = [mount for mount in mounts if below.startswith(f"{mount.point.rstrip('/')}/")]
    ids = {mount.id for mount in on_the_way}
    found = None
    children = [
        mount for mount in on_the_way if mount.parent not in ids or mount.id == mount.parent
    ]
    while children:
        found = min(children, key=lambda mount: len(mount.point))
        on_the_way.remove(found)
        children = [mount for mount in on_the_way if mount.parent == found.id]
    return found


def parse_mountstats(text: str) -> dict[str, int]:
    """Return the bytes read from the server by mount point, of the mounts that count them."""
    read_bytes = {}
    point = None
    for line in text.split("\n"):
        if line.startswith("device "):
            point = _unescape(line.split(" mounted on ", 1)[-1].split(" with fstype ", 1)[0])
        elif point is not None and line.lstrip().startswith("bytes:"):
            # Normal reads, writes; O_DIRECT reads, writes; reads from the server, which include
            # both kinds of read.
            read_bytes[point] = int(line.split()[5])
    return read_bytes


def _disks_under(path: Path, mounts: list[Mount], sys: Path, seen: set[str]) -> Iterator[Path]:
    """Yield the /sys folders of the drives that hold a path; `seen` has the mounts on the way."""
    # In a container the paths of layers and loop files are the host's, and may seem to lie on the
    # mount that they belong to: stop at such a circle.
    mount = mount_of(path, mounts)
    if mount is None or mount.id in seen:
        return
    seen = seen | {mount.id}
    if mount.kind == "overlay":
        for layer in _layers(mount.options):
            if is_there(layer):
                yield from _disks_under(layer.resolve(), mounts, sys, seen)
        return
    for device in _mounted_devices(mount, sys):
        yield from _members(device, mounts, sys, seen)


def _mounted_devices(mount: Mount, sys: Path) -> list[Path]:
    device = sys / "dev" / "block" / mount.number
    if is_there(device):
        return [device.resolve()]
    if not mount.source.startswith("/dev/"):
        return []
    # btrfs has a device number of its own; its source is one of its devices.
    source = Path(mount.source)
    for volume in listed(sys, "fs/btrfs/*/devices"):
        if is_there(volume / source.resolve().name):
            return [device.resolve() for device in listed(volume)]
    return _named_device(source, sys)


def _named_device(path: Path, sys: Path) -> list[Path]:
    """Return the /sys folder of a block device such as /dev/sda1; none if it has none."""
    folder = sys / "class" / "block" / path.resolve().name
    return [folder.resolve()] if is_there(folder) else []


def _members(device: Path, mounts: list[Mount], sys: Path, seen: set[str]) -> Iterator[Path]:
    disk = device.parent if is_there(device / "partition") else device
    members: list[Path] = []
    for slave in listed(disk / "slaves"):
        members += _members(slave.resolve(), mounts, sys, seen)
    backing_file = disk / "loop" / "backing_file"
    if is_there(backing_file):
        file = Path(read_text(backing_file).rstrip("\n"))
        if is_there(file):
            members += _disks_under(file.resolve(), mounts, sys, seen)
    # A loop device over tmpfs has no drive below it, but it counts reads, too.
    yield from members or [disk]


def _block_devices(folders: Iterable[Path], sys: Path) -> list[BlockDevice]:
    """Return the devices of these /sys folders, each once, by name."""
    found = []
    for name, disk in sorted({folder.name: folder for folder in folders}.items()):
        nvme = re.fullmatch(r"nvme(\d+)n(\d+)", name)
        # The paths of multipath are hidden.
        hidden = listed(sys, f"class/block/nvme{nvme[1]}c*n{nvme[2]}") if nvme else []
        found.append(BlockDevice(name, (disk / "stat", *(path / "stat" for path in hidden))))
    return found


def _layers(options: str) -> list[Path]:
    values = re.findall(r"(?:^|,)(?:upperdir|lowerdir\+?)=((?:\\.|[^,\\])*)", options)
    layers = [layer for value in values for layer in re.split(r"(?<!\\):", value) if layer]
    return [Path(re.sub(r"\\(.)", r"\1", layer)) for layer in layers]


def _unescape(word: str) -> str:
    if "\\" not in word:
        return word
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def read_text(path: Path) -> str:
    """Return a kernel file's text; "" if it is missing or not readable."""
    try:
        # Not Path.read_text(): it changes a carriage return in a folder's name to a line feed.
        return path.read_bytes().decode(errors="surrogateescape")
    except OSError:
        return ""


def is_there(path: Path) -> bool:
    """Return whether the kernel shows a file; not, either, where a container refuses to look.

    `Path.exists` raises what is refused, before Python 3.14.
    """
    return os.path.exists(path)


def listed(folder: Path, pattern: str = "*") -> list[Path]:
    """Return what a kernel's folder holds, by name; nothing if it is missing or not readable."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def growth(now: T, earlier: T) -> T:
    """Return how much counters grew; None where one has begun anew meanwhile.

    A file system that is mounted again, or a cgroup that has gone, starts a counter at 0.
    """
    grown: T = _each(lambda end, begin=inf: end - begin if end >= begin else None, (now, earlier))
    return grown


def total(counts: Sequence[T]) -> T:
    """Return the sum; of none, None."""
    summed: T = _each(lambda *values: sum(values), counts)
    return summed


def _each(work: Callable[..., Any], counts: Sequence[Any]) -> Any:
    """Return what `work` makes of each number."""
    if not counts or any(each is None for each in counts):
        return None
    first = counts[0]
    if isinstance(first, dict):
        names = dict.fromkeys(chain(*counts))
        made = {n: _each(work, [each[n] for each in counts if n in each]) for n in names}
        return {name: value for name, value in made.items() if None not in _numbers(value)}
    if not is_dataclass(first):
        return work(*counts)
    parts = {
        field.name: _each(work, [getattr(each, field.name) for each in counts])
        for field in fields(first)
    }
    return replace(first, **parts)  # type: ignore[type-var]


def _numbers(value: Any) -> tuple[Any, ...]:
    return astuple(value) if is_dataclass(value) and not isinstance(value, type) else (value,)
