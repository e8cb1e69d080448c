"""What processes and all their descendants have used so far: CPU, reads, waiting, memory.

Totals never go backwards when a process ends. See proc(5), and for schedstat the kernel's
Documentation/scheduler/sched-stats.rst.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dlemu.host.devices import PROC

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_SWITCHES = re.compile(rb"voluntary_ctxt_switches:\s*(\d+)")  # "nonvoluntary" comes second
_READS = re.compile(rb"(?:rchar|read_bytes): (\d+)")
_PSS = re.compile(rb"\nPss:\s*(\d+) kB")

_Counts = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class ProcessCounters:
    """Totals of a tree of processes; None where the kernel does not tell."""

    num: int
    """Processes that live now."""
    cpu_seconds: float | None
    """User and system time."""
    rchar: int | None
    """Bytes that read calls returned, from the page cache, pipes and sockets as well."""
    read_bytes: int | None
    """Bytes that these processes had fetched from storage."""
    runqueue_seconds: float | None
    """Time that threads were ready to run and had no CPU, summed over them."""
    voluntary_switches: int | None
    involuntary_switches: int | None


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    start: int
    num_threads: int
    ticks: int


class ProcessTree:
    """Processes, and their descendants for as long as these live.

    When a process ends, the kernel adds its CPU time and reads to the parent that waits for it: the
    sum over the tree stays right, even for a child that began and ended unseen. Waiting and
    switches are counted by thread and lost with it, so the last values seen are kept here.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = str(proc)
        self._starts: dict[int, int] = {}
        self._parents: dict[int, int] = {}
        self._processes: dict[int, _Counts] = {}
        self._threads: dict[int, _Counts] = {}
        self._ended_processes: _Counts = (None, None, None)
        self._ended_threads: _Counts = (None, None, None)
        self._highest: _Counts = (None, None, None)

    @property
    def pids(self) -> list[int]:
        """The processes that lived when last looked at."""
        return list(self._starts)

    def refresh(self, roots: Iterable[int]) -> None:
        """Look for new descendants: reads one file of every process of the host."""
        stats = {}
        for name in os.listdir(self._proc):
            if name.isdecimal() and (stat := self._stat(int(name))) is not None:
                stats[int(name)] = stat
        children: dict[int, list[int]] = {}
        for pid, stat in stats.items():
            children.setdefault(stat.parent, []).append(pid)
        found = [pid for pid in {*roots, *self._starts} if pid in stats]
        for pid in found:
            self._starts.setdefault(pid, stats[pid].start)
            found += [child for child in children.get(pid, ()) if child not in self._starts]

    def counters(self) -> ProcessCounters:
        """Return what the processes found have used up to now."""
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
            for thread, folder in self._thread_folders(pid, stat):
                waits = _read(f"{self._proc}/{folder}/schedstat").split()
                switches = self._numbers(f"{folder}/status", _SWITCHES, 2)
                threads[thread] = (int(waits[1]) if len(waits) == 3 else None, *switches)
        orphans = [p for p in self._processes if p not in processes and not self._has_heir(p)]
        self._ended_processes = _sums(
            [self._ended_processes, *(self._processes[pid] for pid in orphans)]
        )
        self._ended_threads = _sums(
            [self._ended_threads, *(self._threads[t] for t in self._threads.keys() - threads)]
        )
        self._parents, self._processes, self._threads = parents, processes, threads
        # A parent that ignores SIGCHLD does not inherit, and one that ends between two reads
        # above is missed once: neither may take back what was told before.
        totals = _sums([self._ended_processes, *processes.values()])
        self._highest = tuple(
            max((n for n in pair if n is not None), default=None)
            for pair in zip(totals, self._highest, strict=True)
        )
        ticks, rchar, read_bytes = self._highest
        waits_ns, voluntary, involuntary = _sums([self._ended_threads, *threads.values()])
        return ProcessCounters(
            num=len(processes),
            cpu_seconds=None if ticks is None else ticks / _TICKS_PER_SECOND,
            rchar=rchar,
            read_bytes=read_bytes,
            runqueue_seconds=None if waits_ns is None else waits_ns / 1e9,
            voluntary_switches=voluntary,
            involuntary_switches=involuntary,
        )

    def pss_bytes(self) -> int | None:
        """Return the memory held now, pages shared by n processes counted 1/n each.

        The kernel walks all of a process' pages for it: about 10 ms a GiB.
        """
        sizes = [self._numbers(f"{pid}/smaps_rollup", _PSS, 1) for pid in self.pids]
        (kib,) = _sums(sizes or [(None,)])
        return None if kib is None else kib * 1024

    def _has_heir(self, pid: int) -> bool:
        """Whether an ancestor that lives and is counted got what an ended process had used."""
        while pid not in self._starts:
            if pid not in self._parents:
                return False
            pid = self._parents[pid]
        return True

    def _thread_folders(self, pid: int, stat: _Stat) -> Iterator[tuple[int, str]]:
        if stat.num_threads == 1:
            yield pid, str(pid)
            return
        try:
            names = os.listdir(f"{self._proc}/{pid}/task")
        except OSError:  # it has just ended
            return
        for name in names:
            yield int(name), f"{pid}/task/{name}"

    def _stat(self, pid: int) -> _Stat | None:
        # The name in brackets may have spaces and brackets in it.
        _, _, rest = _read(f"{self._proc}/{pid}/stat").rpartition(b")")
        words = rest.split()
        if len(words) < 20:
            return None
        # utime, stime, and those of the children that were waited for
        ticks = sum(int(word) for word in words[11:15])
        return _Stat(int(words[1]), int(words[19]), int(words[17]), ticks)

    def _numbers(self, path: str, pattern: re.Pattern[bytes], num: int) -> _Counts:
        numbers = [int(number) for number in pattern.findall(_read(f"{self._proc}/{path}"))]
        return tuple(numbers) if len(numbers) == num else (None,) * num


def _sums(rows: Iterable[_Counts]) -> _Counts:
    """Return the sum of each column over the rows that know it, None where none does."""
    columns = ([n for n in column if n is not None] for column in zip(*rows, strict=True))
    return tuple(sum(column) if column else None for column in columns)


def _read(path: str) -> bytes:
    # Thousands of these are read: open() with its buffers and decoder takes three times as long.
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 1 << 16)
    except OSError:  # a process that ended since
        return b""
    finally:
        os.close(file)
