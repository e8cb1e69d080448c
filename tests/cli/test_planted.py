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


def plant(victim: Path, name: Path) -> None:
    name.parent.mkdir(exist_ok=True)
    name.with_name(f"{name.name}.partial").symlink_to(victim)


def check(victim: Path, name: Path) -> None:
    assert victim.read_text() == TEXT
    assert name.stat().st_size and not name.is_symlink()


@pytest.mark.parametrize("name", ["dlemu.json", "dlemu.files.npy"])
def test_of_a_dataset(tmp_path: Path, victim: Path, name: str) -> None:
    plant(victim, tmp_path / "data" / name)
    generate(tmp_path)
    check(victim, tmp_path / "data" / name)


def test_of_a_run(tmp_path: Path, victim: Path) -> None:
    data = generate(tmp_path)
    plant(victim, tmp_path / "out" / "summary.json")
    assert run(["run", *QUICK, data, f"output.folder={tmp_path / 'out'}"]) == 0
    check(victim, tmp_path / "out" / "summary.json")


def test_of_a_cache(tmp_path: Path, victim: Path) -> None:
    data = generate(tmp_path)
    plant(victim, tmp_path / "cache" / "dlemu-cache.json")
    cache = [f"cache.folder={tmp_path / 'cache'}", "cache.capacity=0.5"]
    assert run(["run", *QUICK, data, *cache, f"output.folder={tmp_path / 'out'}"]) == 0
    check(victim, tmp_path / "cache" / "dlemu-cache.json")


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
