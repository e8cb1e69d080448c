"""What a host is made of, and how it is set: what may explain why two runs differ.

A few small files of /proc and /sys, read once at the start of a run.
"""

import platform
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from dlemu.host.devices import PROC, SYS, devices_under, mount_under, read_text
from dlemu.host.limits import host_memory_bytes
from dlemu.host.place import describe_drive

_OF_A_CONTAINER = ("lowerdir", "upperdir", "workdir")
"""Options of an overlay that are long, and new in each container."""


@dataclass(frozen=True, kw_only=True)
class DriveSettings:
    """A drive, and how the kernel uses it; "" where sysfs has no such file."""

    name: str
    """As the kernel names it: nvme0n1, sda, vda."""
    model: str
    firmware: str
    """Revision of its firmware."""
    scheduler: str
    """I/O scheduler: "none", "mq-deadline"."""
    read_ahead_kib: str
    """Largest read-ahead of the page cache."""


@dataclass(frozen=True, kw_only=True)
class System:
    """A host; text is "" where the kernel does not tell."""

    host: str
    kernel: str
    cpu: str
    """Model of its CPUs."""
    governor: str
    """Frequency governors of its CPUs, each once."""
    memory_bytes: int
    """Of the host, or its cgroup's limit; 0 if unknown."""
    mount_options: str
    """Of the mount of the data folder, and of its file system."""
    drives: tuple[DriveSettings, ...]
    """Under the data folder; none for networks and memory."""


def find_system(folder: Path, *, proc: Path = PROC, sys: Path = SYS) -> System:
    """Return what this host is, and how it reads a folder."""
    try:
        memory = host_memory_bytes(proc=proc)[0]
    except OSError:
        memory = 0
    drives = devices_under(folder, proc=proc, sys=sys)
    return System(
        host=socket.gethostname(),
        kernel=platform.release(),
        cpu=_cpu_model(proc),
        governor=_governors(sys),
        memory_bytes=memory,
        mount_options=_mount_options(folder, proc),
        drives=tuple(_drive(drive.name, sys) for drive in drives),
    )


def _cpu_model(proc: Path) -> str:
    try:
        with (proc / "cpuinfo").open("rb") as file:
            head = file.read(4096)  # the file has a paragraph for each CPU
    except OSError:
        return ""
    found = re.search(rb"^model name\s*:\s*(.+)$", head, re.M)
    return "" if found is None else found[1].decode(errors="replace").strip()


def _governors(sys: Path) -> str:
    files = (sys / "devices" / "system" / "cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return ", ".join(sorted({read_text(file).strip() for file in files} - {""}))


def _mount_options(folder: Path, proc: Path) -> str:
    """Return the options of a folder's mount and of its file system, each once."""
    mount = mount_under(folder, proc=proc)
    if mount is None:
        return ""
    options = re.split(r"(?<!\\),", f"{mount.flags},{mount.options}")
    kept = [each for each in options if each.partition("=")[0] not in _OF_A_CONTAINER]
    return ",".join(dict.fromkeys(kept))


def _drive(name: str, sys: Path) -> DriveSettings:
    drive, queue = describe_drive(name, sys=sys), sys / "class" / "block" / name / "queue"
    scheduler = read_text(queue / "scheduler").strip()  # "none [mq-deadline] kyber"
    chosen = re.search(r"\[(.+?)\]", scheduler)
    return DriveSettings(
        name=name,
        model=drive.model,
        firmware=drive.firmware,
        scheduler=chosen[1] if chosen else scheduler,
        read_ahead_kib=read_text(queue / "read_ahead_kb").strip(),
    )
