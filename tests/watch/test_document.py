"""What the document and the workload of a watched job say, of times that are known."""

import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from dlemu.judge.folders import first_fields
from dlemu.ranks.world import Alone
from dlemu.report.words import sentence, sentences
from dlemu.watch.document import Seen, document_of, see, workload_yaml
from dlemu.watch.events import Iteration, Journals
from dlemu.watch.launch import Watched
from tests.watch.test_loops import BODY, WAIT, iteration, process


def seen(folder: Path, *iterations: Iteration, **of_process: Any) -> Seen:
    """Return a job of one process with these passes, as it was seen; `folder`: of its data."""
    data, au = of_process.pop("data", None), of_process.pop("au", None)
    watched = Watched(0, 100.0, Journals(folder))
    watched.journals.processes["job.1"] = made = process(*iterations)
    for name, value in of_process.items():
        setattr(made, name, value)
    return see(watched, "own", au, data)


@pytest.mark.parametrize(
    ("steps", "au", "kind", "advice"),
    [
        ([(3.0, BODY), *([(0.1, BODY)] * 4)], 0.9, "reads_hidden", "an epoch of 161 steps gives"),
        (
            [(900.0, BODY), *([(0.1, BODY)] * 299)],
            0.9,
            "first_step_too_slow",
            "an epoch of 1,976 steps gives a verdict",
        ),
        ([*([(1.0, BODY)] * 200), *([(0.5, BODY)] * 200)], 0.84, "near_threshold", "more runs"),
    ],
)
def test_a_watched_job_is_told_no_key(
    tmp_path: Path, steps: list[tuple[float, float]], au: float, kind: str, advice: str
) -> None:
    """Before: "dataset.num_files_train=1288 gives a verdict", which the job does not have."""
    described = {"kind": "torch", "num_workers": 4, "prefetch_factor": 2}
    job = seen(tmp_path, iteration(steps=steps), au=au, loaders={1: described})
    document = document_of(job, first_fields("run", job.workload, Alone()), ["python", "job.py"])
    said = [sentence(each) for each in document["findings"] if each["kind"] == kind]
    assert len(said) == 1 and advice in said[0], document["findings"]
    whole = " ".join(sentences(document, "reason", "weakens", "remark"))
    assert not re.search(r"\b(dataset|reader|train|output|checkpoint)\.\w+|\bruns=", whole), whole


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


def test_new_workers_that_are_slow_at_first_start_for_longer(tmp_path: Path) -> None:
    """The first batch comes after 9 s; others take their workers 3 s; the forks took 2 s."""
    first = iteration(steps=[(9.0, BODY), *([(WAIT, BODY)] * 4)])
    first.opened = first.begun + 2.0
    described = {"kind": "torch", "num_workers": 4}
    made = [(10.0, 13.0, 2.0, 8)]
    job = seen(tmp_path, first, loaders={1: described}, made=made)
    assert job.workload.reader.worker_start_time == 1.5
    usual = seen(tmp_path, first, loaders={1: described}, made=[(10.0, 18.5, 2.0, 8)])
    assert usual.workload.reader.worker_start_time == 0.5, "the forks alone"


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


@pytest.mark.parametrize(("batches", "early"), [(5, 0), (6, 1), (None, 1)])
def test_a_loop_that_counts_its_batches_did_not_leave_early(
    tmp_path: Path, batches: int | None, early: int
) -> None:
    """Lightning's asks for no batch after the last."""
    made = iteration(whole=False, gone=30.0)
    assert len(made.taken) == 5
    job = seen(tmp_path, made, loaders={1: {"kind": "torch", "length": batches}})
    document = document_of(job, {"kind": "run", "notes": []}, ["train.py"])
    assert cast(dict[str, Any], document)["watched"]["early_ends"] == early


def test_the_files_of_a_dataset_that_names_none_are_those_of_the_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "a").mkdir(parents=True)
    for number in range(40):
        (data / "a" / f"{number}.npy").write_bytes(bytes(300))
    (data / ".hidden").write_bytes(bytes(9000))
    job = seen(tmp_path, iteration(), data=data)
    dataset = job.workload.dataset
    assert (dataset.num_files_train, dataset.record_length_bytes) == (40, 300)
    assert (dataset.format, dataset.data_folder) == ("npy", str(data))
    assert "CHECK dataset" in workload_yaml(job) and "FILL IN dataset" not in workload_yaml(job)


@pytest.mark.parametrize(
    ("kind", "name", "loader"),
    [("dali", "0.npy", "dali"), ("dali", "0.bin", "pytorch"), ("torch", "0.npy", "pytorch")],
)
def test_dalis_jobs_are_emulated_by_dali_where_it_reads_such_files(
    tmp_path: Path, kind: str, name: str, loader: str
) -> None:
    (tmp_path / name).write_bytes(bytes(300))
    described = {"kind": kind, "num_workers": 2, "files": [str(tmp_path / name)], "num_files": 1}
    job = seen(tmp_path, iteration(), loaders={1: described})
    assert yaml.safe_load(workload_yaml(job))["reader"]["data_loader"] == loader


@pytest.mark.parametrize(
    ("cpu", "other", "late"),
    [
        (6.0, 6.0, (4.0, 0.0)),  # two workers have 8 s for a batch: the reads alone are late
        (9.0, 1.0, (1.0, 1.0)),
        (2.0, 1.0, (1.0, 2.0)),  # in time: whatever made the loop wait is not told by the means
    ],
)
def test_a_cpu_time_that_the_loop_hides_makes_nobody_wait(
    tmp_path: Path, cpu: float, other: float, late: tuple[float, float]
) -> None:
    """A batch takes its worker `cpu` and `other` seconds; the loop computes for 4 s."""
    made = [(1.0, 1.0 + cpu + other, cpu, 8)]
    described = {"kind": "torch", "num_workers": 2}
    job = seen(tmp_path, iteration(), loaders={1: described}, made=made)
    assert BODY == 4.0
    assert (job.steps["read"][0], job.steps["decode"][0]) == pytest.approx(late)
