"""A training job in plain PyTorch for `benchmarks.fidelity`: datasets, DataLoader, loop.

It shares no line with dlemu's readers and loaders: files are opened by np.load, h5py and PIL, and
torch.utils.data.DataLoader reads them; or DALI's own readers do. Only the network is that of
`dlemu steptime`.
"""

import contextlib
import io
import itertools
import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import dlemu

WARM_UP = 15
NUM_CAME = 24
"""First batches of an epoch, each worker's among them: it is stored when each of them came."""
ALONE_SECONDS = 0.6
"""Steps that time a network alone last this long."""
STEP_LASTS = 120.0
"""Seconds for which a step's time holds: a GPU's changes by a thousandth."""
_SIDE = 224
PIXELS = 3 * _SIDE**2
"""Bytes of a decoded picture."""
_NUM_PICTURES = 64
"""Different ones; the files are copies of them."""
FILES = "FIDELITY_FILES"
"""Environment variable: format and folder of the files for the processes that time decoding."""
Computing = Callable[[], contextlib.AbstractContextManager[None]]
"""Marks what the loop queues for a step, as `Meter.computing` does."""
_IN_FLIGHT = 10
"""An epoch has so many times the batches that the workers read ahead."""
_EPOCH_SECONDS = 14.0
"""Of an epoch that storage holds back, at least: a job's start takes a tenth of a second."""


