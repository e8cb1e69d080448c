"""The manifest says what a dataset is; verify and survey find out whether it is so."""

import errno
import json
import os
import shutil
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dlemu.config.model import load_workload
from dlemu.datagen.manifest import FILE_TYPE, read_manifest
from dlemu.datagen.survey import survey
from dlemu.datagen.verify import Fault, verify
from dlemu.datagen.write import generate
from dlemu.dataset.layout import Dataset, layout_of
from dlemu.errors import DatasetError
from dlemu.findings import note
from dlemu.formats import FORMATS
from dlemu.loaders.source import Source, sample_bytes
from dlemu.ranks.world import Alone
from dlemu.report.words import sentence
from dlemu.storage import folder as storage_folder
from dlemu.storage.files import read_regular
from dlemu.units import counted
from tests.lab.dataset import flip, generated, tree, workload_of, write_tfrecord
from tests.lab.many_hosts import ManyHosts


def test_it_says_what_the_dataset_is(tmp_path: Path) -> None:
    workload = generated(tmp_path, num_files_train=3, record_dims=(10, 20), seed=5)
    tree = json.loads((tmp_path / "dlemu.json").read_text())
    files = np.load(tmp_path / "dlemu.files.npy")
    assert " ".join(tree) == "manifest dataset num_samples num_bytes checksum files"
    assert " ".join(tree["dataset"]) == (
        "format num_files samples_per_file mean_bytes stdev_bytes element_bytes seed prefix "
        "num_subfolders distribution listed columns row_group_size element_type dims num_parts "
        "compression"
    )
    file_bytes = (tmp_path / "train" / "img_0_of_3.npz").stat().st_size
    assert (tree["manifest"], tree["num_samples"], tree["num_bytes"]) == (3, 3, 3 * file_bytes)
    assert files["bytes"].tolist() == [file_bytes] * 3 and len({*files["crc32c"].tolist()}) == 3
    manifest = read_manifest(tmp_path)
    assert manifest is not None and manifest.layout == layout_of(workload)
    assert sentence(manifest.describe()).startswith("3 npz files of 1 sample, 13.9 KiB, seed 5")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("{", "dlemu.json is damaged"),
        ("[]", "dlemu.json is damaged .it holds no JSON object"),
        (
            '{"manifest": 4}',
            "is of version 4, this dlemu reads version 3 alone; take the dlemu that",
        ),
        ("files", "dlemu.files.npy is missing; restore it from a copy, or generate the dataset an"),
        ("short", "dlemu.files.npy is damaged .it does not fit dlemu.json"),
        ("cut", "is damaged"),
        ("FIFO", "dlemu.files.npy is a FIFO, not a file"),
        ({"prefix": "../../x"}, r"dataset.prefix: .* must be part of a file name: no"),
        ({"element_type": "float32"}, "element_type float32 has not 1 bytes"),
        ({"dims": [3, 5]}, r"dims \[3, 5\] do not make 5000 bytes"),
    ],
)
def test_a_damaged_one_is_refused(
    tmp_path: Path, damage: str | dict[str, Any], problem: str
) -> None:
    generated(tmp_path)
    path, sizes = tmp_path / "dlemu.json", tmp_path / "dlemu.files.npy"
    if damage == "short":
        np.save(sizes, np.zeros(5, FILE_TYPE))
    elif damage == "cut":
        os.truncate(sizes, 140)
    elif damage in ("files", "FIFO"):
        sizes.unlink()
        if damage == "FIFO":
            os.mkfifo(sizes)
    elif isinstance(damage, str):
        path.write_text(damage)
    else:
        tree = json.loads(path.read_text())
        path.write_text(json.dumps({**tree, "dataset": tree["dataset"] | damage}))
    with pytest.raises(DatasetError, match=problem):
        read_manifest(tmp_path)


WRONG: list[Any] = [None, True, "x", "../x", "a/b", "\x1b[2J", -1, 0, 1.5, 10**30, 1e300, [], {}]
WRONG += [float("nan"), float("inf"), [0], [1] * 40, "O", "f8,f8", ["x"]]


def test_every_field_of_it_is_checked(tmp_path: Path) -> None:
    """Whatever stands there: one line, or a manifest that verify can be given."""
    generated(tmp_path, num_files_train=2, num_samples_per_file=2)
    path = tmp_path / "dlemu.json"
    whole = json.loads(path.read_text())
    num_refused = 0
    for section, fields in ((None, whole), ("dataset", whole["dataset"])):
        for field, value in product((*fields, "more"), (*WRONG, "missing")):
            tree = deepcopy(whole)
            place = tree if section is None else tree[section]
            place[field] = value
            if value == "missing":
                del place[field]
            path.write_text(json.dumps(tree))
            try:
                verify(tmp_path, full=True, world=Alone())
            except DatasetError as error:
                num_refused += 1
                assert str(error).startswith((str(path), str(tmp_path / "dlemu.files.npy")))
                assert str(error).isprintable() and len(str(error)) < 500
    assert num_refused > 300


