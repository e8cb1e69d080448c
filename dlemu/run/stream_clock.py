"""When a device reached a point in its stream of work: marks, such as CUDA events.

A training loop queues work and runs ahead of its device. So the host's clock does not show when the
device worked and when it was idle; marks that are queued between the pieces of work do.
"""

from typing import Any, Protocol, runtime_checkable

from dlemu.clock import Clock
from dlemu.errors import RunError, WorkloadError


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
