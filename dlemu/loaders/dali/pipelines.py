"""DALI's pipelines: with its own readers, or for samples that are handed to it.

Each has two outputs: the samples as bytes, cut or padded if the workload says so, and the bytes
that each sample had before that.

`DaliReads` reads .npy and TFRecord files and pictures by DALI's own readers, in the plan's order.
DALI takes its list of files when it builds a pipeline, so each epoch, with its own order, has a
pipeline of its own. Building one takes 2 ms and 0.5 µs for each file; one with the GPU's decoder of
pictures 2.4 s on an H100 (docs/fidelity.md). That is before the first step.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Samples
from dlemu.dataset.plan import EpochPlan
from dlemu.errors import VERIFY, DatasetError, RunError, system_line
from dlemu.formats import format_of
from dlemu.formats.tfrecord import read_index
from dlemu.loaders import Batch
from dlemu.loaders.source import Source, square_side
from dlemu.storage.files import read_regular

dali: Any = import_module("nvidia.dali")
"""Typed as Any: DALI has types for half of what is used here, and may not be installed."""
Pipeline = Any

INPUT = "samples"
"""Name under which samples are handed to a pipeline."""


@dataclass(frozen=True)
class Settings:
    """Settings that all pipelines of one accelerator share."""

    batch_size: int
    num_threads: int
    gpu: int | None
    """GPU whose memory the batches end in; None: host memory."""
    resize: int | None
    """Bytes that training gets of a sample; None: all."""


def read_numpy(
    settings: Settings, paths: Sequence[str], *, depth: int, direct: bool, through_cufile: bool
) -> Pipeline:
    """Return a pipeline of .npy files of one sample; it makes `depth` batches ahead."""
    with _pipeline(settings, depth) as pipeline:
        samples = dali.fn.readers.numpy(
            files=list(paths),
            device="gpu" if through_cufile else "cpu",
            # The reader takes O_DIRECT only without mmap; through cuFile it always uses it.
            dont_use_mmap=direct and not through_cufile,
            use_o_direct=direct and not through_cufile,
        )
        _set_outputs(pipeline, samples, settings)
    return pipeline


def read_pictures(
    settings: Settings, paths: Sequence[str], *, depth: int, decodes: bool
) -> Pipeline:
    """Return a pipeline of files, each a picture; where it `decodes`, a sample is its pixels.

    On a GPU, if batches end there: its hardware decodes a part, its cores and the host the rest.
    Where training gets the bytes of a square, a part of each is cut out at random and scaled to it.
    """
    side = square_side(settings.resize)
    with _pipeline(settings, depth) as pipeline:
        samples, _ = dali.fn.readers.file(files=list(paths))
        if decodes:
            device = "cpu" if settings.gpu is None else "mixed"
            samples = dali.fn.decoders.image(samples, device=device)
            if side is not None:
                samples = dali.fn.random_resized_crop(samples, size=[side, side])
                settings = replace(settings, resize=None)  # a square has the bytes that are wanted
        _set_outputs(pipeline, samples, settings)
    return pipeline


def read_tfrecord(
    settings: Settings, paths: Sequence[str], indexes: Sequence[str], *, depth: int
) -> Pipeline:
    """Return a pipeline of the records that the index files name, in their order.

    A path may be given several times, with an index of other records: so any order is possible.
    """
    with _pipeline(settings, depth) as pipeline:
        features = dali.fn.readers.tfrecord(
            path=list(paths),
            index_path=list(indexes),
            features={"image": dali.tfrecord.FixedLenFeature([], dali.tfrecord.string, "")},
        )
        _set_outputs(pipeline, features["image"], settings)
    return pipeline


def take_samples(settings: Settings, *, on_gpu: bool) -> Pipeline:
    """Return a pipeline that is fed a batch at a time (`feed_input`, to INPUT).

    DALI copies the batch, within the GPU's memory if it is `on_gpu`. It could take only adjacent
    samples without a copy, and one pipeline must not be given adjacent and other samples in turn.
    """
    with _pipeline(settings, depth=1) as pipeline:
        device = "gpu" if on_gpu else "cpu"
        samples = dali.fn.external_source(name=INPUT, device=device, dtype=dali.types.UINT8, ndim=1)
        _set_outputs(pipeline, samples, settings)
    return pipeline


def collate(payload: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return a pipeline's samples in host memory, padded with zeros, and the bytes of each.

    Their shapes: uint8 (batch, longest) and int64 (batch,).
    """
    on_host = payload.as_cpu()
    samples = [np.array(on_host[index]) for index in range(len(on_host))]
    lengths = np.array([len(sample) for sample in samples], np.int64)
    data = np.zeros((len(samples), int(lengths.max())), np.uint8)
    for row, sample in zip(data, samples, strict=True):
        row[: len(sample)] = sample
    return data, lengths


