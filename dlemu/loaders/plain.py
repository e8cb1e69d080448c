"""A worker that does what the worker of a plain DataLoader does (reader.cost=dataloader).

It opens each file by its name with the library that a Dataset would use, makes a tensor of each
sample, and collates a batch into fresh shared memory, which torch's queue hands over. So it costs
what such a worker costs, page faults and requests to the storage included. `worker.SampleReader`
measures the storage instead: for small samples it costs a fifth.
"""

import ctypes
import itertools
import math
import os
import random
import shutil
import signal
import stat
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, default_collate
from torch.utils.data import Dataset as TorchDataset

from dlemu.errors import VERIFY, DatasetError, WorkloadError, in_short
from dlemu.formats import format_of
from dlemu.formats.format import Parsed
from dlemu.loaders.pipes import many_workers
from dlemu.loaders.source import Cost, Note, Source, Task, sample_bytes, square_side
from dlemu.loaders.steps import IDLE, READING
from dlemu.loaders.worker import Preparing
from dlemu.storage.counted import CountedFile
from dlemu.storage.files import cannot_open, check_regular
from dlemu.units import PAGE_BYTES, counted, format_bytes

Load = Callable[[str], Any]
"""Returns the array of a file of one sample."""


def _npz(path: str) -> Any:
    with np.load(path) as archive:
        return archive["x"]


def _hdf5(path: str) -> Any:
    import h5py

    with h5py.File(path, "r") as file:
        return file["records_0" if "records_0" in file else "records"][...]


def _picture(path: str, side: int | None = None) -> Any:
    """Return a picture's pixels, uint8 (height, width, 3).

    If a square is wanted, a part is cut out at random, scaled to it, and mirrored half of the time,
    as the recipes for ImageNet do: to scale a whole picture takes twice as long as such a part.
    """
    from PIL import Image

    with Image.open(path) as image:
        pixels = image.convert("RGB")
    if side is not None:
        part = _random_part(pixels.width, pixels.height)
        pixels = pixels.resize((side, side), Image.Resampling.BILINEAR, part)
        if random.random() < 0.5:
            pixels = pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(pixels)