def test_a_damaged_plan_is_one_line(tmp_path: Path) -> None:
    workload = workload_of(tmp_path)
    (tmp_path / ".dlemu").mkdir()
    for damage in ("", "{", "[]", "{}", '{"format": 3}', '{"manifest": 3, "dataset": {}}'):
        (tmp_path / ".dlemu" / "recipe.json").write_text(damage)
        with pytest.raises(DatasetError, match=r"recipe.json is damaged \("):
            generate(workload, world=Alone())


@pytest.mark.parametrize("name", ["npz", "hdf5", "tfrecord"])
def test_verify_names_each_bad_file_and_writes_no_other(tmp_path: Path, name: str) -> None:
    layout = layout_of(generated(tmp_path, format=name, num_files_train=9, num_subfolders_train=2))
    whole = tree(tmp_path)
    paths = [tmp_path / layout.path(file) for file in range(9)]
    size = paths[0].stat().st_size
    paths[0].unlink()
    os.truncate(paths[1], 4000)
    with open(paths[2], "ab") as file:
        file.write(b"x")
    flip(paths[3], 4500)
    shutil.copy(paths[5], paths[4])
    extra = {
        "train/0/mine.npz": "does not belong to the dataset; move it elsewhere",
        "train/.nfs1": "does not belong to the dataset; nothing reads it",
        f"{layout.path(6)}.partial": "is left of an interrupted writing; dlemu datagen removes it",
    }
    for path in extra:
        (tmp_path / path).write_bytes(b"mine")

    payload_start = FORMATS[layout.format].places(np.array([5000])).offsets[0]
    by_size = extra | {
        layout.path(0): "is missing",
        layout.path(1): f"has 4000 bytes, should have {size}",
        layout.path(2): f"has {size + 1} bytes, should have {size}",
    }
    by_content = by_size | {
        layout.path(3): "differs from what was written at byte 4500",
        # Only the payload differs, but for an .npz's head, which is compared last.
        layout.path(4): f"differs from what was written at byte {payload_start}",
    }
    for full, problems in ((False, by_size), (True, by_content)):
        faults = verify(tmp_path, full=full, world=Alone())
        assert [(fault.path, sentence(fault.problem)) for fault in faults] == sorted(
            problems.items()
        )

    shutil.rmtree(tmp_path / "train" / "1")
    bad = {layout.path(file) for file in (0, 1, 2, 3, 4, 5, 7)}
    if name == "tfrecord":
        (tmp_path / layout.index_paths(8)[0]).unlink()
        flip(tmp_path / layout.index_paths(6)[0], 0)
        bad |= {layout.index_paths(file)[0] for file in (6, 8)}
    stay = [tmp_path / path for path in whole if path not in bad and (tmp_path / path).is_file()]
    before = [path.stat()[:8] for path in stay]
    faults = verify(tmp_path, full=True, repair=True, world=Alone())
    assert {fault.path for fault in faults if fault.repaired} == bad
    assert {fault.path for fault in faults if not fault.repaired} == set(extra)
    for path in extra:
        assert (tmp_path / path).read_bytes() == b"mine"
        (tmp_path / path).unlink()
    assert tree(tmp_path) == whole
    assert [path.stat()[:8] for path in stay] == before, "nothing else is touched"


