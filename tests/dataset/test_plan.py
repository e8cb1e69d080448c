"""Who reads what when: every sample once, equal steps, another order each epoch."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.config.model import load_workload
from dlemu.dataset import plan as plan_module
from dlemu.dataset.layout import layout_of
from dlemu.dataset.plan import (
    EpochPlan,
    PlanOptions,
    count_steps,
    make_plan,
    permuted,
    plan_epoch,
    plan_interleaved,
    plan_streams,
)
from dlemu.errors import WorkloadError

OF_EPOCH = {
    "batch_size": st.integers(1, 9),
    "num_accelerators": st.integers(1, 9),
    "epoch": st.integers(0, 9),
    "seed": st.integers(0, 2**63),
    "samples_per_file": st.integers(1, 40),
    "shuffle_files": st.booleans(),
    "shuffle_samples": st.booleans(),
}
OF_STREAMS = {"num_streams": st.integers(1, 5), "shuffle_size": st.integers(1, 50)}
epochs = st.fixed_dictionaries(OF_EPOCH)
streams = st.fixed_dictionaries(OF_EPOCH | OF_STREAMS)
PLAIN = PlanOptions(
    batch_size=4, num_accelerators=2, epoch=0, seed=1, shuffle_files=False, shuffle_samples=False
)


def enough(num_files: int, asked: dict[str, Any]) -> int:
    """Return a number of samples, of whole files, that gives two steps at least."""
    per_file: int = asked["samples_per_file"]
    least: int = 2 * asked["batch_size"] * asked["num_accelerators"]
    return max(num_files, -(-least // per_file)) * per_file


def check_dealt(plan: EpochPlan, num_samples: int, asked: dict[str, Any]) -> None:
    """Check what holds for every plan."""
    batch_size, accelerators = asked["batch_size"], asked["num_accelerators"]
    assert plan.samples.dtype == np.int64
    assert plan.samples.shape[1:] == (accelerators, batch_size)
    assert len(np.unique(plan.samples)) == plan.samples.size, "a sample is there twice"
    assert 0 <= plan.samples.min() <= plan.samples.max() < num_samples
    assert num_samples - plan.samples.size < batch_size * accelerators, "too many are left out"


@given(st.integers(1, 60), epochs)
def test_every_sample_is_read_at_most_once(num_files: int, asked: dict[str, Any]) -> None:
    num_samples = enough(num_files, asked)
    plan = plan_epoch(num_samples, PlanOptions(**asked))
    check_dealt(plan, num_samples, asked)
    assert (plan.fetch(0, 0) == plan.samples[0, 0]).all()


@settings(deadline=None)
@given(st.integers(1, 60), streams)
def test_a_stream_reads_what_it_gives_from_end_to_end(
    num_files: int, asked: dict[str, Any]
) -> None:
    """One worker's reads are a stretch of the sequence, and its buffer holds no more than asked."""
    num_samples = enough(num_files, asked)
    plan = plan_streams(num_samples, PlanOptions(**asked))
    check_dealt(plan, num_samples, asked)
    assert plan.sequence is not None
    place = np.argsort(plan.sequence)
    fetched_by_all: list[int] = []
    for accelerator in range(asked["num_accelerators"]):
        for stream in range(asked["num_streams"]):
            steps = range(stream, plan.num_steps, asked["num_streams"])
            fetched: list[int] = []
            given_away: set[int] = set()
            for step in steps:
                fetched += plan.fetch(step, accelerator).tolist()
                given_away |= set(plan.samples[step, accelerator].tolist())
                assert given_away <= set(fetched), "a sample is given before it is read"
                held = len(fetched) - len(given_away)
                assert held < asked["shuffle_size"]
                assert held == 0 or asked["shuffle_samples"]
            assert given_away == set(fetched), "what was read is given in the end"
            assert (np.diff(place[fetched]) == 1).all(), "the reading is one stretch"
            fetched_by_all += fetched
    assert sorted(fetched_by_all) == sorted(plan.samples.ravel().tolist())
    files = plan.sequence.reshape(-1, asked["samples_per_file"])
    assert (np.diff(files, axis=1) == 1).all(), "a file is read from its start to its end"
    assert (files[:, 0] % asked["samples_per_file"] == 0).all()


