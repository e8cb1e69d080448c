"""Runs through a cache: measured is planned, and the folder is sound at any time."""

import errno
import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from dlemu import Alone, DlemuError, WorkloadError, generate, load_workload
from dlemu.config.model import Workload
from dlemu.dataset.layout import Dataset, file_sizes, layout_of
from dlemu.errors import RunError
from dlemu.host.devices import lies_in_memory
from dlemu.host.place import find_host
from dlemu.judge.records import dump_workload
from dlemu.loaders.cache import reader
from dlemu.loaders.cache.folder import MARK, CacheFolder
from dlemu.loaders.cache.host import HostCache, emulates, forecast_cache
from dlemu.report.words import note_lines, sentence
from dlemu.storage.files import PARTIAL
from dlemu.storage.owned import OwnedFolder
from dlemu.storage.pagecache import look
from dlemu.units import round_up
from tests.lab import warm
from tests.lab.commands import ran
from tests.lab.waiting import until

SMALL: dict[str, object] = {
    "dataset.num_files_train": 24,
    "dataset.record_length_bytes": 20_000,
    "dataset.record_length_bytes_stdev": 5_000,
    "reader.batch_size": 2,
    "reader.read_threads": 2,
    "reader.data_loader": "threads",
    "reader.hand_over": "none",
    "train.computation_time": 0.001,
    "train.epochs": 3,
    "num_accelerators": 2,
    "output.drop_caches": False,
}
MANY = {"dataset.num_samples_per_file": 5, "dataset.num_files_train": 12}
HDF5 = MANY | {"dataset.format": "hdf5", "dataset.record_length_bytes_stdev": 0}
CASES: dict[str, dict[str, object]] = {
    "npz": {"dataset.format": "npz", "reader.check_crc": True},
    "npz with O_DIRECT": {"dataset.format": "npz", "reader.odirect": "auto"},
    "npy by numpy": {"dataset.format": "npy", "reader.decode": "library"},
    "tfrecord streams": MANY | {"dataset.format": "tfrecord", "reader.check_crc": True},
    "tfrecord streams by a parser": MANY
    | {"dataset.format": "tfrecord", "reader.decode": "library"},
    "tf.data": MANY | {"dataset.format": "tfrecord", "reader.data_loader": "tensorflow"},
    "hdf5 samples": HDF5,
    "npz arrays": HDF5 | {"dataset.format": "npz"},
    "workers of torch": {"dataset.format": "npy", "reader.data_loader": "pytorch"},
    "raw streams, of two samples each": {
        "dataset.format": "raw",
        "dataset.num_samples_per_file": 4,
        "dataset.num_files_train": 16,
        "dataset.record_length_bytes_stdev": 0,
        "reader.sample_shuffle": "off",
    },
    "torch, streams": MANY | {"dataset.format": "tfrecord", "reader.data_loader": "pytorch"},
}


def made(folder: Path, keys: dict[str, object]) -> Workload:
    """Return a small workload with a cache; its dataset is written if it was not."""
    places = {
        "dataset.data_folder": str(folder / "data"),
        "output.folder": str(folder / "run"),
        "cache.folder": str(folder / "cache"),
    }
    workload = load_workload("unet3d_h100", SMALL | places | keys)
    generate(workload, world=Alone())
    return workload


def run(workload: Workload) -> dict[str, Any]:
    """Return what was measured of the cache."""
    measured: Any = ran(workload).summary["measured"]
    return dict(measured["cache"])


def entries(folder: Path) -> dict[int, Path]:
    """Return the files in a cache by their numbers."""
    return {int(p.name.partition(".")[0]): p for p in folder.iterdir() if p.name != MARK}


def assert_sound(workload: Workload) -> None:
    """Check that a cache holds exact copies of files of the dataset."""
    layout = layout_of(workload)
    for file, path in entries(Path(str(workload.cache.folder))).items():
        assert path.read_bytes() == (workload.data_folder / layout.path(file)).read_bytes()


def resident(workload: Workload) -> float:
    """Return the share (0-1) of the pages of the dataset and of the cache that are in memory."""
    layout = layout_of(workload)
    files = [workload.data_folder / layout.path(file) for file in range(layout.num_files)]
    files += entries(Path(str(workload.cache.folder))).values()
    if lies_in_memory(files[0]):
        pytest.skip("temporary files lie in memory: they cannot leave it")
    return look(files).share or 0.0


