"""Samples read through cuFile straight into a GPU's memory, for one accelerator.

1. extents    A batch is planned as extents: runs of its samples that lie together in a file.
2. threads    read_threads x io_depth threads each read an extent, in aligned pieces, into the
              batch's slot. Bytes that training does not get are read, too, into memory of no slot.
3. samples    DALI copies each sample from its place in the slot, within the GPU's memory.

Slots are registered with cuFile once. A slot is used again when its batch has been computed on.
"""

import os
import queue
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from time import perf_counter
from typing import NamedTuple

from dlemu.dataset.plan import EpochPlan
from dlemu.errors import VERIFY, DatasetError
from dlemu.formats import Places, format_of
from dlemu.loaders import Batch
from dlemu.loaders.source import Source, Task, sample_bytes
from dlemu.loaders.steps import CLOSE_SECONDS
from dlemu.storage.extents import UNDISTURBED
from dlemu.storage.files import cannot_open, direct_unit
from dlemu.storage.gpu.cuda import DeviceMemory, GpuContext
from dlemu.storage.gpu.cufile import DeviceBuffer, DeviceFile, Driver
from dlemu.units import PAGE_BYTES, round_up


class DeviceArray:
    """Bytes in GPU memory, with the interface by which DALI, CuPy and PyTorch take arrays."""

    def __init__(self, address: int, num_bytes: int) -> None:
        array = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, False)}
        self.__cuda_array_interface__ = array | {"version": 3, "strides": None}


class Extent(NamedTuple):
    """Bytes of a file that one thread reads.

    `start` is a multiple of what O_DIRECT takes, mostly 4096. Bytes from `start` to `keep` go to
    offset `at` of the slot; those from `keep` to `stop` are dropped.
    """

    file: int
    start: int
    keep: int
    stop: int
    at: int


@dataclass(frozen=True)
class BatchLayout:
    """Where a batch goes in its slot."""

    extents: list[Extent]
    begins: list[int]
    """Offset in the slot of each sample, in the batch's order."""
    lengths: list[int]
    """Bytes that are kept of each sample."""


def spread_batch(
    files: Sequence[int],
    offsets: Sequence[int],
    lengths: Sequence[int],
    *,
    most: int | None,
    unit: int = PAGE_BYTES,
) -> BatchLayout:
    """Return the extents of a batch, by each sample's file, offset and length.

    At most `most` bytes of a sample are kept; None: all. Samples that follow each other in a file
    with a gap of less than `unit`, of which extents begin at a multiple, share an extent.
    """
    extents: list[Extent] = []
    begins, kept = [0] * len(files), list(lengths)
    end = 0  # of the part of the slot that is used
    for index in sorted(range(len(files)), key=lambda index: (files[index], offsets[index])):
        file, offset, length = files[index], offsets[index], lengths[index]
        stop = offset + length
        kept[index] = length if most is None else min(length, most)
        last = extents[-1] if extents else None
        if last and last.file == file and last.keep == last.stop <= offset < last.stop + unit:
            extents[-1] = last = last._replace(keep=offset + kept[index], stop=stop)
        else:
            last = Extent(file, offset - offset % unit, offset + kept[index], stop, end)
            extents.append(last)
        begins[index] = last.at + offset - last.start
        end = last.at + round_up(last.keep - last.start, unit)
    return BatchLayout(extents, begins, kept)


_Begun = tuple[Task, BatchLayout, list[Future[tuple[int, float]]]]
"""A batch that is being read."""


