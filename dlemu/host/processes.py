"""What a host's CPUs, and processes with their descendants, have used so far.

Totals never decrease when a process ends. For the files see proc(5), and for schedstat the kernel's
Documentation/scheduler/sched-stats.rst.
"""

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlemu.host.devices import PROC, read_text

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
    """What is used of /proc/<pid>/stat."""

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
        for name in os.listdir(self._proc):
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
        with suppress(OSError):  # the process has just ended
            names = os.listdir(f"{self._proc}/{pid}/task")
            return {int(name): f"{pid}/task/{name}" for name in names}
        return {}

    def _stat(self, pid: int) -> _Stat | None:
        words = _stat_words(f"{self._proc}/{pid}/stat")
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
    words = _stat_words(f"{proc}/self/stat")
    if not words:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / _TICKS_PER_SECOND


def _stat_words(path: str) -> list[bytes]:
    """Return the words of a stat file behind the process's name; none if the process has ended."""
    # The name, in brackets, may itself contain spaces and brackets.
    words = _read(path).rpartition(b")")[2].split()
    return words if len(words) >= 20 else []


def _sums(rows: Iterable[_Counts]) -> _Counts:
    """Return the sum of each column, without None; None for a column that has nothing else."""
    columns = ([n for n in column if n is not None] for column in zip(*rows, strict=True))
    return tuple(sum(column) if column else None for column in columns)


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
