"""One run as a library calls it: its folder, its seed, its failures, and an AU known beforehand."""

import gc
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from dlemu import Alone, DlemuError, load_workload, run_job
from dlemu.datagen.survey import find_dataset
from dlemu.judge.metrics import measure
from dlemu.judge.outcome import with_metrics
from dlemu.judge.records import read_steps
from dlemu.judge.summary import Summary
from dlemu.loaders.cache.host import forecast_cache
from dlemu.loaders.threads import ThreadsLoader
from dlemu.report.words import note_lines
from dlemu.run import replay
from dlemu.sizing.predict import supply_of
from dlemu.storage.counted import NUM_BINS, bin_of
from tests.lab.commands import ran, small_job, summary_of
from tests.lab.drives import mounted
from tests.ranks.test_world import run_ranks


def test_a_runs_summary_follows_from_its_steps(tmp_path: Path) -> None:
    workload, world = small_job(tmp_path), Alone()
    world.notes = ("rank 1 on host b cannot be reached over TCP",)
    assert run_job(workload, world=world, say=lambda text: None)
    summary = summary_of(tmp_path / "run")
    assert world.notes[0] in summary["notes"]
    told = with_metrics(cast(Summary, summary), workload, measure(read_steps(tmp_path / "run")))
    assert (summary["verdict"], summary["metric"]) == (told["verdict"], told["metric"])
    assert summary["num_accelerators"] == 1
    assert summary["status"] == "complete" and summary["ignored"] == []
    assert load_workload(tmp_path / "run" / "config.yaml").dataset.num_files_train == 56
    versions = summary["versions"]
    assert isinstance(versions, dict) and {"dlemu", "numpy", "python", "kernel"} <= set(versions)


def test_a_random_order_is_recorded_so_that_it_can_be_had_again(tmp_path: Path) -> None:
    first = ran(small_job(tmp_path, reader__file_shuffle="random", train__epochs=1))
    job = load_workload(first.folder / "config.yaml").with_keys({"reader.file_shuffle": "seed"})
    again = ran(job.with_keys({"output.folder": str(tmp_path / "again")}))
    assert job.train.seed != small_job(tmp_path).train.seed
    assert (read_steps(again.folder)["num_bytes"] == read_steps(first.folder)["num_bytes"]).all()


def test_many_accelerators_in_one_process_each_have_their_steps(tmp_path: Path) -> None:
    keys = {"accelerators_per_rank": 40, "reader__batch_size": 1, "reader__read_threads": 1}
    sizes = {"dataset__num_files_train": 160, "dataset__record_length_bytes_stdev": 0}
    outcome = ran(small_job(tmp_path, **keys, **sizes, train__epochs=1))
    assert outcome.summary["num_accelerators"] == 40
    steps = read_steps(outcome.folder).reshape(-1, 40)
    assert (steps["accelerator"] == np.arange(40)).all() and len(steps) == 4
    assert (steps["num_bytes"] > 0).all(), "each reads for itself"
    ends = steps["start"] + steps["wait"] + steps["compute"] + steps["barrier"]
    assert np.allclose(steps["start"][1:], ends[:-1], atol=1e-6), "no time between steps"
    assert np.allclose(ends, ends[:, :1], atol=1e-6), "all are released at once"


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({}, id="one process"),
        pytest.param({"num_accelerators": 2, "train__processes": 2}, id="two processes"),
        pytest.param({"reader__data_loader": "pytorch", "reader__read_threads": 1}, id="pytorch"),
    ],
)
def test_only_the_first_step_of_a_run_takes_the_first_steps_time(
    tmp_path: Path, keys: dict[str, object]
) -> None:
    """Its record asks for that much: the AU with the first step counts it, the rule's does not."""
    job = small_job(tmp_path, **keys, train__first_step_time=0.25, metric__au=0.0001)
    outcome = ran(job)
    steps = read_steps(outcome.folder)
    is_first = (steps["epoch"] == 0) & (steps["step"] == 0)
    assert (steps["computation_time"] == np.where(is_first, 0.25, 0.005)).all()
    assert (steps["compute"][is_first] >= 0.249).all() and is_first.any()
    first, second = outcome.metrics.epochs
    assert first.first_step_seconds >= 0.249
    own = steps[steps["accelerator"] == 0]
    for number, epoch in enumerate((first, second)):
        of = own[own["epoch"] == number]
        asked, seconds = of["computation_time"], of["wait"] + of["compute"] + of["barrier"]
        if outcome.metrics.num_accelerators == 1:
            assert epoch.whole_epoch_au_percentage == pytest.approx(
                100 * asked.sum() / seconds.sum()
            )
            assert epoch.au_percentage == pytest.approx(100 * asked[1:].sum() / seconds[1:].sum())


