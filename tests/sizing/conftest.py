"""Searches without their pictures."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dlemu.sizing import plots


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make empty files of pictures: to draw one takes longer than the search that it shows."""

    def save(figure: Figure, path: Path) -> None:
        for kind in ("png", "svg"):
            path.with_name(f"{path.name}.{kind}").write_bytes(b"")

    monkeypatch.setattr(plots, "_save", save)
