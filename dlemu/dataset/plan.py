"""Who reads what when: one epoch as arrays, dealt from one order over all samples.

Every sample is read at most once per epoch, and every accelerator has the same number of steps, or
one of them would wait at a barrier for ever. What does not fill a last step is left out; with a
shuffle that is another rest each epoch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Layout, Samples
from dlemu.errors import WorkloadError
from dlemu.units import counted
from dlemu.workload.model import Workload


@dataclass(frozen=True)
class EpochPlan:
    """One epoch's reading.

    `samples` is int64 (steps, accelerators, batch): the samples of every batch in the order in
    which training gets them.
    """

    samples: Samples
    sequence: Samples | None = None
    """Streams only: all samples in the order in which storage is read."""
    fetched: NDArray[np.int64] | None = None
    """Streams only, (steps, accelerators, 2): part of `sequence` that is read for a batch.
    Interleaved: the turns that are read for it. Turn t is stream t % num_streams's."""
    stream_of: NDArray[np.int16] | None = None
    """Interleaved only, (steps, accelerators, batch): the stream that gives each sample."""
    starts: Samples | None = None
    """Interleaved only, (accelerators, streams): where in `sequence` each stream begins."""

    @property
    def num_steps(self) -> int:
        """Steps of every accelerator."""
        return len(self.samples)

    def fetch(self, step: int, accelerator: int) -> Samples:
        """Return the samples that are read from storage for a batch, in order.

        Without a shuffle buffer these are the batch's own; with one, some are held for later.
        """
        if self.sequence is None or self.fetched is None:
            samples: Samples = self.samples[step, accelerator]
            return samples
        assert self.stream_of is None, "an interleaved batch is fetched by its streams"
        first, last = self.fetched[step, accelerator]
        return self.sequence[first:last]

    def part(self, step: int, accelerator: int, stream: int) -> tuple[Samples, Samples]:
        """Return a stream's part of an interleaved batch: rows that it gives, samples it reads."""
        assert self.sequence is not None and self.stream_of is not None
        assert self.fetched is not None
        first, last = self._read_by(accelerator, stream, self.fetched[step, accelerator]).tolist()
        rows = np.flatnonzero(self.stream_of[step, accelerator] == stream)
        return rows, self.sequence[first:last]

    def takes_part(self, accelerator: int) -> NDArray[np.bool_]:
        """Return, (steps, streams), who has something to do for an interleaved batch.

        With fewer samples in a batch than streams, not all have.
        """
        assert self.stream_of is not None and self.starts is not None
        assert self.fetched is not None
        whether = []
        for stream in range(self.starts.shape[1]):
            first, last = self._read_by(accelerator, stream, self.fetched[:, accelerator].T)
            gives = (self.stream_of[:, accelerator] == stream).any(axis=1)
            whether.append(gives | (first < last))
        return np.stack(whether, axis=1)

    def _read_by(self, accelerator: int, stream: int, turns: Samples) -> Samples:
        """Return where in `sequence` a stream is when all streams have come to these turns."""
        assert self.starts is not None
        num_streams = self.starts.shape[1]
        own = (np.maximum(turns - stream, 0) + num_streams - 1) // num_streams
        places: Samples = self.starts[accelerator, stream] + own
        return places

    def first_steps(self, num_steps: int) -> "EpochPlan":
        """Return the plan cut to at most so many steps."""
        fetched = None if self.fetched is None else self.fetched[:num_steps]
        stream_of = None if self.stream_of is None else self.stream_of[:num_steps]
        return EpochPlan(self.samples[:num_steps], self.sequence, fetched, stream_of, self.starts)


