"""Reading through NVIDIA's DALI, into host memory or a GPU's.

1. samples    They come in one of three ways: DALI reads the files itself; our own readers pass
              DALI the samples in host memory; or cuFile puts them into the GPU's memory.
2. pipelines  One for each accelerator cuts or pads the samples, on its GPU if it has one.
3. takers     One thread for each accelerator has the next batch made while the accelerator
              computes.

docs/gds.md says when which way is taken, and how DALI's own readers behave.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import Literal, Protocol, TypeVar

from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import EpochPlan
from dlemu.errors import RunError, WorkloadError
from dlemu.gpu import cuda
from dlemu.gpu.availability import availability
from dlemu.gpu.cufile import Driver
from dlemu.loaders import Batch
from dlemu.loaders.activity import describe
from dlemu.loaders.dali.pipelines import (
    INPUT,
    Pipeline,
    Settings,
    collate,
    dali,
    in_one_line,
    take_samples,
    to_host,
)
from dlemu.loaders.dali.readers import DaliReads
from dlemu.loaders.source import Source
from dlemu.loaders.steps import Takers
from dlemu.loaders.threads import ThreadsLoader
from dlemu.storage.path_bytes import PathBytes
from dlemu.workload.model import Workload

Way = Literal["numpy", "numpy through cuFile", "tfrecord", "host memory", "GPU memory"]
"""Who reads: DALI's readers, or ours into host memory, or ours into the GPU's through cuFile."""


_Made = TypeVar("_Made", covariant=True)


class _Stream(Protocol[_Made]):
    """One accelerator's batches; `host_bytes` of them were read into host memory so far."""

    @property
    def host_bytes(self) -> int: ...
    def batches(self, epoch: int, plan: EpochPlan) -> Iterator[_Made]: ...
    def busy(self) -> list[tuple[float, str]]: ...
    def close(self) -> None: ...


_Feed = _Stream[tuple[Batch, Sequence[object]]]
"""What a pipeline is fed with: each batch, and its samples where they were read to."""


class DaliLoader:
    """Reads batches through DALI; see `dlemu.loaders.Loader`.

    Attributes:
        way: how the samples come to DALI.
        notes: a line for each key that could not be met, to be shown.
    """

    def __init__(self, dataset: Dataset, *, accelerators: range, keep: int) -> None:
        self._source = Source.open(dataset, keep=keep)
        workload, folder = dataset.workload, dataset.folder
        gpus = find_gpus(workload)
        gds = workload.reader.gds if gpus else "off"
        why = None if gds == "off" else _why_through_host(dataset)
        if why is not None and gds == "require":
            raise WorkloadError(f"reader.gds=require: {why}; or set reader.gds=prefer")
        self.notes = () if why is None else (f"reader.gds=prefer, read through the host: {why}",)
        through_cufile = gds != "off" and why is None
        self.way: Way = _choose(self._source, through_cufile=through_cufile)
        self._driver = Driver(folder, gds) if gds != "off" and why is None else None
        self._streams: list[_Stream[Batch]] = []
        self._takers: Takers | None = None
        self._closed = False
        with warnings.catch_warnings():
            # Without a GPU it warns once; `find_gpus` has refused that where a GPU is wanted.
            warnings.simplefilter("ignore")
            dali.backend.check_cuda_runtime()
        try:
            for accelerator in accelerators:
                gpu = gpus[accelerator % len(gpus)] if gpus else None
                self._streams.append(self._open_stream(accelerator, gpu, bool(keep)))
        except BaseException:
            self.close()
            raise

    @property
    def direct(self) -> bool:
        return self._source.direct or self._driver is not None

    def path_bytes(self) -> PathBytes:
        """Return the bytes so far by the path that they took, by cuFile's own counters.

        Call it before `close`.

        Raises:
            RunError: bytes went through the host although reader.gds=require.
        """
        host = PathBytes(host=sum(stream.host_bytes for stream in self._streams))
        return host if self._driver is None else host + self._driver.path_bytes()

    def epoch(self, epoch: int, plan: EpochPlan) -> Iterator[list[Batch]]:
        streams = [stream.batches(epoch, plan) for stream in self._streams]
        self._takers = Takers(streams, when_asked=self._source.reads_when_asked)
        try:
            yield from self._takers.steps(plan.num_steps)
            if self._source.workload.reader.gds == "require":
                self.path_bytes()
        finally:
            self._end_epoch()

    def waiting_for(self) -> str:
        return describe([line for stream in self._streams for line in stream.busy()])

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        self._end_epoch()
        if self._closed:
            return
        self._closed = True
        for stream in self._streams:
            stream.close()
        if self._driver is not None:
            self._driver.close()

    def _end_epoch(self) -> None:
        if self._takers is not None:
            self._takers.end()
            self._takers = None

    def _open_stream(self, accelerator: int, gpu: int | None, keep: bool) -> _Stream[Batch]:
        workload = self._source.workload
        dataset, reader = workload.dataset, workload.reader
        settings = Settings(
            batch_size=reader.batch_size,
            num_threads=reader.num_streams,
            gpu=gpu,
            resize=dataset.record_length_bytes_resize,
        )
        match self.way:
            case "host memory":
                # Our readers cut and pad.
                settings = replace(settings, resize=None)
                feed: _Feed = _FromHost(self._source, accelerator)
                return _Fed(self._source, feed, take_samples(settings, on_gpu=False), keep=keep)
            case "GPU memory":
                from dlemu.loaders.dali.device import DeviceReader

                assert self._driver is not None and gpu is not None
                feed = DeviceReader(self._source, self._driver, gpu, accelerator)
                return _Fed(self._source, feed, take_samples(settings, on_gpu=True), keep=keep)
            case way:
                through_cufile = way == "numpy through cuFile"
                return DaliReads(
                    self._source, accelerator, settings, through_cufile=through_cufile, keep=keep
                )


