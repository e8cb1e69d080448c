"""What every loader must do, whatever the format, the way of reading and the number of workers."""

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from dlemu.config.types import LOADERS
from dlemu.contract import loader_faults
from dlemu.dataset.plan import EpochPlan
from dlemu.loaders.worker import SampleReader
from tests.lab.dataset import generated
from tests.lab.waiting import LONG, until
from tests.loaders.contract import BY_DALI, DATASETS, Case, check_epoch, make_case, payload_bytes

MakeCase = Callable[..., Case]
PLAIN = [name for name in DATASETS if not name.startswith("parquet")]
"""Rows of columns are handed over with reader.decode=library."""
FEW = ["npz", "tfrecord", "npz of 5", "tfrecord of 13"]
BARE = ["raw of 13", "indexed of 13"]
DIRECT: dict[str, object] = {"reader.odirect": True}
SEVERAL = DIRECT | {"reader.io_depth": 3, "reader.transfer_size": 4096}
CUT: dict[str, object] = {"dataset.record_length_bytes_resize": 5_000}
RANDOM: dict[str, object] = {"reader.access": "random"}
WAYS: dict[str, tuple[list[str], dict[str, object]]] = {
    "buffered": (PLAIN, {"reader.read_threads": 3}),
    "direct": (PLAIN, DIRECT | {"reader.read_threads": 0}),
    "library": ([*DATASETS], {"reader.decode": "library"}),
    "foreign": ([*DATASETS], {}),  # by their own headers
    "cut": (FEW, CUT),
    "cut, several reads": (FEW, CUT | SEVERAL),
    "padded": (FEW, DIRECT | {"dataset.record_length_bytes_resize": 30_000}),
    "checked": (FEW, {"reader.check_crc": True}),
    "checked, direct": (FEW, DIRECT | {"reader.check_crc": True}),
    "random": (BARE, RANDOM),
    "random, several reads": (BARE, RANDOM | SEVERAL),
    "random, cut": (BARE, RANDOM | CUT | {"reader.transfer_size": 1 << 17}),
    "random, foreign": (BARE, RANDOM),
}
ROWS = [(dataset, way) for way, (datasets, _) in WAYS.items() for dataset in datasets]


