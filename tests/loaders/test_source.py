"""The memory in which batches are handed over: its room, its padding, and how many there are."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlemu.dataset.plan import PlanOptions, plan_epoch
from dlemu.errors import WorkloadError
from dlemu.loaders.source import Slots, Source, row_bytes_of, sample_bytes
from dlemu.storage.files import aligned_buffer
from tests.loaders.contract import source_of

BATCH = 3
# Two workers read 5 batches ahead, rounded up to 6.
AHEAD: dict[str, object] = {"reader.read_threads": 2, "reader.prefetch_size": 5}


def slots_of(source: Source, row_bytes: int) -> Slots:
    return Slots(aligned_buffer(Slots.num_bytes(source, row_bytes)), source, row_bytes)


@pytest.mark.parametrize(("loop", "takes_early"), [("rule", 0), ("pipelined", 1)])
def test_each_batch_that_may_exist_at_once_has_a_slot(
    loop: str, takes_early: int, tmp_path: Path
) -> None:
    """One in use, one taken early, 6 ahead; a loop that holds two of them needs one more."""
    for keep in (1, 2):
        source = source_of(tmp_path, AHEAD | {"train.loop": loop}, keep=keep)
        assert source.takes_early == takes_early
        assert slots_of(source, 1000).num_slots == 6 + takes_early + keep
        assert not source.reads_when_asked


def test_many_lengths_take_more_than_a_page_and_lie_on_no_sample(tmp_path: Path) -> None:
    slots = slots_of(source_of(tmp_path, AHEAD | {"reader.batch_size": 64}, keep=1), 1000)
    assert slots.data.shape == (7, 64, 1000)
    for slot in range(7):
        for row in range(64):
            slots.row(slot, row, 0, -1)
    assert not slots.data.any() and (slots.lengths == -1).all()


def test_a_row_that_is_used_again_is_padded_with_zeros(tmp_path: Path) -> None:
    slots = slots_of(source_of(tmp_path, AHEAD, keep=1), 1000)
    for kept in (700, 300, 500):
        memory = slots.row(2, 1, kept, kept)
        memory[:] = b"\x07" * kept
        row = slots.data[2, 1]
        assert (row[:kept] == 7).all() and not row[kept:].any()
        assert slots.lengths[2, 1] == kept
    slots.row(2, 1, 500, 900)
    assert slots.lengths[2, 1] == 900, "of which 500 are the sample's"


def test_a_foreign_files_samples_may_be_larger_than_their_mean(tmp_path: Path) -> None:
    """Only the files' sizes are known: their mean, rounded up, and 8 standard deviations."""
    shape: dict[str, Any] = {"format": "tfrecord", "num_files_train": 6, "num_samples_per_file": 2}
    source = source_of(tmp_path, known_places=False, **shape, record_length_bytes_stdev=20.0)
    largest = max(path.stat().st_size for path in (tmp_path / "train").iterdir())
    assert largest % 2 == 1
    assert sample_bytes(source) == (largest + 1) // 2 + 8 * 20


def test_batches_that_are_dropped_need_no_memory_and_others_must_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert row_bytes_of(source_of(tmp_path, AHEAD), 4) == 0
    source = source_of(tmp_path, AHEAD, keep=1)
    wanted = 4 * Slots.num_bytes(source, 1000)
    assert wanted >= 4 * 7 * BATCH * 1000
    memory = SimpleNamespace(available=wanted)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    assert row_bytes_of(source, 4) == 1000
    refused = r"4 accelerators x 7 batches of 2\.9 KiB"
    memory.available = wanted - 1
    with pytest.raises(WorkloadError, match=refused):
        row_bytes_of(source, 4)
    memory.available = wanted
    limit = wanted - 1, "memory.max of a container"
    monkeypatch.setattr("dlemu.host.processes.free_memory", lambda: limit)
    with pytest.raises(WorkloadError, match=refused):
        row_bytes_of(source, 4)


def test_a_streams_tasks_name_its_steps_and_where_files_hold_their_samples(tmp_path: Path) -> None:
    source = source_of(tmp_path, format="npy", num_files_train=24, record_length_bytes_stdev=200.0)
    plan = plan_epoch(24, PlanOptions(batch_size=BATCH, num_accelerators=2, epoch=1, seed=3))
    assert plan.num_steps == 4
    for stream in range(3):
        tasks = list(source.tasks(1, plan, 1, stream=stream, num_streams=3))
        assert [task.step for task in tasks] == list(range(stream, 4, 3))
        for task in tasks:
            assert task.epoch == 1
            assert task.samples.tolist() == plan.samples[task.step, 1].tolist()
            assert task.fetch.tolist() == task.samples.tolist()
            sizes = source.layout.sizes(task.samples)
            assert task.places is not None
            assert task.places.tolist() == [[4096] * BATCH, sizes.tolist(), (4096 + sizes).tolist()]
