"""A link planted under the temporary name of a file: the file that it leads to stays as it is."""

import os
from pathlib import Path

import pytest

from dlemu.cli.main import run
from dlemu.storage.atomic import create
from tests.lab.commands import QUICK, generate

TEXT = "another user's"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text(TEXT)
    return path


def test_of_a_dataset_a_run_and_a_cache(tmp_path: Path, victim: Path) -> None:
    names = ("data/dlemu.json", "data/dlemu.files.npy", "out/summary.json")
    paths = [tmp_path / name for name in (*names, "cache/dlemu-cache.json")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.with_name(f"{path.name}.partial").symlink_to(victim)
    cache = [f"cache.folder={tmp_path / 'cache'}", "cache.capacity=0.5"]
    words = [*QUICK, generate(tmp_path), *cache, f"output.folder={tmp_path / 'out'}"]
    assert run(["run", *words]) == 0
    assert victim.read_text() == TEXT
    assert all(path.stat().st_size and not path.is_symlink() for path in paths)


def test_only_files_and_links_are_removed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileExistsError):
        create(tmp_path / "fifo")
    assert (tmp_path / "fifo").is_fifo()


def test_a_name_that_is_taken_again_at_once_is_refused(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes the link anew between the removal and the second try."""
    link = tmp_path / "link"
    link.symlink_to(victim)
    monkeypatch.setattr("os.unlink", lambda path: None)
    with pytest.raises(FileExistsError):
        create(link)
    assert victim.read_text() == TEXT