@pytest.mark.parametrize("case", CASES)
def test_measured_is_planned_to_the_byte(case: str, tmp_path: Path) -> None:
    even = list(CASES).index(case) % 2
    how = {"cache.policy": ("keep", "lru")[even], "cache.fill": ("async", "sync")[even]}
    keys = {"cache.capacity": 0.55, "output.drop_caches": True}
    workload = made(tmp_path, CASES[case] | how | keys)
    sizes = file_sizes(Dataset.of(workload))
    planned = forecast_cache(Dataset.of(workload), Alone(), range(2), 2).epochs
    assert not (tmp_path / "cache").exists()
    found = run(workload)
    assert [epoch.hit for epoch in planned] == found["hit_bytes_per_epoch"]
    assert [epoch.written for epoch in planned] == found["cache_write_bytes_per_epoch"]
    wear = json.loads((tmp_path / "run" / "summary.json").read_text())["measured"]["wear"]
    assert wear["file_bytes_written"] == sum(found["cache_write_bytes_per_epoch"])
    assert found["hit_bytes_per_epoch"] == found["planned_hit_bytes_per_epoch"]
    assert found["hit_share_per_epoch"] == found["planned_hit_share_per_epoch"]
    assert sum(found["hit_bytes_per_epoch"]) > 0
    assert found["cache_read_bytes_per_epoch"][-1] > 0
    # What the kernel still reads ahead while a file is closed stays: a few pages.
    assert resident(workload) < 0.05, "the page cache is no second cache"
    assert_sound(workload)
    held = sum(path.stat().st_size for path in entries(tmp_path / "cache").values())
    assert held <= found["capacity_bytes"] <= 0.55 * round_up(sizes).sum()
    if "dataset.num_samples_per_file" not in CASES[case]:  # each byte comes from one of both
        both = zip(found["hit_bytes_per_epoch"], found["origin_bytes_per_epoch"], strict=True)
        assert set(map(sum, both)) == {sizes.sum()}
        assert [epoch.origin for epoch in planned] == found["origin_bytes_per_epoch"]


def test_what_a_power_failure_may_have_lost_is_not_trusted(tmp_path: Path) -> None:
    workload = made(tmp_path, {"cache.capacity": 1.0})
    run(workload)
    mark, key = tmp_path / "cache" / MARK, "may_be_lost_after_boot"
    assert json.loads(mark.read_text())[key] == "", "all is on the drive"
    again = workload.with_keys({"cache.warm": "found", "train.epochs": 1})
    for boot, share in (
        ("", 1),
        (Path("/proc/sys/kernel/random/boot_id").read_text(), 1),
        ("?", 0),
    ):
        mark.write_text(json.dumps(json.loads(mark.read_text()) | {key: boot.strip()}))
        keys = {"output.folder": str(tmp_path / f"boot {boot[:1]}")}
        summary: Any = ran(again.with_keys(keys)).summary
        assert summary["measured"]["cache"]["hit_share_per_epoch"] == [share]
        notes = " ".join(note_lines(summary))
        assert ("was emptied: the host" in notes) == (share == 0)
        assert ("are on one drive" in notes) == bool(find_host(tmp_path)["drives"])
    assert_sound(workload)
    # A cold run starts empty; what is copied beforehand is counted apart.
    for key, value, shares in (
        ("fill", "off", [0, 0, 0]),
        ("warm", True, [1, 1, 1]),
        ("fill", "async", [0, 1, 1]),
    ):
        folder = str(tmp_path / f"{key} {value}")
        found = run(workload.with_keys({"output.folder": folder, f"cache.{key}": value}))
        assert found["hit_share_per_epoch"] == shares
        assert (found["preload"] is not None) == (key == "warm")


def test_an_interrupted_preload_copies_nothing_more(tmp_path: Path) -> None:
    workload = made(tmp_path, {"cache.capacity": 1.0, "cache.warm": True, "origin.latency": 3.0})
    before = {*threading.enumerate()}
    with closing(HostCache(Dataset.of(workload), Alone(), range(2))) as cache:
        interrupted = patch.object(threading.Thread, "join", side_effect=KeyboardInterrupt)
        with interrupted, pytest.raises(KeyboardInterrupt):
            cache.copy(lambda path: None)
        until(lambda: {*threading.enumerate()} <= before, "the end of the threads")
    assert len(entries(tmp_path / "cache")) <= 16, "each of 16 threads ends with its file"


def test_an_emulated_origin_needs_no_cache_and_is_labelled(tmp_path: Path) -> None:
    keys: dict[str, object] = {"cache.folder": None, "origin.latency": 0.004}
    keys["origin.read_bandwidth"] = 100_000_000
    job = made(tmp_path, keys)
    origin = emulates(job)
    assert origin and sentence(origin) == "at 100 MB/s and 4 ms a file"
    found = run(job)
    assert found["capacity_bytes"] == 0 and found["hit_share_per_epoch"] == [0, 0, 0]
    # 24 files of 4 ms by 4 workers at the same time
    assert min(found["seconds_per_epoch"]) > 24 / 4 * 0.004 * 0.9
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = RunError("x cannot be written to the cache: No space left on device")
    monkeypatch.setattr(reader, "write_entry", Mock(side_effect=full))
    for fill in ("sync", "async"):
        workload = made(tmp_path, {"cache.fill": fill, "output.folder": str(tmp_path / fill)})
        with pytest.raises(DlemuError, match="No space left on device"):
            run(workload)
        claim(workload).close()


