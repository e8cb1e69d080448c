"""Datasets are generated whole, the same on any number of ranks and after any interruption.

The content of samples is the same anywhere, and of no use to deduplication or compression. What is
extended to more files gets new names, and keeps its bytes.
"""

import contextlib
import hashlib
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlemu.datagen import target, write
from dlemu.datagen.assemble import Content
from dlemu.datagen.manifest import WritePlan, read_manifest, to_entries
from dlemu.datagen.survey import survey
from dlemu.datagen.target import FILES_IN_FLIGHT, FileMaker, FileProgress
from dlemu.datagen.verify import verify
from dlemu.datagen.write import FolderState, Todo, generate
from dlemu.dataset.layout import Layout, layout_of
from dlemu.errors import DatasetError, RunError, WorkloadError
from dlemu.ranks.world import Alone
from dlemu.report.words import sentence
from dlemu.storage import owned, probe
from dlemu.storage.folder import Folder
from dlemu.storage.place import path_of
from tests.lab.dataset import generated, tree, workload_of
from tests.lab.drives import mounted
from tests.lab.mpirun import mpirun
from tests.lab.waiting import LONG

ROOT = Path(__file__).parents[2]


KINDS: list[dict[str, Any]] = [
    {"format": "npz", "record_length_bytes": 3e5, "record_length_bytes_stdev": 1e5},
    {"format": "npz", "num_samples_per_file": 3, "record_dims": (5, 7), "num_subfolders_train": 3},
    {"format": "npy", "record_element_type": "float32", "record_length_bytes": 4000.0},
    {"format": "hdf5", "num_samples_per_file": 4, "num_subfolders_train": 2},
    {"format": "hdf5", "record_length_bytes": 3e5, "record_length_bytes_stdev": 1e5},
    {"format": "tfrecord", "num_samples_per_file": 50, "record_length_bytes": 1140.07},
    {"format": "tfrecord", "record_length_bytes": 3e6, "file_prefix": "a_b", "seed": 9},
    {"format": "jpeg", "record_length_bytes": 3e4, "num_subfolders_train": 2},
    {"format": "mmap_indexed_binary", "num_samples_per_file": 40},
    {"format": "parquet", "record_dims": (3, 3), "record_element_type": "float32"},
    {"format": "csv", "num_samples_per_file": 40, "record_length_bytes": 777.0},
    {
        **{"format": "hdf5", "num_samples_per_file": 3, "record_dims": (8, 5, 3)},
        **{"num_dset_per_record": 2, "chunk_dims": (1, 2, 5, 3), "compression": "gzip"},
    },
]


PROGRAM = """
import json, sys
from dlemu.datagen.write import generate
from dlemu.config.model import check_workload
from dlemu.ranks.mpi import make_world
with make_world() as world:
    generate(check_workload(json.loads(sys.argv[1])), world=world)
"""


@pytest.mark.mpi
def test_ranks_change_no_byte(tmp_path: Path) -> None:
    generated(tmp_path / "alone", num_files_train=7, **KINDS[5])
    workload = workload_of(tmp_path / "ranks", num_files_train=7, **KINDS[5])
    words = workload.model_dump_json(include={"dataset", "reader", "train"})
    command = mpirun(3, sys.executable, "-c", PROGRAM, words)
    subprocess.run(command, cwd=ROOT, check=True, timeout=LONG)

    assert tree(tmp_path / "ranks") == tree(tmp_path / "alone")


def test_subfolders_may_be_links_to_other_drives(tmp_path: Path) -> None:
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "drive").mkdir()
    (tmp_path / "data" / "train" / "1").symlink_to(tmp_path / "drive")

    workload = generated(tmp_path / "data", num_subfolders_train=2)

    assert len(list((tmp_path / "drive").iterdir())) == 3
    assert verify(tmp_path / "data", full=True, world=Alone()) == []
    assert generate(workload, world=Alone()).files_written == 0


