"""Several runs: the closed division's rules, the table, the verdict over all."""

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self, cast

import numpy as np
import pytest
import yaml

from dlemu.cli.main import run
from dlemu.config.model import Workload, load_workload
from dlemu.dataset.rule import dataset_size
from dlemu.errors import WorkloadError
from dlemu.findings import Finding, fields_of, reason, remark, weakens
from dlemu.judge.outcome import _long_gaps, judge_runs
from dlemu.judge.records import read_steps, read_summary
from dlemu.judge.summary import RunRow, RunsSummary, Summary, Verdict, time_of_day
from dlemu.report.run import runs_verdict_line
from dlemu.report.words import sentence, sentences
from dlemu.report.words.rules import LABEL
from dlemu.run.protocol import _add, check_closed, closed_warnings
from tests.lab.commands import QUICK, generate
from tests.lab.stored import store_run


def workload(keys: Mapping[str, object] | None = None, name: str = "unet3d_h100") -> Workload:
    """Return a published workload in the closed division, large enough for 1 GiB of memory."""
    least = {"division": "closed", "runs": 5, "dataset.num_files_train": 3500}
    least["workflow.checkpoint"] = name.startswith("unet3d")
    return load_workload(name, least | dict(keys or {}))


def check(closed: Workload) -> Workload:
    return check_closed(closed, dataset_size(closed, num_accelerators=1, host_memory=2**30))


def refusal(closed: Workload) -> str:
    with pytest.raises(WorkloadError) as error:
        check(closed)
    return str(error.value)


MAY_CHANGE = """
dataset.data_folder=/mnt/nvme dataset.num_files_train=9999 dataset.num_files_train=auto
dataset.num_subfolders_train=10 reader.read_threads=16 reader.computation_threads=4
reader.transfer_size=1048576 reader.prefetch_size=1 checkpoint.checkpoint_folder=/mnt/checkpoints
storage.storage_type=parallel_fs storage.storage_root=/mnt
train.seed=7 output.folder=results accelerators_per_rank=4 num_accelerators=1 host_memory=64GiB
warmup=1 runs=7 metric.max_cached_share=0.01
"""
"""Behind those of the rules are ours: where and how often to run, not what is run."""


@pytest.mark.parametrize("word", MAY_CHANGE.split())
def test_what_a_submitter_may_change(word: str) -> None:
    key, _, value = word.partition("=")
    closed = workload({key: yaml.safe_load(value)})
    share = 0.01 if key == "metric.max_cached_share" else 0.05
    assert check(closed).metric.max_cached_share == share


def test_direct_reads_are_unet3ds_alone_and_v2s() -> None:
    keys = {"reader.odirect": True, "dataset.num_files_train": "auto"}
    assert "reader.odirect=true is not allowed" in refusal(workload(keys, "resnet50_h100"))
    keys |= {"metric.edition": "v2.0", "warmup": 1}
    assert "reader.odirect=true is not allowed" in refusal(workload(keys, "resnet50_h100"))
    assert check(workload(keys)).reader.odirect is True


def v3(keys: Mapping[str, object] | None = None, name: str = "unet3d_h100") -> Workload:
    """Return a workload in the closed division of edition v3.0."""
    return workload({"metric.edition": "v3.0", "warmup": 1} | dict(keys or {}), name)


def test_edition_v3_takes_six_runs_of_the_rules_size() -> None:
    """With UNet3D's checkpoint, or without it."""
    for writes in (True, False):
        assert check(v3({"workflow.checkpoint": writes})).metric.max_cached_share == 0.05
    assert check(v3({"reader.odirect": True})).reader.odirect is True
    size = dataset_size(v3(), num_accelerators=8, host_memory=2**30)
    eight = v3({"dataset.num_files_train": 28000})
    assert check_closed(eight, size, [4, 4]) == check_closed(eight, size)


def test_edition_v3_wants_as_many_accelerators_on_each_host() -> None:
    size = dataset_size(v3(), num_accelerators=1, host_memory=2**30)
    with pytest.raises(WorkloadError) as error:
        check_closed(v3(), size, [5, 4])
    assert str(error.value) == (
        "division=closed: accelerators of each host must be equal (rule 3.3.6), got 5, 4, start as "
        "many ranks on each host, or set num_accelerators=8; or use division=open"
    )
    assert check_closed(workload(), size, [5, 4]), "other editions do not ask for it"


