"""DLIO trains on what dlemu writes, and dlemu on what DLIO writes.

`make peers` sets DLIO up and runs this; elsewhere it is skipped.
"""

from pathlib import Path
from typing import Any

import h5py
import pytest
from pyarrow import parquet

from dlemu.cli.main import run
from dlemu.datagen.manifest import read_manifest
from dlemu.judge.records import read_steps, read_summary
from dlemu.report.words import note_lines
from tests.lab.peer import DLIOS, is_there, run_dlio

pytestmark = [
    pytest.mark.skipif(not is_there(), reason="no DLIO here; make peers sets it up"),
    pytest.mark.timeout(1000),
]

NUM_FILES, BATCH, SIDE, EPOCHS = 12, 3, 64, 2
COLUMNS = (
    "{name:label,dtype:float32,read:true}",
    "{name:skipped,dtype:float64,size:9}",
    "{name:half,dtype:float16,read:true}",
    "{name:small,dtype:int8,read:true}",
    "{name:many,dtype:float32,size:1000,read:true}",
)
OF_H5PY = {
    "dataset.num_samples_per_file": 2,
    "dataset.record_dims": f"[{SIDE},{SIDE}]",
    "dataset.record_element_type": "uint8",
    "dataset.compression": "gzip",
}
SHAPES: dict[str, dict[str, Any]] = {
    "npz": {},
    "npy": {},
    "hdf5": {"dataset.num_samples_per_file": 2},
    "tfrecord": {
        "framework": "tensorflow",
        "reader.data_loader": "tensorflow",
        "dataset.num_samples_per_file": 2,
    },
    "hdf5 by gzip": OF_H5PY,
    "jpeg": {},
    "png": {},
    "indexed_binary": {"dataset.num_samples_per_file": 2},
    "mmap_indexed_binary": {"dataset.num_samples_per_file": 2},
    "parquet": {
        "dataset.num_samples_per_file": 24,
        "dataset.parquet.columns": f"[{','.join(COLUMNS)}]",
        "dataset.parquet.row_group_size": 9,
    },
    "hdf5 in parts": OF_H5PY
    | {"dataset.hdf5.num_dset_per_record": 2, "dataset.hdf5.chunk_dims": "[1,16,64]"},
    "csv": {"dataset.num_samples_per_file": 2},
}
OLDER, NEWER = DLIOS
ONLY_NEWER = ("parquet", "hdf5 in parts", "csv")  # 2.0.0's csv has a header, and numbers its lines
OF_BOTH = [(OLDER, shape) for shape in SHAPES if shape not in ONLY_NEWER]
OF_BOTH += [(NEWER, shape) for shape in list(SHAPES)[4:]]
READ = [
    pair
    for pair in OF_BOTH
    # 2.0.0 decodes images, and ours are none; its reader of mapped files takes bytes for offsets.
    if pair not in [(OLDER, "jpeg"), (OLDER, "png"), (OLDER, "mmap_indexed_binary")]
]


def keys_of(shape: str, folder: Path) -> dict[str, Any]:
    """Return a small job in words that both know."""
    return {
        "workload": "unet3d_h100",
        "dataset.data_folder": str(folder),
        "dataset.format": shape.partition(" ")[0],
        "dataset.num_files_train": NUM_FILES,
        "dataset.record_length_bytes": SIDE**2,
        "dataset.record_length_bytes_stdev": 0,
        "dataset.record_length_bytes_resize": SIDE**2,
        "reader.batch_size": BATCH,
        "reader.read_threads": 1,
        "train.epochs": EPOCHS,
        "train.computation_time": 0.01,
    } | SHAPES[shape]


def words_of(keys: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in keys.items()]


@pytest.mark.parametrize(("version", "shape"), READ)
def test_dlio_trains_on_what_dlemu_writes(tmp_path: Path, version: str, shape: str) -> None:
    keys = keys_of(shape, tmp_path / "data")
    assert run(["datagen", *words_of(keys)]) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}

    summary = run_dlio(keys, generate=False, version=version)

    assert summary["num_files_train"] == NUM_FILES
    rates = summary["metric"]["train_throughput_samples_per_second"]
    assert len(rates) == EPOCHS and min(rates) > 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")} == before


