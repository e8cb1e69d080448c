"""What processes may use of a host's CPUs and memory, and what they have used so far.

The limits are CPU affinity and cgroups v1 and v2 (the kernel's Documentation/admin-guide/cgroup-v1
and cgroup-v2.rst); those of parent cgroups apply as well, so every cgroup up to the root is read.
Totals never decrease when a process ends. For the files see proc(5), and for schedstat the kernel's
Documentation/scheduler/sched-stats.rst.
"""

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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


_MEMORY_FILES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""A cgroup's limit and usage, of version 2 and of version 1."""


def host_memory_bytes(*, proc: Path = PROC) -> tuple[int, str]:
    """Return the bytes of memory that this process can fill with page cache, and by which limit."""
    limits = [_Limit(memory_bytes(), "MemTotal")]
    for folder in cgroup_folders("memory", proc=proc):
        for name, _ in _MEMORY_FILES:
            text = read_text(folder / name)
            if text.strip().isdecimal():
                limits.append(_Limit(int(text), name, folder))
    return _tightest(limits)


def free_memory(*, proc: Path = PROC) -> tuple[int, str]:
    """Return about the bytes that this process may take before it is killed, and by which limit.

    Of a cgroup, what its limit leaves beside the memory that cannot be reclaimed: files in the page
    cache can, as the host's own figure (MemAvailable) has it.
    """
    try:
        limits = [_Limit(psutil.virtual_memory().available, "MemAvailable")]
    except OSError:  # a container refuses to look
        limits = [_Limit(memory_bytes(), "MemTotal")]
    for folder in cgroup_folders("memory", proc=proc):
        for limit, usage in _MEMORY_FILES:
            text = read_text(folder / limit).strip()
            if text.isdecimal():
                used = read_text(folder / usage).strip()
                kept = max(0, int(used) - _reclaimable(folder)) if used.isdecimal() else 0
                limits.append(_Limit(max(0, int(text) - kept), limit, folder))
    return _tightest(limits)


class _Limit(NamedTuple):
    """Bytes of memory, and what bounds them: an entry of /proc/meminfo, or a file of a cgroup."""

    num_bytes: int
    entry: str
    cgroup: Path | None = None


def _tightest(limits: list[_Limit]) -> tuple[int, str]:
    least = min(limits, key=lambda limit: limit.num_bytes)
    name = f"{least.entry} of cgroup {least.cgroup}"
    if least.cgroup is None:
        name = f"{least.entry} of /proc/meminfo"
    return least.num_bytes, name


def _reclaimable(folder: Path) -> int:
    """Return the bytes of a cgroup's memory that the kernel can take back: files, and its caches.

    A cgroup of version 1 counts that of its children as total_*.
    """
    found = re.findall(r"^(\w+) (\d+)$", read_text(folder / "memory.stat"), re.M)
    stat = {name: int(number) for name, number in found}
    names = ("inactive_file", "active_file", "slab_reclaimable")
    return sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in names)


def free_memory_bytes() -> int:
    """Return about the bytes of memory that this process may take before the kernel ends it."""
    return free_memory()[0]


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


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""The kernel counts CPU time in these."""
_KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

_READS = re.compile(rb"(?:rchar|read_bytes): (\d+)")
_PSS = re.compile(rb"\nPss:\s*(\d+) kB")

_Counts = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class HostCpu:
    """Seconds since the host started, summed over its CPUs."""

    busy: float
    idle: float
    iowait: float
    """Idle while a thread of that CPU waited for I/O."""
    steal: float
    """Ready to run, but the hypervisor gave the physical CPU to another virtual machine."""


def read_cpu_times(*, proc: Path = PROC) -> dict[str, float] | None:
    """Return the same seconds by the kernel's kinds; None if it does not provide all of them."""
    words = read_text(proc / "stat").partition("\n")[0].split()[1:]
    if len(words) < len(_KINDS):
        return None
    return {kind: int(word) / _TICKS_PER_SECOND for kind, word in zip(_KINDS, words, strict=False)}


