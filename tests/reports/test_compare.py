"""What a loss is counted in. tests/cli/test_compare.py has the command."""

from pathlib import Path

import pytest

from dlemu.errors import WorkloadError
from dlemu.reports.compare import Comparison, Result
from dlemu.reports.noise import Figure


def checkpoints(**rates: float) -> Result:
    """Return a result of `dlemu checkpoint` with these rates of saves and loads."""
    return Result(
        folder=Path("a"),
        kind="checkpoint",
        workload="llama3_8b",
        num_accelerators=8,
        limit="",
        figures={f"{name}_bytes_per_second": Figure(rate) for name, rate in rates.items()},
        basis="1 checkpoint",
    )


def test_saves_are_not_compared_with_loads() -> None:
    both, loads = checkpoints(save=1e9, load=8e9), checkpoints(load=6e9)
    assert Comparison([both, loads]).loss(1) == pytest.approx(0.25)
    assert Comparison([both, checkpoints(save=9e8, load=1e9)]).loss(1) == pytest.approx(0.1)
    with pytest.raises(WorkloadError, match="no figure in common"):
        Comparison([checkpoints(save=1e9), loads]).loss(1)
