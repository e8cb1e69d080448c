"""DALI's pipelines: through its own readers, or for samples that are handed to it.

Each gives two outputs: the samples as bytes, cut or padded where the workload says so, and how many
bytes each had before.
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
"""Any, for it has types for half of what is used here, and none where it is not installed."""
Pipeline = Any

INPUT = "samples"
"""Name under which samples are handed to a pipeline."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all pipelines of one accelerator have in common."""

    batch_size: int
    num_threads: int
    gpu: int | None
    """GPU on which the batches end; None: in host memory."""
    resize: int | None
    """Bytes that training gets of a sample; None: all."""


def read_numpy(
    settings: Settings, paths: Sequence[str], *, depth: int, direct: bool, through_cufile: bool
) -> Pipeline:
    """Return a pipeline of .npy files, a sample each; it makes `depth` batches ahead.

    DALI takes the paths when a pipeline is built, and no others later.
    """
    with _pipeline(settings, depth) as pipeline:
        samples = dali.fn.readers.numpy(
            files=list(paths),
            shard_id=0,
            num_shards=1,
            device="gpu" if through_cufile else "cpu",
            # It has O_DIRECT only without mmap; cuFile always has it.
            dont_use_mmap=direct and not through_cufile,
            use_o_direct=direct and not through_cufile,
        )
        _set_outputs(pipeline, samples, settings)
    return pipeline


def read_tfrecord(
    settings: Settings, paths: Sequence[str], indexes: Sequence[str], *, depth: int
) -> Pipeline:
    """Return a pipeline of the records that the index files name, in their order.

    A path may come again with an index of other records, so that any order can be had.
    """
    with _pipeline(settings, depth) as pipeline:
        features = dali.fn.readers.tfrecord(
            path=list(paths),
            index_path=list(indexes),
            features={"image": dali.tfrecord.FixedLenFeature([], dali.tfrecord.string, "")},
            shard_id=0,
            num_shards=1,
        )
        _set_outputs(pipeline, features["image"], settings)
    return pipeline


def take_samples(settings: Settings, *, on_gpu: bool) -> Pipeline:
    """Return a pipeline that is fed a batch at a time (`feed_input`, to INPUT).

    DALI copies it, within the GPU's memory if it is `on_gpu`. It takes without a copy only samples
    that lie one directly behind the other, and must not be given such and others in turn.
    """
    with _pipeline(settings, depth=1) as pipeline:
        samples = dali.fn.external_source(
            name=INPUT,
            device="gpu" if on_gpu else "cpu",
            dtype=dali.types.UINT8,
            ndim=1,
        )
        _set_outputs(pipeline, samples, settings)
    return pipeline


def to_host(samples: Any) -> list[NDArray[np.uint8]]:
    """Return copies of a pipeline's samples."""
    on_host = samples.as_cpu()
    return [np.array(on_host[index]) for index in range(len(on_host))]


def collate(
    samples: Sequence[NDArray[np.uint8]],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return samples as one array (batch, longest), padded with zeros, and the bytes of each."""
    lengths = np.array([len(sample) for sample in samples], np.int64)
    data = np.zeros((len(samples), int(lengths.max())), np.uint8)
    for row, sample in zip(data, samples, strict=True):
        row[: len(sample)] = sample
    return data, lengths


@contextmanager
def in_one_line(folder: Path) -> Iterator[None]:
    """Raise what DALI says of files below `folder` as DatasetError, of all else as RunError."""
    try:
        yield
    except RuntimeError as error:
        # Many lines tell which operator failed and where it was defined; the cause comes last.
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
