"""What this host lets processes use: CPUs, memory and read rates, by affinity and cgroup.

A limit of any group above a process binds it too, so each is looked for up to the hierarchy's root.
Both editions of cgroups are read (Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst).
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from dlemu.host.devices import PROC, BlockDevice, Mount, parse_mountinfo, read_text


@dataclass(frozen=True)
class Throttling:
    """How often CPU quotas stopped processes since their groups were made."""

    num: int
    seconds: float
    """Summed over CPUs: two that stand still for a second give 2."""


def usable_cpus(pids: Collection[int] | None = None, *, proc: Path = PROC) -> float:
    """Return how many CPUs processes may use together, by affinity and cgroup quota.

    MPI launchers bind each rank to CPUs of its own, so all the ranks of a host are asked at once;
    None asks for the calling process.
    """
    affinity: set[int] = set()
    for pid in [0] if pids is None else pids:
        with contextlib.suppress(OSError):  # it has ended
            affinity |= os.sched_getaffinity(pid)
    quotas = _cpu_quotas(cgroup_folders("cpu", pids=pids, proc=proc))
    return min([float(len(affinity) or os.cpu_count() or 1), *quotas])


def host_memory_bytes(*, proc: Path = PROC) -> tuple[int, str]:
    """Return the memory that this process can fill with page cache, and what says so.

    Raises:
        OSError: there is no /proc/meminfo.
    """
    match = re.search(
        r"^MemTotal:\s+(\d+) kB", (proc / "meminfo").read_text(encoding="utf-8"), re.MULTILINE
    )
    if match is None:
        raise OSError(f"{proc / 'meminfo'} has no MemTotal")
    limits = [(int(match[1]) * 1024, f"MemTotal of {proc / 'meminfo'}")]
    for folder in cgroup_folders("memory", proc=proc):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = read_text(folder / name)
            if text.strip().isdecimal():
                limits.append((int(text), f"{name} of cgroup {folder}"))
    return min(limits, key=lambda limit: limit[0])


def read_limits(
    devices: Iterable[BlockDevice], *, pids: Collection[int] | None = None, proc: Path = PROC
) -> dict[str, int]:
    """Return the bytes/s to which cgroups hold the reads of processes, of each drive so held."""
    limits: dict[str, int] = {}
    names = {device.number: device.name for device in devices}
    for controller in ("blkio", "io"):
        for folder in cgroup_folders(controller, pids=pids, proc=proc):
            text = read_text(folder / "blkio.throttle.read_bps_device")
            text += read_text(folder / "io.max")
            for number, rate in re.findall(r"^(\d+:\d+)(?: |.* rbps=)(\d+)", text, re.MULTILINE):
                if number in names:
                    name = names[number]
                    limits[name] = min(int(rate), limits.get(name, int(rate)))
    return limits


def cpu_throttling(folders: Iterable[Path]) -> Throttling | None:
    """Return what the quotas of cgroups did, None where none of them tells."""
    num, seconds, told = 0, 0.0, False
    for folder in folders:
        counts = dict(re.findall(r"^(\w+) (\d+)$", read_text(folder / "cpu.stat"), re.M))
        if "nr_throttled" in counts:
            told = True
            num += int(counts["nr_throttled"])
            seconds += int(counts.get("throttled_usec", 0)) / 1e6
            seconds += int(counts.get("throttled_time", 0)) / 1e9
    return Throttling(num, seconds) if told else None


def cgroup_folders(
    controller: str, *, pids: Collection[int] | None = None, proc: Path = PROC
) -> list[Path]:
    """Return the cgroups of processes for a controller, each followed by those above it.

    An edition 1 hierarchy that has the controller goes before the one of edition 2.
    """
    names = ["self"] if pids is None else [str(pid) for pid in pids]
    texts = {read_text(proc / name / "cgroup") for name in names}
    mounts = parse_mountinfo(read_text(proc / "self" / "mountinfo"))
    folders = [folder for text in sorted(texts) for folder in _chain(controller, text, mounts)]
    return list(dict.fromkeys(folders))


def _chain(controller: str, text: str, mounts: list[Mount]) -> list[Path]:
    paths: dict[str, Path] = {}
    for controllers, group in re.findall(r"^\d+:([^:\n]*):(.*)$", text, re.MULTILINE):
        paths.update(dict.fromkeys(controllers.split(","), Path(group)))
    name = controller if controller in paths else ""  # edition 2 names no controllers
    if name not in paths:
        return []
    for mount in mounts:
        has_it = mount.kind == "cgroup" and name in mount.options.split(",")
        if has_it if name else mount.kind == "cgroup2":
            # In a container the part that is seen begins at `root`; a group outside of it ("/..")
            # shows nothing but the top.
            path, top = paths[name], Path(mount.point)
            seen = path.is_relative_to(mount.root) and ".." not in path.parts
            folder = top / path.relative_to(mount.root) if seen else top
            return [folder, *(f for f in folder.parents if f.is_relative_to(top))]
    return []


def _cpu_quotas(folders: Iterable[Path]) -> list[float]:
    quotas = []
    for folder in folders:
        first = read_text(folder / "cpu.cfs_quota_us")
        period = read_text(folder / "cpu.cfs_period_us")
        words = (read_text(folder / "cpu.max") or f"{first or -1} {period or 0}").split()
        if words[0].isdecimal() and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return quotas
