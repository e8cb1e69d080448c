"""Which drives lie under a folder, and what they have counted: mountinfo, mountstats and /sys.

The kernel's files are documented in its Documentation/filesystems/proc.rst (mountinfo, mountstats)
and Documentation/ABI/stable/sysfs-block (stat, slaves). Their roots are arguments, so that a copy
of another host's files can be read as well.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SYS = Path("/sys")

_SECTOR = 512  # the unit of a stat file's sectors, whatever the drive's own


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo."""

    id: str
    parent: str
    number: str
    """Device as "major:minor"; the major is 0 where no single block device is mounted."""
    root: str
    """What of the file system is mounted: "/", or the folder of a bind mount."""
    point: str
    kind: str
    source: str
    options: str
    """Of the file system, as in "rw,lowerdir=/a:/b,upperdir=/c"."""


@dataclass(frozen=True)
class DeviceCounters:
    """What a drive has counted since the host started."""

    reads: int
    read_bytes: int
    busy_ms: int
    """Time with at least one request in flight; a drive that serves many at once can be busy all
    the time and still not be at its limit. Both times start anew from 0 at 2^32."""
    queue_ms: int
    """Time that requests were in flight, summed over them: its growth by the time that passed is
    the mean number in flight."""
    in_flight: int


@dataclass(frozen=True)
class BlockDevice:
    """A drive as users know it: nvme0n1, sda, vda."""

    name: str
    number: str
    stats: tuple[Path, ...]
    """Its stat file; where NVMe reaches it over several controllers, that of each path."""

    def counters(self) -> DeviceCounters | None:
        """Return what it has counted, None where the kernel does not tell."""
        try:
            paths = [parse_stat(path.read_text(encoding="utf-8")) for path in self.stats]
        except (OSError, ValueError):
            return None
        return DeviceCounters(
            reads=sum(path.reads for path in paths),
            read_bytes=sum(path.read_bytes for path in paths),
            busy_ms=max(path.busy_ms for path in paths),
            queue_ms=sum(path.queue_ms for path in paths),
            in_flight=sum(path.in_flight for path in paths),
        )


def devices_under(folder: Path, *, proc: Path = PROC, sys: Path = SYS) -> list[BlockDevice]:
    """Return the physical drives that hold a folder, by name; none for tmpfs and networks.

    Partitions are led back to their drive; md, dm, LVM and multipath to their members; a loop
    device to the drives under its file; overlay to those under its layers, where they can be seen.
    """
    mounts = parse_mountinfo(read_text(proc / "self" / "mountinfo"))
    folders = {disk.name: disk for disk in _disks_under(folder.resolve(), mounts, sys, set())}
    return [_block_device(disk, sys) for _, disk in sorted(folders.items())]


def mount_under(folder: Path, *, proc: Path = PROC) -> Mount | None:
    """Return the mount that a folder lies on; None where mountinfo does not show it."""
    return mount_of(folder.resolve(), parse_mountinfo(read_text(proc / "self" / "mountinfo")))


def lies_in_memory(folder: Path) -> bool:
    """Return whether a folder's files are memory themselves: reading them waits for nothing."""
    mount = mount_under(folder)
    return mount is not None and mount.kind in ("tmpfs", "ramfs")


def network_read_bytes(mount: Mount, *, proc: Path = PROC) -> int | None:
    """Return what an NFS mount has read from its server, None for other kinds of mount."""
    if not mount.kind.startswith("nfs"):
        return None
    return parse_mountstats(read_text(proc / "self" / "mountstats")).get(mount.point)


def parse_mountinfo(text: str) -> list[Mount]:
    mounts = []
    for line in text.split("\n"):
        before, separator, after = line.partition(" - ")
        head, tail = before.split(" "), after.split(" ")
        if not separator or len(head) < 6 or len(tail) < 3:
            continue
        root, point, source = (_unescape(word) for word in (head[3], head[4], tail[1]))
        mounts.append(
            Mount(head[0], head[1], head[2], root, point, tail[0], source, _unescape(tail[2]))
        )
    return mounts


