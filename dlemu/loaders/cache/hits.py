"""What a cache of whole files holds, and which reads hit it: a function of the order of reads.

The order of a host's reads is known before an epoch begins, so its hits are computed, not found.
Nothing here reads or writes a file. `cache.folder` executes what is planned here.

A visit is one worker's reading of one file: from opening it to closing it. A file of one sample is
visited once an epoch. A stream visits each of its files once; where any sample of a file can be
read alone, each batch visits it anew.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dlemu.config.sections import POLICIES
from dlemu.dataset.layout import Layout, Samples
from dlemu.dataset.plan import EpochPlan
from dlemu.errors import DlemuError, WorkloadError, in_short


@dataclass(frozen=True)
class Visits:
    """The visits of an epoch on one host, by their numbers: in the order of the steps."""

    files: Samples
    """(visits,): the file of each visit."""
    num_samples: Samples
    """(visits,): the samples that are read in it."""
    plan: EpochPlan
    """The epoch's plan, with the visit of each sample; -1 for those of other hosts."""


def find_visits(
    plan: EpochPlan, layout: Layout, accelerators: Sequence[int], *, num_streams: int
) -> Visits:
    """Return the visits of these accelerators' workers, `num_streams` of each."""
    own = np.asarray(sorted(accelerators), np.int64)
    if plan.sequence is None:
        return _of_batches(plan, layout, own)
    # In an interleaved plan each stream has its own range, and takes part in every step.
    return _of_streams(plan, layout, own, 1 if plan.starts is not None else num_streams)


def _of_batches(plan: EpochPlan, layout: Layout, own: Samples) -> Visits:
    """Each batch visits the files of its samples; neighbours in one file are one visit."""
    files = layout.file_of(plan.samples[:, own])
    begins = np.ones(files.shape, bool)
    begins[..., 1:] = files[..., 1:] != files[..., :-1]
    numbers = np.full(plan.samples.shape, -1, np.int64)
    numbers[:, own] = (np.cumsum(begins.ravel()) - 1).reshape(files.shape)
    return _visits(plan, files.ravel(), numbers[:, own].ravel(), numbers)


def _of_streams(plan: EpochPlan, layout: Layout, own: Samples, every: int) -> Visits:
    """Each stream visits file after file; a visit may last for several batches.

    A stream makes the batch of each `every`-th step.
    """
    assert plan.sequence is not None
    places, steps, accelerators, begins = [], [], [], []
    for accelerator in own.tolist():
        for bounds in plan.ranges(accelerator):
            lengths = bounds[:, 1] - bounds[:, 0]
            step = np.repeat(np.arange(len(bounds)), lengths)
            offset = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            place = np.repeat(bounds[:, 0], lengths) + offset
            order = np.argsort(place, kind="stable")
            place, step = place[order], step[order]
            file = layout.file_of(plan.sequence[place])
            begin = np.ones(len(place), bool)
            # The next stream's steps are others, and begin with one of the first.
            later = np.diff(step)
            new_stream = (np.diff(place) != 1) | (later < 0) | (later % every != 0)
            begin[1:] = (file[1:] != file[:-1]) | new_stream
            places.append(place)
            steps.append(step)
            accelerators.append(np.full(len(place), accelerator))
            begins.append(begin)
    place, step, begin = (np.concatenate(each) for each in (places, steps, begins))
    first = np.flatnonzero(begin)
    ordered = np.lexsort((place[first], np.concatenate(accelerators)[first], step[first]))
    rank = np.empty(len(first), np.int64)
    rank[ordered] = np.arange(len(first))
    own_numbers = rank[np.cumsum(begin) - 1]
    numbers = np.full(len(plan.sequence), -1, np.int64)
    numbers[place] = own_numbers
    return _visits(plan, layout.file_of(plan.sequence[place]), own_numbers, numbers)


def _visits(plan: EpochPlan, files: Samples, own: Samples, numbers: Samples) -> Visits:
    num_samples = np.bincount(own)
    of_visit = np.empty(len(num_samples), np.int64)
    of_visit[own] = files
    return Visits(of_visit, num_samples, replace(plan, visits=numbers))


Numbers = NDArray[np.int64]


class Lru:
    """Gives up what was read least recently. A policy of one's own is a class like this one."""

    def admits(self, size: int, *, used: int, capacity: int) -> bool:
        """Return whether a file that missed is stored; all are in bytes.

        Where there is no room for it, others are given up. It must be False where `size` is above
        `capacity`.
        """
        return size <= capacity

    def victim(self, files: Mapping[int, object]) -> int:
        """Return which of the files that are there is given up; the last read one comes last."""
        return next(iter(files))


class Keep(Lru):
    """Gives up nothing: what came first stays."""

    def admits(self, size: int, *, used: int, capacity: int) -> bool:
        return size <= capacity - used


class Nothing(Lru):
    """Stores nothing."""

    def admits(self, size: int, *, used: int, capacity: int) -> bool:
        return False


def policy_of(name: str) -> Lru:
    """Return the policy that `cache.policy` names.

    Raises:
        WorkloadError: a module of one's own has none.
    """
    try:
        policy: Lru = POLICIES[name]()
    except ValueError as error:
        raise WorkloadError(f"cache.policy{error}") from None
    return policy