def _random_part(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a part of a picture, drawn at random.

    Its share of the picture and its shape are those of torchvision's RandomResizedCrop, as it is
    by default: 8 to 100 % of the area, 3 to 4 up to 4 to 3. One that does not fit is cut.
    """
    area = random.uniform(0.08, 1.0) * width * height
    shape = math.exp(random.uniform(-_LONGEST, _LONGEST))
    across = min(width, max(1, round(math.sqrt(area * shape))))
    down = min(height, max(1, round(math.sqrt(area / shape))))
    left, top = random.randint(0, width - across), random.randint(0, height - down)
    return left, top, left + across, top + down


def _bytes(path: str) -> Any:
    with open(path, "rb") as file:
        return np.frombuffer(bytearray(file.read()), np.uint8)


def _undecoded(path: str) -> Any:
    """Return a picture's bytes, read as PIL reads them: the first few, then by so many at a time.

    Linux reads ahead by how much the first call asks for: a picture of 120 kB in three requests.
    """
    parts = []
    with open(path, "rb") as file:
        file.read(_PIL_PREFIX)
        file.seek(0)
        while part := file.read(_PIL_BYTES):
            parts.append(part)
    return np.frombuffer(bytearray(b"".join(parts)), np.uint8)


_LOADS: dict[str, Load] = {
    "npy": np.load,
    "npz": _npz,
    "hdf5": _hdf5,
    "bin": _bytes,
    "raw": _bytes,
}
_LONGEST = math.log(4 / 3)
"""Of a part of a picture: logarithm of width / height."""
_PIL_BYTES = 65_536
"""PIL's ImageFile.MAXBLOCK."""
_PIL_PREFIX = 16
"""Bytes by which PIL tells what a file is, and the library's buffer fills."""
_SHARED = "/dev/shm"
_LIBC = ctypes.CDLL(None)
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Options of glibc's mallopt (malloc.h)."""
_OPTIONS = {_MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 128 << 10}
"""Arrays lie in the heap, up to the size that glibc allows; of its free end, M_TOP_PAD stays."""
_KEEPING = {
    _TRIM_THRESHOLD: -1,  # the end of the heap is never given back
    _TOP_PAD: 64 << 20,  # nor are the heaps of 64 MiB of other threads than the first
    _MMAP_THRESHOLD: 32 << 20,
}
"""With these freed memory stays in the process."""


def load_of(source: Source) -> Load | None:
    """Return how a Dataset loads a file of one sample; None: by the format's own library.

    Pictures are decoded by PIL, if they are a job's own and `reader.preprocess_time` does not hold
    their decoding; dlemu's have no pixels. A part of each is scaled where training gets a square's
    bytes.
    """
    layout, workload = source.layout, source.workload
    if layout.samples_per_file > 1 or workload.dataset.by_h5py:
        return None
    if format_of(layout).is_picture:
        decodes = not source.dataset.known_places and workload.reader.preprocess_time.mean == 0
        if not decodes:
            return _undecoded
        return partial(_picture, side=square_side(workload.dataset.record_length_bytes_resize))
    return _LOADS.get(layout.format)


def _regular_bytes(path: str) -> int:
    """Return the bytes of a file; a FIFO, which np.load would wait for, is refused."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        check_regular(path)
    return status.st_size


def _cut_or_padded(sample: Any, num_bytes: int) -> Any:
    """Return a sample, uint8 (its bytes,), with so many bytes."""
    if len(sample) > num_bytes:
        return sample[:num_bytes]
    row = np.zeros(num_bytes, np.uint8)
    row[: len(sample)] = sample
    return row


class PlainReader:
    """Makes the batches of one worker, each a tensor of its own. Not thread-safe."""

    def __init__(
        self, source: Source, *, accelerator: int, worker: int, row_bytes: int, note: Note
    ) -> None:
        self._source, self._row_bytes, self._note = source, row_bytes, note
        self._cut = source.workload.dataset.record_length_bytes_resize is not None
        self._load, self._has_many = load_of(source), source.layout.samples_per_file > 1
        self._preparing = Preparing(source, note, accelerator=accelerator, worker=worker)
        self._opened: tuple[int, Parsed] | None = None
        self._prepares = source.workload.reader.preprocess_time.mean > 0
        self._early: dict[int, tuple[torch.Tensor, int]] = {}
        """Samples that were read for a later batch."""
        self._scheduled = -1
        is_picture = format_of(source.layout).is_picture
        size = row_bytes if is_picture else max(row_bytes, source.layout.mean_bytes)
        self._give_back = _give_back_of(source, source.workload.reader.batch_size * size)

    def start_epoch(self, epoch: int) -> None:
        """Forget what an earlier epoch, perhaps ended early, has left."""
        self._early.clear()
        self.close()
        self._preparing.start_epoch(epoch)
        with suppress(OSError):  # a kernel without it does not tell how long a thread waited
            # Of this thread: without workers each epoch has another.
            self._scheduled = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def make(
        self, task: Task, wanted: Callable[[], bool]
    ) -> tuple[Cost, torch.Tensor, list[int]] | None:
        """Load and collate a batch; return its cost, uint8 (batch, row_bytes), and rows' bytes.

        Where the library reads, nothing tells its reads from its decoding: what the thread waited
        without waiting for a CPU counts as reading, the rest as decoding. `wanted` as in
        `SampleReader.make`, and so are the errors.
        """
        # What is done for each sample counts: a Dataset of one's own does no more than load it.
        num_bytes, prepared = 0, 0.0
        aside = aside_cpu = 0.0
        sizes = None if task.places is None else task.places[2].tolist()
        queued, begin, cpu = self._queued(), perf_counter(), thread_time()
        for at, sample in enumerate(task.fetch.tolist()):
            if not wanted():
                self._note(IDLE, -1)
                return None
            size, self._early[sample] = self._sample(sample)
            if sizes is not None and size != sizes[at]:
                raise DatasetError(
                    f"{self._source.path(sample)}: it holds {size} bytes, {sizes[at]} are wanted",
                    remedy=VERIFY,
                )
            num_bytes += size
            if self._prepares:
                before, cpu_before = perf_counter(), thread_time()
                prepared += self._preparing.spend(1)
                aside += perf_counter() - before
                aside_cpu += thread_time() - cpu_before
        seconds = perf_counter() - begin - aside
        computing = thread_time() - cpu - aside_cpu + self._queued() - queued
        begin = perf_counter()
        samples = [self._early.pop(sample) for sample in task.samples.tolist()]
        lengths = [length for _, length in samples]
        batch = default_collate([row for row, _ in samples])
        del samples
        self._give_back(0)
        collated = perf_counter() - begin
        self._note(IDLE, -1)
        decoding = min(seconds, computing)
        cost = Cost(num_bytes, 0, seconds - decoding, decoding + prepared, collated)
        return cost, batch, lengths

    def close(self) -> None:
        """Close all files."""
        self._close_file()
        if self._scheduled >= 0:
            os.close(self._scheduled)
        self._scheduled = -1

    def _sample(self, sample: int) -> tuple[int, tuple[torch.Tensor, int]]:
        """Return the bytes read for a sample; its row, uint8 (row_bytes,), and the bytes in it."""
        number, place = self._source.layout.find(sample)
        self._note(READING, number)
        path = self._source.path(number)
        try:
            size = 0 if self._has_many else _regular_bytes(path)
            if self._load is None:
                array = self._parsed(number, path).sample(place)
                array = array if array.flags.writeable else array.copy()
            else:
                array = self._load(path).reshape(-1).view(np.uint8)
        except DatasetError:
            raise
        except Exception as error:  # libraries raise many types for damaged files
            if isinstance(error, OSError) and error.errno:
                raise cannot_open(path, error) from None
            raise DatasetError(f"{path} is damaged: {in_short(error)}", remedy=VERIFY) from None
        length, room = len(array), self._row_bytes
        if length > room and not self._cut:
            raise DatasetError(
                f"{path} has a sample of {length} bytes, at most {room} were "
                f"expected; set dataset.record_length_bytes_resize"
            )
        row = array if length == room else _cut_or_padded(array, room)
        return size or length, (torch.from_numpy(row), room if self._cut else length)

    def _parsed(self, number: int, path: str) -> Parsed:
        """Return a file of many samples, which stays open for the next one."""
        if self._opened is None or self._opened[0] != number:
            self._close_file()
            parse = format_of(self._source.layout).parse
            self._opened = number, parse(CountedFile(path), self._source.layout.in_file(number))
        return self._opened[1]

    def _close_file(self) -> None:
        if self._opened is not None:
            self._opened[1].close()
        self._opened = None

    def _queued(self) -> float:
        """Return how many seconds so far this thread could run and had no CPU."""
        if self._scheduled < 0:
            return 0.0
        return int(os.pread(self._scheduled, 64, 0).split()[1]) / 1e9


class PinnedBatches:
    """Page-locked memory into which batches are copied, as by a DataLoader with pin_memory=True.

    torch's thread copies each batch when it comes, wanted next or not, and the worker's memory is
    free then. It takes memory that a batch has left, and has CUDA lock more where there is none:
    the first batches of all workers, which come at about the same time, each wait for that.
    """

    def __init__(self, source: Source, row_bytes: int) -> None:
        workload = source.workload
        reader, shape = workload.reader, (workload.reader.batch_size, row_bytes)
        in_flight = workload.batches_in_flight if reader.read_threads else 0
        # Beside those that training may hold one is being filled. No page is there before its use.
        self.memory: list[NDArray[np.uint8]] = [
            np.zeros(shape, np.uint8) for _ in range(in_flight + source.keep + 2)
        ]
        self._shape = shape
        self._fresh, self._free = deque(self.memory), list[NDArray[np.uint8]]()
        # torch takes a power of two of bytes for each.
        self._seconds = reader.page_lock_time * (1 << (math.prod(shape) - 1).bit_length()) / 1e9

    def take(self, batch: torch.Tensor) -> NDArray[np.uint8]:
        """Return a copy of a batch, uint8 (batch, row_bytes); its memory is kept while it is."""
        if self._free:
            handed = self._lend(self._free.pop())
        elif self._fresh:
            handed = self._lend(self._locked(self._fresh.popleft()))
        else:  # all are held by those who keep more than they asked for
            handed = self._locked(np.empty(self._shape, np.uint8))
        np.copyto(handed, batch.numpy())
        return handed

    def _lend(self, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the memory as an array; it is free again when nobody has that array."""
        lent: NDArray[np.uint8] = memory[:]
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return lent

    def _locked(self, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the memory when its pages are there, not before CUDA would have locked them."""
        begin = perf_counter()
        memory.reshape(-1)[::PAGE_BYTES] = 0
        time.sleep(max(0.0, begin + self._seconds - perf_counter()))
        return memory


def check_room(source: Source, row_bytes: int, num_accelerators: int) -> None:
    """Refuse batches that /dev/shm, where torch puts them, cannot hold.

    A worker would be killed there by a signal that names nothing.

    Raises:
        WorkloadError: it has too little room.
    """
    reader = source.workload.reader
    in_flight = source.workload.batches_in_flight if reader.read_threads else 0
    wanted = num_accelerators * in_flight * reader.batch_size * row_bytes
    free = shutil.disk_usage(_SHARED).free
    if wanted > free:
        raise WorkloadError(
            f"reader.cost=dataloader hands batches over in {_SHARED}, as torch does: "
            f"{format_bytes(wanted)} are wanted ({counted(num_accelerators, 'accelerator')} x "
            f"{in_flight} batches), {format_bytes(free)} are free; use a smaller "
            "reader.prefetch_size, or a larger --shm-size of the container"
        )


class _Batches(TorchDataset[torch.Tensor]):
    """Batches of files in memory, over and over."""

    def __init__(self, source: Source, row_bytes: int) -> None:
        self._source, self._row_bytes = source, row_bytes
        self._reader: PlainReader | None = None

    def __getitem__(self, step: int) -> torch.Tensor:
        if self._reader is None:
            self._reader = PlainReader(
                self._source,
                accelerator=0,
                worker=0,
                row_bytes=self._row_bytes,
                note=lambda what, file: None,
            )
            self._reader.start_epoch(0)
        batch, number = self._source.workload.reader.batch_size, self._source.layout.num_samples
        samples = (step * batch + np.arange(batch)) % number
        task = Task(0, step, samples, np.arange(batch), samples, None)
        made = self._reader.make(task, lambda: True)
        assert made is not None
        return made[1]


def rate_of_workers(source: Source, *, loaders: int, workers: int, seconds: float) -> float:
    """Return samples per second of so many DataLoaders at once, with so many workers each.

    Nobody waits for storage: the files lie in memory, and hold a batch at least. The first batch
    of each worker does not count.
    """
    batch, row_bytes = source.workload.reader.batch_size, sample_bytes(source)

    def take(_: int) -> float:
        with many_workers():
            loader: Any = DataLoader(
                _Batches(source, row_bytes),
                batch_size=None,
                sampler=itertools.count(),
                num_workers=workers,
                prefetch_factor=2,
                multiprocessing_context="fork",
                worker_init_fn=_ignore_interrupts,
            )
        pinned, times = np.zeros((batch, row_bytes), np.uint8), list[float]()
        for made in loader:
            np.copyto(pinned, made.numpy())
            times.append(perf_counter())
            counted = times[workers - 1 :]
            if len(counted) > 2 * workers and counted[-1] - counted[0] >= seconds:
                break
        return batch * (len(counted) - 1) / (counted[-1] - counted[0])

    with ThreadPoolExecutor(loaders) as pool:
        return sum(pool.map(take, range(loaders)))


def _give_back_of(source: Source, batch_bytes: float) -> Callable[[int], object]:
    """Return what is called when a batch's samples are free; prepare this process for it.

    Whether glibc keeps freed memory is chance: it hangs on what the process has allocated before,
    and on where. So each state is brought about. A share of `batch_bytes` is kept for certain where
    the process was forked off a main thread only: other threads' heaps keep all of it.
    """
    reader = source.workload.reader
    share = reader.kept_share
    # Without workers this is the user's process, whose memory is its own affair.
    options = _KEEPING if share == 1 else _OPTIONS | {_TOP_PAD: int(share * batch_bytes)}
    if reader.read_threads:
        with suppress(AttributeError):  # another C library
            for option, value in options.items():
                _LIBC.mallopt(option, value)
        if share > 0:
            return _keep
    # The end of the heap is returned when it is free: this returns what lies between.
    give_back: Callable[[int], object] = getattr(_LIBC, "malloc_trim", _keep)
    return give_back


def _keep(padding: int) -> None:
    """Leave freed memory to the C library."""


def _ignore_interrupts(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