@settings(deadline=None)
@given(st.integers(1, 60), streams)
def test_all_streams_read_each_batch_of_tf_data(num_files: int, asked: dict[str, Any]) -> None:
    """A stream reads one stretch, gives only what it has read, and the shuffle buffer holds."""
    num_samples = enough(num_files, asked)
    plan = plan_interleaved(num_samples, PlanOptions(**asked))
    check_dealt(plan, num_samples, asked)
    assert plan.sequence is not None and plan.stream_of is not None
    place = np.argsort(plan.sequence)
    for accelerator in range(asked["num_accelerators"]):
        takes_part = plan.takes_part(accelerator)
        fetched: list[list[int]] = [[] for _ in range(asked["num_streams"])]
        given_away: set[int] = set()
        for step in range(plan.num_steps):
            rows_given = []
            for stream in range(asked["num_streams"]):
                rows, fetch = plan.part(step, accelerator, stream)
                fetched[stream] += fetch.tolist()
                gives = plan.samples[step, accelerator][rows].tolist()
                assert set(gives) <= set(fetched[stream]), "given before it is read"
                assert takes_part[step, stream] == bool(len(rows) or len(fetch))
                rows_given += rows.tolist()
                given_away |= set(gives)
            assert sorted(rows_given) == list(range(asked["batch_size"]))
            held = sum(map(len, fetched)) - len(given_away)
            assert held < asked["shuffle_size"] and (held == 0 or asked["shuffle_samples"])
        assert given_away == set().union(*fetched), "what was read is given in the end"
        for stretch in fetched:
            assert (np.diff(place[stretch]) == 1).all(), "the reading is one stretch"


def test_streams_of_tf_data_give_a_sample_each_in_turn() -> None:
    options = replace(PLAIN, num_streams=3, samples_per_file=6, shuffle_size=9)
    plan = plan_interleaved(24, options)
    assert plan.samples.tolist() == [
        [[0, 4, 8, 1], [12, 16, 20, 13]],
        [[5, 9, 2, 6], [17, 21, 14, 18]],
        [[10, 3, 7, 11], [22, 15, 19, 23]],
    ]


def test_a_shuffle_buffer_is_uniform_over_what_it_holds() -> None:
    """Each of 4 held items is as likely to leave first; the fifth can leave second."""
    options = replace(PLAIN, batch_size=1, num_accelerators=1, shuffle_samples=True, shuffle_size=4)
    plans = (plan_streams(8, replace(options, seed=seed)) for seed in range(4000))
    orders = np.array([plan.samples.ravel() for plan in plans])
    first = np.bincount(orders[:, 0], minlength=8) / 4000
    assert first[:4] == pytest.approx([0.25] * 4, abs=0.03)
    assert first[4:].tolist() == [0] * 4
    second = np.bincount(orders[:, 1], minlength=8) / 4000
    # Left over from the first four: 3/4 x 1/4 each; the newcomer: 1/4.
    assert second[:5] == pytest.approx([3 / 16] * 4 + [1 / 4], abs=0.03)
    in_order = (np.diff(orders[:, 4:], axis=1) > 0).all(axis=1).mean()
    assert in_order == pytest.approx(1 / 24, abs=0.015), "what is held at the end is shuffled too"


@pytest.mark.parametrize("name", ["unet3d_h100", "resnet50_h100"])
@pytest.mark.parametrize("loader", ["pytorch", "tensorflow"])
def test_a_plan_may_be_cut_short_and_its_steps_are_counted_without_it(
    name: str, loader: str
) -> None:
    keys = {"reader.sample_shuffle": "seed", "reader.data_loader": loader}
    whole = load_workload(name, keys | {"dataset.num_files_train": 100})
    cut = whole.with_keys({"train.total_training_steps": 3})
    layout = layout_of(whole)
    short, long = (make_plan(each, layout, num_accelerators=2, epoch=1) for each in (cut, whole))
    assert short.num_steps == count_steps(cut, layout, num_accelerators=2) == 3
    assert long.num_steps == count_steps(whole, layout, num_accelerators=2) > 3
    assert (short.samples == long.samples[:3]).all()
    if loader == "pytorch":  # by tf.data's way the streams fetch
        for step in range(3):
            assert (short.fetch(step, 1) == long.fetch(step, 1)).all()
    one_order = cut.with_keys({"train.seed_change_epoch": False})
    first, later = (
        make_plan(job, layout, num_accelerators=2, epoch=e) for job, e in ((cut, 0), (one_order, 4))
    )
    assert (first.samples == later.samples).all()


def test_the_workloads_keys_decide() -> None:
    resnet = load_workload("resnet50_h100", {"reader.data_loader": "pytorch"})
    layout = replace(layout_of(resnet), num_files=16)
    plan = make_plan(resnet, layout, num_accelerators=2, epoch=0)
    assert plan.samples[0, 0].tolist() == list(range(400)), "resnet50 is not shuffled"
    second = len(range(0, plan.num_steps, 8)) * 400
    assert plan.samples[1, 0, 0] == second, "the second of 8 workers"

    by_file = resnet.with_keys({"reader.file_shuffle": "seed"})
    first = make_plan(by_file, layout, num_accelerators=2, epoch=0).samples[0, 0]
    assert (np.diff(first) == 1).all() and first[0] % 1251 == 0

    off = {"reader.file_shuffle": "off", "reader.sample_shuffle": "off"}
    unet = load_workload("unet3d_h100", off)

    def order(seed: int, epoch: int, **keys: object) -> tuple[int, ...]:
        job = unet.with_keys({"train.seed": seed} | keys)
        plan = make_plan(job, layout_of(unet), num_accelerators=2, epoch=epoch)
        return tuple(plan.samples.ravel().tolist())

    assert order(0, 0) == order(1, 1) == tuple(range(len(order(0, 0))))
    for key in off:
        orders = {order(seed, epoch, **{key: "seed"}) for seed in (0, 1) for epoch in (0, 1)}
        assert len(orders) == 4