@contextmanager
def planning(name: str) -> Iterator[None]:
    """Say in a line what a policy of one's own raises while an epoch is planned."""
    try:
        yield
    except DlemuError:
        raise
    except Exception as error:  # whatever a user's module raises
        if ":" not in name and "." not in name:
            raise
        raise WorkloadError(
            f"cache.policy={name} cannot plan an epoch ({type(error).__name__}: "
            f"{in_short(error)}); python -m dlemu.contract {name} says what it lacks"
        ) from error


@dataclass(frozen=True)
class EpochHits:
    """What each read of a host's epoch finds and changes; reads are numbered from 0.

    A generation is the number of an admission: a file that is evicted and admitted again has
    another one, so that old and new copy are never mixed up.
    """

    held: Numbers
    """(reads,): the generation that is read from the cache; -1: the origin is read."""
    after: Numbers
    """(reads,): the read of this epoch that brings this generation; -1: it was there before."""
    admitted: Numbers
    """(reads,): the generation of the stored file; -1: it is not stored."""
    first_gone: Numbers
    """(reads + 1,): where in `gone` an admission's rows begin."""
    gone: Numbers
    """(rows, 3): file, generation and read. Before a read is admitted, these generations must be
    removed; and before that, this read must have ended. -1: no read must have."""

    @property
    def hits(self) -> NDArray[np.bool_]:
        """(reads,): whether each read is served by the cache."""
        return self.held >= 0


@dataclass(slots=True)
class _Entry:
    """A file in the cache."""

    file: int
    generation: int
    reads: list[int] = field(default_factory=list)
    """Reads of this epoch that bring or hit it."""


@dataclass(slots=True)
class _Room:
    """Free bytes, and the entry that must be removed before they are free; None: they are."""

    num_bytes: int
    entry: _Entry | None


class PlannedCache:
    """The content of one host's cache, read after read.

    Each admission gets its bytes from entries that are named with it. So the capacity is kept in
    whatever order several readers execute the admissions.
    """

    def __init__(
        self,
        policy: str,
        capacity: int,
        sizes: Sequence[int] | Numbers,
        *,
        content: Iterable[tuple[int, int]] = (),
    ) -> None:
        """`sizes`: bytes of each file. `content`: file and generation of what is there, in order.

        Content beyond the capacity is left out.
        """
        self._policy, self._sizes = policy_of(policy), [int(size) for size in sizes]
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._capacity, self._used = capacity, 0
        self.next_generation = 0
        for file, generation in content:
            if self._used + self._sizes[file] <= capacity and file not in self._entries:
                self._insert(_Entry(file, generation))
            self.next_generation = max(self.next_generation, generation + 1)
        self._rooms: deque[_Room] = deque()

    @property
    def content(self) -> list[tuple[int, int]]:
        """File and generation of what is there, the next one to be evicted first."""
        return [(entry.file, entry.generation) for entry in self._entries.values()]

    def epoch(self, files: Iterable[int], *, fills: bool = True) -> EpochHits:
        """Return the hits of an epoch that reads these files in this order.

        All reads of the epoch before must have ended. `fills`: whether a miss may be admitted.
        """
        for known in self._entries.values():
            known.reads.clear()
        free = self._capacity - self._used
        self._rooms = deque([_Room(free, None)] if free else [])
        held: list[int] = []
        after: list[int] = []
        admitted: list[int] = []
        first, gone = [0], list[tuple[int, int, int]]()
        entries = self._entries
        for number, file in enumerate(files):
            entry = entries.get(file)
            found, brought, stored = -1, -1, -1
            if entry is not None:
                found, reads = entry.generation, entry.reads
                if reads and admitted[reads[0]] == found:
                    brought = reads[0]
                reads.append(number)
                entries.move_to_end(file)
            elif fills and self._policy.admits(
                self._sizes[file], used=self._used, capacity=self._capacity
            ):
                self._make_room(self._sizes[file], gone)
                stored = self.next_generation
                self.next_generation += 1
                self._insert(_Entry(file, stored, [number]))
            held.append(found)
            after.append(brought)
            admitted.append(stored)
            first.append(len(gone))
        return EpochHits(
            held=np.array(held, np.int64),
            after=np.array(after, np.int64),
            admitted=np.array(admitted, np.int64),
            first_gone=np.array(first, np.int64),
            gone=np.array(gone, np.int64).reshape(-1, 3),
        )

    def fill_up(self) -> list[tuple[int, int]]:
        """Admit the first files that are not there while there is room; return what is new.

        In the order of the files' numbers, as file and generation.
        """
        new = []
        for file, size in enumerate(self._sizes):
            if file not in self._entries and size <= self._capacity - self._used:
                new.append((file, self.next_generation))
                self._insert(_Entry(file, self.next_generation))
                self.next_generation += 1
        return new

    def _insert(self, entry: _Entry) -> None:
        self._used += self._sizes[entry.file]
        self._entries[entry.file] = entry

    def _make_room(self, num_bytes: int, gone: list[tuple[int, int, int]]) -> None:
        """Evict until so many bytes are free; append the rows of `EpochHits.gone` for it."""
        while num_bytes:
            if not self._rooms:
                victim = self._entries.pop(self._policy.victim(self._entries))
                size = self._sizes[victim.file]
                self._used -= size
                self._rooms.append(_Room(size, victim))
            room = self._rooms[0]
            taken = min(room.num_bytes, num_bytes)
            room.num_bytes -= taken
            num_bytes -= taken
            if room.num_bytes == 0:
                self._rooms.popleft()
            if room.entry is not None:
                old = room.entry
                gone += [(old.file, old.generation, read) for read in old.reads or (-1,)]