@contextmanager
def in_one_line(folder: Path) -> Iterator[None]:
    """Raise DALI's errors as DatasetError if they name a file below `folder`, else as RunError."""
    try:
        yield
    except RuntimeError as error:
        # DALI writes many lines: the operator, where it was defined, and last the cause.
        cause = str(error).rpartition("encountered:")[2].partition("C++ context")[0]
        short = " ".join(cause.rpartition('" failed: ')[2].split())
        text = f"DALI: {short[:300]}"
        if str(folder) in text:
            raise DatasetError(text, remedy=VERIFY) from None
        raise RunError(text) from None


@contextmanager
def _pipeline(settings: Settings, depth: int) -> Iterator[Pipeline]:
    """Yield a pipeline to be defined, then build it."""
    pipeline = dali.Pipeline(
        batch_size=settings.batch_size,
        num_threads=settings.num_threads,
        device_id=settings.gpu,
        prefetch_queue_depth=depth,
    )
    with pipeline:
        yield pipeline
    pipeline.build()


def _set_outputs(pipeline: Pipeline, samples: Any, settings: Settings) -> None:
    if settings.gpu is not None:
        samples = samples.gpu()
    samples = dali.fn.reinterpret(samples, dtype=dali.types.UINT8, shape=[-1])
    num_bytes = samples.shape(dtype=dali.types.INT64)
    if settings.resize is not None:
        samples = dali.fn.slice(
            samples, 0, settings.resize, axes=[0], out_of_bounds_policy="pad", fill_values=0
        )
    pipeline.set_outputs(samples, num_bytes)


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
        # dlemu's own pictures have no pixels.
        self._decodes = format_of(self._layout).is_picture and not source.dataset.known_places
        self._index = lru_cache(_INDEXES_KEPT)(self._read_index)
        self._awaited: tuple[int, float] | None = None

    def batches(self, epoch: int, plan: EpochPlan) -> Iterator[Batch]:
        """Build the epoch's pipeline; return its batches, step by step.

        DALI does not separate reading from parsing and copying: `read_seconds` is all the time
        that DALI was waited for, of each of its threads, as other loaders count it. Where it
        decodes pictures, which takes far longer, it is `decode_seconds`.
        """
        order: Samples = plan.samples[:, self._accelerator - plan.first]
        depth = min(max(1, self._source.workload.reader.prefetch_size), plan.num_steps)
        with in_one_line(self._source.dataset.folder):
            pipeline, framed = self._open(order, depth)
        return self._batches(epoch, plan, order, depth, pipeline, framed)

    def _batches(
        self,
        epoch: int,
        plan: EpochPlan,
        order: Samples,
        depth: int,
        pipeline: Pipeline,
        framed: NDArray[np.int64] | None,
    ) -> Iterator[Batch]:
        threads = self._source.workload.reader.num_streams
        wanted = self._layout.sizes(order.ravel()).reshape(order.shape)
        folder, takes_early = self._source.dataset.folder, self._source.takes_early
        with in_one_line(folder):
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
            waited = threads * (ready - begin)
            yield Batch(
                epoch=epoch,
                step=step,
                accelerator=self._accelerator,
                samples=samples,
                num_bytes=num_bytes,
                ready=ready,
                read_seconds=0.0 if self._decodes else waited,
                decode_seconds=waited if self._decodes else 0.0,
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
        if format_of(self._layout).is_picture:
            return read_pictures(self._settings, paths, depth=depth, decodes=self._decodes), None
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
            raise DatasetError(system_line(error, path)) from None
        try:
            records = read_index(
                data, file_bytes=file_bytes, num_samples=self._layout.samples_per_file
            )
        except DatasetError as error:
            raise error.within(path, VERIFY) from None
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
                "wanted",
                remedy=VERIFY,
            )
