"""Every loader keeps the contract."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlemu.datagen import generate
from dlemu.host.devices import lies_in_memory
from dlemu.workload.model import check_workload
from dlemu.world.world import Alone
from tests.lab.bench import folder_in_memory
from tests.loaders.contract import Case, Loaders


class TestPyTorch(Loaders):
    name = "pytorch"


class TestTensorFlow(Loaders):
    name = "tensorflow"

    def ahead(self, workers: int, prefetch: int, *, batch_size: int) -> int:
        """Prefetched batches, and two samples of each stream behind them, as tf.data has them."""
        return prefetch + 2 * max(1, workers) // batch_size


class TestThreads(Loaders):
    name = "threads"

    @pytest.fixture
    def in_memory(self) -> Iterator[Path]:
        with folder_in_memory() as folder:
            if not lies_in_memory(folder):
                pytest.skip("this host's /dev/shm is no tmpfs")
            yield folder

    @pytest.mark.parametrize(("pause", "most"), [(0.0, 1), (0.02, 12)])
    def test_where_nothing_waits_threads_are_no_more_than_cpus(
        self, pause: float, most: int, in_memory: Path
    ) -> None:
        """Preprocessing may wait, whatever the files lie on."""
        reader = {"data_loader": "threads", "read_threads": 4, "batch_size": 2}
        case = Case(
            check_workload(
                {
                    "dataset": {
                        "data_folder": str(in_memory),
                        "format": "npz",
                        "num_files_train": 120,
                        "record_length_bytes": 5000.0,
                    },
                    "reader": reader | {"preprocess_time": {"mean": pause}, "preprocess": "sleep"},
                    "train": {},
                }
            ),
            num_accelerators=3,
        )
        generate(case.workload, world=Alone())
        cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cpus)})
        before = threading.active_count()
        try:
            loader = case.open()
            plan = case.plan(0)
            for batches in loader.epoch(0, plan):
                assert len(batches) == 3
            num_threads = threading.active_count() - before
            loader.close()
        finally:
            os.sched_setaffinity(0, cpus)
        assert num_threads == most