def read_host_cpu(*, proc: Path = PROC) -> HostCpu | None:
    """Return the counters now; None if the kernel does not provide them."""
    times = read_cpu_times(proc=proc)
    if times is None:
        return None
    busy = sum(times[kind] for kind in ("user", "nice", "system", "irq", "softirq"))
    return HostCpu(busy, times["idle"], times["iowait"], times["steal"])


@dataclass(frozen=True, slots=True)
class ProcessCounters:
    """Totals of a tree of processes; None where the kernel does not count."""

    num: int
    """Processes alive now."""
    cpu_seconds: float | None
    """User and system time."""
    rchar: int | None
    """Bytes that read calls returned, including those from the page cache, pipes and sockets."""
    read_bytes: int | None
    """Bytes that these processes had fetched from storage."""
    runqueue_seconds: float | None
    """Time that threads were ready to run and had no CPU, summed over the threads."""


@dataclass(frozen=True, slots=True)
class _Stat:
    """The fields of /proc/<pid>/stat that dlemu uses."""

    parent: int
    start: int
    """When it started; tells apart two processes that had the same pid."""
    num_threads: int
    ticks: int
    """CPU time, with that of the children that it has waited for."""


class ProcessTree:
    """Some processes and all their descendants.

    When a process ends, the kernel adds its CPU time and reads to the parent that waits for it. So
    the sum over the tree stays right, even for a child that started and ended between two looks.
    Run-queue time is counted per thread and lost when it ends: its last value is kept here.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = str(proc)
        self._starts: dict[int, int] = {}
        self._parents: dict[int, int] = {}
        self._processes: dict[int, _Counts] = {}
        self._threads: dict[int, _Counts] = {}
        self._ended_threads: _Counts = (None,)
        self._ended_processes: _Counts = (None, None, None)
        self._highest: _Counts = (None, None, None)

    @property
    def pids(self) -> list[int]:
        """The processes that were alive at the last look."""
        return list(self._starts)

    def refresh(self, roots: Iterable[int]) -> None:
        """Look for new descendants of `roots`: reads one file of every process of the host."""
        stats = {}
        for name in _names(self._proc):
            if name.isdecimal() and (stat := self._stat(int(name))) is not None:
                stats[int(name)] = stat
        children: dict[int, list[int]] = {}
        for pid, stat in stats.items():
            children.setdefault(stat.parent, []).append(pid)
        # A known pid with another start is another process, whose children are not ours.
        found = [
            pid
            for pid in {*roots, *self._starts}
            if pid in stats and self._starts.get(pid, stats[pid].start) == stats[pid].start
        ]
        for pid in found:
            self._starts.setdefault(pid, stats[pid].start)
            found += [child for child in children.get(pid, ()) if child not in self._starts]

    def counters(self) -> ProcessCounters:
        """Return what the processes found so far have used up to now."""
        self._read_counts()
        # A parent that ignores SIGCHLD does not inherit its child's counts, and one that ends while
        # the files are read is missed once: never report less than before.
        totals = _sums([self._ended_processes, *self._processes.values()])
        self._highest = tuple(
            max((n for n in pair if n is not None), default=None)
            for pair in zip(totals, self._highest, strict=True)
        )
        ticks, rchar, read_bytes = self._highest
        (waits_ns,) = _sums([self._ended_threads, *self._threads.values()])
        return ProcessCounters(
            num=len(self._processes),
            cpu_seconds=None if ticks is None else ticks / _TICKS_PER_SECOND,
            rchar=rchar,
            read_bytes=read_bytes,
            runqueue_seconds=None if waits_ns is None else waits_ns / 1e9,
        )

    def _read_counts(self) -> None:
        """Read the counts of all processes and threads; add those that have ended to the totals."""
        parents: dict[int, int] = {}
        processes: dict[int, _Counts] = {}
        threads: dict[int, _Counts] = {}
        for pid, start in list(self._starts.items()):
            stat = self._stat(pid)
            if stat is None or stat.start != start:
                del self._starts[pid]
                continue
            parents[pid] = stat.parent
            reads = self._numbers(f"{pid}/io", _READS, 2)
            processes[pid] = (stat.ticks, *reads)
            for thread, folder in self._thread_folders(pid, stat).items():
                waits = _read(f"{self._proc}/{folder}/schedstat").split()
                threads[thread] = (int(waits[1]) if len(waits) == 3 else None,)
        orphans = [p for p in self._processes if p not in processes and not self._has_heir(p)]
        ended = self._threads.keys() - threads
        self._ended_processes = _sums(
            [self._ended_processes, *(self._processes[p] for p in orphans)]
        )
        self._ended_threads = _sums([self._ended_threads, *(self._threads[t] for t in ended)])
        self._parents, self._processes, self._threads = parents, processes, threads

    def pss_bytes(self) -> int | None:
        """Return the proportional set size: of a page shared by n processes, each counts 1/n.

        Slow, about 10 ms per GiB: the kernel visits every page of a process.
        """
        sizes = [self._numbers(f"{pid}/smaps_rollup", _PSS, 1) for pid in self.pids]
        (kib,) = _sums(sizes or [(None,)])
        return None if kib is None else kib * 1024

    def _has_heir(self, pid: int) -> bool:
        """Return whether a living ancestor in this tree has inherited an ended process's counts."""
        while pid not in self._starts and pid in self._parents:
            pid = self._parents[pid]
        return pid in self._starts

    def _thread_folders(self, pid: int, stat: _Stat) -> dict[int, str]:
        if stat.num_threads == 1:
            return {pid: str(pid)}
        names = _names(f"{self._proc}/{pid}/task")
        return {int(name): f"{pid}/task/{name}" for name in names}

    def _stat(self, pid: int) -> _Stat | None:
        words = stat_words(f"{self._proc}/{pid}/stat")
        if not words:
            return None
        # utime, stime, cutime, cstime; the last two are of the children waited for.
        ticks = sum(int(word) for word in words[11:15])
        return _Stat(int(words[1]), int(words[19]), int(words[17]), ticks)

    def _numbers(self, path: str, pattern: re.Pattern[bytes], num: int) -> _Counts:
        numbers = [int(number) for number in pattern.findall(_read(f"{self._proc}/{path}"))]
        return tuple(numbers) if len(numbers) == num else (None,) * num


