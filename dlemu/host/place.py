"""Where a folder lies: its host, its file system, and the drives below it, in words for users.

The kernel's sysfs has a drive's model, firmware and size (Documentation/ABI/stable/sysfs-block,
Documentation/ABI/testing/sysfs-devices and the drivers' own attributes). All of it are small files
of /proc and /sys, read once at the start of a run.
"""

import platform
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from dlemu.host.devices import (
    IN_MEMORY,
    PROC,
    SECTOR,
    SYS,
    devices_under,
    existing,
    memory_below,
    mount_under,
    read_text,
)
from dlemu.host.limits import host_memory_bytes
from dlemu.units import counted

_OF_A_CONTAINER = ("lowerdir", "upperdir", "workdir")
"""Options of an overlay that are long, and new in each container."""


@dataclass(frozen=True)
class Drive:
    """A drive as its sysfs folder describes it; "" where there is no such file."""

    name: str
    """As the kernel names it: nvme0n1, sda, vda."""
    model: str
    """Virtual drives have none."""
    firmware: str
    """Revision of its firmware."""
    size_bytes: int
    scheduler: str = ""
    """I/O scheduler: "none", "mq-deadline"."""
    read_ahead_kib: str = ""
    """Largest read-ahead of the page cache."""


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
    there = existing(folder)
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
    scheduler = read_text(folder / "queue" / "scheduler").strip()  # "none [mq-deadline] kyber"
    chosen = re.search(r"\[(.+?)\]", scheduler)
    return Drive(
        name=name,
        model=_first(folder / "device", "model", "name"),  # SCSI and NVMe; SD cards
        firmware=_first(folder / "device", "firmware_rev", "rev", "fwrev"),
        size_bytes=int(words[0]) * SECTOR if words and words[0].isdecimal() else 0,
        scheduler=chosen[1] if chosen else scheduler,
        read_ahead_kib=read_text(folder / "queue" / "read_ahead_kb").strip(),
    )


def find_connection(folder: Path, *, proc: Path = PROC, sys: Path = SYS) -> tuple[str, int] | None:
    """Return how the one drive below a folder is reached: "nvme0n1, pcie, 16 queues", and the 16.

    The transport of NVMe is pcie (also of an emulated drive, as SNAP's), tcp or rdma; others have
    none. Queues are those that the kernel uses. None for networks, memory and several drives.
    """
    names = [device.name for device in devices_under(folder, proc=proc, sys=sys)]
    if len(names) != 1:
        return None
    block = sys / "class" / "block" / names[0]
    queues = sum(1 for _ in (block / "mq").glob("*"))
    transport = read_text(block / "device" / "transport").strip()
    text = ", ".join(filter(None, (names[0], transport, counted(queues, "queue"))))
    return (text, queues) if queues else None


@dataclass(frozen=True, kw_only=True)
class System:
    """What may explain why two runs differ; text is "" where the kernel does not tell."""

    host: str
    kernel: str
    cpu: str
    """Model of its CPUs."""
    governor: str
    """Frequency governors of its CPUs, each once."""
    memory_bytes: int
    """Of the host, or its cgroup's limit."""
    mount_options: str
    """Of the mount of the data folder, and of its file system."""
    drives: tuple[Drive, ...]
    """Under the data folder; none for networks and memory."""


def find_system(folder: Path, *, proc: Path = PROC, sys: Path = SYS) -> System:
    """Return what this host is, and how it reads a folder."""
    drives = devices_under(folder, proc=proc, sys=sys)
    governors = sys.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    return System(
        host=socket.gethostname(),
        kernel=platform.release(),
        cpu=_cpu_model(proc),
        governor=", ".join(sorted({read_text(file).strip() for file in governors} - {""})),
        memory_bytes=host_memory_bytes(proc=proc)[0],
        mount_options=_mount_options(folder, proc),
        drives=tuple(describe_drive(drive.name, sys=sys) for drive in drives),
    )


def _cpu_model(proc: Path) -> str:
    try:
        with (proc / "cpuinfo").open("rb") as file:
            head = file.read(4096)  # the file has a paragraph for each CPU
    except OSError:
        return ""
    found = re.search(rb"^model name\s*:\s*(.+)$", head, re.M)
    return "" if found is None else found[1].decode(errors="replace").strip()


def _mount_options(folder: Path, proc: Path) -> str:
    """Return the options of a folder's mount and of its file system, each once."""
    mount = mount_under(folder, proc=proc)
    if mount is None:
        return ""
    options = re.split(r"(?<!\\),", f"{mount.flags},{mount.options}")
    kept = [each for each in options if each.partition("=")[0] not in _OF_A_CONTAINER]
    return ",".join(dict.fromkeys(kept))


def _first(folder: Path, *names: str) -> str:
    """Return the first of these attributes that has a value, blanks joined; "" if none has."""
    texts = (" ".join(read_text(folder / name).split()) for name in names)
    return next((text for text in texts if text), "")
