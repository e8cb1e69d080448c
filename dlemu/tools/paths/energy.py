"""Energy counters of the host's CPUs and GPUs.

CPUs: RAPL in /sys/class/powercap, which only root may read since Linux 5.10. GPUs: NVML (Volta and
newer), if nvidia-ml-py is installed.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Energy:
    """Counters at one moment, in joules; empty where none can be read."""

    cpus: Mapping[str, float]
    """By processor package."""
    cpu_ranges: Mapping[str, float]
    """The value at which each package's counter wraps around to 0."""
    gpus: Mapping[str, float]
    """By GPU."""

    def joules_since(self, start: "Energy") -> tuple[float | None, float | None]:
        """Return the joules of all packages and of all GPUs since `start`; None: not known."""
        cpus = gpus = None
        if self.cpus and self.cpus.keys() == start.cpus.keys():
            # At 300 W a counter wraps around every quarter of an hour, so at most once in a cell.
            cpus = sum(
                (now - start.cpus[name]) % self.cpu_ranges[name] for name, now in self.cpus.items()
            )
        if self.gpus and self.gpus.keys() == start.gpus.keys():
            gpus = sum(now - start.gpus[name] for name, now in self.gpus.items())
        return cpus, gpus


def read_energy(powercap: Path = Path("/sys/class/powercap")) -> Energy:
    """Return the counters now."""
    cpus, ranges = {}, {}
    # intel-rapl:0 is a package, AMD's as well; intel-rapl:0:1 is a part of it.
    for domain in sorted(powercap.glob("intel-rapl:?")):
        try:
            joules, wraps_at = (
                int((domain / name).read_text(encoding="utf-8")) / 1e6
                for name in ("energy_uj", "max_energy_range_uj")
            )
        except OSError:
            continue
        cpus[domain.name], ranges[domain.name] = joules, wraps_at
    return Energy(cpus, ranges, _gpu_joules())


def _gpu_joules() -> dict[str, float]:
    try:
        import pynvml
    except ModuleNotFoundError:
        return {}
    joules = {}
    with suppress(pynvml.NVMLError):  # no driver, or no GPU
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # a GPU older than Volta
                gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
                joules[f"gpu{index}"] = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3
    return joules
