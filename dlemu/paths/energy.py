"""Energy that the host's CPUs and GPUs have used, where their counters can be read.

CPUs: RAPL through /sys/class/powercap, readable by root since Linux 5.10. GPUs: NVML, from
Volta on.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Energy:
    """Counters at one moment, in joules; empty where nothing can be read."""

    cpus: Mapping[str, float]
    """Of each processor package."""
    cpu_ranges: Mapping[str, float]
    """Where each package's counter starts again from 0."""
    gpus: Mapping[str, float]

    def cpu_joules_since(self, start: "Energy") -> float | None:
        """Return what all packages used since `start`; None if it cannot be known."""
        if not self.cpus or self.cpus.keys() != start.cpus.keys():
            return None
        # A counter overruns once in a while (a quarter of an hour at 300 W); never twice a cell.
        return sum(
            (now - start.cpus[name]) % self.cpu_ranges[name] for name, now in self.cpus.items()
        )

    def gpu_joules_since(self, start: "Energy") -> float | None:
        """Return what all GPUs used since `start`; None if it cannot be known."""
        if not self.gpus or self.gpus.keys() != start.gpus.keys():
            return None
        return sum(now - start.gpus[name] for name, now in self.gpus.items())


def read_energy(powercap: Path = POWERCAP) -> Energy:
    """Return what the counters show now."""
    cpus, ranges = {}, {}
    # intel-rapl:0 is a package (AMD's are called so too); intel-rapl:0:1 is a part of it.
    for domain in sorted(powercap.glob("intel-rapl:?")):
        try:
            microjoules = int((domain / "energy_uj").read_text(encoding="utf-8"))
            ranges[domain.name] = (
                int((domain / "max_energy_range_uj").read_text(encoding="utf-8")) / 1e6
            )
        except OSError:
            continue
        cpus[domain.name] = microjoules / 1e6
    return Energy(cpus, ranges, _gpu_joules())


def _gpu_joules() -> dict[str, float]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return {}
    read = nvml.nvmlDeviceGetTotalEnergyConsumption
    joules = {}
    for index in range(count.value):
        device = ctypes.c_void_p()
        millijoules = ctypes.c_ulonglong()
        found = not nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        if found and not read(device, ctypes.byref(millijoules)):
            joules[f"gpu{index}"] = millijoules.value / 1e3
    return joules
