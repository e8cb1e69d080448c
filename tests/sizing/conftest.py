"""Searches without their pictures."""

from pathlib import Path

import pytest


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make empty files of pictures: to draw one takes longer than the search that it shows."""

    def save(plots: object, path: Path, *, title: str) -> None:
        for kind in ("png", "svg"):
            path.with_name(f"{path.name}.{kind}").write_bytes(b"")

    monkeypatch.setattr("dlemu.report.png.save_pictures", save)
