"""Joules between two readings of the counters."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlemu.tools.paths.cells import Energy, read_energy


def test_packages_are_read_and_their_parts_left_out(tmp_path: Path) -> None:
    for name, microjoules in (
        ("intel-rapl:0", 5_000_000),
        ("intel-rapl:1", 7_500_000),
        ("intel-rapl:0:0", 1),
        ("dtpm", 1),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{microjoules}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("262143328850\n")
    (tmp_path / "intel-rapl:2").mkdir()

    found = read_energy(tmp_path)

    assert found.cpus == {"intel-rapl:0": 5.0, "intel-rapl:1": 7.5}


def test_an_overrun_is_not_negative_energy() -> None:
    ranges = {"intel-rapl:0": 100.0, "intel-rapl:1": 100.0}
    start = Energy({"intel-rapl:0": 90.0, "intel-rapl:1": 10.0}, ranges, {"gpu0": 3.0})
    end = Energy({"intel-rapl:0": 5.0, "intel-rapl:1": 40.0}, ranges, {"gpu0": 3.5})

    assert end.joules_since(start) == pytest.approx((15 + 30, 0.5))


class NVMLError(Exception):
    pass


def fake_nvml(monkeypatch: pytest.MonkeyPatch, *, has_driver: bool) -> None:
    """Two GPUs, of which the first does not count its energy."""

    def init() -> None:
        if not has_driver:
            raise NVMLError("Driver Not Loaded")

    def energy(gpu: str) -> int:
        if gpu == "handle 0":
            raise NVMLError("Not Supported")
        return 5500

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: f"handle {index}",
        nvmlDeviceGetTotalEnergyConsumption=energy,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def test_each_gpu_that_counts_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, has_driver=True)
    assert read_energy(tmp_path) == Energy({}, {}, {"gpu1": 5.5})
    fake_nvml(monkeypatch, has_driver=False)
    assert read_energy(tmp_path).gpus == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_energy(tmp_path).gpus == {}, "without the library"