@dataclass(frozen=True)
class Net:
    """A job: a network, its batch, and the files that it reads."""

    label: str
    batch: int
    sample_bytes: int
    """Of a file's sample; of a picture, about."""
    form: str
    """Format of the files, of one sample each."""
    workers: int = 4
    prefetch: int = 2
    """Batches that each worker reads ahead."""
    seconds: float = _EPOCH_SECONDS
    """Of an epoch that storage holds back, at least."""
    side: int | None = None
    by_dali: bool = False
    """DALI reads: `workers` are its threads, `prefetch` is the depth of its pipeline."""
    graph: bool = False
    """Whether the step is replayed as one CUDA graph."""
    ranks: int = 1
    """Of a data-parallel job, each on a GPU of its own, with workers of its own."""
    asleep: float = 0.0
    """Seconds of a step of the device that stands for a GPU; 0: a real one computes."""

    @property
    def name(self) -> str:
        """The network."""
        return self.label.partition("_")[0]

    @property
    def decodes(self) -> bool:
        return self.form == "jpeg"

    @property
    def pixels(self) -> int:
        """Bytes of a sample that the network takes, at most."""
        return PIXELS if self.name == "resnet50" else 2**21

    @property
    def busy_cores(self) -> int:
        """Cores that its workers keep busy at most; those that load arrays mostly wait."""
        return self.workers if self.decodes else -(-self.workers // 3)

    @property
    def batches_ahead(self) -> int:
        return self.prefetch if self.by_dali else self.workers * self.prefetch

    def num_steps(self, rate: float, c: float) -> int:
        """Return the steps of an epoch: what is read ahead hides a tenth of it at most."""
        return max(
            _IN_FLIGHT * (self.batches_ahead + 1),
            math.ceil(self.seconds * min(rate, 1.0) / c),
        )


def _few(form: str, workers: int) -> Net:
    """Return a ResNet-50 of batch 400 with so many workers; few batches are read ahead by many."""
    size, prefetch = (PIXELS, 2 if workers < 8 else 1) if form == "npy" else (120_000, 1)
    label = f"resnet50_{form}{workers}_b400"
    return Net(label, 400, size, form, workers=workers, prefetch=prefetch, seconds=0.0)


def _pictures(workers: int) -> Net:
    """Return a ResNet-50 whose workers, so many, decode JPEG files."""
    label = f"resnet50_jpeg{workers}"
    return Net(label, 200, 120_000, "jpeg", workers=workers, prefetch=1, seconds=0.0)


def _of_two(net: Net) -> Net:
    """Return the job on two GPUs."""
    return replace(net, label=f"{net.label}_ddp2", ranks=2)


def _dali(form: str, threads: int, batch: int = 400, side: int | None = None) -> Net:
    """Return a ResNet-50 that DALI reads for, with so many threads."""
    size = PIXELS if form == "npy" else 120_000
    label = f"resnet50_dali_{form}{threads}"
    return Net(
        label, batch, size, form, workers=threads, prefetch=2, seconds=0.0, side=side, by_dali=True
    )


ON_GPU = [
    # Volumes of 146.6 MB would ask for more than the drive gives; the crop that is trained on is
    # the benchmark's.
    Net("unet3d", 1, 16_000_000, "npz"),
    Net("resnet50", 200, PIXELS, "npy", seconds=30.0),
    *(_pictures(number) for number in (2, 4, 8, 12)),
    Net("cosmoflow", 1, 2_828_486, "hdf5", seconds=10.0),
    Net("cosmoflow_graph", 1, 2_828_486, "hdf5", seconds=10.0, graph=True),
    # Jobs whose workers are near their limit.
    *(_few("npy", number) for number in (2, 4, 8, 12)),
    *(_few("jpeg", number) for number in (4, 8, 12)),
    *(_of_two(_few("npy", number)) for number in (4, 8)),
    *(_of_two(_pictures(number)) for number in (4, 8)),
    *(_dali(form, number) for form in ("npy", "jpeg") for number in (1, 2, 4, 8, 12)),
]
ON_CPU = [
    Net("unet3d", 1, 2_000_000, "npz", workers=1, prefetch=1, side=64, seconds=0.0),
    Net("resnet50", 4, PIXELS, "npy", workers=1, side=32, seconds=0.0),
    Net("resnet50_jpeg4", 4, 120_000, "jpeg", workers=2, prefetch=1, side=32, seconds=0.0),
    Net("cosmoflow", 1, 300_000, "hdf5", workers=1, side=32, seconds=0.0),
    Net("resnet50_npy2_b400", 4, PIXELS, "npy", workers=2, side=32, seconds=0.0),
    Net("resnet50_npy4_b400", 4, PIXELS, "npy", workers=4, side=32, seconds=0.0),
    *(_dali(form, 2, batch=4, side=32) for form in ("npy", "jpeg")),
    _of_two(Net("resnet50_npy4_b400", 4, PIXELS, "npy", workers=2, side=32, seconds=0.0)),
    _of_two(Net("resnet50_jpeg4", 4, 120_000, "jpeg", 2, 1, side=32, seconds=0.0)),
]


def _asleep(net: Net, seconds: float) -> Net:
    """Return the job on a device that sleeps for a step: that of an H200."""
    return replace(net, label=f"{net.label.removesuffix('_b400')}_asleep", asleep=seconds)


ASLEEP = [
    *(_asleep(_few("npy", number), 0.083) for number in (1, 2, 4, 8)),
    *(_asleep(_pictures(number), 0.044) for number in (1, 2, 4, 8)),
]


def nets() -> list[Net]:
    """Return all jobs, small ones on a host without a GPU."""
    import torch

    return [*(ON_GPU if torch.cuda.is_available() else ON_CPU), *ASLEEP]


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("train/**/*") if path.is_file())


SPENT = ("samples", "load", "load_cpu", "batches", "collate", "collate_cpu", "queued")
"""What a worker has done: how many samples and batches; seconds by the clock, of the CPU, and those
in which it could run and had no CPU."""
MEMORY = ("faults", "faulted", "faulted_bytes")
"""Behind its first batch: minor page faults, and the batches that they are of, with their bytes."""
FIRST = ("asked", "made")
"""When the first worker began with its first sample, and when its first batch was collated."""