def test_edition_v3_warns_of_what_cannot_be_checked(tmp_path: Path) -> None:
    job = v3({"dataset.data_folder": str(tmp_path)})
    assert closed_warnings(job, Path("/proc"), 1) == []
    found = closed_warnings(job, tmp_path, 2)
    assert [each.figures["rule"] for each in found] == ["3.3.4", "3.4.2"]
    assert list(map(sentence, found)) == [
        "rule 3.3.4: 2 hosts are a distributed result; a single-host one takes one",
        f"rule 3.4.2: {tmp_path} and the results in {tmp_path} are on one file system; set "
        "output.folder to another",
    ]
    keys = {"dataset.data_folder": "/nosuch"}
    (other,) = closed_warnings(v3(keys, "cosmoflow_h100"), tmp_path, 1)
    assert sentence(other) == "rule 2.1.11: edition v3.0 has unet3d, retinanet, not cosmoflow_h100"
    assert closed_warnings(job.with_keys({"metric.edition": "v2.0"}), tmp_path, 2) == []
    assert closed_warnings(job.with_keys({"division": "open"}), tmp_path, 2) == []


def test_edition_v3_fails_gaps_as_long_as_a_run_and_low_utilisation() -> None:
    def at(minute: int) -> str:
        return f"2026-11-22T04:{minute:02}:00+00:00"

    rows = [
        RunRow(name="warmup.1", start=at(0), end=at(10), gap_seconds=None),
        RunRow(name="run.1", start=at(15), end=at(25), gap_seconds=300.0),
        RunRow(name="run.2", start=at(36), end=at(46), gap_seconds=660.0),
    ]
    found = judged((80.0, 10.0, "FAIL"), (95.0, 10.0, "PASS"), edition="v3.0", rows=rows)
    assert found["verdict"] == "FAIL"
    assert sentences(found, "reason") == [
        "run 1: AU 80.00% (rule 3.3.2)",
        "run.2 began 660 s after run.1 ended; the gap must be shorter than a run, 600 s "
        "(rule 2.1.18)",
    ]
    assert judged((95.0, 10.0, "PASS"), edition="v2.0", rows=rows)["verdict"] == "PASS"


def judged(
    *runs: tuple[float, float, str],
    edition: str = "v1.0",
    rows: Sequence[RunRow] = (),
    remarks: Sequence[Sequence[Finding]] = ((),) * 10,
) -> RunsSummary:
    """Return what closed runs come to, each of AU, samples/s and verdict."""
    found = [
        Summary(
            verdict=cast(Verdict, verdict),
            findings=fields_of([reason("failed_after_the_end", error="the disk is full"), *said]),
            threshold_percentage=90.0,
            metric={
                "edition": edition,
                "train_au_mean_percentage": au,
                "train_throughput_mean_samples_per_second": rate,
            },
        )
        for (au, rate, verdict), said in zip(runs, remarks, strict=False)
    ]
    return judge_runs(RunsSummary(division="closed", runs=rows), found)


def test_a_run_may_be_too_slow_to_be_repeatable_as_well_as_too_fast() -> None:
    """Ten runs: one that is off moves their mean by a tenth of that."""
    as_one = [(95.0, 100.0, "PASS")] * 9
    for last, off in ((94.5, 4.98), (105.5, 4.92), (94.0, 5.4), (106.0, 5.4)):
        found = judged(*as_one, (95.0, last, "PASS"))
        line = f"samples/s differ by up to {off}% from their mean, 5% is allowed"
        outcome = ("PASS", []) if off < 5 else ("FAIL", [line])
        assert (found["verdict"], sentences(found, "reason")) == outcome
        assert found["repeatability_percentage"] == pytest.approx(off, abs=0.05)


def test_one_fail_is_all_of_them_and_a_run_without_a_verdict_leaves_them_without() -> None:
    passed, none = (95.0, 10.0, "PASS"), (95.0, 10.0, "NO VERDICT")
    assert judged(passed, none)["verdict"] == "NO VERDICT"
    assert sentences(judged(passed, none), "reason") == ["run 2: NO VERDICT, the disk is full"]
    assert judged(passed, none, (80.0, 10.0, "FAIL"))["verdict"] == "FAIL"
    assert judged(passed, passed)["verdict"] == "PASS"
    cached, more = (weakens("from_memory", share=share, bound=None) for share in (0.12, 0.15))
    slow = remark("origin_emulated", how="at 9 MB/s")
    found = judged(passed, passed, remarks=[[cached, slow], [more, slow]])
    first = "run 1 and 1 more alike: BUT 12% of the bytes came from memory, not from storage"
    assert sentences(found, "weakens", "remark") == [first, sentence(slow)]
    assert [each["weight"] for each in found["findings"]] == ["weakens", "remark"]
    (alone,) = judged(passed, passed, remarks=[[cached], []])["findings"]
    assert sentence(alone) == f"run 1: {sentence(cached)}"
    memory = remark("host_memory_given", host_memory_bytes=2**20)
    given = runs_verdict_line(judged(passed, passed, remarks=[[memory], [memory]]))
    assert given.endswith("; host_memory=1.0 MiB as given, not measured"), "said once"
    line = runs_verdict_line(found)
    assert line.startswith("PASS: every run has AU 90% or more, ") and line.endswith(
        f"; {sentence(slow)}"
    )


