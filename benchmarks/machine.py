"""The machine that a benchmark ran on, and small things all benchmarks print."""

import os
import platform
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Rate(NamedTuple):
    """What reading or writing so many bytes took."""

    num_bytes: float
    seconds: float
    cpu_seconds: float

    @property
    def cost(self) -> float:
        """CPU seconds per GB."""
        return self.cpu_seconds / self.num_bytes * 1e9

    @property
    def speed(self) -> float:
        """GB/s."""
        return self.num_bytes / self.seconds / 1e9


def describe_machine() -> str:
    """Return CPU, cores, memory, kernel and load in a line."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", cpuinfo, re.MULTILINE)
    meminfo = Path("/proc/meminfo").read_text()
    memory = int(re.findall(r"^MemTotal:\s+(\d+)", meminfo, re.MULTILINE)[0]) / 2**20
    return (
        f"{model[1] if model else platform.processor()}, {os.cpu_count()} cores, "
        f"{memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}"
    )


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return "median (min–max)"."""
    middle = statistics.median(values)
    return f"{middle:{form}} ({min(values):{form}}–{max(values):{form}})"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