def test_verify_looks_at_indexes_and_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that cannot be read is named, and the rest is verified."""
    layout = layout_of(generated(tmp_path, format="tfrecord"))
    unreadable, missing, other = (layout.index_paths(file)[0] for file in range(3))
    (tmp_path / missing).unlink()
    index = tmp_path / other
    index.write_bytes(index.read_bytes().replace(b"0 ", b"1 "))
    files = np.load(tmp_path / "dlemu.files.npy")
    files["crc32c"][3] ^= 1
    np.save(tmp_path / "dlemu.files.npy", files)

    def read(path: Path) -> bytes:
        if path == tmp_path / unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read_regular(path)

    monkeypatch.setattr(storage_folder, "read_regular", read)
    assert verify(tmp_path, full=True, world=Alone()) == [
        Fault(unreadable, note("file_unreadable", error="Input/output error")),
        Fault(missing, note("file_missing")),
        Fault(other, note("file_differs", byte=None)),
        Fault(layout.path(3), note("other_checksum")),
    ]


def test_what_is_not_as_the_manifest_says_is_not_written(tmp_path: Path) -> None:
    """The manifest has another checksum than its recipe gives: one of them is wrong."""
    generated(tmp_path)
    files = np.load(tmp_path / "dlemu.files.npy")
    wanted = int(files["crc32c"][3])
    files["crc32c"][3] = 7
    np.save(tmp_path / "dlemu.files.npy", files)
    (tmp_path / "train" / "img_3_of_6.npz").write_bytes(b"mine")

    (fault,) = verify(tmp_path, full=False, repair=True, world=Alone())

    assert not fault.repaired
    assert sentence(fault.problem).endswith(f"(its checksum would be {wanted}, not 7)")
    assert (tmp_path / "train" / "img_3_of_6.npz").read_bytes() == b"mine"
    assert not list(tmp_path.rglob("*.partial"))


def test_ranks_verify_and_repair_together(tmp_path: Path) -> None:
    generated(tmp_path)
    whole = tree(tmp_path)
    bad = [f"train/img_{file}_of_6.npz" for file in (1, 2, 4)]
    for path in bad:
        flip(tmp_path / path, -1)
    for repair in (False, True):

        def check(world: Any, repair: bool = repair) -> list[Fault]:
            return verify(tmp_path, full=True, repair=repair, world=world)

        for faults in ManyHosts(1, 2).run(check):
            assert [(fault.path, fault.repaired) for fault in faults] == [(p, repair) for p in bad]
    assert tree(tmp_path) == whole


def foreign(
    folder: Path, name: str, num_samples: int, *, prefix: str = "img", folders: int = 0
) -> None:
    """Write 4 files as DLIO does, payloads of 600 bytes."""
    for number in range(4):
        below = folder / "train" / (str(number % folders) if folders else "")
        below.mkdir(parents=True, exist_ok=True)
        path = below / f"{prefix}_{number}_of_4.{name}"
        x = np.random.default_rng(number).integers(0, 256, (30, 20, num_samples), np.uint8)
        match name:
            case "npz":
                np.savez(path, x=x, y=np.zeros(num_samples, np.int64))
            case "hdf5":
                with h5py.File(path, "w", libver="latest") as file:
                    file["records_0"] = np.ascontiguousarray(x.T)
            case "tfrecord":
                images = ((x[..., sample].tobytes(), "byte") for sample in range(num_samples))
                write_tfrecord(path, ({"image": each, "size": (24, "int")} for each in images))


def test_one_rank_looks_at_all_sizes_for_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for samples follows from the largest file; a network's file system is asked once."""
    foreign(tmp_path, "npz", 1)
    largest = tmp_path / "train" / "img_1_of_4.npz"
    np.savez(largest, x=np.zeros(650, np.uint8), y=np.zeros(1, np.int64))
    size = largest.stat().st_size
    dataset = {"num_files_train": 4, "record_length_bytes": 600.0, "data_folder": str(tmp_path)}
    dataset |= {"record_length_bytes_stdev": 0, "record_length_bytes_resize": None}
    keys = {f"dataset.{key}": value for key, value in dataset.items()}
    workload = load_workload("unet3d_h100", {**keys, "reader.hand_over": "batch"})
    seen: list[str] = []
    _, found = survey(tmp_path, workload, at=seen.append)
    assert found.largest_bytes == size and f"{tmp_path}/train/img_1_of_4.npz" in seen
    dropped = workload.with_keys({"reader.hand_over": "none"})
    assert survey(tmp_path, dropped)[1].largest_bytes is None

    source = Source(Dataset(workload, found, known_places=False), direct=False, keep=1)
    bare = Dataset(workload, replace(found, largest_bytes=None), known_places=False)
    other = replace(source, dataset=bare)
    wanted = sample_bytes(other)
    monkeypatch.setattr("dlemu.loaders.source.file_sizes", None)
    monkeypatch.setattr(Path, "stat", None)
    assert sample_bytes(source) == wanted
    with pytest.raises(TypeError):
        sample_bytes(other)


@pytest.mark.parametrize("name", ["npz", "hdf5", "tfrecord"])
@pytest.mark.parametrize(("num_samples", "folders", "below"), [(1, 2, "1/"), (3, 0, "")])
def test_survey_of_a_dataset_of_dlio(
    tmp_path: Path, name: str, num_samples: int, folders: int, below: str
) -> None:
    foreign(tmp_path, name, num_samples, prefix="my_img", folders=folders)
    keys = {"format": name, "num_files_train": 4, "num_samples_per_file": num_samples}
    keys["record_length_bytes"] = 600.0

    _, found = survey(tmp_path, workload_of(tmp_path, **keys))

    assert found.path(3) == f"train/{below}my_img_3_of_4.{name}"
    assert (found.num_files, found.samples_per_file, found.mean_bytes) == (4, num_samples, 600)
    assert str(found).endswith(f"; 3 were opened, with {counted(num_samples, 'sample')} each")


