"""Where drives and GPUs are attached: the NUMA node, the PCIe link, and the GPU nearest to a drive.

The kernel documents the files in Documentation/ABI/testing/sysfs-bus-pci (numa_node,
current_link_speed, current_link_width) and Documentation/ABI/stable/sysfs-devices-node (cpulist).
`proc` and `sys` are arguments, so that a copy of another host's files can be read.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlemu.host.devices import PROC, SYS, devices_under, read_text
from dlemu.host.network import find_links, read_network

_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


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
    one = nodes.pop() if len(nodes) == 1 and (sys / "devices/system/node/node1").exists() else None
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
    behind = sys.glob(f"class/block/nvme{nvme[1]}c*n{nvme[2]}") if nvme else ()
    for folder in (sys / "class/block" / name, *sorted(behind)):
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
