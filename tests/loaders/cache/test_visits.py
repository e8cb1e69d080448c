"""Visits: every sample is read in one, of its file, in the order in which workers come to it."""

from typing import Any

import numpy as np
import pytest

from dlemu.config.model import check_workload
from dlemu.dataset.layout import layout_of
from dlemu.dataset.plan import make_plan
from dlemu.loaders.cache.hits import find_visits

CASES: dict[str, dict[str, Any]] = {
    "one sample a file": {"dataset.format": "npz"},
    "hdf5, any sample": {"dataset.format": "hdf5", "dataset.num_samples_per_file": 5},
    "streams": {"dataset.format": "tfrecord", "dataset.num_samples_per_file": 5},
    "streams of one batch": {
        "dataset.format": "tfrecord",
        "dataset.num_samples_per_file": 5,
        "dataset.num_files_train": 4,
    },
    "interleaved": {
        "dataset.format": "tfrecord",
        "dataset.num_samples_per_file": 5,
        "reader.data_loader": "tensorflow",
    },
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
    seen: dict[int, tuple[int, int]] = {}  # visit: its worker; samples so far
    counts = np.zeros(len(found.files), np.int64)
    first_step = np.full(len(found.files), -1)
    for step in range(plan.num_steps):
        for accelerator in (0, 2):
            workers = range(streams) if plan.stream_of is not None else [step % streams]
            for worker in workers:
                fetch = (
                    plan.part(step, accelerator, worker)[1]
                    if plan.stream_of is not None
                    else plan.fetch(step, accelerator)
                )
                visits = found.plan.visits_of(step, accelerator, worker)
                assert visits is not None and visits.shape == fetch.shape
                assert (found.files[visits] == layout.file_of(fetch)).all()
                for visit in visits.tolist():
                    assert seen.setdefault(visit, (accelerator, worker)) == (accelerator, worker)
                    counts[visit] += 1
                    if first_step[visit] < 0:
                        first_step[visit] = step
    assert (counts == found.num_samples).all() and counts.min() > 0
    assert (np.diff(first_step) >= 0).all(), "visits are numbered in the order of the steps"
    others = found.plan.visits_of(0, 1, 0)
    assert others is not None and (others == -1).all(), "another host's"
    if case == "one sample a file":
        assert sorted(found.files) == sorted(set(found.files.tolist()))
    if case in ("streams", "interleaved") and shuffle == "off" and streams == 1:
        assert len(found.files) <= 24 + 2, "a stream visits a file once"
