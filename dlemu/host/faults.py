"""Whether a DataLoader's workers keep the memory of a batch's samples, by their page faults.

A batch is put into fresh shared memory: a fault for each of its pages. Memory of samples that glibc
has returned to the kernel costs as many again, or more where samples are larger than what training
gets of them. Memory that was kept costs none.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dlemu.host.devices import PROC, read_text
from dlemu.host.processes import stat_words

WorkerMemory = Literal["returned", "kept"] | float
"""Or the share that is kept, 0 to 1."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KEPT = 0.8, 1.3
"""Faults for each page of a batch, at least and most, where memory is kept."""
_RETURNED = 1.6
"""Faults for each page of a batch, at least, where memory is returned."""
_PART = 0.1
"""A smaller share of memory that is kept, or returned, is none."""
_EXACT = 1.1
"""How many batches there were at most, for each at least, where a share can be told."""
_ALIKE_SHARES = 0.2
"""So much may it differ between epochs."""
_LEAST_PAGES = 1000
"""Of a batch: the faults of a smaller one may be of anything else."""
_HUGE_BYTES = 4 << 20
"""numpy asks for huge pages for such arrays: a fault gives 512 pages at once."""
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True)
class Faults:
    """Minor page faults of workers after their first batches."""

    number: float
    batches: tuple[float, float]
    """How many batches they are of, at least and at most."""
    batch_bytes: float
    sample_bytes: float
    """Of the larger of a file's sample and a batch's, as far as they are known."""


def memory_of(found: Sequence[Faults]) -> WorkerMemory | None:
    """Return what workers did with the memory of samples; None if that cannot be told."""
    if not found or min(each.batch_bytes for each in found) < _LEAST_PAGES * PAGE_BYTES:
        return None
    faults = sum(each.number for each in found)
    pages = [[n * each.batch_bytes / PAGE_BYTES for n in each.batches] for each in found]
    fewest, most = map(sum, zip(*pages, strict=True))
    # Few faults may also be those of few, huge pages.
    huge = max(each.sample_bytes for each in found) >= _HUGE_BYTES or _all_are_huge()
    if not huge and (share := _share(found)) is not None:
        return share
    if faults >= _RETURNED * most:
        return "returned"
    if huge or not _KEPT[0] * most <= faults <= _KEPT[1] * fewest:
        return None
    return "kept"


def _share(found: Sequence[Faults]) -> float | None:
    """Return which share of memory is kept, if that is a part of it and can be told."""
    if max(each.batches[1] / max(each.batches[0], 1e-9) for each in found) > _EXACT:
        return None
    pages = [each.batches[1] * each.batch_bytes / PAGE_BYTES for each in found]
    shares = [2 - each.number / own for each, own in zip(found, pages, strict=True)]
    share = sum(shares) / len(shares)
    if max(shares) - min(shares) > _ALIKE_SHARES or not _PART <= share <= 1 - _PART:
        return None
    return round(share, 2)


def _all_are_huge() -> bool:
    return "[always]" in read_text(_HUGE_PAGES)


def faults_of(pids: Iterable[int], proc: Path = PROC) -> int | None:
    """Return the minor page faults of processes so far; None if one has ended."""
    words = [stat_words(f"{proc}/{pid}/stat") for pid in pids]
    return sum(int(each[7]) for each in words) if words and all(words) else None


class WorkerFaults:
    """Counts the faults of a DataLoader's workers: once near an epoch's start, once at its end."""

    def __init__(self) -> None:
        self.found: list[Faults] = []
        self._pids: list[int] = []
        self._ahead = 0
        self._looks = -1, -1
        self._first: tuple[int, int, float] | None = None
        """Faults at the first look, and bytes of its batch and of a sample in it."""

    def begin(self, loader: Any, iterator: Any) -> None:
        """Begin an epoch whose batches an iterator gives; another kind of loader is not looked at.

        It knows how many batches come: with the last one, workers have made them all.
        """
        self._looks, self._first = (-1, -1), None
        self._pids = [worker.pid for worker in getattr(iterator, "_workers", ())]
        is_map = getattr(loader, "_dataset_kind", None) == _MAP_STYLE
        if not self._pids or not is_map:
            return
        try:
            number = len(loader)
        except TypeError:  # a sampler of unknown length
            return
        self._ahead = len(self._pids) * int(getattr(loader, "prefetch_factor", None) or 2)
        # By then each worker has made a batch or two, and its memory has grown.
        self._looks = 2 * len(self._pids), number - 1

    def is_due(self, step: int) -> bool:
        """Return whether the workers are to be looked at with this step's batch."""
        return step in self._looks

    def look(self, step: int, *, batch_bytes: int, samples: int, file_bytes: float) -> None:
        """Look at the workers; the batch of the step has come.

        `batch_bytes`: of its tensors, 0: not known. `file_bytes`: of a sample in its file, if that
        is known.
        """
        faults, (begin, end) = faults_of(self._pids), self._looks
        if faults is None or not batch_bytes or not samples:
            self._looks = -1, -1
            return
        size = batch_bytes / samples
        if step == begin:
            self._first = faults, batch_bytes, size
            return
        before, self._first = self._first, None
        # Workers had made up to so many batches more than had come at the first look.
        batches = end - begin - self._ahead, end - begin
        if before is None or batches[0] <= 0 or abs(size / before[2] - 1) > _ALIKE:
            return
        self.found.append(Faults(faults - before[0], batches, before[1], max(size, file_bytes)))


_MAP_STYLE = 0
"""torch's _DatasetKind.Map."""
_ALIKE = 0.02
"""So much may the bytes of a sample differ between two batches of one size."""
