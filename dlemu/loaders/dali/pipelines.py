"""DALI's pipelines: with its own readers, or for samples that are handed to it.

Each has two outputs: the samples as bytes, cut or padded if the workload says so, and the bytes
that each sample had before that.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import DatasetError, RunError

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
            raise DatasetError(f"{text}; dlemu verify lists what is damaged") from None
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
