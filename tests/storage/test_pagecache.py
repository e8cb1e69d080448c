"""Residency of real files on a disk; in tmpfs every page is in memory by its nature."""

import mmap
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest import approx

from dlemu.errors import RunError
from dlemu.host.devices import devices_under
from dlemu.storage import pagecache
from dlemu.storage.pagecache import (
    cached_share,
    drop,
    drop_all_caches,
    look,
    resident_by_cachestat,
    resident_by_mincore,
)
from tests.lab.waiting import until

_NEARLY = 0.98
"""The kernel may give up a page of what was just read, where others need memory."""


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path.cwd() / "build" / f"pagecache-{os.getpid()}"
    if not devices_under(folder.parent.parent):
        pytest.skip(f"{folder} is on no block device")
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


def make_files(folder: Path, num: int, size: int) -> list[Path]:
    paths = [folder / f"{index}" for index in range(num)]
    for path in paths:
        path.write_bytes(random.Random(path.name).randbytes(size))
    return paths


def make_cold(paths: list[Path]) -> None:
    """Drop files until no page stays: the kernel may be at work on a whole file for a moment."""
    until(lambda: drop(paths).resident == 0, "a cold page cache")


def test_dropped_files_are_cold_and_those_read_are_warm(folder: Path) -> None:
    paths = make_files(folder, 8, (1 << 20) - 100)
    assert (cached_share(paths) or 0) > _NEARLY, "just written"

    result = drop(paths)

    assert result.num_files == 8 and (result.share or 0) < 0.5, "though they were not yet written"
    make_cold(paths)
    assert cached_share(paths) == 0
    for path in paths[:2]:
        path.read_bytes()
    assert cached_share(paths) == approx(0.25, abs=1 - _NEARLY)
    assert (cached_share(paths, max_files=1) or 0) > _NEARLY, "the first"
    assert cached_share(paths, max_files=4) == approx(0.25, abs=1 - _NEARLY), "every other"
    with paths[1].open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        sum(mapped[::4096])  # mapped pages stay
        until(lambda: drop(paths[:2]).share == approx(0.5, abs=1 - _NEARLY), "the other is cold")


def test_both_ways_to_ask_agree(folder: Path) -> None:
    (path,) = make_files(folder, 1, (1 << 20) + 1)
    make_cold([path])
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
    os.pread(file, 10, 300_000)
    os.pread(file, 8192, 8192)

    assert resident_by_mincore(file, path.stat().st_size) == 3
    cachestat = resident_by_cachestat(file)
    os.close(file)
    if cachestat is None:
        pytest.skip("this kernel has no cachestat (Linux 6.5)")
    assert cachestat == 3


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known yet of what sees pages on a file system."""
    monkeypatch.setattr(pagecache, "_SURE", {})
    monkeypatch.setattr(pagecache, "_MINCORE_SURE", {})


@pytest.mark.usefixtures("unproven")
def test_a_cachestat_that_sees_no_page_is_not_believed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an overlay's files, whose pages belong to a file of a layer below."""
    paths = make_files(folder, 3, 1 << 20)
    monkeypatch.setattr(pagecache, "resident_by_cachestat", lambda file: 0)
    assert (cached_share(paths) or 0) > _NEARLY, "mincore sees them"
    make_cold(paths)
    assert look(paths).share == 0, "and sees that they are gone: fadvise is always called"

    monkeypatch.setattr(pagecache, "resident_by_mincore", lambda file, size: None)
    assert look(paths).unknown == 3 and cached_share(paths) is None, "nothing tells"
    assert drop(paths).share is None
    monkeypatch.undo()
    monkeypatch.setattr(pagecache, "_MINCORE_SURE", {})
    for way in ("resident_by_cachestat", "resident_by_mincore"):
        monkeypatch.setattr(pagecache, way, lambda *file: 0)
    monkeypatch.setattr(pagecache, "_SURE", {})
    assert look(paths).unknown == 3, "a file system with a cache of its own, as ZFS has"


@pytest.mark.usefixtures("unproven")
def test_the_trial_of_a_file_system_leaves_no_page(folder: Path) -> None:
    paths = make_files(folder, 2, 1 << 20)
    make_cold(paths)
    pagecache._SURE.clear()
    assert look(paths).resident == 0
    assert list(pagecache._SURE.values()) in ([True], []), "[]: no cachestat before Linux 6.5"
    with paths[0].open("rb") as file:
        assert resident_by_mincore(file.fileno(), 1 << 20) == 0


@pytest.mark.usefixtures("unproven")
def test_pages_behind_an_overlay_are_seen_and_dropped(folder: Path) -> None:
    """A container's root: the folders of its layers are not seen from inside."""
    if os.geteuid():
        pytest.skip("only root mounts an overlay")
    for name in ("upper", "work", "lower", "over"):
        (folder / name).mkdir()
    for path in make_files(folder / "lower", 4, 1 << 20):
        with path.open("rb") as file:
            os.fsync(file.fileno())  # an overlay writes nothing back for a layer below
    layers = ",".join(f"{name}dir={folder / name}" for name in ("lower", "upper", "work"))
    program = (
        "import sys; from pathlib import Path; from dlemu.storage.pagecache import drop, look\n"
        "paths = sorted(Path(sys.argv[1]).iterdir())\n"
        "for path in paths: path.read_bytes()\n"
        "warm = look(paths); drop(paths); drop(paths); cold = look(paths)\n"
        "print(len(paths), warm.share, cold.share)"
    )
    over = folder / "over"
    script = (
        f"mount -t overlay overlay -o {layers} {over} || exit 77; "
        f'mount -t tmpfs none {folder}/lower; exec {sys.executable} -c "$0" {over}'
    )
    command = ["unshare", "-m", "sh", "-c", script, program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no overlay can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    num, warm, cold = done.stdout.split()
    assert num == "4" and float(warm) > _NEARLY and float(cold) < 0.02


def test_part_of_a_page_is_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagecache, "resident_by_cachestat", lambda file: 2)
    assert cached_share(make_files(folder, 1, mmap.PAGESIZE + 1)) == 1


def test_nothing_has_no_share_and_a_missing_file_is_named(folder: Path) -> None:
    assert cached_share([]) is None and drop(make_files(folder, 1, 0)).share is None
    with pytest.raises(FileNotFoundError, match="missing"):
        drop([folder / "missing"])
    with pytest.raises(FileNotFoundError, match="missing"):
        cached_share([folder / "missing"])


def test_all_caches_are_dropped_only_with_the_right_to(tmp_path: Path) -> None:
    drop_all_caches(tmp_path / "drop_caches")
    assert (tmp_path / "drop_caches").read_text() == "3\n"

    with pytest.raises(RunError, match=r"cannot be written \(Is a directory\); run as root"):
        drop_all_caches(tmp_path)
