"""What one worker does for its batches, without a loader around it."""

import ast
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock, call, patch

import numpy as np
import pytest

import dlemu
from dlemu.dataset.plan import PlanOptions, plan_epoch
from dlemu.formats import FORMATS
from dlemu.formats.format import Checksum
from dlemu.judge.sums import Rule
from dlemu.loaders import source as loaders_source
from dlemu.loaders.source import Cost, CpuBurner, Slots, Source, Task, block_seconds
from dlemu.loaders.steps import IDLE, PREPROCESSING, READING, Activity
from dlemu.loaders.worker import SampleReader
from dlemu.storage import extents
from dlemu.storage.counted import CountedFile, quantile_of
from dlemu.storage.files import aligned_buffer
from tests.lab.dataset import generated
from tests.loaders.contract import Case, expected, source_of

NUM_FILES, BATCH = 12, 3
SLEEPS: dict[str, object] = {
    "reader.preprocess": "sleep",
    "reader.preprocess_time": {"mean": 1.0, "stdev": 0.1},
}


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Files whose preprocessing takes 1 s each, more or less."""
    return source_of(tmp_path, SLEEPS)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The sleeps of the worker, which take no time."""
    seconds: list[float] = []
    monkeypatch.setattr("dlemu.loaders.worker.time.sleep", seconds.append)
    return seconds


@contextmanager
def reading(
    source: Source, *, accelerator: int = 0, number: int = 0, **given: Any
) -> Iterator[SampleReader]:
    """Yield a worker that begins with epoch 0."""
    given = {"slots": None, "note": lambda what, file: None} | given
    with closing(SampleReader(source, accelerator=accelerator, worker=number, **given)) as reader:
        reader.start_epoch(0)
        yield reader


def tasks_of(source: Source, epoch: int) -> list[Task]:
    options = PlanOptions(batch_size=BATCH, num_accelerators=1, epoch=0, seed=0)
    return list(source.tasks(epoch, plan_epoch(NUM_FILES, options), 0))


def read_epoch(reader: SampleReader, source: Source, epoch: int = 0) -> list[Cost]:
    """Return what the batches of an epoch took."""
    reader.start_epoch(epoch)
    costs = [reader.make(task, lambda: True) for task in tasks_of(source, epoch)]
    assert len(costs) == NUM_FILES // BATCH
    return [cost for cost in costs if cost is not None]


def test_preprocessing_draws_each_sample_anew_but_the_same_in_each_run(
    source: Source, slept: list[float]
) -> None:
    def drawn(accelerator: int, number: int) -> list[tuple[float, ...]]:
        slept.clear()
        with reading(source, accelerator=accelerator, number=number) as reader:
            for epoch in range(2):
                read_epoch(reader, source, epoch)
        half = len(slept) // 2
        return [tuple(slept[:half]), tuple(slept[half:])]

    first, second = drawn(0, 0)
    assert len(first) == len(set(first)) == NUM_FILES, "one sleep for each sample"
    assert sum(first) == pytest.approx(NUM_FILES * 1.0, rel=0.1), "1 s for each sample"
    assert set(first).isdisjoint(second), "each epoch has times of its own"
    others = [*drawn(0, 1), *drawn(1, 0)]
    assert len({first, second, *others}) == 6, "so have accelerators and workers"
    assert drawn(0, 0) == [first, second]
    slept.clear()
    with reading(source) as reader:
        reader._preparing.spend(40)
    assert slept == [pytest.approx(40 * 1.0, rel=0.1)], "samples that come together take all theirs"


@pytest.mark.parametrize("shape", [{}, {"format": "tfrecord", "num_samples_per_file": 6}], ids=str)
def test_a_sample_is_preprocessed_before_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any], tmp_path: Path
) -> None:
    """As a dataset's __getitem__ does it. Workers that read a whole batch first move together."""
    read: list[int] = []
    samples = np.arange(BATCH)
    with reading(source_of(tmp_path, SLEEPS, **shape, record_length_bytes=10_000.0)) as reader:
        monkeypatch.setattr(
            "dlemu.loaders.worker.time.sleep",
            lambda _: read.append(reader._reader.cost().num_bytes),
        )
        assert reader.make(Task(0, 0, samples, samples, samples, None), lambda: True) is not None
    assert len(read) == len(set(read)) == BATCH and read == sorted(read)


