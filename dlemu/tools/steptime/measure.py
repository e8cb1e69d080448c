"""Times steps: on a GPU by CUDA events, on a CPU by the host's clock.

An event is queued behind each step, and the host runs as far ahead as in the loop that is emulated:
a few steps, or none. So the time between two events is a step's whole time, gaps between its
kernels included, and where each step is waited for the time to launch the next one's first kernels.

Meanwhile NVML tells the GPU's other processes, and its clocks, power and temperature each second.
"""

import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from dlemu.findings import Finding, as_written, note
from dlemu.tools.steptime.steps import Step, StepTask, make_step, out_of_memory

T = TypeVar("T")
_INTERVAL = 1.0
"""Seconds between two samples."""
Throttle = Literal[
    "idle",
    "clocks set by an application",
    "power cap",
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "power brake",
]
"""What holds a GPU's clocks down, as NVML names it."""
_REASONS: Mapping[int, Throttle] = {
    # nvml.h, nvmlClocksEventReason…
    0x001: "idle",
    0x002: "clocks set by an application",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
}
_HARMLESS = 0x003


@dataclass(frozen=True)
class GpuState:
    """A GPU at one moment."""

    sm_mhz: int
    watts: float
    celsius: int
    reasons: int
    """Bits of what holds the clocks down."""

    @property
    def throttled_by(self) -> tuple[Throttle, ...]:
        """The reasons why the clocks are held down."""
        return tuple(
            name for bit, name in _REASONS.items() if self.reasons & bit and not bit & _HARMLESS
        )


def summary(states: Sequence[GpuState]) -> dict[str, Any]:
    """Return least, median and greatest of each figure, and the causes of throttling."""
    if not states:
        return {}
    figures: dict[str, Any] = {}
    for name in ("sm_mhz", "watts", "celsius"):
        values = sorted(getattr(state, name) for state in states)
        figures[name] = {"min": values[0], "median": values[len(values) // 2], "max": values[-1]}
    causes = [cause for state in states for cause in state.throttled_by]
    figures["throttled_share"] = {
        cause: causes.count(cause) / len(states) for cause in dict.fromkeys(causes)
    }
    figures["samples"] = [asdict(state) for state in states]
    return figures


class Gpu:
    """The GPU that this process computes on, through NVML."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self.driver = _text(nvml.nvmlSystemGetDriverVersion())

    def other_processes(self) -> list[str]:
        """Return the other processes that compute on it: "pid 12 (python3)"."""
        found: list[str] = []
        with suppress(self._nvml.NVMLError):
            for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
                if process.pid != os.getpid():
                    name = f"pid {process.pid} ({self._process_name(process.pid)})"
                    found.append(name)
        return found

    def _process_name(self, pid: int) -> str:
        with suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
        with suppress(self._nvml.NVMLError):
            return os.path.basename(_text(self._nvml.nvmlSystemGetProcessName(pid)))
        name = "of another container or user"
        return name

    def state(self) -> GpuState | None:
        """Return its state now, None if NVML does not tell it."""
        nvml, handle = self._nvml, self._handle
        try:
            return GpuState(
                sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                watts=nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                celsius=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                reasons=nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            )
        except nvml.NVMLError:
            return None

    @contextmanager
    def sampled(self) -> Iterator[list[GpuState]]:
        """Note the state each second while the block runs; empty if NVML does not tell it."""
        states: list[GpuState] = []
        ends = threading.Event()

        def sample() -> None:
            while not ends.wait(_INTERVAL):
                state = self.state()
                if state is not None:
                    states.append(state)

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield states
        finally:
            ends.set()
            thread.join()


def find_gpu() -> Gpu | None:
    """Return the first GPU that CUDA_VISIBLE_DEVICES leaves; None without NVML or a driver."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    try:
        pynvml.nvmlInit()
        if chosen.startswith(("GPU-", "MIG-")):
            return Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(chosen))
        number = int(chosen) if chosen.isdecimal() else 0
        return Gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(number))
    except pynvml.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