@pytest.fixture
def claimed(tmp_path: Path) -> Iterator[tuple[Workload, Path]]:
    """A workload whose cache holds two files."""
    workload = made(tmp_path, {"cache.capacity": 1.0, "dataset.num_files_train": 4})
    claim(workload).close()
    for file in (0, 1):
        data = (workload.data_folder / layout_of(workload).path(file)).read_bytes()
        (tmp_path / "cache" / f"{file:08}.{file}").write_bytes(data)
    yield workload, tmp_path / "cache"


def claim(workload: Workload) -> CacheFolder:
    return CacheFolder(workload, layout_of(workload), file_sizes(Dataset.of(workload)))


def test_what_a_killed_run_leaves_is_cleaned(claimed: tuple[Workload, Path]) -> None:
    workload, cache = claimed
    size = (cache / "00000000.0").stat().st_size
    sizes = file_sizes(Dataset.of(workload)).tolist()
    (cache / f"00000002.9{PARTIAL}").write_bytes(bytes(sizes[2]))  # it has its size, but no name
    (cache / "00000003.7").write_bytes(b"not whole")
    (cache / "00000000.5").write_bytes(bytes(size))  # the newer one of two
    (cache / "00000099.6").write_bytes(b"no such file")
    folder = claim(workload)
    assert folder.entries() == [(1, 1), (0, 5)]
    folder.close()
    assert sorted(path.name for path in cache.iterdir()) == ["00000000.5", "00000001.1", MARK]


def test_a_run_that_is_killed_leaves_a_sound_cache(tmp_path: Path) -> None:
    workload = made(tmp_path, {"dataset.record_length_bytes_stdev": 0})
    cache, job = tmp_path / "cache", tmp_path / "job.yaml"
    slow = {"output.folder": str(tmp_path / "killed"), "origin.latency": 0.2}
    job.write_text(dump_workload(workload.with_keys(slow)))
    process = warm.Popen([*warm.COMMAND, "run", f"workload={job}"])
    until(lambda: cache.exists() and len(list(cache.iterdir())) >= 6, "some entries", by=process)
    process.kill()
    process.wait()
    whole = [path for path in entries(cache).values() if path.suffix != PARTIAL]
    assert 0 < len(whole) < 24
    found = run(workload.with_keys({"cache.warm": "found"}))
    assert 0 < found["hit_share_per_epoch"][0] < 1
    assert found["hit_share_per_epoch"][1] == 1
    assert_sound(workload)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({}, "holds mine.txt, which dlemu has not written"),
        ({"dataset.seed": 7}, "is a cache of another dataset in "),
        ({"cache.folder": "/nowhere/at/all"}, "all: there is no folder /nowhere/at; name"),
        ({"cache.capacity": 0.01}, "cache.capacity holds no file: it is"),
    ],
)
def test_a_folder_that_is_not_this_cache_is_refused_and_kept(
    keys: dict[str, object], line: str, claimed: tuple[Workload, Path]
) -> None:
    workload, cache = claimed
    if not keys:
        (cache / "mine.txt").write_text("keep me")
    before = sorted(path.name for path in cache.iterdir())
    with pytest.raises(WorkloadError, match=line):
        claim(workload.with_keys(keys))
    assert sorted(path.name for path in cache.iterdir()) == before


def test_a_folder_that_cannot_be_claimed_is_not_made(
    claimed: tuple[Workload, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(OwnedFolder, "write", Mock(side_effect=full))
    new = claimed[1].with_name("new")
    with pytest.raises(
        WorkloadError, match=r"new cannot be used \(No space left.*\); name an empty"
    ):
        claim(claimed[0].with_keys({"cache.folder": str(new)}))
    assert not new.exists()


def test_a_run_that_cannot_begin_lets_the_folder_go(claimed: tuple[Workload, Path]) -> None:
    dataset, error = Dataset.of(claimed[0]), OSError(errno.EIO, os.strerror(errno.EIO))
    with patch.object(os, "unlink", side_effect=error), pytest.raises(OSError, match="Input/out"):
        HostCache(dataset, Alone(), range(1))
    first = claim(claimed[0])
    with pytest.raises(WorkloadError, match="is in use by another dlemu"):
        claim(claimed[0])
    first.close()
    claim(claimed[0]).close()


def test_a_capacity_without_room_is_refused(claimed: tuple[Workload, Path]) -> None:
    workload, cache = claimed
    status = os.statvfs(cache)
    sizes = file_sizes(Dataset.of(workload))
    huge = sizes * (2 * status.f_blocks * status.f_frsize // int(sizes.sum()) + 1)
    new = workload.with_keys({"cache.folder": str(cache.with_name("new"))})
    for job in (workload, new):
        with pytest.raises(
            WorkloadError, match=r"too little for cache.capacity, .*; set a smaller"
        ):
            CacheFolder(job, layout_of(job), huge)
    assert not cache.with_name("new").exists()