@pytest.fixture(params=[name for name in LOADERS if name != "native_dali"])  # dali's older name
def name(request: pytest.FixtureRequest) -> str:
    """`reader.data_loader`"""
    if request.param == "dali":
        pytest.importorskip("nvidia.dali", reason="needs DALI: pip install 'dlemu[dali-cuda13]'")
    return str(request.param)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where datasets lie: each is written once."""
    return tmp_path_factory.mktemp("datasets")


@pytest.fixture
def case(name: str, folders: Path) -> MakeCase:
    """What opens a dataset for the loader."""

    def make(dataset: str, *, num_accelerators: int = 1, **keys: object) -> Case:
        if name == "tensorflow" and dataset.startswith("parquet"):
            pytest.skip("tf.data's order is not that of row groups")
        if name == "dali" and dataset not in BY_DALI:
            pytest.skip("DALI has no reader for it")
        if name == "tensorflow" and "reader.access" in keys:
            pytest.skip("tf.data reads files from end to end")
        keys = {"reader.data_loader": name, "reader.read_threads": 1, **keys}
        if dataset.startswith("parquet"):
            keys["reader.decode"] = "library"
        folder = folders / dataset.replace(" ", "_")
        return make_case(folder, dataset, keys, num_accelerators=num_accelerators)

    return make


def test_each_loader_keeps_the_contract(name: str, tmp_path: Path) -> None:
    assert list(loader_faults(name, tmp_path)) == []


@pytest.mark.parametrize(("dataset", "way"), ROWS)
def test_yields_what_the_plan_and_the_generator_say(
    case: MakeCase, name: str, dataset: str, way: str
) -> None:
    if (name, dataset, way) == ("dali", "jpeg", "foreign"):
        pytest.skip("DALI decodes a job's own pictures; test_dali.py has some")
    keys = {"reader.read_threads": 2} | WAYS[way][1]
    found = case(dataset, **keys)
    read = []
    with closing(found.open(known_places="foreign" not in way)) as loader:
        assert loader.direct is ("reader.odirect" in keys)
        for epoch in range(2):
            steps = check_epoch(found, loader, epoch)
            read.append([b.samples.tolist() for batches in steps for b in batches])
            num_bytes = sum(batch.num_bytes for batches in steps for batch in batches)
            assert num_bytes >= 0.9 * payload_bytes(found, steps)
            if name != "dali" and way != "library":
                assert all(batch.num_reads >= 1 for batch in steps[0])
            if way == "random, cut":
                assert steps[0][0].num_reads == 3, "one read a sample"
        if name != "dali":
            counted, samples = loader.read_counts().sum(), sum(map(len, chain(*read)))
            assert counted == samples if found.layout.samples_per_file == 1 else counted > 0
    assert read[0] != read[1], "each epoch has its own order"


@pytest.fixture
def count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """What says how many batches workers have begun, threads or forked processes."""
    file, make = tmp_path / "begun", SampleReader.make
    with file.open("ab", buffering=0) as begun:

        def counted_make(self: SampleReader, *given: Any) -> Any:
            begun.write(b".")  # no append is lost, though others append
            return make(self, *given)

        monkeypatch.setattr(SampleReader, "make", counted_make)
        yield lambda: file.stat().st_size


@pytest.mark.parametrize("loop", ["rule", "pipelined"])
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_reads_no_further_ahead_than_its_loop_has_asked(
    case: MakeCase, name: str, workers: int, loop: str, count: Callable[[], int]
) -> None:
    """As many batches as a DataLoader (or tf.data) would have begun, at every step.

    The memory for batches holds these and no more.
    """
    keys = {"reader.read_threads": workers, "reader.batch_size": 1, "train.loop": loop}
    for prefetch in (0, 1, 6):
        found = case("npz", **keys, **{"reader.prefetch_size": prefetch})
        in_flight = 1 + (loop == "pipelined") + ahead(name, workers, prefetch, batch_size=1)
        plan, addresses = found.plan(0), []
        before = count()
        with closing(found.open()) as loader:
            for step, [batch] in enumerate(loader.epoch(0, plan)):
                wanted = before + _num_tasks(plan, min(step + in_flight, plan.num_steps))
                until(lambda: count() >= wanted, pause=0.002)  # noqa: B023
                assert count() == wanted, f"prefetch_size={prefetch}, step {step}"
                assert batch.data is not None
                addresses.append(batch.data.ctypes.data)
                if step == 4:
                    break
        if name != "dali":
            assert len(set(addresses[:in_flight])) == min(5, in_flight)
        if name != "dali" and in_flight < 5:
            assert addresses[in_flight] == addresses[0], "memory is used again"


def ahead(name: str, workers: int, prefetch: int, *, batch_size: int) -> int:
    """Return the batches that are read ahead of what was taken, as the loader's own would be.

    tf.data has prefetched batches, and two samples of each stream behind them. DALI's depth is
    counted in batches, one at least, whatever its threads, and its reader has one more.
    """
    if name == "dali":
        return max(1, prefetch) + 1
    if name == "tensorflow":
        return prefetch + 2 * max(1, workers) // batch_size
    return workers * max(1, math.ceil(prefetch / max(1, workers)))


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_dalis_threads_share_the_samples_of_each_batch(
    folders: Path, batch: int, count: Callable[[], int]
) -> None:
    """Three threads, three batches ahead: each batch is read by all that it has samples for."""
    keys = {"reader.data_loader": "dali", "reader.read_threads": 3, "reader.prefetch_size": 2}
    pytest.importorskip("nvidia.dali", reason="pip install 'dlemu[dali-cuda13]'")
    found = make_case(folders / "npz", "npz", {**keys, "reader.batch_size": batch})
    plan, parts, before = found.plan(0), min(3, batch), count()
    with closing(found.open()) as loader:
        for step, [made] in enumerate(loader.epoch(0, plan)):
            wanted = before + parts * min(step + 1 + 3, plan.num_steps)
            until(lambda: count() >= wanted, pause=0.002)  # noqa: B023
            assert count() == wanted
            assert made.samples.tolist() == plan.batch(step, 0).tolist()
            assert made.data is not None and len(made.data) == batch


@pytest.mark.parametrize("loop", ["rule", "pipelined"])
def test_without_workers_each_accelerator_reads_at_its_own_time(
    case: MakeCase, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that many ranks would: nobody's reading waits for another's."""
    together = threading.Barrier(3)
    make = SampleReader.make

    def make_with_others(self: SampleReader, *given: Any) -> Any:
        together.wait(timeout=LONG)  # all three read, or none goes on
        return make(self, *given)

    monkeypatch.setattr(SampleReader, "make", make_with_others)
    keys = {"num_accelerators": 3, "reader.read_threads": 0, "train.loop": loop}
    found = case("npz", **keys)
    with closing(found.open()) as loader:
        check_epoch(found, loader, 0)


def _num_tasks(plan: EpochPlan, num_steps: int) -> int:
    """Return how many tasks make the first batches of one accelerator."""
    if plan.stream_of is None:
        return num_steps
    return int(plan.takes_part(0)[:num_steps].sum())


@pytest.mark.parametrize(("pause", "most"), [(0.0, 1), (0.02, 12)])
def test_where_nothing_waits_threads_are_no_more_than_cpus(
    pause: float, most: int, memory: Path
) -> None:
    """Preprocessing may wait, whatever the files lie on."""
    keys = {"data_loader": "threads", "read_threads": 4, "batch_size": 2, "preprocess_time": pause}
    given = {f"reader.{key}": value for key, value in keys.items()} | {"reader.preprocess": "sleep"}
    made = Case(generated(memory, given, num_files_train=120), num_accelerators=3)
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    before = {*threading.enumerate()}  # of which some may end meanwhile
    try:
        with closing(made.open()) as loader:
            for batches in loader.epoch(0, made.plan(0)):
                assert len(batches) == 3
            assert len({*threading.enumerate()} - before) == most
    finally:
        os.sched_setaffinity(0, cpus)