def test_each_run_has_its_folder_and_counts_but_for_the_warm_up(tmp_path: Path) -> None:
    out, said = tmp_path / "out", io.StringIO()
    words = [*QUICK, generate(tmp_path), f"output.folder={out}", "runs=2", "warmup=1"]
    with contextlib.redirect_stdout(said):
        # On a busy host two short runs may differ by more than the rules allow.
        assert run(["run", *words]) in (0, 2)
    introduced = said.getvalue()
    assert introduced.count("\nworkload: ") == 1 and introduced.count("epoch 2 of 2: ") == 3
    names = ("run.1", "run.2", "summary.json", "warmup.1")
    assert tuple(sorted(path.name for path in out.iterdir())) == names
    seeds = [load_workload(path).train.seed for path in sorted(out.glob("*/config.yaml"))]
    assert seeds == [124, 125, 123], "run.1, run.2, and the warm-up before them"
    orders = [read_steps(out / name)["num_bytes"].tolist() for name in names[:2]]
    assert orders[0] != orders[1], "another seed, another order"
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "complete" and summary["label"] == LABEL
    assert [row["name"] for row in summary["runs"]] == ["warmup.1", "run.1", "run.2"]
    counted = [row["samples_per_second"] for row in summary["runs"][1:]]
    assert summary["samples_per_second"]["mean"] == pytest.approx(np.mean(counted))
    assert summary["runs"][0]["gap_seconds"] is None
    assert all(0 <= row["gap_seconds"] < 60 for row in summary["runs"][1:])


def test_a_run_that_fails_ends_the_protocol_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = generate(tmp_path)
    next((tmp_path / "data" / "train").iterdir()).unlink()
    out = tmp_path / "out"
    words = [*QUICK, data, "runs=2", f"output.folder={out}"]
    assert run(["run", *words]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert json.loads((out / "summary.json").read_text())["status"] == "failed"
    assert run(["report", str(out)]) == 1
    capsys.readouterr()
    assert run(["run", *words]) == 1
    assert f"it is kept as {out}.attempt-1" in capsys.readouterr().out
    assert read_summary(tmp_path / "out.attempt-1" / "run.1")["status"] == "failed"


def test_a_gap_is_what_lies_between_two_runs_whatever_the_clock_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begins and ends are of one clock, which nobody sets back."""

    class SetBack(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls(1999, 1, 1, tzinfo=tz)

    before = time_of_day()
    monkeypatch.setattr("dlemu.judge.summary.datetime", SetBack)
    assert before <= time_of_day() < "2200"
    monkeypatch.undo()
    times = [(0, 4), (7, 9), (9, 30)]
    summary = RunsSummary(runs=[])
    run = dict(store_run(tmp_path / "one", wait=0.1).summary)
    for number, (start, end) in enumerate(times):
        at = {"start": f"2026-01-02T00:00:{start:02}", "end": f"2026-01-02T00:00:{end:02}"}
        _add(summary, f"run.{number + 1}", cast(Summary, {**run, **at}))
    assert [row["gap_seconds"] for row in summary["runs"]] == [None, 3.0, 0.0]


@pytest.mark.parametrize(
    ("took", "gap", "is_long"),
    [(10, 10.0, True), (10, 9.9, False), (0, 1.0, True), (0, 0.5, False), (-600, 1.0, False)],
)
def test_a_gap_is_too_long_from_the_length_of_a_run_on(
    took: int, gap: float, is_long: bool
) -> None:
    begin = datetime(2026, 1, 2)
    start, end = (time.isoformat() for time in (begin, begin + timedelta(seconds=took)))
    rows = [
        RunRow(name="run.1", start=start, end=end, gap_seconds=None),
        RunRow(name="run.2", start=end, end=end, gap_seconds=gap),
    ]
    assert bool([*_long_gaps(rows)]) is is_long