def make_plan(
    workload: Workload, layout: Layout, *, num_accelerators: int, epoch: int
) -> EpochPlan:
    """Return an epoch's plan for a workload; `train.seed` orders it.

    Raises:
        WorkloadError: there are too few samples for two steps.
    """
    reader = workload.reader
    if layout.streamed or reader.data_loader == "tensorflow":
        plan = (plan_interleaved if reader.data_loader == "tensorflow" else plan_streams)(
            layout.num_samples,
            batch_size=reader.batch_size,
            num_accelerators=num_accelerators,
            num_streams=reader.num_streams,
            epoch=epoch,
            seed=workload.train.seed,
            samples_per_file=layout.samples_per_file,
            shuffle_files=reader.file_shuffle != "off",
            shuffle_samples=reader.sample_shuffle != "off",
            shuffle_size=reader.shuffle_size,
        )
    else:
        plan = plan_epoch(
            layout.num_samples,
            batch_size=reader.batch_size,
            num_accelerators=num_accelerators,
            epoch=epoch,
            seed=workload.train.seed,
            samples_per_file=layout.samples_per_file,
            shuffle_files=reader.file_shuffle != "off",
            shuffle_samples=reader.sample_shuffle != "off",
        )
    limit = workload.train.total_training_steps
    return plan if limit == -1 else plan.first_steps(limit)


def plan_epoch(
    num_samples: int,
    *,
    batch_size: int,
    num_accelerators: int,
    epoch: int,
    seed: int,
    samples_per_file: int = 1,
    shuffle_files: bool = True,
    shuffle_samples: bool = True,
) -> EpochPlan:
    """Return the plan for files in which any sample can be read alone.

    Raises:
        WorkloadError: there are too few samples for two steps.
    """
    num_steps = _num_steps(num_samples, batch_size, num_accelerators)
    generator = np.random.default_rng((seed, epoch))
    if shuffle_samples or (shuffle_files and samples_per_file == 1):
        order = generator.permutation(num_samples)
    else:
        order = _file_order(num_samples, samples_per_file, generator if shuffle_files else None)
    dealt = order[: num_steps * num_accelerators * batch_size]
    return EpochPlan(dealt.reshape(num_steps, num_accelerators, batch_size))


def plan_streams(
    num_samples: int,
    *,
    batch_size: int,
    num_accelerators: int,
    num_streams: int,
    epoch: int,
    seed: int,
    samples_per_file: int,
    shuffle_files: bool,
    shuffle_samples: bool,
    shuffle_size: int,
) -> EpochPlan:
    """Return the plan for files that are read from end to end by workers that make whole batches.

    Files stand in shuffled order; each of an accelerator's `num_streams` workers reads its own
    part of that sequence, and gives every num_streams-th batch: step s comes from stream
    s % num_streams. A shuffle buffer of `shuffle_size` samples stands behind each stream.

    Raises:
        WorkloadError: there are too few samples for two steps.
    """
    num_steps = _num_steps(num_samples, batch_size, num_accelerators)
    generator = np.random.default_rng((seed, epoch))
    sequence = _file_order(num_samples, samples_per_file, generator if shuffle_files else None)
    samples = np.empty((num_steps, num_accelerators, batch_size), np.int64)
    fetched = np.empty((num_steps, num_accelerators, 2), np.int64)
    start = 0
    for accelerator in range(num_accelerators):
        for stream in range(num_streams):
            num_batches = len(range(stream, num_steps, num_streams))
            if num_batches == 0:
                continue
            part = sequence[start : start + num_batches * batch_size]
            if shuffle_samples:
                order = _through_buffer(len(part), shuffle_size, generator)
                ends = np.maximum.accumulate(order)[batch_size - 1 :: batch_size] + 1
            else:
                order = np.arange(len(part))
                ends = np.arange(1, num_batches + 1) * batch_size
            samples[stream::num_streams, accelerator] = part[order].reshape(-1, batch_size)
            fetched[stream::num_streams, accelerator, 1] = start + ends
            fetched[stream::num_streams, accelerator, 0] = start + np.append(0, ends[:-1])
            start += len(part)
    return EpochPlan(samples, sequence, fetched)