class Spent:
    """What the workers of a DataLoader have done, in memory that they share."""

    def __init__(self, workers: int) -> None:
        torch: Any = import_module("torch")
        size = (workers, len(SPENT) + len(MEMORY) + len(FIRST))
        table = torch.zeros(size, dtype=torch.float64).share_memory_()
        self._rows = table.numpy()
        self._loaded = [0.0, 0.0, 0.0]
        """Of this worker's batch: a number alone costs less than an array's."""
        self._began = 0.0
        self._faults = 0
        """Of this worker, when it had made its first batch."""

    def load(self, begin: float, cpu: float) -> None:
        """Add a sample, begun at such times of both clocks. Called in the worker."""
        found = self._loaded
        if not found[0]:
            self._began = begin
        found[0] += 1
        found[1] += time.perf_counter() - begin
        found[2] += time.thread_time() - cpu

    def _add(self, num_bytes: int, *collated: float) -> None:
        row = self._rows[self._own()]
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        if not row[3]:
            row[-len(FIRST) :] = self._began, time.perf_counter()
            self._faults = faults
        else:
            row[len(SPENT)] = faults - self._faults
            row[len(SPENT) + 1 : -len(FIRST)] += 1, num_bytes
        row[:3] += self._loaded
        row[3:6] += (1, *collated)
        self._loaded[:] = 0.0, 0.0, 0.0
        text = Path("/proc/thread-self/schedstat").read_text()
        row[len(SPENT) - 1] = int(text.split()[1]) / 1e9

    def _own(self) -> int:
        import torch

        worker = torch.utils.data.get_worker_info()
        return 0 if worker is None else int(worker.id)

    def collate(self, samples: Any) -> Any:
        """Put a batch together as a DataLoader does by itself."""
        import torch

        begin, cpu = time.perf_counter(), time.thread_time()
        batch = torch.utils.data.default_collate(samples)
        self._add(batch.nbytes, time.perf_counter() - begin, time.thread_time() - cpu)
        return batch

    def total(self) -> dict[str, float]:
        """Return the figures of all workers together."""
        sums = self._rows[:, : -len(FIRST)].sum(0).tolist()
        return dict(zip((*SPENT, *MEMORY), sums, strict=True))

    def first(self) -> tuple[float, float]:
        """Return when the first worker began, and when it had made its first batch."""
        asked, made = self._rows[0, -len(FIRST) :].tolist()
        return asked, made


class Files:
    """A plain map-style dataset: one file, one sample. `__getitem__` opens, reads, decodes."""

    def __init__(
        self,
        folder: Path,
        form: str,
        most_bytes: int,
        *,
        in_one_read: bool = False,
        spent: Spent | None = None,
    ) -> None:
        self.paths = [str(path) for path in files_of(folder)]
        self._form, self._most, self._in_one_read = form, most_bytes, in_one_read
        self._spent = spent

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        begin, cpu = time.perf_counter(), time.thread_time()
        path = self.paths[number]
        found = self.sample(io.BytesIO(Path(path).read_bytes()) if self._in_one_read else path)
        if self._spent is not None:
            self._spent.load(begin, cpu)
        return found

    def sample(self, file: Any) -> Any:
        """Return the sample of a file, given by its path or as an open one."""
        import torch

        if self._form == "jpeg":
            return torch.from_numpy(picture(file))
        if self._form == "hdf5":
            with h5py.File(file) as opened:
                values = opened["records"][...]
        else:
            values = np.load(file)
            if self._form == "npz":
                values = values[values.files[0]]
        return torch.from_numpy(values.ravel().view(np.uint8)[: self._most])


def picture(path: Any) -> Any:
    """Decode a file; return a random part of it as 224 x 224 pixels, perhaps mirrored.

    Its share is that of torchvision's RandomResizedCrop, as in the recipes for ImageNet.
    """
    from PIL import Image

    with Image.open(path) as image:
        pixels = image.convert("RGB")
    generator = np.random.default_rng()
    share = float(np.sqrt(generator.uniform(0.08, 1.0)))
    width, height = int(share * pixels.width), int(share * pixels.height)
    left = int(generator.integers(pixels.width - width + 1))
    top = int(generator.integers(pixels.height - height + 1))
    part = pixels.resize(
        (_SIDE, _SIDE), Image.Resampling.BILINEAR, (left, top, left + width, top + height)
    )
    if generator.random() < 0.5:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(part).reshape(-1)


def decoding() -> Callable[[int], object]:
    """Return the work of a worker on a sample whose bytes it has read, for `steptime`.

    Its Dataset's, and its part of putting the batch together.
    """
    import torch

    form, most, folder = os.environ[FILES].split(":", 2)
    files = Files(Path(folder), form, int(most))
    contents = [Path(path).read_bytes() for path in files.paths[:_NUM_PICTURES]]

    def prepare(number: int) -> object:
        return torch.stack([files.sample(io.BytesIO(contents[number % len(contents)]))])

    return prepare


