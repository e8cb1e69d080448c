"""Where a folder lies, in words for users: its file system, and the drives below it.

The kernel's sysfs has a drive's model, firmware and size (Documentation/ABI/stable/sysfs-block,
Documentation/ABI/testing/sysfs-devices and the drivers' own attributes).
"""

from dataclasses import dataclass
from pathlib import Path

from dlemu.host.devices import (
    IN_MEMORY,
    PROC,
    SECTOR,
    SYS,
    devices_under,
    memory_below,
    mount_under,
    read_text,
)
from dlemu.units import counted


@dataclass(frozen=True)
class Drive:
    """A drive as its sysfs folder describes it."""

    name: str
    """As the kernel names it: nvme0n1, sda, vda."""
    model: str
    """"" where it has none, as virtual drives."""
    firmware: str
    """Revision of its firmware; "" where it tells none."""
    size_bytes: int


@dataclass(frozen=True)
class Place:
    """The storage below a folder."""

    file_system: str
    """Type of the file system: "ext4", "nfs4"; "" if unknown."""
    mount: str
    """Folder on which it is mounted."""
    source: str
    """What is mounted: a device, or a server's export."""
    drives: tuple[Drive, ...]
    """None for networks and memory."""
    is_root: bool
    """Whether one of the drives also holds /, the host's own system."""
    memory: str = ""
    """Drives that are memory: "loop1 over tmpfs"."""

    @property
    def in_memory(self) -> bool:
        """Whether no drive is read at all."""
        return self.file_system in IN_MEMORY


def find_place(folder: Path, *, proc: Path = PROC, sys: Path = SYS) -> Place:
    """Return where a folder lies; of one that is not there yet, where it would be made."""
    folder = folder.absolute()
    there = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    mount = mount_under(there, proc=proc)
    names = [device.name for device in devices_under(there, proc=proc, sys=sys)]
    of_root = {device.name for device in devices_under(Path("/"), proc=proc, sys=sys)}
    return Place(
        file_system=mount.kind if mount else "",
        mount=mount.point if mount else "",
        source=mount.source if mount else "",
        drives=tuple(describe_drive(name, sys=sys) for name in names),
        is_root=not of_root.isdisjoint(names),
        memory=", ".join(memory_below(names, proc=proc, sys=sys)),
    )


def describe_drive(name: str, *, sys: Path = SYS) -> Drive:
    """Return what sysfs tells of a drive."""
    folder = sys / "class" / "block" / name
    words = read_text(folder / "size").split()
    return Drive(
        name=name,
        model=_first(folder / "device", "model", "name"),  # SCSI and NVMe; SD cards
        firmware=_first(folder / "device", "firmware_rev", "rev", "fwrev"),
        size_bytes=int(words[0]) * SECTOR if words and words[0].isdecimal() else 0,
    )


@dataclass(frozen=True)
class Connection:
    """How the host reaches the one drive below a folder."""

    drive: str
    transport: str
    """Of NVMe: "pcie" (also of an emulated drive, as SNAP's), "tcp", "rdma"; "" for others."""
    queues: int
    """Hardware queues that the kernel uses."""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.drive, self.transport, counted(self.queues, "queue"))))


def find_connection(folder: Path, *, proc: Path = PROC, sys: Path = SYS) -> Connection | None:
    """Return how the drive below a folder is reached; None for networks, memory, several drives."""
    names = [device.name for device in devices_under(folder, proc=proc, sys=sys)]
    if len(names) != 1:
        return None
    block = sys / "class" / "block" / names[0]
    queues = sum(1 for _ in (block / "mq").glob("*"))
    transport = read_text(block / "device" / "transport").strip()
    return Connection(names[0], transport, queues) if queues else None


def _first(folder: Path, *names: str) -> str:
    """Return the first of these attributes that has a value, blanks joined; "" if none has."""
    texts = (" ".join(read_text(folder / name).split()) for name in names)
    return next((text for text in texts if text), "")
