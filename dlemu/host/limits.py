"""How many CPUs and how much memory processes may use: CPU affinity and cgroup limits.

The limits of parent cgroups apply as well, so every cgroup up to the root of its hierarchy is read.
Supports cgroups v1 and v2 (the kernel's Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst).
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

import psutil

from dlemu.host.devices import PROC, Mount, read_mounts, read_text


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
    """Return the bytes of memory that this process can fill with page cache, and by which limit."""
    limits = [(memory_bytes(), "MemTotal of /proc/meminfo")]
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


def throttled_seconds(folders: Iterable[Path]) -> float | None:
    """Return for how long the CPU quotas of cgroups stopped processes since the cgroups were made.

    Summed over CPUs: two CPUs stopped for one second give 2. None if no cgroup has a quota.
    """
    seconds, found = 0.0, False
    for folder in folders:
        counts = dict(re.findall(r"^(\w+) (\d+)$", read_text(folder / "cpu.stat"), re.M))
        if "nr_throttled" in counts:
            found = True
            seconds += int(counts.get("throttled_usec", 0)) / 1e6
            seconds += int(counts.get("throttled_time", 0)) / 1e9
    return seconds if found else None


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
