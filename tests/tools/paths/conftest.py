"""Sweeps of few cells, which copy no memory."""

from pathlib import Path
from typing import Any

import pytest

from dlemu.tools.paths import sweep
from dlemu.tools.paths.sweep import Sweep

MIB = 1 << 20


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy no memory, which takes a while."""
    monkeypatch.setattr(sweep, "memory_rate", lambda: 8e9)


def plan(*targets: Path, **changes: Any) -> Sweep:
    """Return a cell for each target; with no target, `changes` have pairs."""
    plain: dict[str, Any] = {
        "output": targets[0].parent / "output" if targets else Path("output"),
        "seconds": 0.1,
        "io_sizes": (65536,),
        "workers": (2,),
        "patterns": ("seq_read",),
        "paths": ("host_buffered",),
        "file_size": MIB,
    }
    return Sweep(**plain | ({"target": targets} if targets else {}) | changes)
