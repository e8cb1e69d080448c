"""What every loader must do, whatever the format, the way of reading and the number of workers.

Expectations come from the plan and from `datagen.content`, never from the reading code.
"""

import dataclasses
import itertools
import math
import mmap
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dlemu.datagen import Content, generate
from dlemu.dataset.layout import Dataset, Layout, layout_of
from dlemu.dataset.plan import EpochPlan, PlanOptions, plan_epoch, plan_interleaved, plan_streams
from dlemu.loaders import Batch, Loader, open_loader
from dlemu.loaders.worker import SampleReader
from dlemu.workload.model import Workload, check_workload
from dlemu.workload.sections import BARE
from dlemu.world.world import Alone
from tests.lab.waiting import until

DATASETS: dict[str, dict[str, object]] = {
    "npz": {"format": "npz", "num_files_train": 26, "record_length_bytes_stdev": 4000.0},
    "npy": {"format": "npy", "num_files_train": 26, "record_length_bytes_stdev": 4000.0},
    "hdf5": {"format": "hdf5", "num_files_train": 26, "record_length_bytes_stdev": 4000.0},
    "tfrecord": {"format": "tfrecord", "num_files_train": 26, "record_length_bytes_stdev": 4000.0},
    "npz of 5": {"format": "npz", "num_files_train": 6, "num_samples_per_file": 5},
    "npy of 5": {
        "format": "npy",
        "num_files_train": 6,
        "num_samples_per_file": 5,
        "record_element_type": "float32",
    },
    "hdf5 of 5": {"format": "hdf5", "num_files_train": 6, "num_samples_per_file": 5},
    "tfrecord of 13": {
        "format": "tfrecord",
        "num_files_train": 2,
        "num_samples_per_file": 13,
        "record_length_bytes": 20_000.3,
        "record_length_bytes_stdev": 4000.0,
    },
    "jpeg": {"format": "jpeg", "num_files_train": 26, "record_length_bytes_stdev": 4000.0},
    "raw of 13": {"format": "raw", "num_files_train": 2, "num_samples_per_file": 13},
    "indexed of 13": {
        "format": "mmap_indexed_binary",
        "num_files_train": 2,
        "num_samples_per_file": 13,
        "record_length_bytes_stdev": 9000.0,
        "record_length_bytes_distribution": "lognormal",
    },
    "parquet of 13": {
        "format": "parquet",
        "num_files_train": 2,
        "num_samples_per_file": 13,
        "parquet": {
            "row_group_size": 5,
            "columns": [
                {"name": "a", "dtype": "float32", "size": 2000, "read": True},
                {"name": "b", "dtype": "float64"},
                {"name": "c", "dtype": "int8", "read": True},
                {"name": "d", "dtype": "uint8", "size": 12_001, "read": True},
            ],
        },
    },
}
"""Datasets of about 500 kB; sizes that are no multiple of a page."""
BY_DALI = [name for name, keys in DATASETS.items() if keys["format"] not in (*BARE, "parquet")]
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
        layout = self.layout
        reader = self.workload.reader
        interleaved = reader.data_loader == "tensorflow"
        options = PlanOptions(
            batch_size=reader.batch_size,
            num_accelerators=self.num_accelerators,
            epoch=epoch,
            seed=3,
        )
        if interleaved or self.workload.streamed:
            options = dataclasses.replace(
                options,
                num_streams=max(1, reader.read_threads),
                samples_per_file=layout.samples_per_file,
                shuffle_samples=True,
                shuffle_size=reader.shuffle_size,
            )
            return (plan_interleaved if interleaved else plan_streams)(layout.num_samples, options)
        return plan_epoch(layout.num_samples, options)


