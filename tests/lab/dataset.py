"""Small datasets, and the workloads that name them."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dlemu.config.model import Workload, check_workload
from dlemu.datagen.write import generate
from dlemu.ranks.world import Alone


def workload_of(
    folder: Path, keys: Mapping[str, object] | None = None, /, **dataset: Any
) -> Workload:
    """Return a workload of 6 npz files of 5000 bytes in a folder, unless told otherwise."""
    least = {"format": "npz", "num_files_train": 6, "record_length_bytes": 5000.0}
    section = {"data_folder": str(folder), **least, **dataset}
    tree = {"dataset": section, "reader": {"batch_size": 1}, "train": {}}
    return check_workload(tree).with_keys(keys or {})


def generated(
    folder: Path, keys: Mapping[str, object] | None = None, /, **dataset: Any
) -> Workload:
    """Return such a workload, its dataset written if it is not there yet."""
    workload = workload_of(folder, keys, **dataset)
    generate(workload, world=Alone())
    return workload


def write_tfrecord(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    """Have the library tfrecord write a file; a record is {feature: (value, kind)}."""
    from tfrecord import TFRecordWriter  # which imports torch

    writer = TFRecordWriter(str(path))
    for record in records:
        writer.write(record)
    writer.close()


def tree(folder: Path) -> dict[str, str]:
    """Return the content of all files below a folder, by their paths."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Damage one byte of a file; `at` is counted from its end where it is negative."""
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)