def test_killed_at_any_moment_it_continues(tmp_path: Path) -> None:
    kind = {"num_files_train": 150, "num_subfolders_train": 3, **KINDS[0]}
    generated(tmp_path / "whole", **kind)
    killed = workload_of(tmp_path / "killed", **kind)
    kills = (1, 20, 1, 30, 40, 25, 10)

    def work(num_files: int) -> None:
        begun, write_file = itertools.count(), FileMaker.write_file

        def write(self: FileMaker, file: int) -> Any:
            if next(begun) == num_files:  # others are in the middle of theirs
                os.kill(os.getpid(), signal.SIGKILL)
            return write_file(self, file)

        FileMaker.write_file = write  # type: ignore[assignment,method-assign]
        generate(killed, world=Alone())

    for num_files in kills:
        child = get_context("fork").Process(target=work, args=(num_files,))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    before = sum(1 for _ in (tmp_path / "killed" / "train").rglob("*.npz"))
    manifest = generate(killed, world=Alone())

    assert before > 80
    most = 150 - before + FILES_IN_FLIGHT * len(kills)
    assert manifest.files_written <= most, "what was done stays done"
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")


def test_what_is_no_entry_in_a_journal_says_nothing(tmp_path: Path) -> None:
    workload = generated(tmp_path)
    whole, manifest = tree(tmp_path), read_manifest(tmp_path)
    assert manifest is not None
    (tmp_path / "dlemu.json").unlink()
    work = tmp_path / ".dlemu"
    work.mkdir()
    (work / "recipe.json").write_bytes(WritePlan(dataset=layout_of(workload)).to_json())
    entries = bytearray(to_entries(np.arange(6), manifest.files["crc32c"]))
    assert len(entries) == 6 * 16
    (work / "rank0.journal").write_bytes(entries[:40])
    entries[4 * 16 + 9] ^= 1
    strange = to_entries(np.array([-1, 6, -7, 1 << 62]), np.zeros(4, np.uint32))
    (work / "rank6.journal").write_bytes(strange)
    (work / "rank5.journal").write_bytes(entries[3 * 16 : 5 * 16])

    assert generate(workload, world=Alone()).files_written == 3
    assert tree(tmp_path) == whole


def test_files_lost_later_are_written_again(tmp_path: Path) -> None:
    workload = generated(tmp_path, format="tfrecord")
    whole = tree(tmp_path)
    layout = generate(workload, world=Alone()).layout
    (tmp_path / layout.path(2)).unlink()
    (tmp_path / layout.index_paths(4)[0]).write_bytes(b"0 1")
    os.truncate(tmp_path / layout.path(5), 17)

    assert generate(workload, world=Alone()).files_written == 3
    assert tree(tmp_path) == whole


def test_indexes_are_synced_before_the_manifest_says_that_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest_was_there = []
    settle = Folder.settle

    def note(self: Folder) -> None:
        manifest_was_there.append((tmp_path / "dlemu.json").exists())
        settle(self)

    monkeypatch.setattr(Folder, "settle", note)
    generated(tmp_path, format="tfrecord")
    assert manifest_was_there == [False]


