"""The search over real runs: its answer on a device held to a known rate, its files, its refusals.

Most tests ask for so little AU that every number passes: what they check is not the number.
"""

import json
import os
import re
import runpy
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

import dlemu
from dlemu.cli import jobs
from dlemu.cli.main import run as run_command
from dlemu.cli.output import show
from dlemu.cli.words import Words
from dlemu.config.model import Workload, load_workload
from dlemu.datagen.write import generate
from dlemu.errors import RunError, WorkloadError
from dlemu.findings import fields_of, note, remark, weakens, weighing
from dlemu.host.devices import devices_under
from dlemu.host.same import age_of
from dlemu.judge.folders import hold
from dlemu.judge.outcome import judge_run
from dlemu.judge.records import read_sizing, read_steps
from dlemu.ranks.world import Alone, World
from dlemu.report.words import sentence
from dlemu.sizing import calibrate, measured
from dlemu.sizing.answers import SizingRecord, settings_of
from dlemu.sizing.measured import point_of
from dlemu.sizing.search import Point
from dlemu.terminal import silent
from tests.lab import warm
from tests.lab.drives import bound, own_drive
from tests.lab.many_hosts import ManyHosts
from tests.lab.waiting import LONG, until
from tests.sizing.conftest import BATCH_BYTES, TINY, file_of, outcome, results_of, tiny

EXAMPLE = Path(__file__).parents[2] / "examples" / "size_a_drive.py"


def size_storage(workload: Workload, typed: Sequence[str] = ()) -> None:
    """Do what `dlemu size` does."""
    found = jobs.size(workload, Alone(), Words([*typed]))
    assert found is not None
    show(found.document)


def sizing_of(workload: Workload) -> dict[str, object]:
    sizing: dict[str, object]
    (sizing,) = json.loads((results_of(workload) / "sizing.json").read_text())["answers"]
    return sizing


def test_a_quick_search_alone_reads_with_o_direct_unasked(job: Workload) -> None:
    for quick in (True, False):
        settled, *_ = measured.settle(job.with_keys({"size.quick": quick}), Alone())
        assert (settled.reader.odirect is True) == quick