def write_pictures(folder: Path, number: int, num_bytes: int) -> None:
    """Write JPEG files of about `num_bytes`: copies of a few pictures of noise over shapes."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)

    def drawn() -> Any:
        coarse = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((500, 375)), np.float32)
        noisy = smooth + generator.normal(0, 28, smooth.shape)
        return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))

    def jpeg(image: Any, quality: int) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return buffer.getvalue()

    images = [drawn() for _ in range(_NUM_PICTURES)]
    qualities = range(95, 20, -3)
    quality = min(qualities, key=lambda each: abs(len(jpeg(images[0], each)) - num_bytes))
    encoded = [jpeg(image, quality) for image in images]
    for each in range(number):
        (folder / f"img_{each:07d}.jpeg").write_bytes(encoded[each % _NUM_PICTURES])


def plain_loader(
    net: Net,
    folder: Path,
    num_steps: int,
    *,
    seed: int,
    pin: bool,
    in_one_read: bool,
    spent: Spent,
    rank: int = 0,
    num_ranks: int = 1,
) -> Any:
    """Return a DataLoader over the files of a folder, in an order of its own.

    `in_one_read`: a file is read by one call, before it is opened as what it is. Of several ranks
    each takes every `num_ranks`-th file, as with a DistributedSampler.
    """
    import torch

    data = Files(folder, net.form, net.pixels, in_one_read=in_one_read, spent=spent)
    order = _order(len(data), net, num_ranks * num_steps, seed)[rank::num_ranks]
    library: Any = torch.utils.data
    return library.DataLoader(
        data,
        batch_size=net.batch,
        sampler=order,
        num_workers=net.workers,
        prefetch_factor=net.prefetch,
        pin_memory=pin,
        drop_last=True,
        collate_fn=spent.collate,
    )


def _order(num_files: int, net: Net, num_steps: int, seed: int) -> list[int]:
    order = np.random.default_rng(seed).permutation(num_files)[: num_steps * net.batch]
    return [int(number) for number in order]


class DaliBatches:
    """An epoch of DALI's batches, uint8 (batch, bytes) on the device; it is built when made."""

    def __init__(self, net: Net, folder: Path, num_steps: int, *, seed: int, cuda: bool) -> None:
        dali: Any = import_module("nvidia.dali")
        # A job that begins has no memory of loops before, on the GPU or page-locked.
        dali.backend.ReleaseUnusedMemory()
        paths = [str(path) for path in files_of(folder)]
        paths = [paths[number] for number in _order(len(paths), net, num_steps, seed)]
        self._steps, self._cuda = num_steps, cuda
        self._pipeline: Any = dali.Pipeline(
            batch_size=net.batch,
            num_threads=net.workers,
            device_id=0 if cuda else None,
            prefetch_queue_depth=net.prefetch,
            seed=seed,
        )
        with self._pipeline:
            if net.decodes:
                files, _ = dali.fn.readers.file(files=paths, labels=[0] * len(paths))
                pictures = dali.fn.decoders.image(files, device="mixed" if cuda else "cpu")
                samples = dali.fn.random_resized_crop(pictures, size=[_SIDE, _SIDE])
                samples = dali.fn.flip(samples, horizontal=dali.fn.random.coin_flip())
            else:
                samples = dali.fn.readers.numpy(files=paths)
                samples = samples.gpu() if cuda else samples
            samples = dali.fn.reinterpret(samples, dtype=dali.types.UINT8, shape=[-1])
            self._pipeline.set_outputs(samples)
        self._pipeline.build()

    def __iter__(self) -> Iterator[Any]:
        torch: Any = import_module("torch")
        if not self._cuda:
            for _ in range(self._steps):
                yield torch.from_numpy(self._pipeline.run()[0].as_array().copy())
            return
        stream = torch.cuda.Stream()
        for _ in range(self._steps):
            made = self._pipeline.run()[0]
            with torch.cuda.stream(stream):  # DALI fills its memory anew: the step has a copy
                batch = torch.from_dlpack(made.as_tensor()).clone()
            stream.synchronize()
            yield batch


_EMPTIES = (
    ("accelerator", "empty_host_cache"),
    ("_C", "_host_emptyCache"),
    ("_C", "_accelerator_emptyHostCache"),
)
"""torch's function that frees page-locked memory, which has had several names."""