def test_one_datagen_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is refused, and the first goes on; a third finds the dataset complete."""
    monkeypatch.setattr(write, "_LOCK_SECONDS", 0.1)
    workload = workload_of(tmp_path)
    refused: list[str] = []
    progress: list[FileProgress] = []

    def second(done: FileProgress) -> None:
        progress.append(done)
        for command in (
            lambda: generate(workload, world=Alone()),
            lambda: verify(tmp_path, full=False, repair=True, world=Alone()),
        ):
            with pytest.raises(WorkloadError) as error:
                command()
            refused.append(str(error.value))

    first = generate(workload, world=Alone(), on_progress=second)

    line = f"dataset.data_folder {tmp_path} is in use by another dlemu; wait for its end, or name"
    assert refused and all(said.startswith(line) for said in refused)
    assert progress[-1].files_done == progress[-1].files_total == first.files_written == 6
    assert progress[-1].bytes_done == progress[-1].bytes_total == first.num_bytes
    before = stamps(tmp_path)
    third = generate(workload, world=Alone())
    assert third.files_written == 0
    assert sentence(third.describe()).endswith("complete already, nothing was written")
    assert stamps(tmp_path) == before


def test_the_keys_that_fit_the_dataset_are_told(tmp_path: Path) -> None:
    """All that differ; set, they make the workload fit."""
    generated(tmp_path, format="npy", record_dims=(5, 7), record_element_type="float32", seed=3)
    with pytest.raises(DatasetError) as error:
        generated(tmp_path)
    told, _, remedy = str(error.value).partition("; use another dataset.data_folder, or set ")
    assert told.startswith(
        f"{tmp_path} holds a dataset of 6 npy files img_* of 1 sample of shape [5, 7], 140 bytes "
        "each, float32, seed 3: dataset.format is npy, the workload's is npz, and dataset."
    )
    assert remedy == (
        "dataset.format=npy 'dataset.record_dims=[5, 7]' dataset.record_element_type=float32 "
        "dataset.seed=3"
    )
    keys = {"record_dims": [5, 7], "record_element_type": "float32", "seed": 3}
    assert generate(workload_of(tmp_path, format="npy", **keys), world=Alone()).files_written == 0
    before = tree(tmp_path)
    with pytest.raises(DatasetError, match="datagen extends a dataset, and never makes it smalle"):
        generated(tmp_path, format="npy", num_files_train=5, **keys)
    assert tree(tmp_path) == before


def test_files_of_unknown_origin_are_not_overwritten(tmp_path: Path) -> None:
    workload = generated(tmp_path)
    (tmp_path / "dlemu.json").unlink()
    with pytest.raises(DatasetError, match="train holds 6 npz files of these names and no mani"):
        generate(workload, world=Alone())
    (tmp_path / "other" / "train").mkdir(parents=True)
    for name in ("x.npz", "img_2_of_6.npz.partia", "y.npz.partial"):
        (tmp_path / "other" / "train" / name).write_bytes(b"")
    before = tree(tmp_path / "other")
    with pytest.raises(DatasetError) as error:
        generated(tmp_path / "other")
    assert str(error.value) == (
        f"{tmp_path}/other/train/img_2_of_6.npz.partia (and 2 other files) is no file of this "
        "dataset; move it elsewhere, or use another dataset.data_folder"
    )
    assert tree(tmp_path / "other") == before


def test_only_partial_files_of_its_own_are_removed(tmp_path: Path) -> None:
    workload = workload_of(tmp_path, format="tfrecord")
    own = ["train/img_2_of_6.tfrecord.partial", "index/train/img_0_of_6.idx.partial"]
    other = ["valid/x.partial", "mine.partial", "train/.x.partial", ".dlemu.partial"]
    other += [".dlemu/mine"]
    for path in (*own, *other):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()

    def left(paths: list[str]) -> list[str]:
        return [path for path in paths if (tmp_path / path).exists()]

    generate(workload, world=Alone())
    assert (left(own), left(other)) == ([], other)

    for keys, of in (
        ({}, "a complete dataset, too"),
        ({"dataset.num_files_train": 8}, "the names that files had"),
    ):
        for path in own:
            (tmp_path / path).touch()
        generate(workload.with_keys(keys), world=Alone())
        assert (left(own), left(other)) == ([], other), of


def test_what_servers_and_desktops_leave_is_in_nobodys_way(tmp_path: Path) -> None:
    workload = workload_of(tmp_path, num_files_train=4)
    left = [".DS_Store", ".nfs0001", "Thumbs.db", "._img_0_of_4.npz", ".snapshot/img_1_of_4.npz"]
    for name in (*left, "lost+found/1"):
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / name).touch()

    assert generate(workload, world=Alone()).files_written == 4
    assert [fault.path for fault in verify(tmp_path, full=True, world=Alone())] == [
        f"train/{name}" for name in sorted(left[:4])
    ]
    (tmp_path / "dlemu.json").unlink()
    assert survey(tmp_path, workload)[1].num_files == 4


@pytest.mark.parametrize("what", ["dlemu.json", ".dlemu"])
def test_what_vanishes_midway_is_one_line(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes it."""
    finish = write._finish

    def vanish(folder: Folder, layout: Layout, workload: str) -> None:
        if what == ".dlemu":
            shutil.rmtree(tmp_path / what)
        finish(folder, layout, workload)
        (tmp_path / "dlemu.json").unlink(missing_ok=True)

    monkeypatch.setattr(write, "_finish", vanish)
    with pytest.raises(DatasetError) as error:
        generated(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / what} has vanished: another process removed it; start dlemu datagen again"
    )


