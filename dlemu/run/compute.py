"""Work on real GPUs: compute that keeps them busy, and when they reached a point of a loop.

A run's compute contends with copies as in training: matrix products of known duration fill the time
up to a deadline. They are queued in slices, two of them ahead, so that the GPU never waits for the
host, which sleeps meanwhile. Or the steps of a network do (`train.network`): they slow down what
the GPU decodes, which products, however long, do less (docs/fidelity.md).

A training loop of a user's queues work and runs ahead of its device. So the host's clock does not
show when the device worked and when it was idle; marks that are queued between the pieces of work
do, such as CUDA events.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from dlemu.clock import Clock
from dlemu.config.model import Workload
from dlemu.errors import RunError, WorkloadError

_NETWORK = "train.network"


@runtime_checkable
class StreamClock(Protocol):
    """Marks points in one stream of work, and measures the time between them."""

    name: str
    """The device that does the work, for the report."""

    def record(self) -> Any:
        """Mark the end of the work queued so far; return the mark without waiting."""

    def passed(self, mark: Any) -> bool:
        """Return, without waiting, whether all work before the mark is done."""

    def wait(self, mark: Any) -> None:
        """Wait until all work before the mark is done."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks; the work before both must be done."""


class HostStream:
    """The calling thread, on the host's clock: its work is done when a call returns."""

    name = "the host"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def record(self) -> float:
        return self._clock.now()

    def passed(self, mark: float) -> bool:
        return True

    def wait(self, mark: float) -> None:
        pass

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class CudaStream:
    """The current CUDA stream of a device ("cuda" or "cuda:1"), marked with PyTorch's events.

    Raises:
        WorkloadError: PyTorch is missing, sees no such GPU, or `device` is no CUDA device.
    """

    def __init__(self, device: str) -> None:
        try:
            import torch
        except ModuleNotFoundError:
            raise WorkloadError(
                f"device={device} needs torch: pip install 'dlemu[torch]', or leave device out for "
                f"a model on the CPU"
            ) from None
        kind, _, number = device.partition(":")
        if kind != "cuda" or not (number.isdecimal() or device == "cuda"):
            raise WorkloadError(
                f"device must be cuda or cuda:<number>, got {device}; leave it out for a model on "
                f"the CPU"
            )
        found = torch.cuda.device_count()
        if int(number or 0) >= found:
            raise WorkloadError(
                f"device={device}: this PyTorch ({torch.__version__}) sees {found} GPUs; install "
                f"one made for the driver's CUDA, or leave device out for a model on the CPU"
            )
        self._cuda: Any = torch.cuda
        self._device = int(number) if number else torch.cuda.current_device()
        self._stream = torch.cuda.current_stream(self._device)
        self.name = f"{torch.cuda.get_device_name(self._device)} (CUDA events)"

    def record(self) -> Any:
        """Queue an event; the current stream must still be the one that is timed."""
        if self._cuda.current_stream(self._device) != self._stream:
            raise RunError(
                "the loop changed its CUDA stream, and the meter times the one that was current "
                "when the epoch began; put the whole loop in `with torch.cuda.stream(...)`"
            )
        event = self._cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def passed(self, mark: Any) -> bool:
        return bool(mark.query())

    def wait(self, mark: Any) -> None:
        mark.synchronize()

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1000


_LARGEST_SIDE = 8192
"""Rows of a square matrix; in bfloat16 a product takes an H200 1.5 ms, at 90 % of its peak rate."""
_SMALLEST_SIDE = 256
_LONGEST_PRODUCT = 0.0005
"""Seconds; several products fit into the shortest step in use, CosmoFlow's 3.5 ms."""
_PRODUCTS_A_STEP = 50
"""Of a longer step. A large batch has long kernels, for which those that decode pictures wait."""
_TIMES_AS_LONG = 8
"""Is a product of twice as many rows."""
_SLICE_SECONDS = 0.002
_NUM_TIMED = 40
"""Products of one calibration."""
_SLOWEST = 1.5
"""A product is never taken to last longer than this many times the calibrated time."""
_FOLLOW = 0.25
"""Weight of the last slice in the moving average of a product's time, or a network's step."""
_WARM_UP_STEPS = 10
"""Of a network: in the first cuDNN chooses its kernels; the fastest tells how long a step takes."""
_FITS = 0.9
"""Of a step: where so much time is left until the deadline, another step is made."""