class DeviceReader:
    """Reads the batches of one accelerator; the calling thread only waits."""

    def __init__(self, source: Source, driver: Driver, gpu: int, accelerator: int) -> None:
        workload, layout, reader = source.workload, source.layout, source.workload.reader
        self.host_bytes = 0
        """Bytes that were read into host memory so far: headers of foreign files."""
        self._source, self._driver, self._accelerator = source, driver, accelerator
        self._format = format_of(layout)
        self._places = lru_cache(256)(self._find_places)
        one = layout.samples_per_file == 1
        self._unit = self._asked_unit()
        asked = reader.piece_bytes if one else reader.transfer_size
        self._piece_bytes = round_up(asked, self._unit)
        # From a file of one sample, only what training gets is kept.
        self._most = workload.dataset.record_length_bytes_resize if one else None
        whole = workload.with_keys({"dataset.record_length_bytes_resize": None})
        room = sample_bytes(replace(source, dataset=replace(source.dataset, workload=whole)))
        if self._most is not None:
            room = min(room, self._most)
        # One unit more at each end, and one between samples.
        self._slot_bytes = reader.batch_size * (round_up(room, self._unit) + 3 * self._unit)
        self._num_slots = workload.batches_in_flight
        num_threads = reader.num_streams * reader.io_depth
        nowhere = self._num_slots * self._slot_bytes
        self._gpu = GpuContext(gpu)
        self._memory = DeviceMemory(nowhere + num_threads * self._piece_bytes)
        self._buffer = DeviceBuffer(driver, self._memory.address, self._memory.num_bytes)
        self._nowhere: queue.SimpleQueue[int] = queue.SimpleQueue()
        for thread in range(num_threads):
            self._nowhere.put(nowhere + thread * self._piece_bytes)
        self._threads = ThreadPoolExecutor(num_threads, "dlemu cufile", self._gpu.use)
        self._under_way: dict[int, float] = {}
        self._futures: set[Future[tuple[int, float]]] = set()

    def batches(self, epoch: int, plan: EpochPlan) -> Iterator[tuple[Batch, Sequence[DeviceArray]]]:
        """Yield an epoch's batches; the arrays are valid while training computes on them."""
        tasks = self._source.tasks(epoch, plan, self._accelerator)
        most = max(1, self._source.workload.reader.batches_ahead)
        begun: deque[_Begun] = deque()
        try:
            for step in range(plan.num_steps):
                begun.extend(self._begin(task) for task in islice(tasks, most - len(begun)))
                task, spread, futures = begun.popleft()
                costs = [future.result() for future in futures]
                if self._source.takes_early:  # the loop has already asked for one more
                    begun.extend(self._begin(task) for task in islice(tasks, most - len(begun)))
                self._futures.difference_update(futures)
                base = self._memory.address + step % self._num_slots * self._slot_bytes
                arrays = [
                    DeviceArray(base + begin, length)
                    for begin, length in zip(spread.begins, spread.lengths, strict=True)
                ]
                batch = Batch(
                    epoch=epoch,
                    step=step,
                    accelerator=self._accelerator,
                    samples=task.samples,
                    num_bytes=sum(num_bytes for num_bytes, _ in costs),
                    ready=perf_counter(),
                    read_seconds=sum(seconds for _, seconds in costs),
                )
                yield batch, arrays
        finally:
            self._give_up()

    def busy(self) -> list[tuple[float, str]]:
        """Return since when (perf_counter) each file is being read, and how to say it."""
        path = self._source.layout.path
        return [
            (since, f"accelerator {self._accelerator} reads {path(file)} through cuFile")
            for file, since in list(self._under_way.items())
        ]

    def close(self) -> None:
        """End the threads and free the memory; keep it if a read hangs that may write to it."""
        if self._give_up():
            self._threads.shutdown()
            self._gpu.use()
            self._buffer.close()
            self._memory.close()
            self._gpu.close()

    def _asked_unit(self) -> int:
        """Return the bytes of which cuFile reads multiples, by the first file."""
        path = self._source.path(0)
        try:
            return direct_unit(path) or PAGE_BYTES
        except OSError as error:
            raise cannot_open(path, error) from None

    def _give_up(self) -> bool:
        """Cancel reads that have not begun and wait for the others; return False if one hangs."""
        for future in self._futures:
            future.cancel()
        self._futures = wait(self._futures, CLOSE_SECONDS).not_done
        return not self._futures

    def _begin(self, task: Task) -> _Begun:
        """Start reading a batch into its slot."""
        layout = self._source.layout
        files = layout.file_of(task.samples).tolist()
        if task.places is not None:
            offsets, lengths, sizes = task.places.tolist()
        else:
            places = layout.place_of(task.samples).tolist()
            found = [self._places(file) for file in files]
            sizes = [num_bytes for _, num_bytes in found]
            offsets, lengths = (
                [int(bounds[place]) for bounds, place in zip(each, places, strict=True)]
                for each in ([at.offsets for at, _ in found], [at.lengths for at, _ in found])
            )
        spread = spread_batch(files, offsets, lengths, most=self._most, unit=self._unit)
        last = spread.extents[-1]
        if last.at + round_up(last.keep - last.start, self._unit) > self._slot_bytes:
            raise DatasetError(
                f"{self._source.path(last.file)}: the batch of step {task.step} is larger than its "
                f"files told",
                remedy=VERIFY,
            )
        slot = task.step % self._num_slots * self._slot_bytes
        file_bytes = dict(zip(files, sizes, strict=True))
        futures = [
            self._threads.submit(self._read, extent, slot, file_bytes[extent.file])
            for extent in spread.extents
        ]
        self._futures.update(futures)
        return task, spread, futures

    def _read(self, extent: Extent, slot: int, file_bytes: int) -> tuple[int, float]:
        """Read an extent of a file of `file_bytes`; return its bytes, and the seconds."""
        begin = perf_counter()
        self._under_way[extent.file] = begin
        nowhere = self._nowhere.get()
        path = self._source.path(extent.file)
        at = extent.start
        try:
            with DeviceFile(self._driver, path, unit=self._unit) as file:
                found = os.stat(path).st_size
                if found != file_bytes:
                    raise DatasetError(
                        f"{path} holds {found} bytes, {file_bytes} are wanted",
                        remedy=VERIFY,
                    )
                while at < extent.stop:
                    kept = at < extent.keep
                    part = round_up((extent.keep if kept else extent.stop) - at, self._unit)
                    into = slot + extent.at + at - extent.start if kept else nowhere
                    got = file.read(self._buffer, min(part, self._piece_bytes), at, into)
                    if got == 0:
                        raise DatasetError(
                            f"{path} ended at byte {at} while it was being read",
                            remedy=UNDISTURBED,
                        )
                    at += got
        except FileNotFoundError as error:
            raise cannot_open(path, error) from None
        finally:
            self._nowhere.put(nowhere)
            self._under_way.pop(extent.file, None)
        return at - extent.start, perf_counter() - begin

    def _find_places(self, file: int) -> tuple[Places, int]:
        """Return where a file's samples lie, and its bytes."""
        layout = self._source.layout
        if self._source.dataset.known_places:
            sizes = layout.sizes(layout.samples_of(file))
            places = self._format.places(sizes, element_bytes=layout.element_bytes)
            return places, int(self._format.file_bytes(sizes[None])[0])
        path = self._source.path(file)
        try:
            with open(path, "rb", buffering=0) as opened:

                def read(offset: int, length: int) -> bytes:
                    data = os.pread(opened.fileno(), length, offset)
                    self.host_bytes += len(data)
                    return data

                num_bytes = os.stat(path).st_size
                places = self._format.locate(read, num_bytes, num_samples=layout.in_file(file))
                return places, num_bytes
        except FileNotFoundError as error:
            raise cannot_open(path, error) from None
        except DatasetError as error:
            raise error.within(path, VERIFY) from None
