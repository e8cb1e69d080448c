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
from typing import Literal

from dlemu.config.model import Workload
from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import EpochPlan
from dlemu.errors import RunError, WorkloadError
from dlemu.findings import note
from dlemu.formats import format_of
from dlemu.loaders import Batch, Loader
from dlemu.loaders.dali.device import DeviceReader
from dlemu.loaders.dali.pipelines import (
    INPUT,
    DaliReads,
    Pipeline,
    Settings,
    collate,
    dali,
    in_one_line,
    take_samples,
)
from dlemu.loaders.source import Source
from dlemu.loaders.steps import Takers, describe
from dlemu.loaders.threads import ThreadsLoader
from dlemu.storage.counted import PathBytes
from dlemu.storage.gpu import cuda
from dlemu.storage.gpu.cufile import Driver, availability

Way = Literal["numpy", "numpy through cuFile", "pictures", "tfrecord", "host memory", "GPU memory"]
"""Who reads: DALI's readers, or ours into host memory, or ours into the GPU's through cuFile."""


class DaliLoader(Loader):
    """Reads batches through DALI; see `dlemu.loaders.Loader`."""

    def __init__(self, dataset: Dataset, *, accelerators: range, keep: int) -> None:
        self._source = Source.open(dataset, keep=keep)
        workload, folder = dataset.workload, dataset.folder
        gpus = find_gpus(workload)
        gds = workload.reader.gds if gpus else "off"
        why = None if gds == "off" else _why_through_host(dataset)
        if why is not None and gds == "require":
            raise WorkloadError(f"reader.gds=require: {why}; or set reader.gds=prefer")
        self.notes = () if why is None else (note("gds_through_host", error=why),)
        self._driver = Driver(folder, gds) if gds != "off" and why is None else None
        self.direct = self._source.direct or self._driver is not None
        self.way: Way = _choose(self._source, through_cufile=self._driver is not None)
        self._streams: list[DaliReads | _Fed] = []
        self._takers: Takers | None = None
        with warnings.catch_warnings():
            # Without a GPU it warns once; `find_gpus` has refused that where a GPU is wanted.
            warnings.simplefilter("ignore")
            dali.backend.check_cuda_runtime()
        try:
            for accelerator in accelerators:
                gpu = gpus[accelerator % len(gpus)] if gpus else None
                self._streams.append(self._open_stream(accelerator, gpu))
        except BaseException:
            self.close()
            raise

    @classmethod
    def check(cls, workload: Workload) -> None:
        find_gpus(workload)

    def path_bytes(self) -> PathBytes:
        host = PathBytes(host=sum(stream.host_bytes for stream in self._streams))
        return host if self._driver is None else host + self._driver.path_bytes()

    def epoch(self, epoch: int, plan: EpochPlan) -> Iterator[list[Batch]]:
        # A job builds its pipeline before its loop begins, so it is no part of the first step.
        return self._steps(plan, [stream.batches(epoch, plan) for stream in self._streams])

    def _steps(self, plan: EpochPlan, streams: list[Iterator[Batch]]) -> Iterator[list[Batch]]:
        source = self._source
        self._takers = Takers(
            streams, when_asked=source.reads_when_asked, launch=source.launch_seconds
        )
        try:
            yield from self._takers.steps(plan.num_steps)
            if self._source.workload.reader.gds == "require":
                self.path_bytes()
        finally:
            self._end_epoch()

    def waiting_for(self) -> str:
        return describe([line for stream in self._streams for line in stream.busy()])

    def close(self) -> None:
        self._end_epoch()
        while self._streams:
            self._streams.pop(0).close()
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _end_epoch(self) -> None:
        if self._takers is not None:
            self._takers.end()
            self._takers = None

    def _open_stream(self, accelerator: int, gpu: int | None) -> "DaliReads | _Fed":
        source, reader = self._source, self._source.workload.reader
        resize = source.workload.dataset.record_length_bytes_resize
        settings = Settings(reader.batch_size, reader.num_streams, gpu, resize)
        feed: _FromHost | DeviceReader
        match self.way:
            case "host memory":
                settings = replace(settings, resize=None)  # our readers cut and pad
                feed = _FromHost(source, accelerator)
            case "GPU memory":
                assert self._driver is not None and gpu is not None
                feed = DeviceReader(source, self._driver, gpu, accelerator)
            case way:
                cufile = way == "numpy through cuFile"
                return DaliReads(source, accelerator, settings, through_cufile=cufile)
        return _Fed(source, feed, take_samples(settings, on_gpu=self.way == "GPU memory"))