def test_survey_refuses_what_does_not_fit(tmp_path: Path) -> None:
    foreign(tmp_path, "npz", 3)
    size = {"record_length_bytes": 600.0}

    def refused(**keys: Any) -> str:
        keys = {"num_files_train": 4, "num_samples_per_file": 3, **size, **keys}
        with pytest.raises(DatasetError) as error:
            survey(tmp_path, workload_of(tmp_path, **keys))
        return str(error.value)

    survey(tmp_path, workload_of(tmp_path, num_files_train=4, num_samples_per_file=3, **size))
    train = tmp_path / "train"
    assert refused(num_files_train=7) == (
        f"{train} has 4 files, dataset.num_files_train is 7; set dataset.num_files_train=4"
    )
    assert refused(format="hdf5") == (
        f"{train} has no hdf5 files (of others: 4 npz); set dataset.format, or generate the "
        "dataset: dlemu datagen"
    )
    assert refused(num_samples_per_file=2) == (
        f"{train}/img_0_of_4.npz: the array's last axis must be 2 samples, or its first "
        "one, got shape (30, 20, 3); dataset.num_samples_per_file says how many there are"
    )
    os.truncate(train / "img_3_of_4.npz", 1000)
    cut = f"{train}/img_3_of_4.npz: x.npy ends at byte 1983, the file at 1000: it was cut"
    assert refused().startswith(f"{cut}; if it is whole, dataset.format says what such files are")
    (train / "img_3_of_4.npz").write_bytes(b"no archive")
    none = f"{train}/img_3_of_4.npz: no zip archive: it begins with b'no a'; if it is whole, "
    assert refused().startswith(none)
    (train / "img_3_of_4.npz").unlink()
    os.mkfifo(train / "img_3_of_4.npz")
    assert refused() == f"{train}/img_3_of_4.npz is a FIFO, not a file", "and nobody waits for it"
    (train / ".img_2_of_4.npz").touch()
    (train / "img_3_of_4.npz").unlink()
    shutil.copy(train / "img_0_of_4.npz", train / "img_00_of_4.npz")
    twice = workload_of(tmp_path, num_files_train=4, num_samples_per_file=3, **size)
    assert [survey(tmp_path, twice)[1].path(file) for file in range(2)] == [
        "train/img_00_of_4.npz",
        "train/img_0_of_4.npz",
    ], "a number may come twice, and no file has to go"
    (tmp_path / ".dlemu").mkdir()
    assert refused() == f"{tmp_path} is unfinished; start dlemu datagen again, it continues"
    with pytest.raises(DatasetError, match="no npz files"):
        survey(tmp_path / "nowhere", workload_of(tmp_path))


@pytest.mark.parametrize("name", ["npz", "hdf5", "tfrecord"])
@pytest.mark.parametrize(("wanted", "fits"), [(550, True), (660, True), (540, False), (700, False)])
def test_samples_of_another_size_are_another_dataset(
    tmp_path: Path, name: str, wanted: int, fits: bool
) -> None:
    """Headers are set aside: an HDF5 file of 600 bytes of samples is several times as large."""
    foreign(tmp_path, name, 1)
    keys = {"format": name, "num_files_train": 4, "record_length_bytes": float(wanted)}
    workload = workload_of(tmp_path, **keys)
    if fits:
        assert survey(tmp_path, workload)[1].mean_bytes == 600
        return
    with pytest.raises(DatasetError) as error:
        survey(tmp_path, workload)
    assert str(error.value).endswith(
        f" says {wanted}; name the dataset that was meant, or set dataset.record_length_bytes=600"
    )
    shape = workload.with_keys({"dataset.record_dims": [wanted]})
    with pytest.raises(DatasetError, match=r"record_dims says .* dataset.record_dims=\[\] datas"):
        survey(tmp_path, shape)


@pytest.mark.parametrize(("num_files", "seed"), [(12, 0), (12, 1), (168, 2)])
def test_sizes_that_dlio_draws_are_accepted(tmp_path: Path, num_files: int, seed: int) -> None:
    """Two sides, drawn apart: 0.71 of the stdev that was asked for, and whole numbers."""
    (tmp_path / "train").mkdir()
    generator = np.random.default_rng(seed)
    mean, stdev = 14_660.0, 6_834.0
    for number in range(num_files):
        sides = generator.normal(mean**0.5, 0.5 * stdev / mean**0.5, 2).clip(8).astype(int)
        path = tmp_path / "train" / f"img_{number:03d}_of_{num_files}.npz"
        np.savez(path, x=np.zeros((*sides, 1), np.uint8), y=np.zeros(1))
    keys = {"num_files_train": num_files, "record_length_bytes": mean}
    survey(tmp_path, workload_of(tmp_path, record_length_bytes_stdev=stdev, **keys))
    if num_files == 12:  # the mean of few may be off by more than a tenth
        keys["record_length_bytes"] = 1.3 * mean
        survey(tmp_path, workload_of(tmp_path, record_length_bytes_stdev=stdev, **keys))