def test_what_memory_serves_is_no_number_of_a_drive(
    job: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = outcome(job.data_folder.parent / "run", cached=1.0)
    monkeypatch.setattr(measured, "run_job", lambda *_, **__: cached)
    with pytest.raises(RunError, match=r"100\.0% of the bytes came from memory, at most 20%"):
        size_storage(job)


@pytest.mark.parametrize(("in_memory", "limit"), [(True, "memory"), (False, "storage")])
def test_a_run_is_a_point_of_the_search(in_memory: bool, limit: str, tmp_path: Path) -> None:
    given = load_workload("unet3d_h100", {"host_memory": "1GiB"})
    run = outcome(tmp_path / "run", accelerators=2, seconds=0.008, cached=0.125)
    point = point_of(given, run, 9.0, in_memory=in_memory)

    assert (point.num_accelerators, point.au_percentage, point.seconds) == (2, 25.0, 9.0)
    assert point.samples_per_second == pytest.approx(2 / 0.008)
    assert point.read_bytes_per_second == pytest.approx(2 * BATCH_BYTES / 0.008)
    assert (point.limit, point.page_cache_share) == (limit, 0.125)
    judged = judge_run(given, run.metrics, run.summary)
    assert fields_of(point.findings) == weighing(judged, "weakens", "remark")
    assert remark("host_memory_given", host_memory_bytes=2**30) in point.findings
    assert weakens("from_memory", share=0.125, bound=None) in point.findings


def test_what_a_dataloader_makes_is_told_beside_what_the_storage_feeds(tmp_path: Path) -> None:
    run = outcome(tmp_path / "run")
    makes = {"samples_per_second": 1900.0, "read_threads": 4, "enough": 8}
    run.summary["workers"] = makes
    point = point_of(load_workload("unet3d_h100"), run, 9.0, in_memory=False)
    assert note("workers_make", **makes) in point.findings


@pytest.mark.usefixtures("no_pictures")
def test_each_run_of_a_search_writes_checkpoints(
    job: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = job.data_folder.parent / "ck"
    keys: dict[str, object] = {
        "workflow.checkpoint": True,
        "checkpoint.checkpoint_folder": str(folder),
        "checkpoint.steps_between_checkpoints": 30,
        "checkpoint.mode": "subset",
        "model.model_size_bytes": 100_000,
        "model.parallelism.data": 2,
        "model.parallelism.zero_stage": 3,
    }
    size_storage(job.with_keys(keys))

    said = capsys.readouterr().out
    assert "size.max_accelerators=2 here: the model is spread over 2, and each writes" in said
    assert "written in the first run: 2 checkpoints of 195.3 KiB, one every 30 steps, to" in said
    assert "checkpoints: each run wrote its own; AU excludes the stalls" in said
    sizing = sizing_of(job)
    assert sizing["num_accelerators"] == 2
    for point in sizing["points"]:  # type: ignore[attr-defined]
        assert 0 < point["au_with_stalls_percentage"] < point["au_percentage"]
        assert (
            f"AU {point['au_percentage']:.2f}% ({point['au_with_stalls_percentage']:.2f}%" in said
        )
    assert len(list(folder.glob("global_epoch1_step*/*.pt"))) == 4, "of the last run"
    with pytest.raises(WorkloadError, match=r"holds runs with model\.model_size_bytes=100000"):
        size_storage(job.with_keys(keys | {"model.model_size_bytes": 5}))
    with pytest.raises(WorkloadError, match=r"holds runs with workflow\.checkpoint=True"):
        size_storage(job)


@pytest.mark.usefixtures("no_pictures")
def test_every_file_tells_the_answer(job: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    answer = dlemu.size(job.with_keys({"size.targets": [str(job.data_folder)]}), say=said.append)

    assert capsys.readouterr().out == "", "it speaks to whom it is told"
    assert said[-1].endswith("done: 2 consecutive runs passed")
    folder = answer.folder
    assert folder == results_of(job)
    log = "data.cosmoflow_h100"
    assert {path.name for path in folder.iterdir()} == {
        *(f"{log}.png", f"{log}.svg", "runs", "sizing.json", "table.md")
    }
    document = json.loads((folder / "sizing.json").read_text())
    assert document.pop("settings").keys() == document.pop("identities").keys() == {log}
    assert (age_of(document.pop("updated")) or 0.0) < LONG
    assert document == json.loads(json.dumps(answer.document))
    (sizing,) = document["answers"]
    assert (sizing["num_accelerators"], sizing["at_least"], sizing["quick"]) == (3, True, True)
    assert sizing["read_ahead_share"] == pytest.approx(3 / 60)
    assert [point["num_accelerators"] for point in sizing["confirmations"]] == [3, 3]
    runs = sorted((folder / "runs").iterdir())
    assert len(runs) == len(sizing["points"])
    seeds = [load_workload(run / "config.yaml").train.seed for run in runs]
    assert seeds == list(range(123, 123 + len(runs))), "each run reads in an order of its own"
    # The command goes on with the same runs, and shows the same answer.
    size_storage(job)
    out = capsys.readouterr().out
    assert out.endswith(f"results: {folder}\n\n{dlemu.show(answer)}\n")


def test_what_is_refused_makes_no_run(job: Workload) -> None:
    with hold(results_of(job), ""), pytest.raises(WorkloadError, match="is in use by another"):
        size_storage(job)
    (results_of(job) / "sizing.json").mkdir(parents=True)
    with pytest.raises(RunError, match=r"sizing.json cannot be written \(Is a directory\)"):
        size_storage(job)
    assert [path.name for path in results_of(job).iterdir()] == ["sizing.json"]
    for key in ("size.targets", "size.workloads"):
        with pytest.raises(WorkloadError, match=r"call it for each of size\.targets"):
            dlemu.size(job.with_keys({key: ["a", "b"]}))


def test_a_killed_search_goes_on_where_it_was(job: Workload) -> None:
    def points() -> list[object]:
        found = read_sizing(results_of(job))
        searches = [*found.get("unfinished", {}).values(), *found.get("answers", ())]
        return [point for search in searches for point in search["points"]]

    command = [*warm.COMMAND, "size", file_of(job)]
    endless = [*command, "size.confirm=100"]
    child = warm.Popen(endless, stdout=subprocess.DEVNULL, start_new_session=True)
    until(lambda: len(points()) >= 2, "two runs", by=child)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    kept = points()
    assert read_sizing(results_of(job))["status"] == "incomplete"
    (results_of(job) / "sizing.json.partial").write_text("what the kill cut short")

    done = warm.run([*command, "size.confirm=4"])

    assert done.returncode == 0, done.stderr
    assert f"going on after {len(kept)} runs" in done.stdout
    assert points()[: len(kept)] == kept and points() == sizing_of(job)["points"]
    picture = results_of(job) / "data.cosmoflow_h100.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("no_pictures")
def test_ranks_share_the_accelerators_evenly_and_all_get_the_answer(
    job: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they calibrate together."""
    monkeypatch.setattr(calibrate, "_SECONDS", 0.2)
    workload = job.with_keys({"size.start": 1, "size.confirm": 1})

    def work(world: World) -> tuple[int, int, int]:
        answer = dlemu.size(workload, world=world, say=silent)
        documents = list(calibrate.calibrate_host(workload, world, silent))
        return answer.num_accelerators, len(answer.confirmations), len(documents)

    assert ManyHosts(1, 2).run(work) == [(3, 1, 1), (3, 1, 0)]
    assert (results_of(job) / "calibration.cosmoflow_h100.json").is_file()
    seen = set()
    for folder in (results_of(job) / "runs").iterdir():
        ranks = [np.load(folder / f"steps.{rank}.npy")["accelerator"] for rank in range(2)]
        by_rank = tuple(tuple(sorted({*numbers.tolist()})) for numbers in ranks)
        seen.add(by_rank)
        assert len(read_steps(folder)) == 60 * sum(map(len, by_rank))
    assert {((0,), ()), ((0, 1), (2,))} <= seen, "fewer than ranks, and an odd number"


@pytest.mark.usefixtures("no_runs")
def test_a_table_of_two_targets_and_two_workloads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {"dataset.num_files_train": 40, "reader.batch_size": 1, "size.max_accelerators": 1}
    small = tiny(
        tmp_path,
        size__targets=[str(tmp_path / "d1" / "data"), str(tmp_path / "d2" / "data")],
        size__workloads=["cosmoflow_h100", "unet3d_h100"],
        size__drives=[1, 2],
        size__confirm=1,
    )
    for target in small.size.targets:
        for name in small.size.workloads:
            own = {**TINY, **few, "dataset.data_folder": f"{target}/{name}"}
            generate(load_workload(name, own), world=Alone())
    # What the user gave holds for every workload: here, a batch that 40 samples are enough for.
    small = small.with_keys({**few, "given": (*TINY, *few)})

    size_storage(small)

    out = capsys.readouterr().out
    if devices_under(tmp_path):
        assert "warning: d2-data and d1-data share" in out
    answers = json.loads((results_of(small) / "sizing.json").read_text())["answers"]
    assert [(each["workload"], each["target"], each["drives"]) for each in answers] == [
        (name, target, drives)
        for target, drives in (("d1-data", 1), ("d2-data", 2))
        for name in small.size.workloads
    ]
    assert (results_of(small) / "table.png").is_file()
    size_storage(small)  # nothing is left to be measured
    assert len(list((results_of(small) / "runs").iterdir())) == 4


@pytest.mark.usefixtures("no_runs")
def test_a_dataset_that_ends_the_search_gives_an_answer(
    job: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    """200 samples are 33 steps of 6 accelerators, and 28 of 7; 30 are needed."""
    keys = {"size.max_accelerators": 9, "size.start": 8, "size.confirm": 1}
    larger = job.with_keys({**keys, "dataset.num_files_train": "auto"})

    size_storage(larger)

    sizing = sizing_of(job)
    assert (sizing["num_accelerators"], sizing["at_least"]) == (6, True)
    bound = cast(dict[str, Any], sizing["bound"])
    assert bound["kind"] == "too_few_files" and bound["figures"]["most_accelerators"] == 6
    out = capsys.readouterr().out
    assert "feeds at least 6 H100s of CosmoFlow" in out and sentence(bound) in out
    assert "the dataset ended the search: 200 files are enough for 6;" in out
    assert "about 3 runs of " in out
    # The command runs as it stands, and the search then goes on with what it has.
    assert run_command(bound["figures"]["command"].split()[1:]) == 0
    size_storage(larger)
    again = sizing_of(job)
    assert (again["num_accelerators"], again["bound"]) == (9, None)


@pytest.mark.usefixtures("no_runs")
def test_an_interrupted_search_says_what_goes_on_and_is_found_again(
    job: Workload,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    unnamed = job.with_keys({"output.folder": None})
    first = outcome(tmp_path / "first", accelerators=3)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(measured, "run_job", Mock(side_effect=[first, KeyboardInterrupt]))
        size_storage(unnamed, ["workload=a b", "size.quick=true"])
    (folder,) = (tmp_path / "outputs" / "size").iterdir()
    cut = read_sizing(folder)
    assert (cut["status"], cut["error"]) == ("incomplete", "interrupted")
    below = folder.relative_to(tmp_path)
    said = capsys.readouterr().out.splitlines()[-1]
    goes_on = "interrupted; this goes on after the runs so far: dlemu size"
    assert said == f"{goes_on} 'workload=a b' size.quick=true"

    # Another search does not go on there, nor one in a folder that is in use.
    other = unnamed.with_keys({"size.confirm": 1, "metric.au": 0.02})
    size_storage(other)
    with hold(below, ""):
        size_storage(unnamed.with_keys({"output.folder": str(tmp_path / "named")}))
        assert "going on with" not in capsys.readouterr().out
    size_storage(unnamed)
    out = capsys.readouterr().out
    assert f"going on with the same search in {below}, which has not ended" in out
    assert "going on after 1 run in" in out
    ended = read_sizing(folder)
    assert ended["identities"]["data.cosmoflow_h100"]["files of the dataset"] == "200"
    assert ended["status"] == "complete" and not {"wanted", "error"} & ended.keys()
    # It has ended: the same command begins anew.
    size_storage(unnamed)
    assert "going on" not in capsys.readouterr().out
    assert len(list(folder.parent.iterdir())) == 3


@pytest.mark.usefixtures("no_runs")
def test_a_search_of_another_drive_or_of_long_ago_is_not_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another drive is mounted on the same folder, with an equal dataset."""
    monkeypatch.chdir(tmp_path)
    job = tiny(tmp_path, size__confirm=1, size__max_accelerators=2).with_keys(
        {"dataset.data_folder": str(tmp_path / "mnt" / "data"), "output.folder": None}
    )

    def cut() -> str:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(measured, "run_job", Mock(side_effect=KeyboardInterrupt))
            size_storage(job)
        return capsys.readouterr().out

    with own_drive(16 << 20) as one, own_drive(16 << 20) as two:
        with bound(one, tmp_path / "mnt"):
            generate(job, world=Alone())
            assert "this search" not in cut()
            assert "going on with the same search in" in cut(), "nothing has changed"
        with bound(two, tmp_path / "mnt"):
            generate(job, world=Alone())
            other = re.search(r" has this search of something else \((.*)\); a new one", cut())
            assert other is not None and "dataset" not in other[1]
            now, _, then = other[1].partition(", was ")
            assert f"drive loop {two.parent / 'image'} of" in now and str(one.parent) in then
            for path in (tmp_path / "outputs").rglob("sizing.json"):
                long_ago = json.loads(path.read_text()) | {"updated": "2026-01-01T00:00:00+00:00"}
                path.write_text(json.dumps(long_ago))
            assert " old; a new one begins; to go on with that one: output.folder=" in cut()


@pytest.mark.usefixtures("no_runs")
def test_the_example_sizes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLE))["main"]
    words = ["metric.au=0.01", "size.max_accelerators=2", "dataset.num_files_train=200"]
    assert main(tmp_path, words) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("at least 2; limit: storage")


# --- the log of a search --------------------------------------------------------------------------


SETTINGS = {"num_ranks": 1, "reader.read_threads": 4}
IDENTITY = {"drive": "one", "dataset": "d", "files of the dataset": "200"}
POINT = Point(3, 91.0, 9.0, 1e6)


def test_a_search_goes_on_after_its_last_run(tmp_path: Path) -> None:
    record = SizingRecord(tmp_path)
    assert record.open("a", SETTINGS, IDENTITY) == [] and not list(tmp_path.iterdir()), (
        "nothing is left"
    )
    runs = [replace(POINT, num_accelerators=number) for number in range(3)]
    for number, run in enumerate(runs):
        record.add("a", run)
        again = SizingRecord(tmp_path)
        assert again.open("a", SETTINGS, IDENTITY) == runs[: number + 1]
        assert again.open("b", SETTINGS, IDENTITY) == []
    with pytest.raises(WorkloadError, match=r"holds runs with reader\.read_threads=4, now it is 5"):
        SizingRecord(tmp_path).open("a", SETTINGS | {"reader.read_threads": 5}, IDENTITY)
    SizingRecord(tmp_path).open("a", SETTINGS, IDENTITY | {"files of the dataset": "1,000"})
    for other, what in (
        ({"drive": "two"}, "drive two, was one"),
        ({"files of the dataset": "100"}, "files of the dataset 100, was 200"),
        ({"torch": "2"}, "torch 2, was none"),
    ):
        with pytest.raises(WorkloadError, match=f"holds runs that do not count here: {what}; name"):
            SizingRecord(tmp_path).open("a", SETTINGS, IDENTITY | other)
    content = (tmp_path / "sizing.json").read_text()
    wrong = (content.replace("91.0", value) for value in ('"x"', "NaN"))
    later = r"has a form that dlemu \S+ does not read.*; it was written by another version"
    cases = [(content.rstrip()[:-1], r"is damaged: .*; restore it from a copy, or name another")]
    for damage, said in (*cases, *((each, later) for each in wrong)):
        (tmp_path / "sizing.json").write_text(damage)
        with pytest.raises(RunError, match=rf"sizing\.json {said}") as error:
            SizingRecord(tmp_path)
        assert "remove" not in str(error.value)


def test_a_search_of_a_later_version_is_told_by_which_it_was_written(tmp_path: Path) -> None:
    """Nobody is told to remove results: the dlemu that wrote them reads them."""
    run = tmp_path / "runs" / "a.01.n1"
    run.mkdir(parents=True)
    by = "it was written by dlemu 7.1, or changed since; read it by the dlemu that wrote it, or"
    later = {"kind": "sizing of 2031", "answers": [{"versions": {"dlemu": "7.1"}}]}
    (tmp_path / "sizing.json").write_text(json.dumps(later))
    with pytest.raises(RunError) as error:
        SizingRecord(tmp_path)
    assert by in str(error.value)
    (tmp_path / "sizing.json").write_text('{"kind": "sizing of 2031"}')
    (run / "summary.json").write_text('{"versions": {"dlemu": "7.1"}}')
    with pytest.raises(RunError) as error:
        SizingRecord(tmp_path)
    assert by in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("origin.read_bandwidth", 40 * 10**6),
        ("cache.policy", "keep"),
        ("reader.odirect", True),
        ("host_memory", 1 << 30),
        ("output.drop_caches", False),
    ],
)
def test_what_changes_a_run_is_a_setting_of_its_search(key: str, value: object) -> None:
    """Else a search in a named folder would answer with the runs of another storage."""
    keys: dict[str, object] = {"dataset.data_folder": "/mnt/d1"}
    before = settings_of(load_workload("unet3d_h100", keys), Alone())
    after = settings_of(load_workload("unet3d_h100", keys | {key: value}), Alone())
    assert [name for name in after if before.get(name) != after[name]] == [key]
    more = {"dataset.num_files_train": 9, "metric.au": 0.5, "size.confirm": 1}
    assert settings_of(load_workload("unet3d_h100", keys | more), Alone()) == before


@pytest.mark.parametrize(
    ("number", "feeds", "slower"), [(3, 3.5, 1.0), (4, 3.5, 4 / 3.5), (1, 0.1, 10.0)]
)
def test_a_run_takes_longer_where_the_storage_feeds_fewer(
    number: int, feeds: float, slower: float
) -> None:
    """100 steps of 0.5 s, twice, at the AU that is asked for at least: what is left is waiting."""
    keys = {"train.epochs": 2, "train.computation_time": 0.5, "metric.au": 0.9}
    seconds = measured.seconds_of_run(load_workload("resnet50_h100", keys), 100, number, feeds)
    assert seconds - measured.START_SECONDS == pytest.approx(slower * 100 / 0.9)
