"""What one worker does for its batches, without a loader around it."""

import ast
import io
import itertools
import os
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock, patch

import numpy as np
import pytest

import dlemu
from dlemu.datagen import Content
from dlemu.dataset.layout import Dataset, layout_of
from dlemu.dataset.plan import PlanOptions, plan_epoch
from dlemu.formats import FORMATS
from dlemu.judge.sums import Rule
from dlemu.loaders import source as loaders_source
from dlemu.loaders import worker as loaders_worker
from dlemu.loaders.source import Cost, Slots, Source, Task, Work, block_seconds
from dlemu.loaders.steps import IDLE, PREPROCESSING, READING, Activity
from dlemu.loaders.worker import SampleReader
from dlemu.storage import extents
from dlemu.storage.counted import CountedFile, quantile_of
from dlemu.storage.files import aligned_buffer
from tests.lab.dataset import generated

NUM_FILES, BATCH = 12, 3


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Files of 1000 bytes, whose preprocessing takes 1 s each, more or less."""
    keys = {
        "reader.batch_size": BATCH,
        "reader.preprocess": "sleep",
        "reader.preprocess_time": {"mean": 1.0, "stdev": 0.1},
    }
    workload = generated(tmp_path, keys, num_files_train=NUM_FILES, record_length_bytes=1000.0)
    return Source.open(Dataset.of(workload), keep=0)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The sleeps of the worker, which take no time."""
    seconds: list[float] = []
    monkeypatch.setattr("dlemu.loaders.worker.time.sleep", seconds.append)
    return seconds


def reader_of(source: Source, *, accelerator: int = 0, number: int = 0) -> SampleReader:
    return SampleReader(
        source,
        accelerator=accelerator,
        worker=number,
        slots=None,
        note=lambda what, file: None,
    )


def tasks_of(source: Source, epoch: int) -> list[Task]:
    options = PlanOptions(batch_size=BATCH, num_accelerators=1, epoch=0, seed=0)
    plan = plan_epoch(NUM_FILES, options)
    return list(source.tasks(epoch, plan, 0))


def read_epoch(reader: SampleReader, source: Source, epoch: int) -> list[Cost]:
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
        reader = reader_of(source, accelerator=accelerator, number=number)
        for epoch in range(2):
            read_epoch(reader, source, epoch)
        reader.close()
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
    reader = reader_of(source)
    reader._prepare(40)
    assert slept == [pytest.approx(40 * 1.0, rel=0.1)], "samples that come together take all theirs"
    reader.close()


@pytest.mark.parametrize(
    "keys",
    [{}, {"dataset.format": "tfrecord", "dataset.num_samples_per_file": 6}],
    ids=["npz", "tfrecord"],
)
def test_a_sample_is_preprocessed_before_the_next_is_read(
    source: Source, monkeypatch: pytest.MonkeyPatch, keys: dict[str, object], tmp_path: Path
) -> None:
    """As a dataset's __getitem__ does it. Workers that read a whole batch first move together."""
    keys = keys | {
        "dataset.data_folder": str(tmp_path / "own"),
        "dataset.num_files_train": 12,
        "dataset.record_length_bytes": 10_000,
    }
    workload = source.workload.with_keys(keys)
    dlemu.generate(workload, world=dlemu.Alone())
    reader = reader_of(Source.open(Dataset.of(workload), keep=0))
    read: list[int] = []
    monkeypatch.setattr(
        "dlemu.loaders.worker.time.sleep", lambda _: read.append(reader._reader.cost().num_bytes)
    )
    reader.start_epoch(0)
    samples = np.arange(BATCH)
    assert reader.make(Task(0, 0, samples, samples, samples, None), lambda: True) is not None
    assert len(read) == len(set(read)) == BATCH and read == sorted(read)
    reader.close()