def test_a_sleep_that_ends_late_shortens_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    now = [0.0]

    def late(seconds: float) -> None:
        asked.append(seconds)
        now[0] += seconds + 0.0002

    monkeypatch.setattr("dlemu.loaders.worker.time.sleep", late)
    monkeypatch.setattr("dlemu.loaders.worker.perf_counter", lambda: now[0])
    source = source_of(tmp_path, SLEEPS | {"reader.preprocess_time": 0.01})
    with reading(source) as reader:
        read_epoch(reader, source)
    assert asked[0] == 0.01 and asked[1:] == pytest.approx([0.0098] * (NUM_FILES - 1))
    assert now[0] == pytest.approx(NUM_FILES * 0.01 + 0.0002)


@pytest.mark.parametrize(
    ("name", "known", "looks"),
    [
        ("npz", True, ["__call__", "check_head"] * NUM_FILES),  # their sizes and sums differ
        ("npz", False, ["locate", "__call__"] * NUM_FILES),
        ("npy", True, ["places", "check_head", "places"]),  # both begin alike
        ("npy", False, ["locate"] * 2),
        # The first page of each file, and the header of the first record.
        ("tfrecord", True, ["places", "check_head", "check_head", "places", "check_head"]),
        ("tfrecord", False, ["locate"] * 2),
    ],
)
def test_what_headers_and_checksums_take_is_decoding_and_no_reading(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    known: bool,
    looks: list[str],
) -> None:
    """A read takes a second here, and to look at a header or to check a file 100 s."""
    now, called = [0.0], list[str]()

    def taking(seconds: float, place: Any, called_as: str) -> None:
        own = getattr(place, called_as)

        def call(*given: Any, **keys: Any) -> Any:
            called.append(called_as)
            now[0] += seconds
            return own(*given, **keys)

        monkeypatch.setattr(place, called_as, call)

    for module in (loaders_source, extents):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    shape: dict[str, Any] = {"record_length_bytes_stdev": 300.0}
    if name != "npz":
        shape = {"num_files_train": 2, "num_samples_per_file": 6}
    keys = {"reader.odirect": True, "reader.check_crc": name == "npz"}
    source = source_of(tmp_path, keys, known_places=known, format=name, **shape)
    for each in ("locate", "places", "check_head"):
        taking(100.0, FORMATS[name], each)
    taking(100.0, Checksum, "__call__")
    taking(1.0, os, "preadv")
    with reading(source) as reader:
        costs = read_epoch(reader, source)
    assert [each for each in called if each != "preadv"] == looks
    assert sum(cost.decode_seconds for cost in costs) == 100.0 * len(looks)
    assert sum(cost.read_seconds for cost in costs) == called.count("preadv") >= NUM_FILES // 6


def test_a_batch_that_is_no_longer_wanted_is_not_made(source: Source, slept: list[float]) -> None:
    answers = iter([True, False])  # a third question would be one too many
    with reading(source) as reader:
        assert reader.make(tasks_of(source, 0)[0], lambda: next(answers)) is None
    assert list(answers) == [] and len(slept) == 1, "the first sample alone was prepared"


def test_samples_that_do_not_follow_one_another_are_read_apart(tmp_path: Path) -> None:
    """Of two HDF5 files with 5 samples each: two neighbours, one alone, and one of the other."""
    shape: dict[str, Any] = {"format": "hdf5", "num_files_train": 2, "num_samples_per_file": 5}
    source = source_of(tmp_path, {"reader.batch_size": 4}, keep=1, **shape)
    slots = Slots(aligned_buffer(Slots.num_bytes(source, 1000)), source, 1000)
    read: list[int] = []
    samples, rows = np.array([1, 2, 4, 5]), np.array([3, 0, 2, 1])
    with reading(source, slots=slots, note=lambda what, file: read.append(file)) as reader:
        cost = reader.make(Task(0, 0, samples, rows, samples, None), lambda: True)
    assert cost is not None and [file for file in read if file >= 0] == [0, 0, 1]
    for sample, row in zip(samples.tolist(), rows.tolist(), strict=True):
        assert np.array_equal(slots.data[0, row], expected(Case(source.workload), sample)), sample