class _FromHost:
    """Feeds a pipeline with what the threads loader reads."""

    host_bytes = 0

    def __init__(self, source: Source, accelerator: int) -> None:
        self._source = source
        self._loader = ThreadsLoader(
            source.dataset, accelerators=range(accelerator, accelerator + 1), keep=1
        )

    def batches(self, epoch: int, plan: EpochPlan) -> Iterator[tuple[Batch, Sequence[object]]]:
        with self._loader.read(epoch, plan) as running:
            for step in range(plan.num_steps):
                if self._source.reads_when_asked:
                    self._loader.begin(step)
                [batch] = running.take(step)
                assert batch.arrays is not None
                self.host_bytes += batch.num_bytes
                yield batch, batch.arrays
                # A taker advances this generator when training has begun with the step.
                if not self._source.reads_when_asked:
                    self._loader.begin(step)

    def busy(self) -> list[tuple[float, str]]:
        return self._loader.busy()

    def close(self) -> None:
        self._loader.close()


class _Fed:
    """Feeds a pipeline, and takes what comes out of it, batch by batch."""

    def __init__(self, source: Source, feed: _Feed, pipeline: Pipeline, *, keep: bool) -> None:
        self._folder = source.dataset.folder
        self._feed = feed
        self._pipeline = pipeline
        self._keep = keep

    @property
    def host_bytes(self) -> int:
        return self._feed.host_bytes

    def batches(self, epoch: int, plan: EpochPlan) -> Iterator[Batch]:
        with closing(self._feed.batches(epoch, plan)) as batches:  # type: ignore[type-var]
            for batch, samples in batches:
                begin = perf_counter()
                with in_one_line(self._folder):
                    self._pipeline.feed_input(INPUT, samples)
                    self._pipeline.schedule_run()
                    payload, _ = self._pipeline.outputs()  # waits for the GPU, too
                ready = perf_counter()
                data, lengths = collate(to_host(payload)) if self._keep else (None, None)
                yield replace(
                    batch,
                    ready=ready,
                    hand_over_seconds=batch.hand_over_seconds + ready - begin,
                    data=data,
                    lengths=lengths,
                )

    def busy(self) -> list[tuple[float, str]]:
        return self._feed.busy()

    def close(self) -> None:
        self._feed.close()


def find_gpus(workload: Workload) -> range:
    """Return the GPUs whose memory batches are to end in; none if that is host memory.

    Raises:
        WorkloadError: a GPU is wanted, and there is none that this DALI can use.
    """
    if workload.dali.device == "cpu":
        return range(0)
    try:
        num_gpus = cuda.num_gpus()
        serves = cuda.driver_version()
    except RunError as error:
        raise WorkloadError(f"dali.device=gpu: {error}; or set dali.device=cpu") from None
    needs = int(str(dali.__cuda_version__)[:2])
    if needs > serves[0]:
        raise WorkloadError(
            f"this DALI is made for CUDA {needs}, and the GPU's driver serves {serves[0]}."
            f"{serves[1]}: pip install 'dlemu[dali-cuda{serves[0]}]', or update the driver"
        )
    wanted = workload.dali.gpus_per_host or num_gpus
    if wanted > num_gpus:
        raise WorkloadError(f"dali.gpus_per_host must be at most {num_gpus} here, got {wanted}")
    return range(wanted)


def _why_through_host(dataset: Dataset) -> str | None:
    """Return why samples cannot be read straight into a GPU's memory; None: they can."""
    workload, layout, folder = dataset.workload, dataset.layout, dataset.folder
    reader = workload.reader
    if reader.decode == "library":
        return "reader.decode=library parses in host memory"
    if reader.check_crc:
        return "reader.check_crc sums up in host memory"
    if reader.preprocess_time.mean > 0:
        return "reader.preprocess_time is spent by readers into host memory"
    if layout.samples_per_file > 1 and layout.format in ("npz", "npy"):
        return f"the samples of a {layout.format} file of several are taken apart in host memory"
    assert reader.gds != "off"
    found = availability(folder, gds=reader.gds)
    return None if found.usable else found.why


def _choose(source: Source, *, through_cufile: bool) -> Way:
    """Return how samples come to DALI: through its own readers if these can do what is asked."""
    layout, reader = source.layout, source.workload.reader
    if through_cufile:
        return "numpy through cuFile" if layout.format == "npy" else "GPU memory"
    if reader.decode == "library" or reader.check_crc or reader.preprocess_time.mean > 0:
        return "host memory"
    if layout.format == "npy" and layout.samples_per_file == 1:
        return "numpy"
    # DALI's TFRecord reader accepts use_o_direct, but reads through the page cache all the same.
    indexed = (source.dataset.folder / layout.index_path(0)).exists()
    return (
        "tfrecord"
        if layout.format == "tfrecord" and indexed and not source.direct
        else "host memory"
    )