def test_a_file_where_a_folder_must_be_is_named(tmp_path: Path) -> None:
    place = tmp_path / ".dlemu"
    place.write_text("mine")
    with pytest.raises(DatasetError) as error:
        generated(tmp_path)
    assert str(error.value).startswith(str(place))
    assert str(error.value).endswith(
        "cannot be used (Not a directory); move elsewhere what is there, or use another "
        "dataset.data_folder"
    )
    assert tree(tmp_path).keys() == {".dlemu"}


def test_what_cannot_fit_is_counted_in_whole_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three files, each with an index, and 12 bytes of the manifest for each of all."""
    layout = layout_of(workload_of(tmp_path, format="tfrecord", num_files_train=3))
    sizes = np.array([[100, 5000, 1 << 30], [10, 20, 1 << 30]])
    found = FolderState(Todo(layout, np.array([0, 1])), b"", (), sizes)
    assert found.num_bytes == (4096 + 8192) + 2 * 4096
    need = 3 * 12 + found.num_bytes
    monkeypatch.setattr(owned, "disk_bytes", lambda folder: (1 << 40, need))
    found.check_space(Folder(tmp_path))
    monkeypatch.setattr(owned, "disk_bytes", lambda folder: (1 << 40, need - 1))
    with pytest.raises(RunError, match="free, too little for 2 tfrecord files, "):
        found.check_space(Folder(tmp_path))


@pytest.mark.root
def test_a_disk_that_fills_up_midway_can_be_continued(tmp_path: Path) -> None:
    # 1024 pages: the files take 1023, the journal and the recipe one each.
    kind = {"num_files_train": 31, "record_length_bytes": 128_000.0}
    with mounted(tmp_path / "small", "size=4m") as small:
        workload = workload_of(small, **kind)
        with pytest.raises(RunError) as error:
            generate(workload, world=Alone())
        assert str(error.value) == (
            f"{small} is full (No space left on device); free space and start datagen again, it "
            "continues with the files that are missing"
        )
        assert not list(small.rglob("*.partial"))
        assert read_manifest(small) is None

        subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
        assert 0 < generate(workload, world=Alone()).files_written < 31
        generated(tmp_path / "whole", **kind)
        assert tree(small) == tree(tmp_path / "whole")


PAGE = 4096


def content_of(seed: int, sample: int, num_bytes: int, offset: int = 0) -> NDArray[np.uint8]:
    out = np.empty(num_bytes, np.uint8)
    Content(seed).fill(out, sample, offset)
    return out


@given(
    sample=st.integers(0, 2**34 - 1),
    offset=st.integers(0, 3 * 2**20),
    num_bytes=st.integers(0, 20_000),
    shift=st.integers(0, 15),
)
def test_any_slice_agrees_with_the_whole(
    sample: int, offset: int, num_bytes: int, shift: int
) -> None:
    whole = content_of(3, sample, offset + num_bytes)
    out = np.full(shift + num_bytes + 8, 0xEE, np.uint8)

    Content(3).fill(out[shift : shift + num_bytes], sample, offset)

    assert np.array_equal(out[shift : shift + num_bytes], whole[offset:])
    assert set(out[:shift]) | set(out[shift + num_bytes :]) == {0xEE}, "nothing else is touched"


def test_the_bytes_are_those_of_every_version() -> None:
    """Datasets outlive versions: who changes this must change the manifest's version too."""
    digest = hashlib.sha256()
    for seed, sample, offset in ((0, 0, 0), (0, 1, 0), (7, 123_456_789, 5_000_001)):
        digest.update(content_of(seed, sample, 3 * PAGE + 5, offset).tobytes())

    expected = "fb374d1f45c5e49a77a4302e62ffa3a6f03711820a81ebe14751176ab56ba97d"
    assert digest.hexdigest() == expected