@pytest.mark.parametrize(("version", "shape"), OF_BOTH)
def test_dlemu_runs_on_what_dlio_writes(
    tmp_path: Path, version: str, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = keys_of(shape, tmp_path / "data")
    run_dlio(keys, generate=True, version=version)
    assert read_manifest(tmp_path / "data") is None
    capsys.readouterr()

    if (version, shape) == (OLDER, "jpeg"):  # it encodes: the files have 0.6 of what was asked for
        assert run(["run", *words_of(keys), f"output.folder={tmp_path / 'refused'}"]) == 1
        remedy = capsys.readouterr().err.rpartition("or set ")[2].strip()
        keys |= dict([remedy.split("=")])
    own = {"output.folder": tmp_path / "run", "reader.odirect": "false", "reader.coalesce_gap": 0}
    run(["run", *words_of(keys | own)])  # too short for a verdict

    summary = read_summary(tmp_path / "run")
    assert summary["status"] == "complete", capsys.readouterr().err
    steps = read_steps(tmp_path / "run")
    num_samples = NUM_FILES * keys.get("dataset.num_samples_per_file", 1)
    assert len(steps) == EPOCHS * num_samples // BATCH
    assert (steps["num_samples"] == BATCH).all()
    assert f"no manifest in {tmp_path / 'data'}" in " ".join(note_lines(summary))
    read = steps["num_bytes"].sum() / EPOCHS
    files = sorted((tmp_path / "data" / "train").glob(f"*.{keys['dataset.format']}"))
    assert len(files) == NUM_FILES
    if shape == "parquet":
        assert read == sum(map(bytes_wanted, files))
    elif shape in ("jpeg", "png", "indexed_binary", "mmap_indexed_binary"):
        assert read == sum(path.stat().st_size for path in files)
    elif shape != "csv":
        assert read >= num_samples * SIDE**2


def bytes_wanted(path: Path) -> int:
    """Return the bytes of the columns that are read, and of the footer, by PyArrow."""
    found = parquet.read_metadata(path)
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    wanted = [number for number, column in enumerate(COLUMNS) if "read:true" in column]
    chunks = [group.column(number).total_compressed_size for group in groups for number in wanted]
    return int(sum(chunks) + found.serialized_size + 8)


@pytest.mark.parametrize(
    ("version", "shape"), [pair for pair in OF_BOTH if pair[1].startswith(("hdf5 ", "csv"))]
)
def test_files_are_built_as_dlios(tmp_path: Path, version: str, shape: str) -> None:
    """Names, shapes, types, chunks and compression of HDF5; lines of numbers in csv."""
    theirs, ours = (keys_of(shape, tmp_path / name) for name in ("theirs", "ours"))
    run_dlio(theirs, generate=True, version=version)
    assert run(["datagen", *words_of(ours)]) == 0
    first = f"train/img_00_of_{NUM_FILES}.{theirs['dataset.format']}"
    built = [built_as(tmp_path / name / first) for name in ("theirs", "ours")]
    assert built[0].items() <= built[1].items()


def built_as(path: Path) -> dict[str, Any]:
    """Return how a file is built; `records` of HDF5 are a second name for `records_0`."""
    if path.suffix == ".csv":
        lines = path.read_text().splitlines()
        numbers = [[int(word) for word in line.split(",")] for line in lines]
        assert all(0 <= number <= 255 for line in numbers for number in line)
        # Random numbers of one to three digits: a line's length varies by a percent.
        return {"lines": len(lines), "bytes, two digits": f"{path.stat().st_size:.1e}"}
    with h5py.File(path) as file:
        return {
            name: (data.shape, data.dtype, data.chunks, data.compression, data.compression_opts)
            for name, data in file.items()
        }
