"""What a host is, and where a folder lies: its file system, the drives below it, and their links.

The kernel's sysfs has a drive's model, firmware and size (Documentation/ABI/stable/sysfs-block,
Documentation/ABI/testing/sysfs-devices and the drivers' own attributes), its NUMA node and its PCIe
link (Documentation/ABI/testing/sysfs-bus-pci: numa_node, current_link_speed, current_link_width;
Documentation/ABI/stable/sysfs-devices-node: cpulist). All of it are small files of /proc and /sys,
read once at the start of a run. `proc` and `sys` are arguments, so that a copy of another host's
files can be read.
"""

import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, get_args

from dlemu.host.devices import (
    IN_MEMORY,
    PROC,
    SECTOR,
    SYS,
    Mount,
    counted_devices,
    devices_under,
    existing,
    is_there,
    listed,
    memory_below,
    mount_under,
    read_text,
)
from dlemu.host.network import find_links, read_network
from dlemu.host.processes import host_memory_bytes, usable_cpus
from dlemu.units import counted, format_bytes

_OF_A_CONTAINER = ("lowerdir", "upperdir", "workdir")
"""Options of an overlay that are long, and new in each container."""
_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


VARIABLES = re.compile(r"AWS_ENDPOINT_URL(_S3)?|(OMP|MKL|MALLOC|HDF5)_\w+|LD_PRELOAD")
"""Variables of the environment that change what is measured: the server that is asked, threads of
decoding, the allocator, what is loaded before libc, and HDF5's. No other one is kept."""


class DriveFields(TypedDict):
    """A drive as its sysfs folder describes it; "" where there is no such file."""

    name: str
    """As the kernel names it: nvme0n1, sda, vda."""
    model: str
    """Virtual drives have none."""
    firmware: str
    """Revision of its firmware."""
    size_bytes: int
    scheduler: str
    """I/O scheduler: "none", "mq-deadline"."""
    read_ahead_kib: str
    """Largest read-ahead of the page cache."""


class HostFields(TypedDict, total=False):
    """A host and its storage below a folder: `system` in summary.json has one for each host.

    Text is "" where the kernel does not tell.
    """

    host: str
    kernel: str
    cpu: str
    """Model of its CPUs."""
    governor: str
    """Frequency governors of its CPUs, each once."""
    cpus: float
    """CPUs that this process may use, by affinity and cgroup quota."""
    memory_bytes: int
    """Of the host, or its cgroup's limit."""
    file_system: str
    """Type of the file system: "ext4", "nfs4"; "s3" of a bucket; a place's kind."""
    mount: str
    """Folder on which it is mounted."""
    source: str
    """What is mounted: a device, or a server's export; the servers of a bucket."""
    mount_options: str
    """Of the mount, and of its file system."""
    is_root: bool
    """Whether one of the drives also holds /, the host's own system."""
    in_memory: bool
    """Whether the folder lies on tmpfs or ramfs: no drive is read."""
    memory: str
    """Drives that are memory: "loop1 over tmpfs"."""
    drives: Sequence[DriveFields]
    """None for networks and memory."""
    environment: dict[str, str]
    """Variables that change what is measured, where they are set: `VARIABLES` has which."""


def find_host(
    folder: Path,
    *,
    name: str = "",
    servers: Sequence[str] | None = None,
    kind: str = "s3",
    proc: Path = PROC,
    sys: Path = SYS,
) -> HostFields:
    """Return what this host is, and where a folder lies: also of one that is not there yet.

    `name` is the host's, if it has one for the job; `servers` are those of a bucket, or of another
    place without paths, of that `kind`.
    """
    there = existing(folder)
    mount = None if servers is not None else mount_under(there, proc=proc)
    names = []
    if servers is None:
        names = [device.name for device in devices_under(there, proc=proc, sys=sys)]
    of_root = {device.name for device in devices_under(Path("/"), proc=proc, sys=sys)}
    governors = listed(sys, "devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    found = HostFields(
        host=name or socket.gethostname(),
        kernel=platform.release(),
        cpu=_cpu_model(proc),
        governor=", ".join(sorted({read_text(file).strip() for file in governors} - {""})),
        cpus=usable_cpus(),
        memory_bytes=host_memory_bytes(proc=proc)[0],
        file_system=mount.kind if mount else "",
        mount=mount.point if mount else "",
        source=mount.source if mount else "",
        mount_options=_options_of(mount) if mount else "",
        is_root=not of_root.isdisjoint(names),
        in_memory=mount is not None and mount.kind in IN_MEMORY,
        memory=", ".join(memory_below(names, proc=proc, sys=sys)),
        drives=[describe_drive(name, sys=sys) for name in names],
    )
    if variables := set_variables(os.environ):
        found["environment"] = variables
    if servers is not None:
        found |= {"file_system": kind, "mount": f"{folder}", "source": ", ".join(servers)}
    return found