def test_neither_deduplication_nor_compression_helps() -> None:
    """Of files whose payloads begin at odd places, as those of TFRecord do."""
    data = [content_of(0, sample, 257 * PAGE - sample)[sample:].tobytes() for sample in range(9)]
    pages = [each[at : at + PAGE] for each in data for at in range(0, 256 * PAGE, PAGE)]
    assert len({*pages}) == len(pages) == 9 * 256
    whole = b"".join(data)
    assert len(whole) / len(zstandard.compress(whole, 9)) < 1.01


def stamps(folder: Path) -> dict[int, int]:
    """Return when each file was written, by inode."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return {status.st_ino: status.st_mtime_ns for status in files}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind['format']}")
def test_it_is_as_if_written_at_once(tmp_path: Path, kind: dict[str, Any]) -> None:
    """More digits, too: img_8_of_9 becomes img_08_of_11."""
    generated(tmp_path / "data", num_files_train=9, **kind)
    before = stamps(tmp_path / "data" / "train")

    manifest = generate(workload_of(tmp_path / "data", num_files_train=11, **kind), world=Alone())
    generated(tmp_path / "whole", num_files_train=11, **kind)

    assert tree(tmp_path / "data") == tree(tmp_path / "whole")
    after = stamps(tmp_path / "data" / "train")
    assert 11 * len(before) == 9 * len(after)
    assert before.items() <= after.items(), "those that stay are not rewritten"
    assert manifest.files_written == 2
    assert sentence(manifest.describe()).endswith("; 2 written now, the others were there")
    assert verify(tmp_path / "data", full=True, world=Alone()) == []


class Killed(BaseException):
    """The process ends here: whatever is tried after that has no effect."""


def kill_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let a process change the file system so many times; return how often it wanted to."""
    count = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*words: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count > call:
                raise Killed
            return change(*words, **more)

        return changed

    for name in ("rename", "unlink", "mkdir", "rmdir", "pwrite", "write", "ftruncate"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    return lambda: count


def test_killed_anywhere_it_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, so that every run changes the file system in the same order."""
    monkeypatch.setattr(target, "FILES_IN_FLIGHT", 1)
    kind = {"format": "tfrecord", "num_samples_per_file": 2, "num_subfolders_train": 2}
    generated(tmp_path / "small", num_files_train=3, **kind)
    generated(tmp_path / "whole", num_files_train=5, **kind)
    whole, data = tree(tmp_path / "whole"), tmp_path / "data"
    larger = workload_of(data, num_files_train=5, **kind)
    smaller = workload_of(data, num_files_train=3, **kind)
    used = unfinished = 0

    for call in itertools.count():
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(tmp_path / "small", data)
        with monkeypatch.context() as patch:
            wanted = kill_at(call, patch)
            with contextlib.suppress(Killed):
                generate(larger, world=Alone())
            wished = wanted()
        if wished <= call:
            break
        manifest = read_manifest(data)
        if manifest is None:
            unfinished += 1
            with pytest.raises(DatasetError, match="is unfinished; start dlemu datagen again"):
                survey(data, larger)
            with pytest.raises(DatasetError, match="holds an unfinished dataset of 5 "):
                generate(smaller, world=Alone())
        else:
            used += 1
            assert all(fault.extra for fault in verify(data, full=True, world=Alone()))
        generate(larger, world=Alone())
        assert tree(data) == whole, call

    assert used > 5 and unfinished > 15, (used, unfinished)


def test_names_that_are_taken_are_not_written_over(tmp_path: Path) -> None:
    generated(tmp_path, num_files_train=9)
    taken = tmp_path / "train" / "img_02_of_10.npz"
    taken.write_bytes(b"mine")
    before = tree(tmp_path)

    with pytest.raises(DatasetError) as error:
        generated(tmp_path, num_files_train=10)

    assert str(error.value) == (
        f"{taken} has a name that a file of the larger dataset will have; move it elsewhere"
    )
    assert tree(tmp_path) == before


def test_the_rate_of_writing_is_measured_beside_the_folder_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probe, "longest_seconds", math.inf)  # all files are written
    layout = layout_of(workload_of(tmp_path, format="npz", num_files_train=3))
    rate = write.write_rate(layout, tmp_path / "new" / "data", seconds=LONG)
    assert rate is not None and rate > 0 and not [*tmp_path.iterdir()]
    assert write.write_rate(layout, path_of("s3://bucket/data")) is None