def mount_of(path: Path, mounts: list[Mount]) -> Mount | None:
    """Return the mount that an absolute path without links lies on.

    The longest mount point is not enough: a mount may be hidden by a later one on a folder above
    it. So the path is walked as the kernel does, from each mount to the child that it meets first.
    """
    on_the_way = [mount for mount in mounts if path.is_relative_to(mount.point)]
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
    """Return the bytes read from the server, of each mount point that counts them."""
    read_bytes = {}
    point = None
    for line in text.split("\n"):
        if line.startswith("device "):
            point = _unescape(line.split(" mounted on ", 1)[-1].split(" with fstype ", 1)[0])
        elif point is not None and line.lstrip().startswith("bytes:"):
            # normal read, write; O_DIRECT read, write; then server read, which has both in it
            read_bytes[point] = int(line.split()[5])
    return read_bytes


def parse_stat(text: str) -> DeviceCounters:
    """Return the counters of a /sys/block/*/stat file.

    Raises:
        ValueError: the text is no such file.
    """
    numbers = [int(word) for word in text.split()]
    if len(numbers) < 11:
        raise ValueError(f"a stat file has at least 11 numbers, not {len(numbers)}")
    return DeviceCounters(
        reads=numbers[0],
        read_bytes=numbers[2] * _SECTOR,
        busy_ms=numbers[9],
        queue_ms=numbers[10],
        in_flight=numbers[8],
    )


def _disks_under(path: Path, mounts: list[Mount], sys: Path, seen: set[str]) -> Iterator[Path]:
    """Yield the /sys folders of the drives that hold a path.

    `seen` has the mounts on the way here: a container shows the paths of layers and loop files as
    the host has them, and there they may seem to lie on the very mount that they are part of.
    """
    mount = mount_of(path, mounts)
    if mount is None or mount.id in seen:
        return
    seen = seen | {mount.id}
    if mount.kind == "overlay":
        for layer in _layers(mount.options):
            if layer.exists():
                yield from _disks_under(layer.resolve(), mounts, sys, seen)
        return
    for device in _mounted_devices(mount, sys):
        yield from _members(device, mounts, sys, seen)


def _mounted_devices(mount: Mount, sys: Path) -> list[Path]:
    device = sys / "dev" / "block" / mount.number
    if device.exists():
        return [device.resolve()]
    if not mount.source.startswith("/dev/"):
        return []
    # btrfs mounts a number of its own, and names one of its devices as the source.
    name = Path(mount.source).resolve().name
    for volume in sys.glob("fs/btrfs/*/devices"):
        if (volume / name).exists():
            return [device.resolve() for device in volume.iterdir()]
    device = sys / "class" / "block" / name
    return [device.resolve()] if device.exists() else []


def _members(device: Path, mounts: list[Mount], sys: Path, seen: set[str]) -> Iterator[Path]:
    disk = device.parent if (device / "partition").exists() else device
    members: list[Path] = []
    for slave in (disk / "slaves").glob("*"):
        members += _members(slave.resolve(), mounts, sys, seen)
    backing_file = disk / "loop" / "backing_file"
    if backing_file.exists():
        file = Path(read_text(backing_file).rstrip("\n"))
        if file.exists():
            members += _disks_under(file.resolve(), mounts, sys, seen)
    # A loop device over tmpfs has no drive below, but counts what is read all the same.
    yield from members or [disk]


def _block_device(disk: Path, sys: Path) -> BlockDevice:
    # Kernels before 6.2 count the reads of NVMe multipath at its hidden paths (nvme0c1n1) alone,
    # and 0 at the drive; all kernels count them at the paths.
    name = re.fullmatch(r"nvme(\d+)n(\d+)", disk.name)
    hidden = sys.glob(f"class/block/nvme{name[1]}c*n{name[2]}") if name else ()
    paths = sorted(path / "stat" for path in hidden) or [disk / "stat"]
    return BlockDevice(disk.name, read_text(disk / "dev").strip(), tuple(paths))


def _layers(options: str) -> list[Path]:
    values = re.findall(r"(?:^|,)(?:upperdir|lowerdir\+?)=((?:\\.|[^,\\])*)", options)
    layers = [layer for value in values for layer in re.split(r"(?<!\\):", value) if layer]
    return [Path(re.sub(r"\\(.)", r"\1", layer)) for layer in layers]


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def read_text(path: Path) -> str:
    """Return a kernel file's text, "" where it is absent or closed to us."""
    try:
        # Not read_text(): it would make a line's end of a carriage return in a folder's name.
        return path.read_bytes().decode(errors="surrogateescape")
    except OSError:
        return ""