def test_a_sleep_that_ends_late_shortens_the_next(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    now = [0.0]

    def late(seconds: float) -> None:
        asked.append(seconds)
        now[0] += seconds + 0.0002

    monkeypatch.setattr("dlemu.loaders.worker.time.sleep", late)
    monkeypatch.setattr("dlemu.loaders.worker.perf_counter", lambda: now[0])
    keys = {"reader.preprocess_time": {"mean": 0.01, "stdev": 0.0}}
    workload = source.workload.with_keys(keys)
    reader = reader_of(Source.open(Dataset.of(workload), keep=0))
    read_epoch(reader, source, 0)
    assert asked[0] == 0.01 and asked[1:] == pytest.approx([0.0098] * (NUM_FILES - 1))
    assert now[0] == pytest.approx(NUM_FILES * 0.01 + 0.0002)
    reader.close()


def test_a_batch_is_told_what_it_took_itself(source: Source, slept: list[float]) -> None:
    reader = reader_of(source)
    costs = read_epoch(reader, source, 0)
    # From each file's first byte to the payload's end: 4096 bytes stand before it.
    assert [cost.num_bytes for cost in costs] == [BATCH * (4096 + 1000)] * (NUM_FILES // BATCH)
    assert all(cost.read_seconds > 0 for cost in costs)
    assert read_epoch(reader, source, 1) != costs
    reader.close()


def test_checksums_are_decoding_and_no_reading(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that stands still but in the check."""
    now = 0.0

    def check(data: memoryview) -> None:
        nonlocal now
        now += len(data)

    monkeypatch.setattr(loaders_worker, "Checksum", lambda *_: check)
    monkeypatch.setattr(extents, "perf_counter", lambda: now)
    keys = {"reader.check_crc": True, "reader.preprocess_time": 0.0}
    reader = reader_of(Source.open(Dataset.of(source.workload.with_keys(keys)), keep=0))
    for cost in read_epoch(reader, source, 0):
        assert cost.decode_seconds >= cost.num_bytes and cost.read_seconds == 0
    reader.close()


@pytest.mark.parametrize(
    ("name", "known", "looks"),
    [
        ("npz", True, ["check_head"] * NUM_FILES),  # their sizes differ
        ("npz", False, ["locate"] * NUM_FILES),
        ("npy", True, ["places", "check_head", "places"]),  # both begin alike
        ("npy", False, ["locate"] * 2),
        # The first page of each file, and the header of the first record.
        ("tfrecord", True, ["places", "check_head", "check_head", "places", "check_head"]),
        ("tfrecord", False, ["locate"] * 2),
    ],
)
def test_what_headers_take_is_decoding_and_no_reading(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    known: bool,
    looks: list[str],
) -> None:
    """A read takes a second here, and to look at a header 100 s."""
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
    shape = {"num_files_train": NUM_FILES, "record_length_bytes_stdev": 300.0}
    if name != "npz":
        shape = {"num_files_train": 2, "num_samples_per_file": 6}
    keys: dict[str, object] = {"reader.batch_size": BATCH, "reader.odirect": True}
    workload = generated(tmp_path, keys, format=name, **shape)
    source = Source.open(Dataset(workload, layout_of(workload), known), keep=0)
    for each in ("locate", "places", "check_head"):
        taking(100.0, FORMATS[name], each)
    taking(1.0, os, "preadv")
    reader = reader_of(source)
    costs = read_epoch(reader, source, 0)
    assert [each for each in called if each != "preadv"] == looks
    assert sum(cost.decode_seconds for cost in costs) == 100.0 * len(looks)
    assert sum(cost.read_seconds for cost in costs) == called.count("preadv") >= NUM_FILES // 6
    reader.close()


def test_a_batch_that_is_no_longer_wanted_is_not_made(source: Source, slept: list[float]) -> None:
    reader = reader_of(source)
    reader.start_epoch(0)
    answers = iter([True, False])  # a third question would be one too many
    assert reader.make(tasks_of(source, 0)[0], lambda: next(answers)) is None
    assert list(answers) == [] and len(slept) == 1, "the first sample alone was prepared"
    reader.close()


def test_samples_that_do_not_follow_one_another_are_read_apart(tmp_path: Path) -> None:
    """Of two HDF5 files with 5 samples each: two neighbours, one alone, and one of the other."""
    shape = {"num_samples_per_file": 5, "record_length_bytes": 1000.0}
    keys = {"reader.batch_size": 4}
    workload = generated(tmp_path, keys, format="hdf5", num_files_train=2, **shape)
    source = Source.open(Dataset.of(workload), keep=1)
    slots = Slots(aligned_buffer(Slots.num_bytes(source, 1000)), source, 1000)
    read: list[int] = []
    reader = SampleReader(
        source,
        accelerator=0,
        worker=0,
        slots=slots,
        note=lambda what, file: read.append(file) if file >= 0 else None,
    )
    reader.start_epoch(0)
    samples, rows = np.array([1, 2, 4, 5]), np.array([3, 0, 2, 1])
    cost = reader.make(Task(0, 0, samples, rows, samples, None), lambda: True)
    assert cost is not None and read == [0, 0, 1]
    wanted = np.empty(1000, np.uint8)
    for sample, row in zip(samples.tolist(), rows.tolist(), strict=True):
        Content(workload.dataset.seed).fill(wanted, sample)
        assert np.array_equal(slots.data[0, row], wanted), f"sample {sample}"
    reader.close()


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
    blocks = []
    monkeypatch.setattr(zlib, "decompress", lambda block, **_: blocks.append(block))
    work = Work(1.0)
    done = []
    for seconds in (2.5, 0.4, 0.2, 0.0, 1.9):
        work.spend(seconds)
        done.append(len(blocks))
    assert done == [2, 2, 3, 3, 5]


def test_what_a_block_took_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, now = itertools.cycle([5.0, 2.0, 3.0]), [0.0]

    def decompress(block: bytes, **_: int) -> None:
        now[0] += next(taken)

    monkeypatch.setattr(zlib, "decompress", decompress)
    monkeypatch.setattr(loaders_source, "perf_counter", lambda: now[0])
    assert Work(2.0).spend(6.0) == 10.0, "what it took, not what was asked for"


def test_blocks_are_timed_by_as_many_processes_as_there_are_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []

    class Process:
        stdin, stdout = io.BytesIO(), None

        def __init__(self, words: list[str], **_: object) -> None:
            started.append(words)
            self.stdin, self.stdout = io.BytesIO(), io.BytesIO(b"0.002\n")

        def kill(self) -> None:
            pass

        wait = kill

    monkeypatch.setattr("dlemu.loaders.source.subprocess.Popen", Process)
    monkeypatch.setattr("dlemu.loaders.source.usable_cpus", lambda: 6.5)
    for workers, processes in ((1, 1), (5, 5), (12, 7)):
        started.clear()
        assert block_seconds.__wrapped__(workers) == 0.002
        assert len(started) == processes


@pytest.mark.parametrize("loader", ["pytorch", "threads"])
@pytest.mark.parametrize("how", ["cpu", "sleep"])
def test_a_worker_computes_or_sleeps(
    loader: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"data_loader": loader, "batch_size": 2, "read_threads": 0}
    keys |= {"preprocess_time": 0.01, "preprocess": how}
    workload = generated(tmp_path, {f"reader.{key}": value for key, value in keys.items()})
    computed: list[float] = []

    def spend(self: Work, seconds: float) -> float:
        computed.append(seconds)
        return 7.0

    monkeypatch.setattr(Work, "spend", spend)
    with dlemu.make_loader(workload) as batches:
        decode = [batch.decode_seconds for batch in batches]
    if how == "cpu":
        assert computed == pytest.approx([0.01] * 6), "sample by sample"
        assert min(decode) >= 7.0, "it is in the record, as decoding"
    else:
        assert computed == [] and max(decode) < 7.0
    assert Rule.of(workload).preprocess_seconds == (0 if how == "cpu" else pytest.approx(0.01))
