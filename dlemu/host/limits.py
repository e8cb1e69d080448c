"""How many CPUs and how much memory processes may use: CPU affinity and cgroup limits.

The limits of parent cgroups apply as well, so every cgroup up to the root of its hierarchy is read.
Supports cgroups v1 and v2 (the kernel's Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst).
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from dlemu.host.devices import PROC, Mount, read_mounts, read_text


@dataclass(frozen=True)
class Throttling:
    """How CPU quotas stopped processes, since their cgroups were made."""

    num: int
    """Periods in which a quota was used up."""
    seconds: float
    """Time stopped, summed over CPUs: two CPUs stopped for one second give 2."""


def usable_cpus(pids: Collection[int] | None = None, *, proc: Path = PROC) -> float:
    """Return how many CPUs processes may use together, by affinity and cgroup quota.

    MPI launchers bind each rank to its own CPUs, so pass all ranks of the host; None means the
    calling process.
    """
    affinity: set[int] = set()
    for pid in [0] if pids is None else pids:
        with contextlib.suppress(OSError):  # the process has ended
            affinity |= os.sched_getaffinity(pid)
    cpus = float(len(affinity) or os.cpu_count() or 1)
    chains = _chains("cpu", pids, proc)
    if not chains:
        return cpus
    # Each cgroup has a quota of its own, within those of the parents that all of them share.
    together = sum(min([cpus, *_cpu_quotas(chain)]) for chain in chains)
    shared = set.intersection(*map(set, chains))
    return min([cpus, together, *_cpu_quotas(shared)])


def memory_bytes() -> int:
    """Return the bytes of memory that the host has, whatever this process may use of it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def host_memory_bytes(*, proc: Path = PROC) -> tuple[int, str]:
    """Return the bytes of memory that this process can fill with page cache, and which limit it is.

    Raises:
        OSError: there is no /proc/meminfo, or it has no MemTotal.
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


def free_memory_bytes() -> int:
    """Return about the bytes of memory that this process may take before the kernel ends it."""
    return min(psutil.virtual_memory().available, host_memory_bytes()[0])


def page_cache_bytes(*, proc: Path = PROC) -> int | None:
    """Return the bytes of the host's memory that hold files; None if the kernel does not tell."""
    match = re.search(r"^Cached:\s+(\d+) kB", read_text(proc / "meminfo"), re.M)
    return None if match is None else 1024 * int(match[1])


def cpu_throttling(folders: Iterable[Path]) -> Throttling | None:
    """Return the sum over cgroups; None if none of them has a CPU quota."""
    num, seconds, found = 0, 0.0, False
    for folder in folders:
        counts = dict(re.findall(r"^(\w+) (\d+)$", read_text(folder / "cpu.stat"), re.M))
        if "nr_throttled" in counts:
            found = True
            num += int(counts["nr_throttled"])
            seconds += int(counts.get("throttled_usec", 0)) / 1e6
            seconds += int(counts.get("throttled_time", 0)) / 1e9
    return Throttling(num, seconds) if found else None


def cgroup_folders(
    controller: str, *, pids: Collection[int] | None = None, proc: Path = PROC
) -> list[Path]:
    """Return the cgroups of processes for a controller, each followed by its parents.

    If a v1 hierarchy has the controller, that one counts, else the v2 hierarchy.
    """
    chains = _chains(controller, pids, proc)
    return list(dict.fromkeys(folder for chain in chains for folder in chain))


def _chains(controller: str, pids: Collection[int] | None, proc: Path) -> list[list[Path]]:
    """Return the different cgroups of processes, each followed by its parents."""
    names = ["self"] if pids is None else [str(pid) for pid in pids]
    texts = {read_text(proc / name / "cgroup") for name in names} - {""}  # "": it has ended
    mounts = read_mounts(proc=proc)
    return [_chain(controller, text, mounts) for text in sorted(texts)]


def _chain(controller: str, text: str, mounts: list[Mount]) -> list[Path]:
    paths: dict[str, Path] = {}
    for controllers, group in re.findall(r"^\d+:([^:\n]*):(.*)$", text, re.MULTILINE):
        paths.update(dict.fromkeys(controllers.split(","), Path(group)))
    name = controller if controller in paths else ""  # v2 names no controllers
    if name not in paths:
        return []
    for mount in mounts:
        has_it = mount.kind == "cgroup" and name in mount.options.split(",")
        if has_it if name else mount.kind == "cgroup2":
            # A container sees its hierarchy from `root` on; of a cgroup outside of it ("/..") only
            # the top folder is visible.
            path, top = paths[name], Path(mount.point)
            visible = path.is_relative_to(mount.root) and ".." not in path.parts
            folder = top / path.relative_to(mount.root) if visible else top
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