def _unsearched(precision: str, batch: int, device: str) -> Callable[[], object]:
    """Return a step of UNet3D whose convolutions cuDNN chooses without trying them.

    MLPerf's reference of the network trains so. For `steptime.model`.
    """
    import torch

    from dlemu.tools.steptime.networks import Training, network

    training = Training(network("unet3d"), device, layout="contiguous", precision=precision)
    torch.backends.cudnn.benchmark = False
    data, target = training.data(batch), training.net.target(batch, device)
    return lambda: training.step(data, target)


unsearched_bf16 = partial(_unsearched, "bf16")
unsearched_tf32 = partial(_unsearched, "tf32")


class Real:
    """One network on the device."""

    def __init__(self, net: Net) -> None:
        import torch

        from dlemu.tools.steptime.networks import Training, network

        self.torch, self.net = torch, net
        self.cuda = torch.cuda.is_available()
        self.device = "cuda" if self.cuda else "cpu"
        layout = "contiguous" if net.name == "unet3d" else "channels_last"  # the faster ones
        self.training = Training(
            network(net.name, net.side), self.device, layout=layout, precision="bf16"
        )
        self.target = self.training.net.target(net.batch, self.device)
        self.alone = self.training.data(net.batch)
        self._replay: Any = None
        self.began = 0.0
        """When the last loop asked for its loader's iterator."""
        self._timed: dict[bool, tuple[float, tuple[float, float, float]]] = {}
        if self.cuda and net.graph:
            self._input = self.alone.clone()
            self._replay = self.training.graph(self._input, self.target)
        for _ in range(WARM_UP if self.cuda else 1):
            self.step(self.alone)
        self.time_alone()

    def step(self, data: Any) -> None:
        if self._replay is None:
            rows = len(data) if self.cuda else 2  # a CPU takes long for each
            self.training.step(data[:rows], self.target[:rows])
            return
        self._input.copy_(data[:, : self._input.shape[1]])
        self._replay()

    def mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        cuda: Any = self.torch.cuda
        event = cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end) / 1000 if self.cuda else end - begin)

    def finish(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def time_alone(self, *, synchronous: bool = False) -> tuple[float, float]:
        """Return mean and stdev of a step's seconds as the loop makes it, its data on the device.

        A pipelined loop queues at most one step ahead, a synchronous one waits for each.
        """
        begin, marks = time.perf_counter(), [self.mark()]
        while len(marks) < 4 or time.perf_counter() - begin < ALONE_SECONDS:
            self.step(self.alone)
            marks.append(self.mark())
            if self.cuda and len(marks) > 2:
                marks[-1 if synchronous else -2].synchronize()
        self.finish()
        # The first step waits for its launch; in a loop, the launch is hidden.
        times = [self.between(a, b) for a, b in itertools.pairwise(marks[1:])]
        return statistics.fmean(times), statistics.stdev(times)

    def timed(self, *, synchronous: bool) -> tuple[float, float, float]:
        """Return mean and stdev of a step alone, and its launch, no older than `STEP_LASTS`."""
        when, found = self._timed.get(synchronous, (-math.inf, (0.0, 0.0, 0.0)))
        if time.perf_counter() - when > STEP_LASTS:
            found = (*self.time_alone(synchronous=synchronous), self.launch_seconds())
            self._timed[synchronous] = time.perf_counter(), found
        return found

    def launch_seconds(self) -> float:
        """Return the host's seconds to queue a step while the device has nothing to do."""
        if not self.cuda:
            return 0.0
        found = []
        for _ in range(9):
            self.finish()
            begin = time.perf_counter()
            self.step(self.alone)
            found.append(time.perf_counter() - begin)
        return statistics.median(found)

    def train(
        self, loader: Any, *, synchronous: bool, meter: dlemu.Meter | None = None
    ) -> dict[str, Any]:
        """Train on an epoch; return its seconds: whole, from the first step's end, in its steps."""
        self.finish()
        self._forget_locked()
        start = self.mark()
        self.began = begin = time.perf_counter()
        loop = self._pipelined if self._queues and not synchronous else self._synchronous
        computing: Computing = contextlib.nullcontext if meter is None else meter.computing
        if meter is not None:
            loader = meter.epoch(loader, 0, device=self.device if self.cuda else None)
        batches = iter(loader)
        opened = time.perf_counter() - begin
        waits, came = list[float](), list[float]()

        def noted() -> Iterator[Any]:
            asked = begin
            for batch in batches:
                came.append(time.perf_counter() - begin)
                waits.append(came[-1] + begin - asked)
                yield batch
                asked = time.perf_counter()

        begins, ends = zip(*loop(noted(), computing), strict=True)
        self.finish()
        first, *spans = (self.between(a, b) for a, b in zip(begins, ends, strict=True))
        return {
            "whole": self.between(start, ends[-1]),
            "seconds": self.between(ends[0], ends[-1]),
            "wall": time.perf_counter() - begin,
            "num_steps": len(ends),
            "busy": statistics.fmean(spans),
            "first_step": first,
            "opened": opened,
            "first": waits[0],
            "waited": sum(waits[1:]),
            "came": [round(when, 4) for when in came[:NUM_CAME]],
        }

    def _forget_locked(self) -> None:
        """Have torch free page-locked memory of loops before: a job that begins has none.

        Whose first batches then wait for CUDA to lock some.
        """
        if not self.cuda:
            return
        for place, name in _EMPTIES:
            if (empty := getattr(getattr(self.torch, place, None), name, None)) is not None:
                empty()
                return
        raise RuntimeError(f"torch {self.torch.__version__} cannot free page-locked memory")

    def _step(self, data: Any, computing: Computing) -> tuple[Any, Any]:
        """Queue a step; return marks of its start and end."""
        with computing():
            begin = self.mark()
            self.step(data)
            return begin, self.mark()

    def _pipelined(self, batches: Iterator[Any], computing: Computing) -> list[tuple[Any, Any]]:
        """Copy on a stream of its own, one batch ahead; at most one step is queued ahead."""
        torch = self.torch
        copies, compute = torch.cuda.Stream(), torch.cuda.current_stream()
        data: list[Any] = [None, None]
        steps: list[tuple[Any, Any]] = []
        for number, batch in enumerate(batches):
            with torch.cuda.stream(copies):  # step number - 2, which used this slot, has ended
                data[number % 2] = batch.to(self.device, non_blocking=True)
            compute.wait_stream(copies)
            steps.append(self._step(data[number % 2], computing))
            if number:
                steps[-2][1].synchronize()  # that step has ended: the next batch is asked for
        return steps

    @property
    def _queues(self) -> bool:
        """Whether work is queued, and done while the host goes on."""
        return bool(self.cuda)

    def _synchronous(self, batches: Iterator[Any], computing: Computing) -> list[tuple[Any, Any]]:
        """Copy, compute, wait for the end, ask for the next batch: the benchmark's loop."""
        steps = []
        for batch in batches:
            steps.append(self._step(batch.to(self.device, non_blocking=True), computing))
            self.finish()
        return steps


class Asleep(Real):
    """A device that stands for a GPU: a step sleeps, while the host goes on.

    The DataLoader, its workers and the loop are those of a real job. Nothing is computed, so they
    have the host's cores for themselves, as beside a GPU.
    """

    def __init__(self, net: Net) -> None:
        import torch

        self.torch, self.net, self.cuda, self.device = torch, net, False, "cpu"
        self.began = self._end = 0.0
        self._memory = np.zeros((2, net.batch, net.pixels), np.uint8)

    def step(self, data: Any) -> None:
        self._end = self.mark() + self.net.asleep

    def mark(self) -> float:
        """Return when the work queued so far ends."""
        return max(self._end, time.perf_counter())

    def between(self, begin: float, end: float) -> float:
        return end - begin

    def finish(self) -> None:
        self._wait(self._end)

    def timed(self, *, synchronous: bool) -> tuple[float, float, float]:
        return self.net.asleep, 0.0, 0.0

    @property
    def _queues(self) -> bool:
        return True

    def _wait(self, until: float) -> None:
        time.sleep(max(0.0, until - time.perf_counter()))

    def _pipelined(self, batches: Iterator[Any], computing: Computing) -> list[tuple[Any, Any]]:
        """Copy each batch, as the thread that pins does; at most one step is queued ahead."""
        steps: list[tuple[Any, Any]] = []
        for number, batch in enumerate(batches):
            np.copyto(self._memory[number % 2], batch.numpy())
            steps.append(self._step(batch, computing))
            if number:
                self._wait(steps[-2][1])
        return steps
