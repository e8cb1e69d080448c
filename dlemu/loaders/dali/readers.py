"""Batches through DALI's own readers of .npy and TFRecord files, in the plan's order.

DALI takes its list of files when it builds a pipeline, so each epoch, with its own order, has a
pipeline of its own. Building one takes 2 ms and 0.5 µs for each file, in the epoch's first step.
"""

import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Samples
from dlemu.dataset.plan import EpochPlan
from dlemu.errors import DatasetError
from dlemu.formats.tfrecord import read_index
from dlemu.loaders import Batch
from dlemu.loaders.dali.pipelines import (
    Pipeline,
    Settings,
    collate,
    in_one_line,
    read_numpy,
    read_tfrecord,
)
from dlemu.loaders.source import Source
from dlemu.storage.regular import read_regular

_INDEXES_KEPT = 64
"""Index files that are kept in memory: one for each stream that is within a file."""


class DaliReads:
    """The batches of one accelerator."""

    def __init__(
        self, source: Source, accelerator: int, settings: Settings, *, through_cufile: bool
    ) -> None:
        self.host_bytes = 0
        """Bytes that were read into host memory so far."""
        self._source, self._layout = source, source.layout
        self._accelerator, self._settings = accelerator, settings
        self._through_cufile = through_cufile
        self._index = lru_cache(_INDEXES_KEPT)(self._read_index)
        self._awaited: tuple[int, float] | None = None

    def batches(self, epoch: int, plan: EpochPlan) -> Iterator[Batch]:
        """Yield an epoch's batches, step by step.

        DALI does not separate reading from parsing and copying: `read_seconds` is all the time
        that DALI was waited for.
        """
        order: Samples = plan.samples[:, self._accelerator - plan.first]
        depth = min(max(1, self._source.workload.reader.prefetch_size), plan.num_steps)
        wanted = self._layout.sizes(order.ravel()).reshape(order.shape)
        folder, takes_early = self._source.dataset.folder, self._source.takes_early
        with in_one_line(folder):
            pipeline, framed = self._open(order, depth)
            pipeline.schedule_run()  # as many batches as `depth` says
        for step, samples in enumerate(order):
            begin = perf_counter()
            self._awaited = step, begin
            with in_one_line(folder):
                payload, lengths = pipeline.outputs()
                if takes_early and step + depth < plan.num_steps:
                    pipeline.schedule_run()
            ready = perf_counter()
            self._awaited = None
            if self._source.dataset.known_places:
                self._check(samples, np.array(lengths.as_array())[:, 0], wanted[step])
            num_bytes = self._num_bytes(samples) if framed is None else int(framed[step].sum())
            if self._through_cufile and step == plan.num_steps - 1:
                # After its last file, DALI's GPU reader starts over and reads a batch in vain.
                num_bytes += self._num_bytes(order[0])
            if not self._through_cufile:
                self.host_bytes += num_bytes
            data, kept_bytes = collate(payload) if self._source.keep else (None, None)
            yield Batch(
                epoch=epoch,
                step=step,
                accelerator=self._accelerator,
                samples=samples,
                num_bytes=num_bytes,
                ready=ready,
                read_seconds=ready - begin,
                data=data,
                lengths=kept_bytes,
            )
            # A taker advances this generator when training has begun with the step.
            if not takes_early and step + depth < plan.num_steps:
                with in_one_line(folder):
                    pipeline.schedule_run()

    def busy(self) -> list[tuple[float, str]]:
        """Return since when (perf_counter) DALI is waited for, and how to say it; none if not."""
        awaited = self._awaited  # another thread may set it
        if awaited is None:
            return []
        step, since = awaited
        line = f"accelerator {self._accelerator} waits for DALI to read the batch of step {step}"
        return [(since, line)]

    def close(self) -> None:
        """Do nothing: each epoch has its own pipeline."""

    def _open(self, order: Samples, depth: int) -> tuple[Pipeline, NDArray[np.int64] | None]:
        """Return a pipeline of samples; for TFRecord also their framed bytes (steps, batch)."""
        if self._layout.format == "tfrecord":
            return self._open_records(order, depth)
        paths = [self._source.path(file) for file in order.ravel().tolist()]
        way = {"direct": self._source.direct, "through_cufile": self._through_cufile}
        return read_numpy(self._settings, paths, depth=depth, **way), None

    def _open_records(
        self, order: Samples, depth: int
    ) -> tuple[Pipeline, NDArray[np.int64] | None]:
        """Open records: whole files by the dataset's own index, parts by an index made for them."""
        paths, indexes = [], []
        framed: list[int] = []
        per_file = self._layout.samples_per_file
        whole = list(range(per_file))
        files, within = np.divmod(order.ravel(), per_file)
        places = zip(files.tolist(), within.tolist(), strict=True)
        with tempfile.TemporaryDirectory(prefix="dlemu-index-") as scratch:
            for number, (file, run) in enumerate(groupby(places, itemgetter(0))):
                paths.append(self._source.path(file))
                indexes.append(str(self._source.dataset.folder / self._layout.index_paths(file)[0]))
                if per_file == 1:
                    continue
                chosen = [place for _, place in run]
                lines, sizes = self._index(file)
                framed += [sizes[place] for place in chosen]
                if chosen != whole:
                    indexes[-1] = f"{scratch}/{number}.idx"
                    Path(indexes[-1]).write_bytes(b"".join(lines[place] for place in chosen))
            pipeline = read_tfrecord(self._settings, paths, indexes, depth=depth)
        return pipeline, np.array(framed).reshape(order.shape) if framed else None

    def _read_index(self, file: int) -> tuple[list[bytes], list[int]]:
        """Return the lines of a file's index, and each record's framed bytes."""
        path = self._source.dataset.folder / self._layout.index_paths(file)[0]
        try:
            data, file_bytes = read_regular(path), os.stat(self._source.path(file)).st_size
        except OSError as error:
            raise DatasetError(f"{error.filename} cannot be read: {error.strerror}") from None
        try:
            records = read_index(
                data, file_bytes=file_bytes, num_samples=self._layout.samples_per_file
            )
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}; dlemu verify lists what else is") from None
        lines = [f"{offset} {num_bytes}\n".encode() for offset, num_bytes in records]
        return lines, [num_bytes for _, num_bytes in records]

    def _num_bytes(self, samples: Samples) -> int:
        """Return the bytes of files of one sample; DALI reads whole files."""
        return sum(os.stat(self._source.path(file)).st_size for file in samples.tolist())

    def _check(self, samples: Samples, got: NDArray[np.int64], wanted: Samples) -> None:
        for index in np.flatnonzero(got != wanted)[:1].tolist():
            path = self._source.path(int(self._layout.file_of(samples)[index]))
            raise DatasetError(
                f"{path}: sample {samples[index]} has {got[index]} bytes, {wanted[index]} are "
                f"wanted; dlemu verify lists what is damaged"
            )