def make_case(
    folder: Path,
    dataset: str,
    keys: Mapping[str, object] | None = None,
    *,
    num_accelerators: int = 1,
    **more: object,
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
    return Case(workload.with_keys({**(keys or {}), **more}), num_accelerators)


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


class Loaders:
    """The contract; a subclass names the loader."""

    name: str
    """`reader.data_loader`"""
    hands_over_in_place = True
    """Whether batches are handed over in the memory that workers read into."""

    @pytest.fixture(scope="session")
    @staticmethod
    def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Where datasets lie: each is written once."""
        return tmp_path_factory.mktemp("datasets")

    def case(self, folders: Path, dataset: str, **keys: object) -> Case:
        if self.name == "tensorflow" and dataset.startswith("parquet"):
            pytest.skip("tf.data's order is not that of row groups")
        if self.name == "dali" and dataset not in BY_DALI:
            pytest.skip("DALI has no reader for it")
        accelerators = keys.pop("num_accelerators", 1)
        assert isinstance(accelerators, int)
        settings = {"reader.data_loader": self.name, "reader.read_threads": 1, **keys}
        return make_case(
            folders / dataset.replace(" ", "_"),
            dataset,
            settings,
            num_accelerators=accelerators,
        )

    @pytest.mark.parametrize("workers", [0, 1, 3])
    @pytest.mark.parametrize("way", ["buffered", "direct", "library"])
    @pytest.mark.parametrize("dataset", DATASETS)
    def test_yields_what_the_plan_and_the_generator_say(
        self, folders: Path, dataset: str, way: str, workers: int
    ) -> None:
        keys: dict[str, object] = {"reader.read_threads": workers}
        if way == "direct":
            keys["reader.odirect"] = True
        if way == "library":
            keys["reader.decode"] = "library"
        elif dataset.startswith("parquet"):
            pytest.skip("rows are handed over with reader.decode=library")
        case = self.case(folders, dataset, **keys)
        loader = case.open()
        assert loader.direct is (way == "direct")
        read = []
        try:
            for epoch in range(2):
                steps = check_epoch(case, loader, epoch)
                read.append([b.samples.tolist() for batches in steps for b in batches])
                num_bytes = sum(batch.num_bytes for batches in steps for batch in batches)
                assert num_bytes >= 0.9 * payload_bytes(case, steps)
                if self.name != "dali" and way != "library":
                    assert all(batch.num_reads >= 1 for batch in steps[0])
        finally:
            loader.close()
        assert read[0] != read[1], "each epoch has its own order"

    @pytest.mark.parametrize("dataset", ["npz", "tfrecord", "npz of 5", "tfrecord of 13"])
    @pytest.mark.parametrize("direct", [False, True])
    @pytest.mark.parametrize(
        "keys",
        [
            {"dataset.record_length_bytes_resize": 5_000},
            {"dataset.record_length_bytes_resize": 30_000},
            {"reader.check_crc": True},
            {"reader.io_depth": 3, "reader.transfer_size": 4096},
        ],
        ids=["cut", "padded", "checked", "several reads"],
    )
    def test_cuts_pads_checks_and_keeps_several_reads_in_flight(
        self, folders: Path, dataset: str, direct: bool, keys: dict[str, object]
    ) -> None:
        keys = {"reader.odirect": direct, "reader.read_threads": 2} | keys
        case = self.case(folders, dataset, **keys)
        with closing(case.open()) as loader:
            check_epoch(case, loader, 0)
            check_epoch(case, loader, 1)

    @pytest.mark.parametrize("dataset", DATASETS)
    def test_reads_foreign_files_by_their_own_headers(self, folders: Path, dataset: str) -> None:
        keys: dict[str, object] = {"reader.read_threads": 2}
        if dataset.startswith("parquet"):
            keys["reader.decode"] = "library"
        case = self.case(folders, dataset, **keys)
        with closing(case.open(known_places=False)) as loader:
            check_epoch(case, loader, 0)

    @pytest.mark.parametrize("dataset", ["npz", "hdf5 of 5", "tfrecord of 13"])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_serves_several_accelerators(self, folders: Path, dataset: str, workers: int) -> None:
        keys = {"num_accelerators": 3, "reader.read_threads": workers, "reader.batch_size": 2}
        case = self.case(folders, dataset, **keys)
        with closing(case.open()) as loader:
            steps = check_epoch(case, loader, 0)
        read = [s for batches in steps for batch in batches for s in batch.samples.tolist()]
        assert len(read) == len(set(read)), "each sample once"

    @pytest.mark.parametrize("dataset", DATASETS)
    @pytest.mark.parametrize("direct", [False, True])
    def test_reads_as_much_when_it_drops_the_bytes(
        self, folders: Path, dataset: str, direct: bool
    ) -> None:
        case = self.case(folders, dataset, **{"reader.odirect": direct})
        counts = []
        for keep in (0, 0) if dataset.startswith("parquet") else (1, 0):
            with closing(case.open(keep=keep)) as loader:
                steps = list(loader.epoch(0, case.plan(0)))
            assert all((batch.data is not None) is bool(keep) for one in steps for batch in one)
            counts.append([batch.num_bytes for one in steps for batch in one])
        assert counts[0] == counts[1]
        assert sum(counts[0]) >= 0.9 * payload_bytes(case, steps)

    def test_may_be_closed_early_and_go_on(self, folders: Path) -> None:
        before = _resources()
        case = self.case(
            folders,
            "tfrecord of 13",
            **{"reader.read_threads": 2, "reader.preprocess_time": 0.001},
        )
        loader = case.open()
        epoch = loader.epoch(0, case.plan(0))
        next(iter(epoch))
        epoch.close()  # type: ignore[attr-defined]
        check_epoch(case, loader, 1)
        loader.epoch(0, case.plan(0))
        epoch = loader.epoch(0, case.plan(0))
        next(iter(epoch))
        pids = loader.pids()
        loader.close()
        loader.close()
        del epoch
        for pid in pids:
            assert not Path(f"/proc/{pid}").exists()
        # Threads of torch's queues end in their own time; what other tests leave comes and goes.
        left = _resources() - before

        def ended() -> bool:
            left.intersection_update(_resources())
            return not left

        until(ended, "the end of all threads")

    @pytest.mark.parametrize("loop", ["rule", "pipelined"])
    @pytest.mark.parametrize("workers", [0, 1, 2, 3, 8])
    def test_reads_no_further_ahead_than_its_loop_has_asked(
        self, folders: Path, workers: int, loop: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As many batches as a DataLoader (or tf.data) would have begun, at every step.

        The memory for batches holds these and no more.
        """
        count = _count_tasks(monkeypatch)
        keys = {"reader.read_threads": workers, "reader.batch_size": 1, "train.loop": loop}
        for prefetch in (0, 1, 2, 3, 5, 8):
            case = self.case(folders, "npz", **keys, **{"reader.prefetch_size": prefetch})
            in_flight = 1 + (loop == "pipelined") + self.ahead(workers, prefetch, batch_size=1)
            plan, addresses = case.plan(0), []
            before = count()
            with closing(case.open()) as loader:
                for step, [batch] in enumerate(loader.epoch(0, plan)):
                    wanted = before + _num_tasks(plan, min(step + in_flight, plan.num_steps))
                    until(lambda: count() >= wanted, pause=0.002)  # noqa: B023
                    assert count() == wanted, f"prefetch_size={prefetch}, step {step}"
                    assert batch.data is not None
                    addresses.append(batch.data.ctypes.data)
                    if step == 4:
                        break
            if self.hands_over_in_place:
                assert len(set(addresses[:in_flight])) == min(5, in_flight)
            if self.hands_over_in_place and in_flight < 5:
                assert addresses[in_flight] == addresses[0], "memory is used again"

    def ahead(self, workers: int, prefetch: int, *, batch_size: int) -> int:
        """Return the batches that are read ahead of what was taken: torch's DataLoader's."""
        return workers * max(1, math.ceil(prefetch / max(1, workers)))

    @pytest.mark.parametrize("loop", ["rule", "pipelined"])
    def test_without_workers_each_accelerator_reads_at_its_own_time(
        self, folders: Path, loop: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As that many ranks would: nobody's reading waits for another's."""
        together = threading.Barrier(3)
        make = SampleReader.make

        def make_with_others(self: SampleReader, *given: Any) -> Any:
            together.wait(timeout=60)  # all three read, or none goes on
            return make(self, *given)

        monkeypatch.setattr(SampleReader, "make", make_with_others)
        keys = {"num_accelerators": 3, "reader.read_threads": 0, "train.loop": loop}
        case = self.case(folders, "npz", **keys)
        with closing(case.open()) as loader:
            check_epoch(case, loader, 0)

    @pytest.mark.parametrize("dataset", ["npz", "tfrecord of 13"])
    def test_a_batch_is_one_array_that_is_valid_as_long_as_was_asked(
        self, folders: Path, dataset: str
    ) -> None:
        resize = 30_000
        keys = {"dataset.record_length_bytes_resize": resize, "reader.read_threads": 2}
        case = self.case(folders, dataset, **keys)
        with closing(case.open(keep=2)) as loader:
            before: list[tuple[Batch, NDArray[np.uint8]]] = []
            for [batch] in loader.epoch(0, case.plan(0)):
                assert batch.data is not None and batch.lengths is not None
                assert batch.data.shape == (3, resize) and batch.data.flags.c_contiguous
                assert batch.lengths.tolist() == [resize] * 3
                for last, copy in before[-1:]:
                    assert np.array_equal(last.data, copy), "the last batch is still there"  # type: ignore[arg-type]
                before.append((batch, batch.data.copy()))

    def test_preprocessing_takes_time(self, folders: Path) -> None:
        case = self.case(folders, "npz", **{"reader.preprocess_time": 0.01})
        with closing(case.open()) as loader:
            steps = list(loader.epoch(0, case.plan(0)))
        ready = [batches[0].ready for batches in steps]
        assert np.diff(ready)[1:].mean() > 0.9 * 3 * 0.01, "one worker, 3 samples a batch"


def _num_tasks(plan: EpochPlan, num_steps: int) -> int:
    """Return how many tasks make the first batches of one accelerator."""
    if plan.stream_of is None:
        return num_steps
    return int(plan.takes_part(0)[:num_steps].sum())


def _count_tasks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return what tells how many batches workers have begun, threads or forked processes."""
    # Each adds to a byte of its own, so that none is lost: no worker begins 256 batches.
    begun = np.frombuffer(mmap.mmap(-1, 1 << 16), np.uint8)
    makers = itertools.count()
    make, create = SampleReader.make, SampleReader.__init__

    def counted_create(self: SampleReader, *given: Any, **keys: Any) -> None:
        create(self, *given, **keys)
        place = os.getpid() * 61 + next(makers)
        self.place = place % len(begun)  # type: ignore[attr-defined]

    def counted_make(self: SampleReader, *given: Any) -> Any:
        begun[self.place] += 1  # type: ignore[attr-defined]
        return make(self, *given)

    monkeypatch.setattr(SampleReader, "__init__", counted_create)
    monkeypatch.setattr(SampleReader, "make", counted_make)
    return lambda: int(begun.sum())


def _resources() -> set[object]:
    """Return our threads, and the host's shared memory that torch or multiprocessing has named."""
    shared = (n for n in os.listdir("/dev/shm") if n.startswith(("torch_", "psm_", "sem.")))
    return {*shared, *threading.enumerate()}
