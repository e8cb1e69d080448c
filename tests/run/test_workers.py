"""What the workers of a plain DataLoader make on this host, beside what the storage feeds."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlemu.config.model import Workload, load_workload
from dlemu.errors import DatasetError
from dlemu.findings import note
from dlemu.loaders import plain
from dlemu.report.words import sentence
from dlemu.run import workers
from dlemu.run.workers import TwoRates, is_long_enough, workers_of

KEYS: dict[str, object] = {
    "reader.data_loader": "pytorch",
    "reader.read_threads": 4,
    "reader.batch_size": 400,
    "train.computation_time": 0.1,
    "dataset.record_length_bytes": 30_000,
    "dataset.record_length_bytes_stdev": 0,
    "dataset.record_length_bytes_resize": None,
    "dataset.num_samples_per_file": 1,
    "train.epochs": 1,
}


def job(**keys: object) -> Workload:
    """Return a job that takes 4,000 samples/s an accelerator."""
    dataset = {"dataset.format": "npy", **KEYS}
    return load_workload(
        "unet3d_h100", dataset | {k.replace("__", "."): v for k, v in keys.items()}
    )


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with a host's rates; it has 8 CPUs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(workers, "folder", None)
    monkeypatch.setattr(workers, "usable_cpus", lambda: 8.0)
    return tmp_path / "dlemu" / "workers.json"


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """What was timed: 500 samples/s a worker, as long as each has a CPU."""
    asked: list[tuple[int, int]] = []

    def time(workload: Workload, loaders: int, each: int) -> float:
        asked.append((loaders, each))
        return 500.0 * min(8, loaders * each)

    monkeypatch.setattr(workers, "_time", time)
    yield asked


def test_the_host_is_timed_once_and_says_how_many_workers_are_enough(
    kept: Path, timed: list[tuple[int, int]]
) -> None:
    found = workers_of(job(), 1)
    assert timed == [(1, 4), (1, 8)]
    assert found["samples_per_second"] == 2000
    assert found["au_percentage"] == pytest.approx(50)
    assert found["enough"] == 8
    assert workers_of(job(), 1, timed=False) == found, "kept for the host"
    assert timed == [(1, 4), (1, 8)]
    assert len(json.loads(kept.read_text())) == 2
    assert workers_of(job(dataset__record_length_bytes=60_000), 1, timed=False) == {}
    assert sentence(note("workers_make", **found)) == (
        "a PyTorch DataLoader on this host makes at most 2,000 samples/s with 4 workers: AU 50% "
        "whatever the storage; 8 workers are enough"
    )


def test_cpus_that_are_full_are_said(kept: Path, timed: list[tuple[int, int]]) -> None:
    found = workers_of(job(), 4)
    assert timed == [(3, 4)], "more processes than CPUs get no more done"
    assert (found["samples_per_second"], found["enough"]) == (1000, None)
    told = sentence(note("workers_make", **found))
    assert told.startswith("each of 4 PyTorch DataLoaders on this host makes at most 1,000 ")
    assert told.endswith("AU 25% whatever the storage; no number of workers is enough on 8 CPUs")


def test_two_figures_of_a_host_tell_any_number(
    kept: Path, timed: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `dlemu calibrate` keeps for `dlemu predict`, which may run on another host."""
    known = TwoRates.of_this_host(job())
    assert known == TwoRates(8, 500.0, 4000.0)
    assert timed == [(1, 4), (2, 4)]
    assert TwoRates.of_this_host(job(reader__data_loader="threads")) is None
    monkeypatch.setattr(workers, "find_spec", lambda name: None)  # no torch, where it is predicted
    one, four = (workers_of(job(), number, rates=known) for number in (1, 4))
    assert (one["samples_per_second"], one["enough"]) == (2000, 8)
    assert (four["samples_per_second"], four["enough"], four["cpus"]) == (1000, None, 8)
    assert workers_of(job(), 1) == {} and TwoRates.of_this_host(job()) is None
    assert workers_of(job(reader__data_loader="threads"), 1, rates=known) == {}


def test_workers_that_keep_up_are_said(kept: Path, timed: list[tuple[int, int]]) -> None:
    found = workers_of(job(train__computation_time=1.0), 1)
    assert timed == [(1, 4)]
    assert sentence(note("workers_make", **found)).endswith("with 4 workers: enough for AU 100%")


@pytest.mark.parametrize(
    "keys",
    [
        {"reader__data_loader": "threads"},
        {"reader__read_threads": 0},
        {"dataset__format": "parquet", "reader__decode": "library"},
        {"dataset__format": "jpeg"},
        {"train__computation_time": 0.0},
    ],
    ids=str,
)
def test_nothing_is_said_where_no_dataloader_is_asked_or_known(
    keys: dict[str, object], kept: Path, timed: list[tuple[int, int]]
) -> None:
    assert workers_of(job(**keys), 1) == {}
    assert timed == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": "b"}', '{"a": null}'])
def test_a_damaged_file_of_rates_is_written_anew(
    text: str, kept: Path, timed: list[tuple[int, int]]
) -> None:
    kept.parent.mkdir()
    kept.write_text(text)
    assert workers_of(job(), 1)["enough"] == 8
    assert len(json.loads(kept.read_text())) == 2


@pytest.mark.parametrize("form", ["npy", "npz", "hdf5"])
def test_real_workers_are_timed_and_leave_nothing(
    form: str, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "SECONDS", 0.05)
    asked = job(dataset__format=form, reader__read_threads=1, reader__batch_size=20)
    found = workers_of(asked, 1)
    assert found["samples_per_second"] > 0
    assert not list(Path("/dev/shm").glob("dlemu-workers.*"))
    assert kept.exists()


def test_workers_that_fail_are_not_known(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **named: Any) -> float:
        raise DatasetError("damaged")

    monkeypatch.setattr(plain, "rate_of_workers", fail)
    assert workers_of(job(), 1) == {}
    assert not kept.exists()


def test_short_runs_are_not_held_up() -> None:
    assert not is_long_enough(job(), 100)
    assert is_long_enough(job(), 200)