def process_age(*, proc: Path = PROC) -> float | None:
    """Return the seconds since this process was started; None if the kernel does not tell."""
    words = stat_words(f"{proc}/self/stat")
    if not words:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / _TICKS_PER_SECOND


def stat_words(path: str) -> list[bytes]:
    """Return the words of a stat file behind the process's name; none if the process has ended."""
    # The name, in brackets, may itself contain spaces and brackets.
    words = _read(path).rpartition(b")")[2].split()
    return words if len(words) >= 20 else []


def _sums(rows: Iterable[_Counts]) -> _Counts:
    """Return the sum of each column, without None; None for a column that has nothing else."""
    columns = ([n for n in column if n is not None] for column in zip(*rows, strict=True))
    return tuple(sum(column) if column else None for column in columns)


def _names(folder: Path | str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the process has just ended, or a container refuses to look
        return []


def _read(path: str) -> bytes:
    # Thousands of these are read, and open() with its buffer and decoder is three times as slow.
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, 1 << 16)
        finally:
            os.close(file)
    except OSError:  # for instance, the process has ended meanwhile
        return b""


def is_stopped(pid: int, proc: Path = PROC) -> bool:
    """Return whether a process was stopped by a signal, as by SIGSTOP."""
    # Behind the name, which may hold blanks and brackets, comes the state.
    return read_text(proc / str(pid) / "stat").rpartition(")")[2].split()[:1] == ["T"]
