"""A real training job for `fidelity` and `launching`: network, files, its loop on the GPU."""

import contextlib
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

from dlemu.steptime.preprocessing import time_preprocessing

WARM_UP = 15
ALONE_SECONDS = 0.6
"""Steps that time a network alone last this long."""
_PICTURES = 64
_SIDE = 224
PIXELS = 3 * _SIDE**2
"""Bytes of a decoded picture."""
LONG_EPOCH = 200
"""Steps."""


@dataclass(frozen=True)
class Net:
    """A job: a network, its batch, and the files that it reads."""

    label: str
    batch: int
    steps: int
    """Of an epoch, see `steps_at`."""
    sample_bytes: int
    samples: int
    """In the files."""
    samples_per_file: int = 1
    side: int | None = None
    graph: bool = False
    """Whether the step is replayed as one CUDA graph."""
    decode: bool = False
    """Whether the workers decode a JPEG picture for each sample."""
    workers: int = 4
    autocast: bool = True
    """To bfloat16; else float32, which the tensor cores take as TF32."""
    subfolders: int = 0
    """Of the files. Each may be the mount of a drive of its own."""

    @property
    def name(self) -> str:
        """The network."""
        return self.label.partition("_")[0]

    @property
    def workload(self) -> str:
        return f"{self.name}_h100"

    def steps_at(self, rate: float) -> int:
        """Return an epoch's steps; below the demand there are more, because what is read ahead and
        what a cgroup lets through at first serves many steps, most of all just below it."""
        times = {0.6: 1 if self.decode else 4, 0.9: 12}.get(rate, 1)
        return min(times * self.steps, self.samples // self.batch)

    @staticmethod
    def named(label: str) -> "Net":
        """Return a job by its label, small on a host without a GPU."""
        import torch

        nets = ON_GPU if torch.cuda.is_available() else ON_CPU
        return next(net for net in nets if net.label == label)


ON_GPU = [
    # Volumes of 146.6 MB would ask for more than the drive gives; the crop that is trained on is
    # the benchmark's. `full` has whole volumes and the benchmark's batch.
    Net("unet3d", 2, 25, 20_000_000, 200),
    Net("unet3d_full", 7, 24, 146_600_628, 168, subfolders=4),
    Net("unet3d_tf32", 7, 24, 146_600_628, 168, subfolders=4, autocast=False),
    Net("resnet50", 200, 32, 114_660, 41 * 1251, 1251),
    Net("resnet50_graph", 200, 32, 114_660, 41 * 1251, 1251, graph=True),
    Net("resnet50_400", 400, 16, 114_660, 41 * 1251, 1251),
    Net("resnet50_jpeg", 200, 96, 114_660, 41 * 1251, 1251, decode=True, workers=12),
    Net("cosmoflow", 1, 250, 2_828_486, 3000),
    Net("cosmoflow_graph", 1, 250, 2_828_486, 3000, graph=True),
]
ON_CPU = [
    Net("unet3d", 1, 6, 2_000_000, 24, side=64),
    Net("unet3d_full", 1, 4, 4_000_000, 16, side=64, subfolders=2),
    Net("resnet50", 4, 8, 114_660, 128, 16, side=32),
    Net("resnet50_400", 4, 8, 114_660, 128, 16, side=32),
    Net("resnet50_jpeg", 4, 8, 114_660, 128, 16, decode=True, side=32, workers=2),
    Net("cosmoflow", 1, 8, 2_828_486, 32, side=32),
    Net("cosmoflow_graph", 1, 8, 2_828_486, 32, side=32),
]


def uncounted(num_steps: int) -> int:
    """Return how many steps at an epoch's begin do not count.

    A cgroup that is new, or has rested, lets some 100 ms of reads through at once, and the loader
    reads ahead. At 0.9 of the demand this lasts for a second.
    """
    return max(1, num_steps * (2 if num_steps >= LONG_EPOCH else 1) // 5)


class Real:
    """One network on the device."""

    def __init__(self, net: Net, *, graph: bool | None = None, rank: int = 0) -> None:
        import torch

        from dlemu.steptime.networks import Training, network

        self.torch, self.net = torch, net
        self.cuda = torch.cuda.is_available()
        self.device = f"cuda:{rank}" if self.cuda else "cpu"
        if self.cuda:
            torch.cuda.set_device(rank)
        layout = "contiguous" if net.name == "unet3d" else "channels_last"  # the faster ones
        self.training = Training(
            network(net.name, net.side),
            self.device,
            layout=layout,
            precision="bf16" if net.autocast else "fp32",
        )
        self.target = self.training.net.target(net.batch, self.device)
        self.alone = self.training.data(net.batch)
        self._graph: Any = None
        if self.cuda and (net.graph if graph is None else graph):
            self._capture()
        for _ in range(WARM_UP if self.cuda else 1):
            self.step(self.alone)
        self.time_alone()

    def _capture(self) -> None:
        """Record the step as a CUDA graph on a batch at a fixed place."""
        torch = self.torch
        self._input = self.alone.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.training.step(self._input, self.target)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.training.step(self._input, self.target)
        self._graph = graph

    def parallel(self) -> None:
        """Train with the other ranks: gradients are exchanged by NCCL in each step."""
        from torch.nn.parallel import DistributedDataParallel

        training = self.training
        devices = [self.device] if self.cuda else None
        training.model = DistributedDataParallel(training.model, device_ids=devices)
        for _ in range(WARM_UP if self.cuda else 1):
            self.step(self.alone)

    def step(self, data: Any) -> None:
        if self._graph is None:
            self.training.step(data, self.target)
            return
        self._input.copy_(data[:, : self._input.shape[1]])
        self._graph.replay()

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

    def time_alone(self, num_steps: int | None = None) -> tuple[float, float]:
        """Return mean and stdev of a step's seconds, at most one step queued ahead.

        Several ranks must make the same number of steps.
        """
        begin, marks = time.perf_counter(), [self.mark()]

        def goes_on() -> bool:
            if num_steps is not None:
                return len(marks) <= num_steps
            return len(marks) < 4 or time.perf_counter() - begin < ALONE_SECONDS

        while goes_on():
            self.step(self.alone)
            marks.append(self.mark())
            if self.cuda and len(marks) > 2:
                marks[-2].synchronize()
        self.finish()
        # The first step waits for its launch; in a loop, the launch is hidden.
        times = [self.between(a, b) for a, b in itertools.pairwise(marks[1:])]
        return statistics.fmean(times), statistics.stdev(times)

    def train(self, batches: Iterator[Any]) -> dict[str, Any]:
        """Train on an epoch; return T - T1, the number of steps from T1's, and a step's seconds."""
        loop = self._pipelined if self.cuda else self._synchronous
        begins, ends = loop(batches)
        self.finish()
        spans = [self.between(a, b) for a, b in zip(begins[1:], ends[1:], strict=True)]
        return {
            "seconds": self.between(ends[uncounted(len(ends)) - 1], ends[-1]),
            "num_steps": len(ends) - uncounted(len(ends)) + 1,
            "busy": statistics.fmean(spans),
            "busy_stdev": statistics.stdev(spans),
            "idle": self._idle(begins, ends),
        }

    def _idle(self, begins: list[Any], ends: list[Any]) -> list[float]:
        """Return the device's idle seconds before each step that counts, in epochs of few steps."""
        first = uncounted(len(ends))
        if len(ends) > 2 * LONG_EPOCH:
            return []
        pairs = zip(ends[first - 1 :], begins[first:], strict=False)
        return [round(self.between(end, begin), 6) for end, begin in pairs]

    def _pipelined(self, batches: Iterator[Any]) -> tuple[list[Any], list[Any]]:
        torch = self.torch
        copies, compute = torch.cuda.Stream(), torch.cuda.current_stream()
        data: list[Any] = [None, None]
        begins: list[Any] = []
        ends: list[Any] = []
        for number, batch in enumerate(batches):
            slot = number % 2
            if isinstance(batch.data, np.ndarray):
                rows = torch.from_numpy(batch.data)
                if data[slot] is None:
                    data[slot] = torch.empty(rows.shape, dtype=torch.uint8, device=self.device)
                with torch.cuda.stream(copies):  # step number - 2, which used this slot, has ended
                    data[slot].copy_(rows, non_blocking=True)
                    copied = torch.cuda.Event()
                    copied.record()
                compute.wait_event(copied)
            else:
                data[slot] = batch.data  # DALI has put it into the GPU's memory
            begins.append(self.mark())
            self.step(data[slot])
            ends.append(self.mark())
            if number:
                ends[-2].synchronize()  # the step before has ended: the next batch is asked for
        return begins, ends

    def _synchronous(self, batches: Iterator[Any]) -> tuple[list[Any], list[Any]]:
        begins, ends = [], []
        for batch in batches:
            begins.append(self.mark())
            self.step(self.torch.from_numpy(batch.data))
            ends.append(self.mark())
        return begins, ends


class Pictures:
    """JPEG pictures of about the size of a sample, and what a worker does with one.

    The files hold random bytes. So for each sample that a worker has read, it decodes one of these
    and crops it to 224 x 224, as ResNet-50's training does.
    """

    def __init__(self, num_bytes: int) -> None:
        import torch
        from torchvision import io

        generator = torch.Generator().manual_seed(0)
        self._pictures: list[Any] = []
        for _ in range(_PICTURES):
            coarse = torch.rand((1, 3, 24, 32), generator=generator)
            smooth = torch.nn.functional.interpolate(coarse, (375, 500), mode="bicubic")[0]
            noise = 0.11 * torch.randn((3, 375, 500), generator=generator)
            pixels = ((smooth + noise).clamp(0, 1) * 255).to(torch.uint8)
            if not self._pictures:
                quality = min(
                    range(95, 20, -3),
                    key=lambda each: abs(len(io.encode_jpeg(pixels, each)) - num_bytes),
                )
            self._pictures.append(io.encode_jpeg(pixels, quality))

    def decode(self, number: int) -> Any:
        """Return a picture's pixels, (3, 224, 224) uint8."""
        import torch
        from torchvision import io
        from torchvision.transforms.v2 import functional

        if torch.get_num_threads() > 1:
            torch.set_num_threads(1)  # a worker is one core's work
        pixels = io.decode_jpeg(self._pictures[number % _PICTURES])
        return functional.resized_crop(pixels, 40, 60, 300, 380, [_SIDE, _SIDE], antialias=True)


def decoding() -> Callable[[int], object]:
    """Return the work of a worker on a sample, for `time_preprocessing`."""
    return Pictures(114_660).decode


@cache
def decode_seconds(workers: int) -> Mapping[str, tuple[float, float]]:
    """Return mean and stdev of a picture's time: "alone", and "together" in as many processes."""
    found = time_preprocessing(f"{__name__}:decoding", workers, 3.0)
    return {
        name: (float(times.mean()), float(times.std()))
        for name, times in (("alone", found.alone), ("together", found.together))
    }


@contextlib.contextmanager
def batches_stay_on_gpu(device: str) -> Iterator[None]:
    """Have the DALI loader hand over its batches in the GPU's memory, as a job takes them."""
    import torch

    from dlemu.loaders.dali import loader

    library: Any = torch
    streams: dict[int, Any] = {}

    def collate(payload: Any) -> tuple[Any, Sequence[int]]:
        # DALI reuses its memory: the batch is copied, by a stream that training does not share.
        stream = streams.setdefault(threading.get_ident(), library.cuda.Stream(device))
        with library.cuda.stream(stream):
            batch = library.from_dlpack(payload.as_tensor()).clone()
        stream.synchronize()
        return batch, [batch.shape[1]] * len(batch)

    with mock.patch.object(loader, "collate", collate):
        yield