@pytest.mark.parametrize("num_bytes", [0, 999, 1000, 2500, 3000])
def test_a_read_is_filled_though_the_kernel_gives_only_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    """As of a sample of more than 2 GiB."""
    monkeypatch.setattr("dlemu.storage.counted._MOST_AT_ONCE", 1000)
    content = np.random.default_rng(1).bytes(2600)
    (tmp_path / "file").write_bytes(content)
    with CountedFile(str(tmp_path / "file")) as file:
        assert file.read(num_bytes) == content[:num_bytes]
        assert file.counts.bytes_read == min(num_bytes, 2600)
        assert file.counts.num_reads == max(1, -(-min(num_bytes, 2600) // 1000))


def test_a_member_whose_header_another_thread_disturbed_is_read_again(tmp_path: Path) -> None:
    """Python's parser counts how deep it is for all threads together (CPython issue 106905)."""
    path = tmp_path / "x.npz"
    np.savez(path, x=np.arange(5, dtype=np.uint8))
    error = SystemError("AST constructor recursion depth mismatch (before=45, after=42)")
    disturbed = Mock(wraps=ast.literal_eval, side_effect=[error, error, DEFAULT])
    with patch.object(ast, "literal_eval", disturbed):
        parsed = FORMATS["npz"].parse(CountedFile(str(path)), 1)
        assert bytes(parsed.sample(0)) == bytes(range(5))
    assert disturbed.call_count == 3
    parsed.close()


def test_a_read_lasts_until_the_worker_does_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.010, 0.020, 5.0, 6.0, 6.010, 7.0])
    monkeypatch.setattr("dlemu.loaders.steps.perf_counter", lambda: next(times))
    activity = Activity(np.zeros((2, Activity.NUM_FIELDS)))
    for what in (READING, READING, PREPROCESSING, READING, IDLE):  # 10 ms, 10 ms and 1 s
        activity.note(0, what)
    activity.note(1, READING)
    activity.note(1, IDLE)
    counts = dict(enumerate(activity.read_counts().tolist()))
    assert sum(counts.values()) == 4
    assert quantile_of(counts, 0.5) == pytest.approx(0.010, rel=0.05)
    assert quantile_of(counts, 0.99) == pytest.approx(1.0, rel=0.05)


def test_the_rest_of_a_block_is_left_for_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that took 1 s when they were timed, and take 5 s now: that is what is told."""
    ends = [0.0]
    monkeypatch.setattr(zlib, "decompress", lambda *_, **__: ends.append(ends[-1] + 5.0))
    monkeypatch.setattr(loaders_source, "perf_counter", lambda: ends[-1])
    burner = CpuBurner(1.0)
    assert [burner.burn(each) for each in (2.5, 0.4, 0.2, 0.0, 1.9)] == [10.0, 0.0, 5.0, 0.0, 10.0]


def test_blocks_are_timed_by_as_many_processes_as_there_are_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(*_: object, **__: object) -> Mock:
        return Mock(stdin=io.BytesIO(), stdout=io.BytesIO(b"0.002\n"))

    started = Mock(side_effect=start)
    monkeypatch.setattr("dlemu.loaders.source.subprocess.Popen", started)
    monkeypatch.setattr("dlemu.loaders.source.usable_cpus", lambda: 6.5)
    for workers, processes in ((1, 1), (5, 5), (12, 7)):
        started.reset_mock()
        assert block_seconds.__wrapped__(workers) == 0.002
        assert started.call_count == processes


@pytest.mark.parametrize("how", ["cpu", "sleep"])
def test_a_worker_computes_or_sleeps(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"data_loader": "threads", "batch_size": 2, "read_threads": 0}
    keys |= {"preprocess_time": 0.01, "preprocess": how}
    workload = generated(tmp_path, {f"reader.{key}": value for key, value in keys.items()})
    monkeypatch.setattr(CpuBurner, "burn", burn := Mock(return_value=7.0))
    with dlemu.make_loader(workload) as batches:
        decode = [batch.decode_seconds for batch in batches]
    if how == "cpu":
        assert burn.call_args_list == [call(pytest.approx(0.01))] * 6, "sample by sample"
        assert min(decode) >= 7.0, "it is in the record, as decoding"
    else:
        assert not burn.called and max(decode) < 7.0
    assert Rule.of(workload).preprocess_seconds == (0 if how == "cpu" else pytest.approx(0.01))