def compute_on_gpus(workload: Workload, own: range, clock: Clock) -> Callable[[float], None] | None:
    """Return what keeps this rank's GPUs busy until a deadline, None where compute is a sleep."""
    if workload.train.compute == "sleep" or not own:
        return None
    gpus = find_compute_gpus(workload, own)
    if network := workload.train.network:
        batch, ahead = workload.reader.batch_size, workload.train.steps_ahead
        return network_compute(gpus, clock, network, batch, ahead=ahead)
    return gpu_compute(gpus, clock, workload.train.computation_time.mean)


def find_compute_gpus(workload: Workload, own: range) -> list[int]:
    """Return the GPUs that compute for a rank's accelerators: dealt out in turn, as DALI's are."""
    from dlemu.storage.gpu.cuda import num_gpus

    if (network := workload.train.network) is not None:
        from dlemu.tools.steptime.steps import checked_model  # slow, and few runs need it

        checked_model(_NETWORK, network)
    try:
        num = workload.dali.gpus_per_host or num_gpus()
    except RunError as error:
        raise WorkloadError(f"train.compute=gpu: {error}; or set train.compute=sleep") from None
    gpus = sorted({accelerator % max(1, num) for accelerator in own})
    find_torch(gpus)
    return gpus


def gpu_compute(gpus: Sequence[int], clock: Clock, step: float) -> Callable[[float], None]:
    """Return `compute(deadline)`, which keeps these GPUs busy and returns at the deadline.

    First measures how long a product takes, which needs about 0.3 s per GPU. `step`: seconds of a
    mean one. The deadline is in seconds on `clock`.
    """
    longest_product = max(_LONGEST_PRODUCT, step / _PRODUCTS_A_STEP)
    torch = find_torch(gpus)
    torch.cuda.set_device(gpus[0])  # else CUDA makes a context on GPU 0 too, of half a GiB
    products = [_Product(torch, gpu, longest_product) for gpu in gpus]
    longest = max(product.seconds for product in products)

    def compute(deadline: float) -> None:
        queued: deque[tuple[int, list[Any]]] = deque()
        pace, ended = longest, None
        while True:
            waiting = sum(count for count, _ in queued)
            # Stop one product before the deadline, so that the clock ends the step, not the GPU.
            left = int((deadline - clock.now()) / pace) - waiting - 1
            if left < 1:
                break
            count = min(left, max(1, int(_SLICE_SECONDS / pace)))
            queued.append((count, [product.launch(count) for product in products]))
            if len(queued) > 2:
                count, events = queued.popleft()
                for event in events:
                    event.synchronize()
                now = clock.now()
                if ended is not None:
                    # A warm GPU gets slower. The bound leaves out a host that woke up late.
                    seen = min((now - ended) / count, _SLOWEST * longest)
                    pace = max(longest, pace + _FOLLOW * (seen - pace))
                ended = now
        for event in chain.from_iterable(events for _, events in queued):
            event.synchronize()
        clock.sleep_until(deadline)

    return compute


def network_compute(
    gpus: Sequence[int], clock: Clock, network: str, batch: int, *, ahead: int
) -> Callable[[float], None]:
    """Return `compute(deadline)`, which trains a network on these GPUs and returns at the deadline.

    It makes as many whole steps as fit, and one at least. `ahead`: steps that may be under way when
    it returns: 1 as in a pipelined loop, which queues a step before the last one has ended, else 0.
    Where steps take longer than they have, as beside what the GPU decodes, it returns late. Each
    GPU has a network of its own. First finds the faster layout in memory, and warms up, in a few
    seconds. The deadline is in seconds on `clock`.

    Raises:
        WorkloadError: the network does not fit into a GPU's memory, or is a function that fails.
    """
    torch = find_torch(gpus)
    steps = [_network_step(torch, gpu, network, batch) for gpu in gpus]
    queued = deque[list[tuple[Any, Any]]]()

    def finish_one() -> float:
        """Wait for the end of the oldest step that is queued; return its seconds."""
        marks = queued.popleft()
        for _, end in marks:
            end.synchronize()
        return float(max(begin.elapsed_time(end) for begin, end in marks)) / 1000

    def queue_one() -> None:
        queued.append([step() for step in steps])

    def make_one() -> float:
        queue_one()
        return finish_one()

    pace = min(make_one() for _ in range(_WARM_UP_STEPS))

    def compute(deadline: float) -> None:
        nonlocal pace
        while True:
            queue_one()
            if len(queued) > ahead:
                pace += _FOLLOW * (finish_one() - pace)
            if deadline - clock.now() - pace * len(queued) < _FITS * pace:
                break
        clock.sleep_until(deadline)

    return compute