def test_rows_that_stay_together_are_planned_as_one() -> None:
    """The plan of 12,288 rows a batch is that of single rows, in a fraction of the memory."""
    keys: dict[str, object] = {"dataset.num_files_train": 5, "dataset.num_samples_per_file": 96}
    keys |= {"dataset.parquet.columns": [], "reader.batch_size": 36, "reader.read_threads": 3}
    workload = load_workload("dlrm_b200", keys)
    layout = layout_of(workload)
    plan = make_plan(workload, layout, num_accelerators=2, epoch=1)
    # From an emulated origin each sample is planned alone.
    alone = workload.with_keys({"origin.latency": 1.0})
    single = make_plan(alone, layout, num_accelerators=2, epoch=1)
    assert (plan.unit, single.unit) == (12, 1)
    assert plan.samples.size * 12 == single.samples.size
    for step in range(plan.num_steps):
        for accelerator in range(2):
            for of in (EpochPlan.batch, EpochPlan.fetch):
                assert np.array_equal(of(plan, step, accelerator), of(single, step, accelerator))


def test_a_plan_that_no_memory_holds_is_refused() -> None:
    workload = load_workload("dlrm_b200", {"reader.sample_shuffle": "seed"})
    with pytest.raises(WorkloadError, match="4,831,838,208 samples in random order are too many"):
        make_plan(workload, layout_of(workload), num_accelerators=1, epoch=0)


@given(st.integers(1, 5000), st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_computed_order_is_a_permutation(size: int, seed: int, other: int) -> None:
    order = permuted(np.arange(size), size, seed)
    assert np.array_equal(np.sort(order), np.arange(size))
    some = np.array([[size - 1, 0]])
    assert np.array_equal(permuted(some, size, seed), order[some]), "each number by itself"
    if size > 100 and seed != other:
        assert not np.array_equal(order, permuted(np.arange(size), size, other))


def test_a_computed_order_is_as_random_as_a_drawn_one() -> None:
    """Neither where a number goes tells of the number, nor where its neighbour goes."""
    size, half = 100_000, 50_000
    order = permuted(np.arange(size), size, 1).astype(float)
    for first, second in ((np.arange(size), order), (order[:-1], order[1:])):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(size)
    fixed = (order == np.arange(size)).sum()
    assert fixed < 10, "one is expected"
    up = (np.diff(order) > 0).sum()
    assert abs(up - half) < 5 * math.sqrt(size / 12), "half of the steps go up"


@pytest.mark.parametrize("make", [plan_epoch, plan_streams])
@settings(max_examples=15, deadline=None)
@given(st.integers(2, 120), streams, st.data())
def test_of_a_large_plan_each_rank_makes_its_own_part(
    make: Callable[[int, PlanOptions], EpochPlan],
    num_files: int,
    asked: dict[str, Any],
    data: st.DataObject,
) -> None:
    num_samples = enough(num_files, asked)
    of_epoch = {"num_streams": 1, "shuffle_size": 1} if make is plan_epoch else {}
    options = PlanOptions(**(asked | of_epoch))
    first = data.draw(st.integers(0, options.num_accelerators))
    last = data.draw(st.integers(first, options.num_accelerators))
    with patch.multiple(plan_module, _WHOLE=1, _PIECE=7):
        whole = make(num_samples, options)
        own = make(num_samples, replace(options, own=range(first, last)))
        later = make(num_samples, replace(options, epoch=options.epoch + 1))
    check_dealt(whole, num_samples, asked)
    assert own.num_steps == whole.num_steps
    assert own.samples.shape[1] == last - first
    for accelerator in range(first, last):
        for step in range(own.num_steps):
            assert np.array_equal(own.batch(step, accelerator), whole.batch(step, accelerator))
            assert np.array_equal(own.fetch(step, accelerator), whole.fetch(step, accelerator))
    shuffled = options.shuffle_files or options.shuffle_samples
    if num_files > 20 and shuffled and options.shuffle_size * options.batch_size > 20:
        assert not np.array_equal(whole.samples, later.samples)
    if make is plan_streams:
        assert own.sequence is not None and whole.sequence is not None
        each = own.num_steps * options.batch_size
        assert np.array_equal(own.sequence, whole.sequence[first * each : last * each])


def test_accelerators_of_a_large_plan_have_buffers_of_their_own() -> None:
    options = replace(PLAIN, batch_size=50, shuffle_samples=True, shuffle_size=50)
    with patch.multiple(plan_module, _WHOLE=1):
        first, second = plan_streams(200, options).samples[0]
    assert not np.array_equal(first - first.min(), second - second.min())
