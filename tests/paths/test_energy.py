"""Joules between two readings of the counters."""

from pathlib import Path

import pytest

from dlemu.paths.energy import Energy, read_energy


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

    assert end.cpu_joules_since(start) == pytest.approx(15 + 30)
    assert end.gpu_joules_since(start) == pytest.approx(0.5)


def test_what_cannot_be_read_is_none() -> None:
    nothing = Energy({}, {}, {})

    assert nothing.cpu_joules_since(nothing) is None
    assert nothing.gpu_joules_since(Energy({}, {}, {"gpu0": 1.0})) is None