class _FromHost:
    """Feeds a pipeline with what the threads loader reads."""

    host_bytes = 0

    def __init__(self, source: Source, accelerator: int) -> None:
        self._when_asked = source.reads_when_asked
        accelerators = range(accelerator, accelerator + 1)
        self._loader = ThreadsLoader(source.dataset, accelerators=accelerators, keep=1)
        self.busy, self.close = self._loader.busy, self._loader.close

    def batches(self, epoch: int, plan: EpochPlan) -> Iterator[tuple[Batch, Sequence[object]]]:
        with self._loader.read(epoch, plan) as running:
            for step in range(plan.num_steps):
                if self._when_asked:
                    self._loader.begin(step)
                [batch] = running.take(step)
                assert batch.arrays is not None
                self.host_bytes += batch.num_bytes
                yield batch, batch.arrays
                # A taker advances this generator when training has begun with the step.
                if not self._when_asked:
                    self._loader.begin(step)


class _Fed:
    """Feeds a pipeline, and takes what comes out of it, batch by batch."""

    def __init__(self, source: Source, feed: _FromHost | DeviceReader, pipeline: Pipeline) -> None:
        self._source, self._feed, self._pipeline = source, feed, pipeline
        self.busy, self.close = feed.busy, feed.close

    @property
    def host_bytes(self) -> int:
        return self._feed.host_bytes

    def batches(self, epoch: int, plan: EpochPlan) -> Iterator[Batch]:
        with closing(self._feed.batches(epoch, plan)) as batches:  # type: ignore[type-var]
            for batch, samples in batches:
                begin = perf_counter()
                with in_one_line(self._source.dataset.folder):
                    self._pipeline.feed_input(INPUT, samples)
                    self._pipeline.schedule_run()
                    payload, _ = self._pipeline.outputs()  # waits for the GPU, too
                ready = perf_counter()
                data, lengths = collate(payload) if self._source.keep else (None, None)
                yield replace(
                    batch,
                    ready=ready,
                    hand_over_seconds=batch.hand_over_seconds + ready - begin,
                    data=data,
                    lengths=lengths,
                )


def find_gpus(workload: Workload) -> range:
    """Return the GPUs whose memory batches are to end in; none if that is host memory."""
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
    reader, layout = dataset.workload.reader, dataset.layout
    if reader.decode == "library":
        return "reader.decode=library parses in host memory"
    if reader.check_crc:
        return "reader.check_crc sums up in host memory"
    if reader.preprocess_time.mean > 0:
        return "reader.preprocess_time is spent by readers into host memory"
    if layout.samples_per_file > 1 and layout.format in ("npz", "npy"):
        return f"the samples of a {layout.format} file of several are taken apart in host memory"
    assert reader.gds != "off"
    found = availability(dataset.folder, gds=reader.gds)
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
    if layout.samples_per_file == 1 and format_of(layout).is_picture and not source.direct:
        return "pictures"
    # DALI's TFRecord reader accepts use_o_direct, but reads through the page cache all the same.
    # Its reader of other files does not have it.
    if layout.format != "tfrecord" or source.direct or layout.counts is not None:
        return "host memory"
    indexed = (source.dataset.folder / layout.index_paths(0)[0]).exists()
    return "tfrecord" if indexed else "host memory"
