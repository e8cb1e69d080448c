"""The plan of an epoch: which accelerator reads which samples in which step, as arrays.

Every sample is read at most once per epoch. Every accelerator has the same number of steps: with
more than the others it would wait at their barrier for ever. Samples that do not fill the last step
are left out; with shuffling, different samples in each epoch.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.dataset.layout import Layout, Samples, hashed
from dlemu.errors import WorkloadError
from dlemu.formats import format_of
from dlemu.units import ceil_div, counted

_WHOLE = 1 << 24
"""Samples up to which each rank makes the order of all: 0.8 s, 128 MiB. Of more, a rank computes
the part of its own accelerators alone."""
_PIECE = 1 << 18
"""Samples of a part that are computed at a time."""
_LARGEST_PLAN = 1 << 34
"""Bytes of an array of all samples that a rank can hold."""
_ROUNDS = 4
"""Of a Feistel network; with four it looks like a random permutation (Luby and Rackoff, 1988)."""
_PURPOSE = 16
"""Of the first round, for `hashed`; each round has its own."""


@dataclass(frozen=True)
class EpochPlan:
    """What is read in an epoch, and when.

    Files that are read from end to end make streams: each worker reads one.
    """

    samples: Samples
    """int64 (steps, accelerators, batch): each batch's samples, in the order of training."""
    sequence: Samples | None = None
    """Streams only, int64 (samples,): all samples in the order in which storage is read."""
    fetched: NDArray[np.int64] | None = None
    """Streams only, (steps, accelerators, 2): start and end in `sequence` of what is read for a
    batch. Interleaved streams read in turn: there, the first turn and the end; stream
    t % num_streams has turn t."""
    stream_of: NDArray[np.int16] | None = None
    """Interleaved only, (steps, accelerators, batch): the stream that each sample comes from."""
    starts: Samples | None = None
    """Interleaved only, (accelerators, streams): where in `sequence` each stream begins."""
    visits: NDArray[np.int64] | None = None
    """With a cache only: the host's visit in which each sample is read, as `cache.hits` numbers
    them. Shaped as `samples`; for streams as `sequence`."""
    unit: int = 1
    """Above 1, each number in `samples` and `sequence` stands for so many samples that follow one
    another: number u for samples u x unit to (u + 1) x unit - 1. Files of tabular data hold
    thousands of millions of rows, too many for an array of all."""
    first: int = 0
    """The accelerator that comes first in all these arrays: a large plan has a rank's own only."""

    def batch(self, step: int, accelerator: int) -> Samples:
        """Return the samples of a batch, int64 (batch,)."""
        return self._each(self.samples[step, accelerator - self.first])

    def _each(self, units: Samples) -> Samples:
        if self.unit == 1:
            return units
        samples: Samples = (units[:, None] * self.unit + np.arange(self.unit)).ravel()
        return samples

    @property
    def num_steps(self) -> int:
        """Steps of every accelerator."""
        return len(self.samples)

    def fetch(self, step: int, accelerator: int) -> Samples:
        """Return the samples that are read from storage for a batch, in order.

        With a shuffle buffer these differ from the batch's own samples.
        """
        if self.sequence is None or self.fetched is None:
            return self.batch(step, accelerator)
        assert self.stream_of is None, "an interleaved batch is fetched by its streams"
        first, last = self.fetched[step, accelerator - self.first]
        return self._each(self.sequence[first:last])

    def part(self, step: int, accelerator: int, stream: int) -> tuple[Samples, Samples]:
        """Return the rows that a stream fills in an interleaved batch, and the samples it reads."""
        assert self.sequence is not None and self.stream_of is not None
        assert self.fetched is not None
        first, last = self._read_by(accelerator, stream, self.fetched[step, accelerator]).tolist()
        rows = np.flatnonzero(self.stream_of[step, accelerator] == stream)
        return rows, self.sequence[first:last]

    def visits_of(self, step: int, accelerator: int, stream: int) -> NDArray[np.int64] | None:
        """Return the visit of each sample that is read for a batch, or for a stream's part of it.

        None: there is no cache.
        """
        if self.visits is None or self.fetched is None:
            return None if self.visits is None else self.visits[step, accelerator]
        bounds = self.fetched[step, accelerator]
        if self.stream_of is not None:
            bounds = self._read_by(accelerator, stream, bounds)
        return self.visits[bounds[0] : bounds[1]]

    def ranges(self, accelerator: int) -> Iterator[NDArray[np.int64]]:
        """Yield, for each stream of an accelerator, where in `sequence` each step's part lies.

        (steps, 2): start and end. Where whole batches come from streams, each gives only some.
        """
        assert self.fetched is not None
        if self.starts is None:
            yield self.fetched[:, accelerator - self.first]
            return
        for stream in range(self.starts.shape[1]):
            ends = self._read_by(accelerator, stream, self.fetched[:, accelerator].T)
            yield ends.T

    def takes_part(self, accelerator: int) -> NDArray[np.bool_]:
        """Return which streams read or fill a part of each interleaved batch, (steps, streams).

        With fewer samples in a batch than streams, not all of them do.
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
        """Return how far in `sequence` a stream has read before each of these turns."""
        assert self.starts is not None
        num_streams = self.starts.shape[1]
        own = ceil_div(np.maximum(turns - stream, 0), num_streams)
        places: Samples = self.starts[accelerator, stream] + own
        return places

    def first_steps(self, num_steps: int) -> "EpochPlan":
        """Return the plan of the first `num_steps` steps."""
        fetched = None if self.fetched is None else self.fetched[:num_steps]
        stream_of = None if self.stream_of is None else self.stream_of[:num_steps]
        samples = self.samples[:num_steps]
        return dataclasses.replace(self, samples=samples, fetched=fetched, stream_of=stream_of)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What an epoch's plan depends on, besides the number of samples."""

    batch_size: int
    num_accelerators: int
    epoch: int
    seed: int
    samples_per_file: int = 1
    counts: Samples | None = None
    """Samples of each file, int64 (files,), where they differ."""
    shuffle_files: bool = True
    shuffle_samples: bool = True
    num_streams: int = 1
    """Streams of each accelerator: workers that read files from end to end."""
    shuffle_size: int = 1
    """Samples that a shuffle buffer holds; only streams have one."""
    own: range | None = None
    """Accelerators that a large plan is made for; None: all."""

    def num_steps(self, num_samples: int) -> int:
        """Return the steps of an epoch."""
        per_step = self.batch_size * self.num_accelerators
        num_steps = num_samples // per_step
        if num_steps < 2:
            raise WorkloadError(
                f"{num_samples} samples are too few for 2 steps: a step of "
                f"{counted(self.num_accelerators, 'accelerator')} with batches of "
                f"{self.batch_size} takes {per_step}, and the first step is left out of AU; raise "
                "dataset.num_files_train"
            )
        return num_steps

    def generator(self) -> np.random.Generator:
        """Return the epoch's own source of random numbers."""
        return np.random.default_rng((self.seed, self.epoch))

    def accelerators(self, num_samples: int) -> range:
        """Return the accelerators of the plan for so many samples."""
        everyone = range(self.num_accelerators)
        return everyone if num_samples <= _WHOLE or self.own is None else self.own

    def order(self, places: Samples, num_samples: int, *, by_file: bool = False) -> Samples:
        """Return what stands at some places of the order of many samples, any shape.

        `by_file`: the samples of a file stay together, as in `file_order`.
        """
        seed = int(self.generator().integers(1 << 62))
        if self.shuffle_samples and not by_file:
            return permuted(places, num_samples, seed)
        if not self.shuffle_files:
            return places
        if self.counts is not None:
            files = permuted(np.arange(len(self.counts)), len(self.counts), seed)
            return _file_by_file(places, files, self.counts)
        each = self.samples_per_file
        files = permuted(places // each, num_samples // each, seed)
        samples: Samples = files * each + places % each
        return samples

    def file_order(self, num_samples: int, generator: np.random.Generator) -> Samples:
        """Return all samples, file by file; the files in random order if they are shuffled."""
        if not self.shuffle_files:
            return np.arange(num_samples, dtype=np.int64)
        if self.counts is not None:
            files = generator.permutation(len(self.counts))
            return _file_by_file(np.arange(num_samples), files, self.counts)
        files = generator.permutation(num_samples // self.samples_per_file)
        within = np.arange(self.samples_per_file, dtype=np.int64)
        return (files[:, None] * self.samples_per_file + within).ravel()


def _file_by_file(places: Samples, files: Samples, counts: Samples) -> Samples:
    """Return what stands at some places of the order of all samples, file by file.

    `files` has the order of the files, `counts` the samples of each, by its number.
    """
    ends, firsts = np.cumsum(counts[files]), np.cumsum(counts) - counts
    turn = np.searchsorted(ends, places, side="right")
    samples: Samples = firsts[files[turn]] + places - (ends[turn] - counts[files[turn]])
    return samples


def make_plan(
    workload: Workload,
    layout: Layout,
    *,
    num_accelerators: int,
    epoch: int,
    own: range | None = None,
) -> EpochPlan:
    """Return an epoch's plan for a workload; `train.seed` orders it, and seed_change_epoch.

    With `own`, a large plan has these accelerators only.
    """
    unit = _unit(workload, layout)
    options = _options(workload, layout, num_accelerators=num_accelerators, epoch=epoch, own=own)
    if workload.by_tf_data:
        plan = plan_interleaved(layout.num_samples, options)
    elif workload.streamed:
        plan = dataclasses.replace(plan_streams(layout.num_samples // unit, options), unit=unit)
    else:
        plan = plan_epoch(layout.num_samples, options)
    limit = workload.train.total_training_steps
    return plan if limit == -1 else plan.first_steps(limit)


def count_steps(workload: Workload, layout: Layout, *, num_accelerators: int) -> int:
    """Return the steps of each epoch's plan, without making one.

    Raises:
        WorkloadError: the samples are too few for two steps, or too many to be planned.
    """
    options = _options(workload, layout, num_accelerators=num_accelerators, epoch=0, own=None)
    num_steps = options.num_steps(layout.num_samples // _unit(workload, layout))
    limit = workload.train.total_training_steps
    return num_steps if limit == -1 else min(num_steps, limit)


def _options(
    workload: Workload, layout: Layout, *, num_accelerators: int, epoch: int, own: range | None
) -> PlanOptions:
    reader, unit = workload.reader, _unit(workload, layout)
    return PlanOptions(
        batch_size=reader.batch_size // unit,
        num_accelerators=num_accelerators,
        epoch=epoch if workload.train.seed_change_epoch else 0,
        seed=workload.train.seed,
        samples_per_file=layout.samples_per_file // unit,
        counts=None if layout.counts is None else layout.counts // unit,
        shuffle_files=reader.file_shuffle != "off",
        shuffle_samples=reader.sample_shuffle != "off",
        num_streams=reader.num_streams,
        shuffle_size=reader.shuffle_size,
        own=own,
    )


def _unit(workload: Workload, layout: Layout) -> int:
    """Return how many samples are planned as one: samples that always stay together.

    Through a cache each is planned alone: `cache.hits` counts those of a file.
    """
    reader, origin = workload.reader, workload.origin
    files = format_of(layout)
    together = (files.in_columns or "random" in files.ways) and reader.sample_shuffle == "off"
    unit = 1
    if workload.cache.folder is not None or origin.read_bandwidth is not None or origin.latency:
        together = False
    if together and workload.streamed and not workload.by_tf_data:
        each = layout.samples_per_file if layout.counts is None else np.gcd.reduce(layout.counts)
        unit = math.gcd(reader.batch_size, int(each))
    num_bytes = 8 * layout.num_samples // unit
    if num_bytes > _LARGEST_PLAN:
        raise WorkloadError(
            f"{layout.num_samples:,} samples in random order are too many to be planned, at most "
            f"{_LARGEST_PLAN // 8:,} are possible; lower dataset.num_files_train, or set "
            "reader.sample_shuffle=off and no reader.access"
        )
    return unit


def plan_epoch(num_samples: int, options: PlanOptions) -> EpochPlan:
    """Return the plan for files in which any sample can be read alone."""
    num_steps = options.num_steps(num_samples)
    if num_samples > _WHOLE:
        return _large_epoch(num_samples, options)
    generator = options.generator()
    if options.shuffle_samples:
        order = generator.permutation(num_samples)
    else:
        order = options.file_order(num_samples, generator)
    shape = num_steps, options.num_accelerators, options.batch_size
    return EpochPlan(order[: math.prod(shape)].reshape(shape))


def _large_epoch(num_samples: int, options: PlanOptions) -> EpochPlan:
    """Return the plan of `plan_epoch` for the accelerators that many samples are planned for."""
    own, batch_size = options.accelerators(num_samples), options.batch_size
    shape = options.num_steps(num_samples), len(own), batch_size
    samples = np.empty(shape, np.int64)
    row = options.num_accelerators * batch_size
    within = np.arange(own.start * batch_size, own.stop * batch_size).reshape(shape[1:])
    each = max(1, _PIECE // max(1, within.size))
    for step in range(0, len(samples), each):
        steps = np.arange(step, min(step + each, len(samples)))[:, None, None]
        samples[step : step + each] = options.order(steps * row + within, num_samples)
    return EpochPlan(samples, first=own.start)


def plan_streams(num_samples: int, options: PlanOptions) -> EpochPlan:
    """Return the plan for files that are read from end to end by workers that make whole batches.

    Files stand in shuffled order. Each worker of an accelerator reads its own part of that
    sequence, a stream, and gives every num_streams-th batch: step s comes from stream
    s % num_streams. Behind each stream stands a shuffle buffer.
    """
    num_steps, batch_size = options.num_steps(num_samples), options.batch_size
    own, generator = options.accelerators(num_samples), options.generator()
    is_large = num_samples > _WHOLE
    if is_large:
        sequence = _large_sequence(num_samples, options)
    else:
        sequence = options.file_order(num_samples, generator)
    samples = np.empty((num_steps, len(own), batch_size), np.int64)
    fetched = np.empty((num_steps, len(own), 2), np.int64)
    start = 0
    for place, accelerator in enumerate(own):
        if is_large:  # what the others draw is not known here
            generator = np.random.default_rng((options.seed, options.epoch, accelerator))
        for stream in range(options.num_streams):
            steps = slice(stream, None, options.num_streams)
            num_batches = len(range(num_steps)[steps])
            if num_batches == 0:
                continue
            part = sequence[start : start + num_batches * batch_size]
            order = np.arange(len(part))
            if options.shuffle_samples:
                order = _through_buffer(len(part), options.shuffle_size, generator)
            ends = start + _num_read(order, batch_size)
            samples[steps, place] = part[order].reshape(-1, batch_size)
            fetched[steps, place, 1] = ends
            fetched[steps, place, 0] = np.append(start, ends[:-1])
            start += len(part)
    return EpochPlan(samples, sequence, fetched, first=own.start)


def _large_sequence(num_samples: int, options: PlanOptions) -> Samples:
    """Return the part of the sequence that is read by the accelerators of a large plan."""
    own = options.accelerators(num_samples)
    each = options.num_steps(num_samples) * options.batch_size
    sequence = np.arange(own.start * each, own.stop * each)
    for begin in range(0, len(sequence), _PIECE):
        piece = sequence[begin : begin + _PIECE]
        piece[:] = options.order(piece, num_samples, by_file=True)
    return sequence


def plan_interleaved(num_samples: int, options: PlanOptions) -> EpochPlan:
    """Return the plan of tf.data: each batch is read by all streams of an accelerator.

    Files stand in shuffled order. Each stream reads its own part of that sequence from end to end,
    and the streams give a sample each in turn. One shuffle buffer stands behind all of them, and
    batches are cut from its output (tf.data: parallel interleave with block length 1, shuffle,
    batch).
    """
    num_steps, batch_size = options.num_steps(num_samples), options.batch_size
    num_accelerators, num_streams = options.num_accelerators, options.num_streams
    generator = options.generator()
    sequence = options.file_order(num_samples, generator)
    shape = num_steps, num_accelerators
    samples = np.empty((*shape, batch_size), np.int64)
    stream_of = np.empty((*shape, batch_size), np.int16)
    fetched = np.empty((*shape, 2), np.int64)
    each = num_steps * batch_size  # samples of an accelerator
    lengths = ceil_div(each - np.arange(num_streams), num_streams)
    begins = np.append(0, np.cumsum(lengths)[:-1])
    starts = np.arange(num_accelerators)[:, None] * each + begins
    places, turns = np.divmod(np.arange(each), num_streams)
    order = np.arange(each)
    for accelerator in range(num_accelerators):
        merged = sequence[starts[accelerator, turns] + places]
        if options.shuffle_samples:
            order = _through_buffer(each, options.shuffle_size, generator)
        ends = _num_read(order, batch_size)
        samples[:, accelerator] = merged[order].reshape(num_steps, batch_size)
        stream_of[:, accelerator] = turns[order].reshape(num_steps, batch_size)
        fetched[:, accelerator, 1] = ends
        fetched[:, accelerator, 0] = np.append(0, ends[:-1])
    return EpochPlan(samples, sequence, fetched, stream_of, starts)


def _num_read(order: Samples, batch_size: int) -> Samples:
    """Return how many items of a stream are read when each batch is complete, int64 (batches,).

    `order` is the order in which the items leave the shuffle buffer.
    """
    ends: Samples = np.maximum.accumulate(order)[batch_size - 1 :: batch_size] + 1
    return ends


def _through_buffer(num: int, size: int, generator: np.random.Generator) -> Samples:
    """Return the order in which items 0..num-1 leave a shuffle buffer (tf.data's shuffle).

    The buffer holds `size` items. Each draw takes the item in a random slot, which the next item
    then fills: after draw t it holds item t + size, and the next draw of that slot takes this item.
    The first draw of slot i takes item i. So the order follows from the slots, without a loop.
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


def permuted(numbers: Samples, size: int, seed: int) -> Samples:
    """Return where a random permutation of 0..size-1 puts each number, any shape.

    Different seeds make different permutations. Each takes about 0.2 µs a number.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    found = _permuted(numbers.ravel().astype(np.uint64), half, seed)
    # The network permutes the numbers below a power of four. Those that leave 0..size-1 go through
    # it again until they are back (cycle walking), which keeps it a permutation.
    out = np.flatnonzero(found >= size)
    while len(out):
        found[out] = _permuted(found[out], half, seed)
        out = out[found[out] >= size]
    result: Samples = found.astype(np.int64).reshape(numbers.shape)
    return result


def _permuted(numbers: NDArray[np.uint64], half: int, seed: int) -> NDArray[np.uint64]:
    """Permute the numbers of twice `half` bits."""
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = numbers >> bits, numbers & mask
    for number in range(_ROUNDS):
        mixed = hashed(seed, right.astype(np.int64), purpose=_PURPOSE + number)
        left, right = right, left ^ (mixed & mask)
    return left << bits | right
