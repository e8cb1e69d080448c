"""What NVML tells of a GPU: its processes, and its clocks, power and temperature over time."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

_INTERVAL = 1.0
"""Seconds between two samples."""
_REASONS = {
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
class State:
    """A GPU at one moment."""

    sm_mhz: int
    watts: float
    celsius: int
    reasons: int
    """Bits of what holds the clocks down."""

    @property
    def throttled_by(self) -> tuple[str, ...]:
        """What holds the clocks down, in words."""
        return tuple(
            name for bit, name in _REASONS.items() if self.reasons & bit and not bit & _HARMLESS
        )


def summary(states: Sequence[State]) -> dict[str, Any]:
    """Return least, median and greatest of each figure, and the causes of throttling."""
    if not states:
        return {}
    told: dict[str, Any] = {}
    for name in ("sm_mhz", "watts", "celsius"):
        values = sorted(getattr(state, name) for state in states)
        told[name] = {"min": values[0], "median": values[len(values) // 2], "max": values[-1]}
    causes = [cause for state in states for cause in state.throttled_by]
    told["throttled_share"] = {
        cause: causes.count(cause) / len(states) for cause in dict.fromkeys(causes)
    }
    told["samples"] = [asdict(state) for state in states]
    return told


class Gpu:
    """The GPU that this process computes on, through NVML."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self.driver = _text(nvml.nvmlSystemGetDriverVersion())

    def others(self) -> list[str]:
        """Return the other processes that compute on it: "pid 12 (python3)"."""
        found: list[str] = []
        with suppress(self._nvml.NVMLError):
            for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
                if process.pid != os.getpid():
                    found.append(f"pid {process.pid} ({self._name(process.pid)})")
        return found

    def _name(self, pid: int) -> str:
        with suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
        with suppress(self._nvml.NVMLError):
            return os.path.basename(_text(self._nvml.nvmlSystemGetProcessName(pid)))
        return "of another container or user"

    def state(self) -> State | None:
        """Return its state now, None if NVML does not tell it."""
        nvml, handle = self._nvml, self._handle
        try:
            return State(
                sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                watts=nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                celsius=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                reasons=nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            )
        except nvml.NVMLError:
            return None

    @contextmanager
    def sampled(self) -> Iterator[list[State]]:
        """Note the state each second while the block runs; empty if NVML does not tell it."""
        states: list[State] = []
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
