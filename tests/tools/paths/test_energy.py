"""Joules between two readings of the counters."""

import math
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from dlemu.tools.paths.cells import HostCounters, read_joules


def test_packages_are_read_and_their_parts_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    counted = {"intel-rapl:0": 5_000_000, "intel-rapl:1": 7_500_000, "intel-rapl:0:0": 1, "dtpm": 1}
    for name, microjoules in counted.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{microjoules}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("8000000\n")
    (tmp_path / "intel-rapl:2").mkdir()

    assert read_joules(tmp_path) == {"intel-rapl:0": (5.0, 8.0), "intel-rapl:1": (7.5, 8.0)}


def test_an_overrun_is_not_negative_energy() -> None:
    cpus = {"user": 1.0, "nice": 0.0, "system": 1.0, "irq": 0.0, "softirq": 0.0}
    before = {"intel-rapl:0": (90.0, 100.0), "intel-rapl:1": (10.0, 100.0), "gpu0": (3.0, math.inf)}
    after = {"intel-rapl:0": (5.0, 100.0), "intel-rapl:1": (40.0, 100.0), "gpu0": (3.5, math.inf)}
    start, end = HostCounters(8.0, cpus, before), HostCounters(10.0, cpus, after)

    used = end.since(start)

    assert (used.cpu_watts, used.gpu_watts) == pytest.approx(((15 + 30) / 2, 0.25))
    assert end.since(HostCounters(8.0, cpus, {})).cpu_watts is None


def test_each_gpu_that_counts_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, the first is too old."""
    nvml = Mock(NVMLError=RuntimeError)
    nvml.nvmlDeviceGetCount.return_value = 2
    nvml.nvmlDeviceGetTotalEnergyConsumption.side_effect = [RuntimeError("Not Supported"), 5500]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert read_joules(tmp_path) == {"gpu1": (5.5, math.inf)}
    nvml.nvmlInit.side_effect = RuntimeError("Driver Not Loaded")
    assert read_joules(tmp_path) == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_joules(tmp_path) == {}, "without the library"
