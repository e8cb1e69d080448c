"""summary.json: what is read comes back, of this version and of others."""

import json
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

from dlemu.cli.main import run
from dlemu.results.summary import Limit, Measured, Metric, RunsSummary, Summary
from tests.lab.commands import QUICK, generate

STORED: dict[str, Any] = {
    "of_tomorrow": {"a": [1]},
    "status": "complete",
    "notes": [],
    "limit": {"name": "storage", "evidence": "E", "of_tomorrow": 1},
    "measured": {"of_tomorrow": None, "page_cache_share": None, "hosts": [{"host": "a"}]},
    "num_accelerators": 4,
    "metric": {"train_io_mean_MB_per_second": 1.5},
}
"""Of another version: with fields that nobody knows here, and without others, in another order."""


def test_what_is_not_known_here_comes_back_in_its_place() -> None:
    summary = Summary.of(STORED)
    assert json.dumps(summary.as_json()) == json.dumps(STORED)
    later = replace(summary, status="failed", error="E").as_json()
    assert json.dumps(later) == json.dumps(STORED | {"status": "failed", "error": "E"})


def test_fields_are_attributes_and_those_that_are_missing_are_none() -> None:
    summary = Summary.of(STORED)
    assert summary.limit == Limit("storage", "E", advice=None)  # type: ignore[arg-type]
    assert (summary.num_accelerators, summary.loop, summary.verdict) == (4, None, None)
    assert summary.metric.train_io_mean_MB_per_second == 1.5
    assert summary.measured.counted and not Summary.of({"measured": {}}).measured.counted
    with pytest.raises(FrozenInstanceError):
        summary.status = "failed"  # type: ignore[misc]


def test_a_new_summary_has_all_fields_but_those_that_come_later() -> None:
    others = {"as_read", "metric", "measured", *Summary.LATER}
    unknown: Any = dict.fromkeys(each.name for each in fields(Summary) if each.name not in others)
    new = Summary(metric=Metric.of({}), measured=Measured.of({}), **unknown)
    assert new.as_json() == unknown | {"metric": {}, "measured": {}}
    assert {*replace(new, error="E", end="now").as_json()} == {*unknown, "metric", "measured"} | {
        "error",
        "end",
    }


def test_rows_of_several_runs_come_back_too() -> None:
    stored = {
        "division": "open",
        "runs": [{"name": "run.1", "of_tomorrow": 1}],
        "status": "complete",
        "passed": True,
    }
    summary = RunsSummary.of(stored)
    assert summary.runs[0].name == "run.1" and summary.as_json() == stored


def test_a_report_keeps_what_another_version_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", *QUICK, generate(tmp_path), f"output.folder={tmp_path / 'run'}"]) == 0
    path = tmp_path / "run" / "summary.json"
    tree = json.loads(path.read_text())
    tree["measured"]["of_tomorrow"] = tree["of_tomorrow"] = [1, {"a": None}]
    del tree["loop"], tree["decode"]
    path.write_text(json.dumps(tree))
    capsys.readouterr()
    assert run(["report", str(path.parent), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(path.parent)} | tree
    assert run(["report", str(path.parent)]) == 0
    assert "(edition v1.0)" in capsys.readouterr().out, "an older run does not tell its loop"