_STEPS_AHEAD = 4
"""Steps that the host may queue ahead of the device, unless it waits for each."""
_NUM_LAUNCHES = 5
"""Steps whose launching is timed alone."""
_LAUNCH_BOUND = 0.9
"""From this share of a step's time on, launching it takes as long as the step."""
_NUM_TRIED = 5
"""Steps that decide between two layouts in memory."""
_WARM_UP_STEPS, WARM_UP = 0.2, 0.25
"""Shares of the measured steps and seconds that come before: 20 steps and 5 s of 100 and 20 s."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The steps of one batch size."""

    batch: int
    layout: str
    seconds: NDArray[np.float64]
    """Of each step."""
    launch: float
    """Seconds that the host needs to queue a step; on a CPU the step itself."""
    flops: float
    """Floating point operations of a step, as torch counts them; 0: not counted."""
    memory: int
    """Most bytes of the GPU that PyTorch held; 0 on a CPU."""
    on_gpu: bool
    states: Sequence[GpuState] = ()
    """Of the GPU, each second."""

    @property
    def mean(self) -> float:
        """Mean seconds of a step: what a job of many steps takes for one."""
        return float(self.seconds.mean())

    @property
    def median(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self.seconds))

    @property
    def launch_bound(self) -> bool:
        """Whether the host needs as long to launch a step as the device to compute it."""
        return self.on_gpu and self.launch >= _LAUNCH_BOUND * self.median


def measure(
    job: StepTask, batch: int, layout: str, gpu: Gpu | None, steps: int, seconds: float
) -> Timed | Finding:
    """Time at least so many steps of a batch size, for at least so many seconds.

    Where the memory does not suffice, return a note of that.

    Raises:
        WorkloadError: the user's function raised.
    """
    import torch

    def timed() -> Timed:
        step, on_gpu = make_step(job, batch, layout), job.device == "cuda"
        flops = 0.0 if job.compiled else _count_flops(step)
        _times(step, job, max(2, int(_WARM_UP_STEPS * steps)), WARM_UP * seconds)
        launch = _launch_seconds(step, job.device)
        with gpu.sampled() if gpu else nullcontext(list[GpuState]()) as states:
            measured = _times(step, job, steps, seconds)
        return Timed(
            batch=batch,
            layout=layout,
            seconds=measured,
            launch=launch,
            flops=flops,
            memory=torch.cuda.max_memory_reserved() if on_gpu else 0,
            on_gpu=on_gpu,
            states=states,
        )

    return _within_memory(job, timed)


def faster_layout(job: StepTask, batch: int) -> str:
    """Return which layout in memory makes a step faster: some cuDNN have slow paths in each."""

    def median(layout: str) -> float:
        return float(np.median(_times(make_step(job, batch, layout), job, _NUM_TRIED, 0.0)))

    layouts = ("channels_last", "contiguous")
    found = {each: _within_memory(job, partial(median, each)) for each in layouts}
    times = {each: time for each, time in found.items() if not isinstance(time, Finding)}
    return min(times, key=times.__getitem__, default=layouts[0])


def _within_memory(job: StepTask, take: Callable[[], T]) -> T | Finding:
    """Return what is taken; a note where the memory does not suffice."""
    try:
        with _clean(job.device):
            return take()
    except Exception as error:
        if not out_of_memory(error):
            raise
        why = str(error) if type(error) is MemoryError else ""
        return as_written(why) if why else note("out_of_memory")


def _times(step: Step, job: StepTask, steps: int, seconds: float) -> NDArray[np.float64]:
    """Return the seconds of steps, one after the other: of so many at least, and for so long."""
    if job.device != "cuda":
        marks = [time.perf_counter()]
        while len(marks) <= steps or marks[-1] - marks[0] < seconds:
            step()
            marks.append(time.perf_counter())
        return np.diff(marks)
    import torch

    def mark() -> Any:
        # blocking: the host sleeps while it waits; spinning would take a core.
        event: Any = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call, unused-ignore]
        event.record()
        return event

    torch.cuda.synchronize()
    begin = time.perf_counter()
    marks_on_gpu, ahead = [mark()], deque[Any]()
    while len(marks_on_gpu) <= steps or time.perf_counter() - begin < seconds:
        step()
        marks_on_gpu.append(mark())
        ahead.append(marks_on_gpu[-1])
        if len(ahead) > (0 if job.waits else _STEPS_AHEAD):
            ahead.popleft().synchronize()
    torch.cuda.synchronize()
    first = marks_on_gpu[0]
    return np.diff([first.elapsed_time(each) / 1000 for each in marks_on_gpu])


def _launch_seconds(step: Step, device: str) -> float:
    """Return the host's seconds to queue a step while the device has nothing to do."""
    import torch

    found = []
    for _ in range(_NUM_LAUNCHES):
        begin = time.perf_counter()
        step()
        found.append(time.perf_counter() - begin)
        if device == "cuda":
            torch.cuda.synchronize()
    return float(np.median(found))


def _count_flops(step: Step) -> float:
    """Return the operations of a step, forward and backward; 0 if torch cannot count them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


@contextmanager
def _clean(device: str) -> Iterator[None]:
    """Give back what the block has held of the GPU."""
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        yield
    finally:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
