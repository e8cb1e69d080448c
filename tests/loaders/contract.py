"""Datasets of every format, how they are read, and what a loader must give of them.

Expectations come from the plan and from `datagen.Content`, never from the reading code.
"""

import dataclasses
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload, check_workload
from dlemu.datagen.assemble import Content
from dlemu.datagen.write import generate
from dlemu.dataset.layout import Dataset, Layout, layout_of
from dlemu.dataset.plan import EpochPlan, make_plan
from dlemu.formats import FORMATS
from dlemu.formats.raw import Bare
from dlemu.loaders import Batch, Loader, open_loader
from dlemu.loaders.source import Source
from dlemu.ranks.world import Alone
from tests.lab.dataset import generated

FILES_OF_5: dict[str, object] = {"num_files_train": 6, "num_samples_per_file": 5}
FILES_OF_13: dict[str, object] = {"num_files_train": 2, "num_samples_per_file": 13}
VARIED: dict[str, object] = {"record_length_bytes_stdev": 4000.0}
COLUMNS = [
    {"name": "a", "dtype": "float32", "size": 2000, "read": True},
    {"name": "b", "dtype": "float64"},
    {"name": "c", "dtype": "int8", "read": True},
    {"name": "d", "dtype": "uint8", "size": 12_001, "read": True},
    {"name": "e", "dtype": "list", "size": 30, "read": True},
]
DATASETS: dict[str, dict[str, object]] = {
    **{
        str(name): {"format": name, "num_files_train": 26, **VARIED}
        for name, format in FORMATS.items()
        if not format.in_columns
        # Bare samples are all read alike.
        if name == "jpeg" or not isinstance(format, Bare)
    },
    "npz of 5": {"format": "npz", **FILES_OF_5},
    "npy of 5": {"format": "npy", "record_element_type": "float32", **FILES_OF_5},
    "hdf5 of 5": {"format": "hdf5", **FILES_OF_5},
    "tfrecord of 13": {
        "format": "tfrecord",
        "record_length_bytes": 20_000.3,
        **VARIED,
        **FILES_OF_13,
    },
    "webdataset of 13": {"format": "webdataset", **VARIED, **FILES_OF_13},
    "raw of 13": {"format": "raw", **FILES_OF_13},
    "indexed of 13": {
        "format": "mmap_indexed_binary",
        "record_length_bytes_stdev": 9000.0,
        "record_length_bytes_distribution": "lognormal",
        **FILES_OF_13,
    },
    "parquet of 13": {
        "format": "parquet",
        "parquet": {"row_group_size": 5, "columns": COLUMNS},
        **FILES_OF_13,
    },
}
"""Datasets of about 500 kB; sizes that are no multiple of a page."""
SHUFFLED = {"reader.file_shuffle": "seed", "reader.sample_shuffle": "seed"}
BY_DALI = [name for name, keys in DATASETS.items() if FORMATS[str(keys["format"])].by_dali]
"""Those that DALI has readers for."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A dataset, and how it is read."""

    workload: Workload
    num_accelerators: int = 1

    @property
    def layout(self) -> Layout:
        return layout_of(self.workload)

    def open(self, *, known_places: bool = True, keep: int = 1) -> Loader:
        return open_loader(
            Dataset(self.workload, self.layout, known_places, access=self.workload.access),
            accelerators=range(self.num_accelerators),
            keep=keep,
        )

    def plan(self, epoch: int) -> EpochPlan:
        """Return the plan that such files are read by: shuffled, two epochs differ."""
        shuffled = self.workload.with_keys(SHUFFLED)
        return make_plan(shuffled, self.layout, num_accelerators=self.num_accelerators, epoch=epoch)


def make_case(
    folder: Path,
    dataset: str,
    keys: Mapping[str, object] | None = None,
    *,
    num_accelerators: int = 1,
) -> Case:
    """Return a case whose dataset lies in `folder`; it is written if it is not there yet."""
    tree = {
        "dataset": {"data_folder": str(folder), "record_length_bytes": 20_000.0}
        | DATASETS[dataset],
        "reader": {"batch_size": 3, "shuffle_size": 4, "piece_bytes": 8192, "transfer_size": 8192},
        "train": {"epochs": 2},
    }
    workload = check_workload(tree)
    generate(workload, world=Alone())
    return Case(workload.with_keys(keys or {}), num_accelerators)


def source_of(
    folder: Path,
    keys: Mapping[str, object] | None = None,
    *,
    keep: int = 0,
    known_places: bool = True,
    **dataset: Any,
) -> Source:
    """Return how 12 npz files of 1000 bytes are read in batches of 3, unless told otherwise."""
    shape = {"num_files_train": 12, "record_length_bytes": 1000.0} | dataset
    workload = generated(folder, {"reader.batch_size": 3, **(keys or {})}, **shape)
    return Source.open(Dataset(workload, layout_of(workload), known_places), keep=keep)


def read_all(case: Case, *, epochs: int = 1, **opening: Any) -> list[list[Batch]]:
    """Read epochs and look at nothing; return their steps."""
    with closing(case.open(**opening)) as loader:
        return [step for each in range(epochs) for step in loader.epoch(each, case.plan(each))]


def expected(case: Case, sample: int) -> NDArray[np.uint8]:
    """Return the bytes that training is to get of a sample."""
    dataset = case.workload.dataset
    content = row_content(case.layout, sample) if dataset.columns else content_of(case, sample)
    size = len(content)
    resize = dataset.record_length_bytes_resize
    if resize is None:
        return content
    whole = np.zeros(max(size, resize), np.uint8)
    whole[:size] = content
    return whole[:resize]


def content_of(case: Case, sample: int) -> NDArray[np.uint8]:
    content = np.empty(int(case.layout.sizes(np.array([sample]))[0]), np.uint8)
    Content(case.workload.dataset.seed).fill(content, sample)
    return content


def row_content(layout: Layout, sample: int) -> NDArray[np.uint8]:
    """Return the values that are read of a row whose columns have one page in each row group."""
    file, row = divmod(sample, layout.samples_per_file)
    group, place = divmod(row, layout.row_group_size)
    groups = -(-layout.samples_per_file // layout.row_group_size)
    values = []
    for number, column in enumerate(layout.columns):
        rows = min(layout.row_group_size, layout.samples_per_file - group * layout.row_group_size)
        page = np.empty(rows * column.row_bytes, np.uint8)
        Content(layout.seed).fill(page, (file * groups + group) * len(layout.columns) + number)
        if column.read:
            values.append(page.reshape(rows, -1)[place])
    return np.concatenate(values)


def check_epoch(case: Case, loader: Loader, epoch: int) -> list[list[Batch]]:
    """Read an epoch; every byte, order and count must be right. Return its steps."""
    plan = case.plan(epoch)
    steps = []
    for step, batches in enumerate(loader.epoch(epoch, plan)):
        for accelerator, batch in enumerate(batches):
            assert (batch.epoch, batch.step, batch.accelerator) == (epoch, step, accelerator)
            assert batch.samples.tolist() == plan.samples[step, accelerator].tolist()
            assert batch.arrays is not None
            for sample, array in zip(batch.samples.tolist(), batch.arrays, strict=True):
                assert np.array_equal(array, expected(case, sample)), f"sample {sample}"
        steps.append(batches)
    assert len(steps) == plan.num_steps
    return steps


def payload_bytes(case: Case, steps: list[list[Batch]]) -> int:
    """Return the bytes of all samples of these steps."""
    samples = np.concatenate([batch.samples for batches in steps for batch in batches])
    return int(case.layout.sizes(samples).sum())
