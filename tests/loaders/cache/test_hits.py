"""Visits of a plan; the plan of hits, against the table of the literature and closed forms."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.config.model import check_workload
from dlemu.config.sections import POLICIES
from dlemu.dataset.layout import layout_of
from dlemu.dataset.plan import make_plan
from dlemu.loaders.cache.hits import EpochHits, PlannedCache, find_visits
from dlemu.sizing.predict import profile

TABLE = {
    0.1: (0.005, 0.1),
    0.2: (0.021, 0.2),
    0.5: (0.153, 0.5),
    0.8: (0.478, 0.8),
    0.9: (0.670, 0.9),
}
"""Hit shares of an epoch, each epoch reshuffled: lru, keep."""
CACHING = [name for name in POLICIES if name != "none"]
POINT = 0.01


def simulate(policy: str, capacity: float, *, num_files: int, num_epochs: int) -> list[float]:
    """Return the hit share (0-1) of each epoch, from an empty cache on, reshuffled each epoch."""
    order = np.random.default_rng(0)
    cache = PlannedCache(policy, round(capacity * num_files), [1] * num_files)
    epochs = (cache.epoch(order.permutation(num_files).tolist()) for _ in range(num_epochs))
    return [float(epoch.hits.mean()) for epoch in epochs]


def test_files_that_fit_are_copied_beforehand_and_once() -> None:
    cache = PlannedCache("lru", 10, [4, 5, 3, 1])
    assert (cache.fill_up(), cache.fill_up()) == ([(0, 0), (1, 1), (3, 2)], [])


@pytest.mark.parametrize("policy", CACHING)
def test_a_plan_has_the_shares_of_the_table_and_the_profile(policy: str) -> None:
    for capacity, shares in TABLE.items():
        share = shares[CACHING.index(policy)]
        planned = simulate(policy, capacity, num_files=10_000, num_epochs=3)
        assert planned == pytest.approx([0, share, share], abs=POINT)
        assert profile(policy, capacity).mean() == pytest.approx(share, abs=0.001)
    assert profile(policy, 1.0).mean() == profile(policy, 2.0).mean() == 1.0
    assert profile(policy, 0.001).mean() <= 0.0011


@pytest.mark.parametrize("policy", CACHING)
@pytest.mark.parametrize("capacity", [0.3, 0.8])
def test_one_order_for_all_epochs(policy: str, capacity: float) -> None:
    cache = PlannedCache(policy, round(2000 * capacity), [1] * 2000)
    shares = [cache.epoch(range(2000)).hits.mean() for _ in range(12)]
    wanted = profile(policy, capacity, shuffled=False).mean()
    assert np.mean(shares[-6:]) == pytest.approx(wanted, abs=0.015)
    assert (wanted == 0) == (policy == "lru")


@pytest.mark.parametrize("policy", CACHING)
@pytest.mark.parametrize("anew", [True, False])
@pytest.mark.parametrize("part", [0.2, 0.6])
def test_epochs_that_read_a_part_of_the_dataset(policy: str, anew: bool, part: float) -> None:
    """train.total_training_steps ends each epoch early."""
    num_files, capacity = 2000, 0.3
    cache, order = PlannedCache(policy, round(capacity * num_files), [1] * num_files), Random(1)
    shares = []
    for _ in range(round(12 / part)):
        files = order.sample(range(num_files), k=num_files) if anew else [*range(num_files)]
        shares.append(cache.epoch(files[: round(part * num_files)]).hits.mean())
    wanted = profile(policy, capacity, shuffled=anew, part=part).mean()
    assert np.mean(shares[-round(6 / part) :]) == pytest.approx(wanted, abs=0.02)


def test_nothing_is_cached_without_a_policy_or_fills_or_beyond_the_capacity() -> None:
    assert simulate("none", 0.5, num_files=10, num_epochs=3) == [0, 0, 0]
    assert not profile("none", 1.0).any()
    cache = PlannedCache("lru", 2, [1, 1, 1], content=[(1, 7), (2, 9)])
    assert cache.epoch([0, 1, 2], fills=False).held.tolist() == [-1, 7, 9]
    assert cache.next_generation == 10
    cache = PlannedCache("lru", 3, [2, 2, 1], content=[(0, 4), (1, 5), (2, 6)])
    assert cache.content == [(0, 4), (2, 6)]


@given(
    policy=st.sampled_from(CACHING),
    capacity=st.integers(1, 40),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    seed=st.integers(0, 999),
)
@settings(max_examples=150, deadline=None)
def test_any_order_of_execution_keeps_the_capacity(
    policy: str, capacity: int, sizes: list[int], seed: int
) -> None:
    """Readers that are late or early, as far as the plan lets them, never hold too many bytes."""
    random = np.random.default_rng(seed)
    cache = PlannedCache(policy, capacity, sizes)
    there: set[tuple[int, int]] = set()
    for _ in range(4):
        files = random.integers(0, len(sizes), 3 * len(sizes)).tolist()
        there = execute(cache.epoch(files), files, there, sizes, capacity, random)
        assert there == set(cache.content)


def execute(
    hits: EpochHits,
    files: Sequence[int],
    there: set[tuple[int, int]],
    sizes: Sequence[int],
    capacity: int,
    random: np.random.Generator,
) -> set[tuple[int, int]]:
    """Do the reads in a random order that the plan allows; return what is in the cache then."""
    left, ended, there = set(range(len(files))), {-1}, set(there)

    def gone(read: int) -> list[list[int]]:
        """Return file, generation and last reader of what makes room."""
        rows = hits.gone[hits.first_gone[read] : hits.first_gone[read + 1]]
        return [list(map(int, row)) for row in rows]

    needed = {read: {int(hits.after[read]), *(row[2] for row in gone(read))} for read in left}
    while left:
        ready = [read for read in sorted(left) if needed[read] <= ended]
        assert ready, "no read may go on: readers would wait for each other for ever"
        assert min(left) in ready, "the first read never waits for a later one"
        read = int(random.choice(ready))
        for file, generation, _ in gone(read):
            there.discard((file, generation))
        if hits.admitted[read] >= 0:
            there.add((files[read], int(hits.admitted[read])))
            assert sum(sizes[file] for file, _ in there) <= capacity
        if hits.held[read] >= 0:
            assert (files[read], int(hits.held[read])) in there
        ended.add(read)
        left.remove(read)
    return there


MANY = {"dataset.format": "tfrecord", "dataset.num_samples_per_file": 5}
CASES: dict[str, dict[str, Any]] = {
    "one sample a file": {"dataset.format": "npz"},
    "hdf5, any sample": {"dataset.format": "hdf5", "dataset.num_samples_per_file": 5},
    "streams": MANY,
    "streams of one batch": MANY | {"dataset.num_files_train": 4},
    "interleaved": MANY | {"reader.data_loader": "tensorflow"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shuffle", ["off", "seed"])
@pytest.mark.parametrize(("streams", "steps"), [(1, -1), (3, -1), (3, 3)])
def test_each_worker_visits_its_files_in_order(
    case: str, shuffle: str, streams: int, steps: int
) -> None:
    workload = check_workload({"dataset": {"format": "npz", "num_files_train": 24}}).with_keys(
        {
            **CASES[case],
            "reader.batch_size": 2,
            "reader.read_threads": streams,
            "reader.file_shuffle": shuffle,
            "reader.sample_shuffle": shuffle,
            "reader.shuffle_size": 4,
            "train.total_training_steps": steps,
        }
    )
    layout = layout_of(workload)
    plan = make_plan(workload, layout, num_accelerators=3, epoch=0)
    found = find_visits(plan, layout, [0, 2], num_streams=streams)
    seen: dict[int, tuple[int, int, int]] = {}  # visit: its worker, and its first step
    counts = Counter[int]()
    for step in range(plan.num_steps):
        for accelerator in (0, 2):
            parts = (
                {step % streams: plan.fetch(step, accelerator)}
                if plan.stream_of is None
                else {each: plan.part(step, accelerator, each)[1] for each in range(streams)}
            )
            for worker, fetch in parts.items():
                visits = found.plan.visits_of(step, accelerator, worker)
                assert visits is not None and visits.shape == fetch.shape
                assert (found.files[visits] == layout.file_of(fetch)).all()
                for visit in visits.tolist():
                    *by, _ = seen.setdefault(visit, (accelerator, worker, step))
                    assert by == [accelerator, worker]
                    counts[visit] += 1
    assert [counts[visit] for visit in range(len(found.files))] == found.num_samples.tolist()
    steps_of = [seen[visit][2] for visit in range(len(found.files))]
    assert steps_of == sorted(steps_of), "visits are numbered in the order of the steps"
    others = found.plan.visits_of(0, 1, 0)
    assert others is not None and (others == -1).all(), "another host's"
    if case == "one sample a file":
        assert sorted(found.files) == sorted(set(found.files.tolist()))
    if case in ("streams", "interleaved") and shuffle == "off" and streams == 1:
        assert len(found.files) <= 24 + 2, "a stream visits a file once"