def set_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return those of `VARIABLES` that are set, by name; of a URL without user and password."""
    return {
        name: re.sub(r"(?<=//)[^/@]*@", "", value)
        for name, value in sorted(environment.items())
        if VARIABLES.fullmatch(name)
    }


def describe_drive(name: str, *, sys: Path = SYS) -> DriveFields:
    """Return what sysfs tells of a drive."""
    folder = sys / "class" / "block" / name
    words = read_text(folder / "size").split()
    scheduler = read_text(folder / "queue" / "scheduler").strip()  # "none [mq-deadline] kyber"
    chosen = re.search(r"\[(.+?)\]", scheduler)
    return DriveFields(
        name=name,
        model=_first(folder / "device", "model", "name"),  # SCSI and NVMe; SD cards
        firmware=_first(folder / "device", "firmware_rev", "rev", "fwrev"),
        size_bytes=int(words[0]) * SECTOR if words and words[0].isdecimal() else 0,
        scheduler=chosen[1] if chosen else scheduler,
        read_ahead_kib=read_text(folder / "queue" / "read_ahead_kb").strip(),
    )


_FileSystemName = Literal["file system", "mount options"]


def name_storage(folder: Path, *, proc: Path = PROC, sys: Path = SYS) -> dict[str, str]:
    """Return what tells the storage below a folder, or a block device, from every other one.

    A drive is named by its own number (WWID, serial number, UUID of a volume, file of a loop
    device), as the kernel's names change. statfs(2) has the number of the file system.
    """
    there = existing(folder)
    mount, fsid = mount_under(there, proc=proc), os.statvfs(there).f_fsid
    found = {device.name for device in devices_under(there, proc=proc, sys=sys)}
    found |= {device.name for device in counted_devices(there, proc=proc, sys=sys)}
    named = {"drive": ", ".join(_number_of_drive(name, sys) for name in sorted(found)) or "none"}
    if mount is not None and not there.is_block_device():
        source = "" if found and fsid else f" {mount.source}"
        name = f"{mount.kind} {fsid:x}{source}"
        named |= dict(zip(get_args(_FileSystemName), (name, _options_of(mount)), strict=True))
    return named


def _number_of_drive(name: str, sys: Path) -> str:
    block = sys / "class" / "block" / name
    names = ("wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "loop/backing_file")
    number = _first(block, *names)
    size = int(read_text(block / "size").strip() or 0) * SECTOR
    kind = _first(block, "device/model") or name.rstrip("0123456789")
    name = f"{kind} {number or name} of {format_bytes(size)}"
    return name


def find_connection(folder: Path, *, proc: Path = PROC, sys: Path = SYS) -> tuple[str, int] | None:
    """Return how the one drive below a folder is reached: "nvme0n1, pcie, 16 queues", and the 16.

    The transport of NVMe is pcie (also of an emulated drive, as SNAP's), tcp or rdma; others have
    none. Queues are those that the kernel uses. None for networks, memory and several drives.
    """
    names = [device.name for device in devices_under(folder, proc=proc, sys=sys)]
    if len(names) != 1:
        return None
    block = sys / "class" / "block" / names[0]
    queues = len(listed(block / "mq"))
    transport = read_text(block / "device" / "transport").strip()
    text = ", ".join(filter(None, (names[0], transport, counted(queues, "queue"))))
    return (text, queues) if queues else None


def _cpu_model(proc: Path) -> str:
    try:
        with (proc / "cpuinfo").open("rb") as file:
            head = file.read(4096)  # the file has a paragraph for each CPU
    except OSError:
        return ""
    found = re.search(rb"^model name\s*:\s*(.+)$", head, re.M)
    return "" if found is None else found[1].decode(errors="replace").strip()


def _options_of(mount: Mount) -> str:
    """Return the options of a mount and of its file system, each once."""
    options = re.split(r"(?<!\\),", f"{mount.flags},{mount.options}")
    kept = [each for each in options if each.partition("=")[0] not in _OF_A_CONTAINER]
    return ",".join(dict.fromkeys(kept))


def _first(folder: Path, *names: str) -> str:
    """Return the first of these attributes that has a value, blanks joined; "" if none has."""
    texts = (" ".join(read_text(folder / name).split()) for name in names)
    return next((text for text in texts if text), "")


@dataclass(frozen=True)
class Attachment:
    """How the drives of a target are attached to this host."""

    links: Mapping[str, float | None]
    """Bytes per second of each drive's PCIe link, after its coding; None where none is known. Of a
    target that is reached over the network, those of the host's interfaces."""
    kind: str = "PCIe link"
    """Or "network"."""
    node: int | None = None
    """NUMA node of the drives; None: not known, several, or the host has one node only."""
    gpu: int | None = None
    """Number of the GPU with the longest common way through the PCI tree, else of the first on the
    same node; None: the drives are on no PCI bus, or there is no GPU."""


def find_attachment(
    target: Path, gpus: Sequence[str] = (), *, proc: Path = PROC, sys: Path = SYS
) -> Attachment:
    """Return how a folder's drives, or a block device, are attached.

    `gpus` has the PCI addresses of the GPUs in the order of their numbers.
    """
    names = [device.name for device in devices_under(target, proc=proc, sys=sys)]
    if not names:
        found = find_links(getattr(read_network(proc=proc), "nics", ()), sys=sys)
        return Attachment({n: bits and bits / 8 for n, bits in found.items()}, "network")
    functions = {name: _function_of_drive(name, sys) for name in names}
    known = [function for function in functions.values() if function is not None]
    nodes = {_node_of(function) for function in known}
    one = nodes.pop() if len(nodes) == 1 and is_there(sys / "devices/system/node/node1") else None
    links = {name: _link_rate(function) for name, function in functions.items()}
    return Attachment(links, node=one, gpu=_nearest(known, gpus, sys))


def cpus_of_node(node: int, *, sys: Path = SYS) -> list[int]:
    """Return the numbers of a NUMA node's CPUs."""
    parts = re.findall(
        r"(\d+)(?:-(\d+))?", read_text(sys / f"devices/system/node/node{node}/cpulist")
    )
    return [cpu for first, last in parts for cpu in range(int(first), int(last or first) + 1)]


def _function_of_drive(name: str, sys: Path) -> Path | None:
    """Return the PCI function through which a drive is reached; None if there is none."""
    nvme = re.fullmatch(r"nvme(\d+)n(\d+)", name)
    # With NVMe multipath the drive itself is virtual, and a path behind it is on the bus.
    behind = listed(sys, f"class/block/nvme{nvme[1]}c*n{nvme[2]}") if nvme else []
    for folder in (sys / "class/block" / name, *behind):
        for part in (folder.resolve(), *folder.resolve().parents):
            if _PCI.fullmatch(part.name):
                return part
    return None


def _node_of(function: Path) -> int | None:
    text = read_text(function / "numa_node").strip()  # -1 where the firmware does not tell
    return int(text) if text.isdecimal() else None


def _link_rate(function: Path | None) -> float | None:
    folder = function or Path("/nowhere")
    speed = re.match(r"([\d.]+) GT/s", read_text(folder / "current_link_speed"))
    width = read_text(folder / "current_link_width").strip()
    if speed is None or not width.isdecimal() or width == "0":
        return None
    transfers = float(speed[1])
    # PCIe 1 and 2 code 8 bits as 10, PCIe 3 to 5 code 128 as 130, PCIe 6 sends 242 bytes of 256.
    coded = 8 / 10 if transfers < 8 else 128 / 130 if transfers < 64 else 242 / 256
    return transfers * 1e9 / 8 * int(width) * coded


def _nearest(functions: Sequence[Path], gpus: Sequence[str], sys: Path) -> int | None:
    """Return the number of the GPU nearest to a drive, the first of several that are equal."""
    if not functions or not gpus:
        return None

    def nearness(number: int) -> tuple[int, bool]:
        gpu, drive = (sys / "bus/pci/devices" / gpus[number]).resolve(), functions[0]
        common = Path(os.path.commonpath([gpu, drive]))
        return len(common.parts), _node_of(gpu) == _node_of(drive)

    return max(range(len(gpus)), key=nearness)