@pytest.mark.parametrize("ranks", ["one process", "two processes", "mpirun"])
def test_no_step_ends_sooner_than_the_jobs_all_reduce_allows(
    tmp_path: Path, ranks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 ms after the last accelerator, of whichever rank."""
    monkeypatch.setattr(replay, "ceiling_seconds", 0.1)
    keys: dict[str, object] = {
        "dataset.num_files_train": 8,
        "dataset.record_length_bytes": 5000,
        "dataset.record_length_bytes_stdev": 0,
        "reader.batch_size": 1,
        "train.computation_time": 0.01,
        "train.allreduce_time": 0.02,
        "train.epochs": 2,
        "train.processes": 2 if ranks == "two processes" else 1,
        "num_accelerators": 2,
        "metric.au": 0.0001,
    }
    job = small_job(tmp_path, **{key.replace(".", "__"): value for key, value in keys.items()})
    if ranks == "mpirun":
        keys |= {"dataset.data_folder": str(job.data_folder)}
        keys |= {"output.folder": str(tmp_path / "run")}
        done, _ = run_ranks(tmp_path, "a,a", "run", json.dumps(keys))
        assert done.returncode == 0, done.stderr
    else:
        ran(job)
    steps, summary = read_steps(tmp_path / "run"), summary_of(tmp_path / "run")
    assert summary["num_ranks"] == (1 if ranks == "one process" else 2)
    assert steps["barrier"].min() > 0.0199
    most = 100 * 0.01 / 0.0299
    assert summary["metric"]["train_au_mean_percentage"] < most
    for epoch in summary["per_epoch"]:
        of_step = epoch["lost"]["allreduce"] / (epoch["au_percentage"] / 100)
        assert of_step == pytest.approx(0.02 / 0.01, rel=0.2)
    assert summary["allreduce_seconds"] == 0.02 and summary["ceiling_au_percentage"] < most


def test_what_was_there_before_a_run_is_not_collected_during_its_steps(tmp_path: Path) -> None:
    """A full collection of all modules' objects stops a process for several steps."""
    gc.unfreeze()  # the tests' own process may have frozen some
    frozen, there = [], len(gc.get_objects())

    def say(text: str) -> None:
        if text.startswith("epoch "):
            frozen.append(gc.get_freeze_count())

    run_job(small_job(tmp_path), say=say)
    assert len(frozen) == 2 and min(frozen) > there / 2
    assert gc.get_freeze_count() == 0, "the caller's own are collected again"


def test_the_reads_of_an_epoch_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    so_far, took = np.zeros(NUM_BINS), iter([0.001, 0.1])

    def read_counts(self: ThreadsLoader) -> NDArray[np.float64]:
        so_far[bin_of(next(took))] += 9
        return so_far.copy()

    monkeypatch.setattr(ThreadsLoader, "read_counts", read_counts)
    job = small_job(tmp_path, reader__data_loader="threads", train__epochs=2)
    found = ran(job).summary["measured"]["file_read_p50_seconds_per_epoch"]
    assert found == pytest.approx([0.001, 0.1], rel=0.05)


def test_auto_takes_the_dataset_that_is_there_if_it_is_large_enough(tmp_path: Path) -> None:
    workload = small_job(tmp_path, reader__batch_size=1, dataset__num_files_train=510)
    auto = workload.with_keys({"dataset.num_files_train": "auto", "host_memory": 1 << 20})
    found = find_dataset(auto, Alone())
    assert (found.workload.num_files, found.layout.num_files) == (510, 510)
    assert (found.known_places, found.notes) == (True, ())


def test_bytes_from_memory_fail_a_run_that_bounds_them(tmp_path: Path) -> None:
    keys = {"metric__max_cached_share": 0.0, "output__drop_caches": False, "metric__au": 0.01}
    workload = small_job(tmp_path, **keys)
    outcome = ran(workload)
    share = outcome.summary["measured"]["page_cache_share"]
    if share is None:
        pytest.skip("no drive is seen under the temporary folder")
    assert share > 0.5, "it was written a moment ago"
    assert (outcome.summary["status"], outcome.summary["verdict"]) == ("complete", "NO VERDICT")


def test_a_run_in_which_no_checkpoint_is_due_writes_none(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    due = {"checkpoint__checkpoint_after_epoch": 3, "checkpoint__checkpoint_folder": folder}
    outcome = ran(small_job(tmp_path, workflow__checkpoint=True, **due))
    assert outcome.summary["checkpoints"]["written_bytes"] == 0


@pytest.mark.parametrize("asked", [None, "batch"])
def test_a_run_hands_over_what_is_asked_or_what_its_loader_would(
    asked: str | None, tmp_path: Path
) -> None:
    """With a batch handed over, record_length_bytes_resize counts: padding takes time."""
    outcome = ran(small_job(tmp_path, train__epochs=1, reader__hand_over=asked))
    assert outcome.summary["hand_over"] == (asked or "none")
    assert (read_steps(outcome.folder)["hand_over"].sum() > 0) == (asked == "batch")
    assert load_workload("unet3d_h100").hands_over, "PyTorch"


@pytest.mark.root
def test_o_direct_that_is_refused_is_an_error_or_a_note(tmp_path: Path) -> None:
    with mounted(tmp_path / "memory", kind="ramfs") as memory:  # tmpfs takes it since Linux 6.6
        job = small_job(tmp_path).with_keys({"dataset.data_folder": str(memory / "data")})
        shutil.copytree(tmp_path / "data", memory / "data")
        with pytest.raises(DlemuError, match=r"reader\.odirect: .*\(ramfs\) does not take"):
            ran(job.with_keys({"reader.odirect": True}))
        assert not (tmp_path / "run").exists(), "nothing was read, so it is a refusal"
        outcome = ran(job.with_keys({"reader.odirect": "auto"}))
    assert any("does not take O_DIRECT" in line for line in note_lines(outcome.summary))


def test_batches_that_memory_cannot_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(available=1_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    line = r"^handing over batches takes 1.0 MiB .*\(1 accelerator x 5 batches of 205.1 KiB\)"
    with pytest.raises(DlemuError, match=line):
        ran(small_job(tmp_path, dataset__record_length_bytes_resize=30_000))


@pytest.mark.parametrize(
    ("edition", "asked", "times"), [("v2.0", None, 1), ("v3.0", None, 2), ("v1.0", True, 2)]
)
def test_each_epoch_begins_cold_where_the_edition_says_so(
    edition: str, asked: bool | None, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold: list[bool] = []
    monkeypatch.setattr("dlemu.run.cold.ColdStart.make", lambda self: cold.append(self.direct))
    ran(small_job(tmp_path, metric__edition=edition, output__drop_each_epoch=asked))
    assert cold == [False] * times


@pytest.mark.parametrize("loader", ["pytorch", "threads"])
def test_no_rank_reads_before_its_hosts_counters_are_taken(tmp_path: Path, loader: str) -> None:
    """Else what another rank reads meanwhile would count as from memory."""
    keys: dict[str, object] = {
        "dataset.num_files_train": 24,
        "dataset.record_length_bytes": 500_000,
        "dataset.record_length_bytes_stdev": 0,
        "reader.batch_size": 1,
        "reader.data_loader": loader,
        "reader.odirect": "auto",
        "train.computation_time": 0.005,
        "train.epochs": 2,
    }
    job = small_job(tmp_path, **{key.replace(".", "__"): value for key, value in keys.items()})
    keys |= {"dataset.data_folder": str(job.data_folder), "output.folder": str(tmp_path / "run")}
    done, _ = run_ranks(tmp_path, "a,a", "late", json.dumps(keys))
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "run" / "summary.json").read_text())["measured"]
    if measured["storage_read_bytes"] is None:
        pytest.skip("no drive is seen under the folder of temporary files")
    assert measured["page_cache_share_per_epoch"] == [0.0, 0.0]
    assert "uncounted_share" not in measured


def test_one_order_for_all_epochs_gives_a_small_lru_cache_no_hit(tmp_path: Path) -> None:
    """What is read next was given up last; a new order in each epoch hits by chance."""
    for change, hits in ((True, True), (False, False)):
        keys: dict[str, object] = {
            "train.seed_change_epoch": change,
            "train.epochs": 3,
            "reader.batch_size": 1,
        }
        keys |= {"cache.folder": str(tmp_path / "cache"), "cache.capacity": 0.5}
        job = small_job(tmp_path).with_keys(keys)
        planned = forecast_cache(find_dataset(job, Alone()), Alone(), range(1), 1)
        assert [epoch.hit_share > 0 for epoch in planned.epochs] == [False, hits, hits]
        assert (supply_of(job, origin=1.0, reads=9.0, writes=9.0).hits > 0) is hits
