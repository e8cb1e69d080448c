"""A training job of each kind of loop, with a stopwatch of its own, for `benchmarks.watched`.

    python -m benchmarks.watched_job KIND FILE

It shares no line with dlemu. Samples and steps sleep for known times. FILE gets the AU in percent
as this job measures it: the time of its steps but for waiting, over all of its time, without the
first step of each pass; the mean of passes and ranks. It gets it twice: waiting for its own loader
alone, and with that of a rank that has computed for the other one until that has, too: both tell
when they had.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

SAMPLE_SECONDS, STEP_SECONDS = 0.01, 0.03
_BATCH, _NUM = 4, 100
_data: Any = Dataset  # torch's are generic, which says nothing here
_stream: Any = IterableDataset


class Samples(_data):  # type: ignore[misc]
    """Each takes a while to make."""

    def __init__(self, number: int = _NUM) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(SAMPLE_SECONDS)
        return torch.full((8,), float(number))


class Stream(_stream):  # type: ignore[misc]
    """The same, without a length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(_NUM):
            yield Samples()[number]


class Job:
    """A model, and what the stopwatch showed."""

    def __init__(self) -> None:
        self.model: Any = torch.nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-6)
        self.passes: list[list[tuple[float, float, float]]] = []
        """Of each pass and step: seconds of waiting and of the step, and when the step meets that
        of another rank."""
        self._at = 0.0

    def begin(self) -> None:
        """A pass begins."""
        self.passes.append([])
        self._at = time.perf_counter()

    def step(self, *batches: torch.Tensor, updates: bool = True) -> None:
        """Compute on batches that were just taken."""
        taken = time.perf_counter()
        time.sleep(STEP_SECONDS)
        computed = time.perf_counter()
        for batch in batches:
            self.model(batch).sum().backward()  # ranks meet here
        if updates:
            self.optimizer.step()
            self.optimizer.zero_grad()
        ended = time.perf_counter()
        self.passes[-1].append((taken - self._at, ended - taken, computed))
        self._at = ended

    def epoch(self, batches: Iterable[torch.Tensor], **given: Any) -> None:
        """Make a pass over batches."""
        self.begin()
        for batch in batches:
            self.step(batch, **given)

    def au(self, other: "list[list[tuple[float, float, float]]]") -> tuple[float, float]:
        """In percent: without waiting for the own loader, and for the other rank as well.

        `other` are the passes of the other rank, or those of this one alone.
        """
        found = []
        for steps, others in zip(self.passes, other, strict=True):
            own_only = computed = whole = 0.0
            for own, of_other in list(zip(steps, others, strict=False))[1:]:
                waited, lasted, met = own
                own_only += lasted
                computed += lasted - max(0.0, of_other[2] - met)
                whole += waited + lasted
            found.append((100 * own_only / whole, 100 * computed / whole))
        one, two = zip(*found, strict=True)
        return fmean(one), fmean(two)


def loader(samples: Any = None, **given: Any) -> DataLoader[Any]:
    """Return a DataLoader over samples that take a while."""
    return DataLoader(
        Samples() if samples is None else samples,
        **{"batch_size": _BATCH, "num_workers": 1, **given},
    )


def plain(job: Job) -> None:
    """Two passes."""
    for _ in range(2):
        job.epoch(loader())


def accumulation(job: Job) -> None:
    """The optimizer takes a step after each fourth batch."""
    for _ in range(2):
        job.begin()
        for number, batch in enumerate(loader()):
            job.step(batch, updates=number % 4 == 3)


def two_loaders(job: Job) -> None:
    """Each step takes a batch of both."""
    job.begin()
    for one, other in zip(loader(), loader(Samples(_NUM + 8)), strict=False):
        job.step(one, other)


def kept_iterator(job: Job) -> None:
    """An iterator that lasts for several loops."""
    batches = iter(loader())
    job.begin()
    for _ in range(2):
        for batch in itertools.islice(batches, 10):
            job.step(batch)


def left_early(job: Job) -> None:
    """Each pass ends by `break`."""
    for _ in range(2):
        job.begin()
        for number, batch in enumerate(loader()):
            job.step(batch)
            if number == 14:
                break


def exceptions(job: Job) -> None:
    """A pass ends by an error, which is caught; another one follows."""
    for last in (11, _NUM):
        job.begin()
        try:
            for number, batch in enumerate(loader()):
                job.step(batch)
                if number == last:
                    raise ValueError("a batch is no good")
        except ValueError:
            pass


def nested(job: Job) -> None:
    """For each batch of one loader a pass over another."""
    for _ in loader(Samples(8)):
        job.epoch(loader())


def iterable(job: Job) -> None:
    """An IterableDataset."""
    job.epoch(loader(Stream()))


def no_workers(job: Job) -> None:
    """The loop itself makes its batches."""
    for _ in range(2):
        job.epoch(loader(num_workers=0))


def spawned(job: Job) -> None:
    """Workers that are new interpreters."""
    job.epoch(loader(multiprocessing_context="spawn"))


def ddp(job: Job) -> None:
    """A rank of two, started by torchrun; rank 0 has two workers, rank 1 one."""
    torch.distributed.init_process_group("gloo")
    job.model = torch.nn.parallel.DistributedDataParallel(job.model)
    for _ in range(2):
        job.epoch(loader(num_workers=2 - torch.distributed.get_rank()))


KINDS: dict[str, Callable[[Job], None]] = {
    each.__name__: each
    for each in (
        *(plain, accumulation, two_loaders, kept_iterator, left_early, exceptions, nested),
        *(iterable, no_workers, spawned, ddp),
    )
}


def main() -> None:
    """Run the job that is asked for."""
    kind, file = sys.argv[1:]
    torch.set_num_threads(1)
    job = Job()
    KINDS[kind](job)
    au = job.au(job.passes)
    if torch.distributed.is_initialized():
        both: list[Any] = [None, None]
        torch.distributed.all_gather_object(both, job.passes)
        au = job.au(both[1 - torch.distributed.get_rank()])
        torch.distributed.all_gather_object(both, au)
        au = fmean(both[0][:1] + both[1][:1]), fmean(both[0][1:] + both[1][1:])
        job.model = None  # its reducer keeps the group, whose end may hang at the exit of Python
        torch.distributed.destroy_process_group()
    if os.environ.get("RANK", "0") == "0":
        Path(file).write_text(json.dumps(au))


if __name__ == "__main__":
    main()
