"""CPU time of the whole host by kind: the first line of /proc/stat, see proc(5)."""

import os
from dataclasses import dataclass
from pathlib import Path

from dlemu.host.devices import PROC, read_text

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""The kernel counts CPU time in these."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since the host started, summed over its CPUs."""

    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    irq: float
    softirq: float
    steal: float

    @property
    def busy(self) -> float:
        return self.user + self.nice + self.system + self.irq + self.softirq

    @property
    def total(self) -> float:
        return self.busy + self.idle + self.iowait + self.steal


def read_cpu_times(*, proc: Path = PROC) -> CpuTimes | None:
    """Return the counters now; None if the kernel does not provide all of them."""
    words = read_text(proc / "stat").partition("\n")[0].split()
    if len(words) < 9:
        return None
    return CpuTimes(*(int(word) / TICKS_PER_SECOND for word in words[1:9]))
