"""What the document and the workload of a watched job say, of times that are known."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dlemu.watch.document import Seen, document_of, see, workload_yaml
from dlemu.watch.events import Iteration, Journals
from dlemu.watch.launch import Watched
from tests.watch.test_loops import BODY, WAIT, iteration, process


def seen(folder: Path, *iterations: Iteration, **of_process: Any) -> Seen:
    """Return a job of one process with these passes, as it was seen."""
    watched = Watched(0, 100.0, Journals(folder))
    watched.journals.processes["job.1"] = made = process(*iterations)
    for name, value in of_process.items():
        setattr(made, name, value)
    return see(watched, "own", None)


def read_ahead(folder: Path, **described: object) -> tuple[int, int, int]:
    """Return the workers of a job's workload, the batches ahead that it names, and those it has."""
    made = iteration()
    job = seen(folder, made, loaders={made.loader: {"kind": "torch", **described}})
    reader = job.workload.reader
    return reader.read_threads, reader.prefetch_size, reader.batches_ahead


def test_as_many_batches_are_read_ahead_as_the_jobs_workers_did(tmp_path: Path) -> None:
    """A DataLoader's factor is that of each worker; dlemu's key, as DLIO's, is that of all."""
    assert read_ahead(tmp_path, num_workers=12, prefetch_factor=2) == (12, 24, 24)
    assert read_ahead(tmp_path, num_workers=3, prefetch_factor=None) == (3, 6, 6)
    assert read_ahead(tmp_path, num_workers=0) == (0, 0, 0), "the job reads by itself"
    assert read_ahead(tmp_path, kind="dali", num_workers=4, prefetch_factor=2)[:2] == (4, 2)
    assert read_ahead(tmp_path, kind="webdataset") == (0, 0, 0)


@pytest.mark.parametrize("kept", [False, True])
def test_the_start_of_workers_is_in_the_workload(tmp_path: Path, kept: bool) -> None:
    passes = [iteration(number=number, begun=100.0 * number) for number in range(3)]
    for made, seconds in zip(passes, (2.0, 0.8, 0.8), strict=True):
        made.opened = made.begun + seconds
    described = {"kind": "torch", "num_workers": 4, "persistent_workers": kept}
    job = seen(tmp_path, *passes, loaders={1: described})
    assert job.workload.reader.worker_start_time == (0.5 if kept else 0.2)
    reader = yaml.safe_load(workload_yaml(job))["reader"]
    assert reader["worker_start_time"] == (0.5 if kept else 0.2)
    assert reader.get("persistent_workers", False) is kept
    unseen = seen(tmp_path, iteration(), loaders={1: described})
    assert "worker_start_time" not in workload_yaml(unseen)


def test_a_stream_has_as_many_samples_a_file_as_a_whole_pass_gave(tmp_path: Path) -> None:
    """Two shards, five batches of eight: 20 samples in each of 100 bytes."""
    names = [str(tmp_path / name) for name in ("a.tar", "b.tar")]
    for name in names:
        Path(name).write_bytes(bytes(2000))
    described = {"kind": "webdataset", "samples": None, "files": names, "num_files": 2}
    job = seen(tmp_path, iteration(), loaders={1: described})
    dataset = job.workload.dataset
    assert (dataset.num_samples_per_file, dataset.record_length_bytes) == (20, 100)
    cut = seen(tmp_path, iteration(whole=False, gone=30.0), loaders={1: described})
    assert cut.samples_per_file == 1, "not known"


def train_of(job: Seen) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(workload_yaml(job))["train"]
    return found


def test_a_warm_up_is_the_first_steps_time_in_the_workload(tmp_path: Path) -> None:
    """It counts in the AU with the first step alone, here and in the emulation."""
    slow = [(9.0, 30.0), *([(WAIT, BODY)] * 4)]
    job = seen(tmp_path, iteration(steps=slow), iteration(number=1, begun=100.0))
    assert train_of(job) == {"epochs": 2, "computation_time": BODY, "first_step_time": 30.0}
    first, _ = document_of(job, {"kind": "run", "notes": []}, ["train.py"])["per_epoch"]
    assert first["au_percentage"] == pytest.approx(100 * BODY / (WAIT + BODY))
    whole = 100 * (30.0 + 4 * BODY) / (9.0 + 30.0 + 4 * (WAIT + BODY))
    assert first["whole_epoch_au_percentage"] == pytest.approx(whole)
    plain = seen(tmp_path, iteration(), iteration(number=1, begun=100.0))
    assert train_of(plain) == {"epochs": 2, "computation_time": BODY}


@pytest.mark.parametrize(("busy", "launch"), [(4.0, 0.5), (0.5, None)], ids=["seen", "not seen"])
def test_the_launch_is_in_the_workload_or_its_absence_is(
    tmp_path: Path, busy: float, launch: float | None
) -> None:
    """The host queues 0.5 s of each step, the GPU computes for longer, or is waited for."""
    made = iteration(steps=[(1.0, 0.5)] * 8)
    made.on_gpu = {number: (1.0, busy) for number in range(8)}
    job = seen(tmp_path, made)
    assert train_of(job).get("launch_time") == launch
    assert ("launch_time was not seen" in workload_yaml(job)) == (launch is None)


def test_a_job_without_a_gpu_has_no_word_of_a_launch(tmp_path: Path) -> None:
    assert "launch" not in workload_yaml(seen(tmp_path, iteration()))