def _network_step(torch: Any, gpu: int, network: str, batch: int) -> Callable[[], tuple[Any, Any]]:
    """Return what queues a step on a GPU's current stream, and returns the events around it.

    Training and what it holds are those of `dlemu steptime`, in bfloat16.
    """
    from dlemu.tools.steptime.measure import faster_layout
    from dlemu.tools.steptime.steps import StepTask, make_step, out_of_memory

    task = StepTask(model=network, device="cuda", key=_NETWORK)
    try:
        with torch.cuda.device(gpu):
            layout = "user" if ":" in network else faster_layout(task, batch)
            step = make_step(task, batch, layout)
            step()  # the first one takes the memory
            torch.cuda.synchronize()
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise WorkloadError(
            f"{_NETWORK}={network}: a step of reader.batch_size={batch} needs more memory than GPU "
            f"{gpu} has free; set a smaller batch, or leave {_NETWORK} out for matrix products"
        ) from None

    def queue() -> tuple[Any, Any]:
        with torch.cuda.device(gpu):
            # blocking: who waits for an event sleeps; otherwise it would spin.
            begin, end = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
            begin.record()
            step()
            end.record()
        return begin, end

    return queue


def find_torch(gpus: Sequence[int]) -> Any:
    """Return PyTorch, if it sees these GPUs; else raise WorkloadError."""
    try:
        import torch
    except ModuleNotFoundError:
        raise WorkloadError(
            "train.compute=gpu needs torch: pip install 'dlemu[torch]', or set train.compute=sleep"
        ) from None
    found = torch.cuda.device_count()
    if not gpus or max(gpus) >= found:
        raise WorkloadError(
            f"train.compute=gpu: this PyTorch ({torch.__version__}) sees {found} GPUs, "
            f"{max(gpus, default=0) + 1} are needed; install one made for the driver's CUDA, or "
            f"set train.compute=sleep"
        )
    return torch


class _Product:
    """A matrix product on one GPU, launched many times on its own stream."""

    def __init__(self, torch: Any, gpu: int, longest: float) -> None:
        self._torch = torch
        self._stream = torch.cuda.Stream(gpu)
        side = _SMALLEST_SIDE
        self.seconds = self._calibrate(gpu, side)
        while side < _LARGEST_SIDE and _TIMES_AS_LONG * self.seconds <= longest:
            side *= 2
            self.seconds = self._calibrate(gpu, side)

    def launch(self, count: int) -> Any:
        """Queue so many products; return the CUDA event at their end."""
        torch = self._torch
        with torch.cuda.stream(self._stream):
            for _ in range(count):
                torch.mm(self._left, self._right, out=self._out)
            # blocking: who waits for the event sleeps; otherwise it would spin.
            event = torch.cuda.Event(blocking=True)
            event.record(self._stream)
        return event

    def _calibrate(self, gpu: int, side: int) -> float:
        """Make square matrices with `side` rows; return the seconds that a product takes."""
        torch = self._torch
        shape = {"size": (side, side), "device": f"cuda:{gpu}", "dtype": torch.bfloat16}
        with torch.cuda.stream(self._stream):
            self._left, self._right = torch.randn(**shape), torch.randn(**shape)
            self._out = torch.empty(**shape)
            self.launch(_NUM_TIMED).synchronize()  # warm up, and let the GPU raise its clock rate
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(self._stream)
            self.launch(_NUM_TIMED)
            end.record(self._stream)
            end.synchronize()
        return float(begin.elapsed_time(end)) / 1000 / _NUM_TIMED