def plan_interleaved(
    num_samples: int,
    *,
    batch_size: int,
    num_accelerators: int,
    num_streams: int,
    epoch: int,
    seed: int,
    samples_per_file: int,
    shuffle_files: bool,
    shuffle_samples: bool,
    shuffle_size: int,
) -> EpochPlan:
    """Return the plan of tf.data: each batch is read by all of an accelerator's streams.

    Files stand in shuffled order, and each stream reads its own stretch of them from end to end.
    The streams give a sample each in turn; one shuffle buffer of `shuffle_size` samples stands
    behind all of them, and batches are cut from what leaves it (tf.data: parallel interleave with
    block length 1, shuffle, batch).

    Raises:
        WorkloadError: there are too few samples for two steps.
    """
    num_steps = _num_steps(num_samples, batch_size, num_accelerators)
    generator = np.random.default_rng((seed, epoch))
    sequence = _file_order(num_samples, samples_per_file, generator if shuffle_files else None)
    shape = num_steps, num_accelerators
    samples = np.empty((*shape, batch_size), np.int64)
    stream_of = np.empty((*shape, batch_size), np.int16)
    fetched = np.empty((*shape, 2), np.int64)
    each = num_steps * batch_size
    lengths = (each - np.arange(num_streams) + num_streams - 1) // num_streams
    begins = np.append(0, np.cumsum(lengths)[:-1])
    starts = np.arange(num_accelerators)[:, None] * each + begins
    places, turns = np.divmod(np.arange(each), num_streams)
    read = np.arange(1, num_steps + 1) * batch_size
    for accelerator in range(num_accelerators):
        merged = sequence[starts[accelerator, turns] + places]
        order = np.arange(each)
        if shuffle_samples:
            order = _through_buffer(each, shuffle_size, generator)
            read = np.maximum.accumulate(order)[batch_size - 1 :: batch_size] + 1
        samples[:, accelerator] = merged[order].reshape(num_steps, batch_size)
        stream_of[:, accelerator] = turns[order].reshape(num_steps, batch_size)
        fetched[:, accelerator, 1] = read
        fetched[:, accelerator, 0] = np.append(0, read[:-1])
    return EpochPlan(samples, sequence, fetched, stream_of, starts)


def _num_steps(num_samples: int, batch_size: int, num_accelerators: int) -> int:
    per_step = batch_size * num_accelerators
    num_steps = num_samples // per_step
    if num_steps < 2:
        raise WorkloadError(
            f"{num_samples} samples are too few for 2 steps: a step of "
            f"{counted(num_accelerators, 'accelerator')} with batches of {batch_size} takes "
            f"{per_step}, and the first step is left out of AU; raise dataset.num_files_train"
        )
    return num_steps


def _file_order(
    num_samples: int, samples_per_file: int, generator: np.random.Generator | None
) -> Samples:
    """Return all samples, file by file; files in random order if there is a generator."""
    if generator is None:
        return np.arange(num_samples, dtype=np.int64)
    files = generator.permutation(num_samples // samples_per_file)
    within = np.arange(samples_per_file, dtype=np.int64)
    return (files[:, None] * samples_per_file + within).ravel()


def _through_buffer(num: int, size: int, generator: np.random.Generator) -> Samples:
    """Return the order in which items 0..num-1 leave a shuffle buffer (tf.data's shuffle).

    The buffer holds `size` items; each draw takes a random slot, which the next item then fills.
    What leaves at draw t is what the previous draw of that slot put there: item t' + size, or the
    item that the slot began with. So the whole order follows from the slots drawn, with no loop.
    """
    size = min(size, num)
    slots = generator.integers(0, size, num - size)
    by_slot = np.argsort(slots, kind="stable")
    drawn = slots[by_slot]
    leaves = np.empty(num - size, np.int64)
    again = np.append(False, drawn[1:] == drawn[:-1])
    leaves[by_slot] = np.where(again, np.append(0, by_slot[:-1]) + size, drawn)
    rest = np.setdiff1d(np.arange(num), leaves, assume_unique=True)
    return np.concatenate([leaves, generator.permutation(rest)])
