"""One rule decides whether an AU passes, in every command."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.config.model import Workload, load_workload
from dlemu.judge.metrics import Metrics, measure, passes
from dlemu.judge.outcome import Outcome, judge_runs, row_of, with_metrics
from dlemu.judge.records import STEP
from dlemu.judge.summary import RunsSummary, Summary
from dlemu.sizing.formula import PredictionInput, predict
from dlemu.sizing.search import Goal, Point, search
from tests.lab.shown import verdict_of

PACKAGE = Path(__file__).parents[2] / "dlemu"


def job(threshold: float) -> Workload:
    return load_workload("unet3d_h100", {"metric.au": threshold / 100})


def run_with(au_percentage: float) -> Metrics:
    """Return a run of one accelerator with this AU: two steps, of which the first is left out."""
    steps = np.zeros(2, STEP)
    steps["step"] = [0, 1]
    steps["num_samples"], steps["num_bytes"] = 1, 146_600_628  # as large as the workload says
    steps["compute"] = steps["computation_time"] = 1.0
    steps["wait"] = [0.0, 100 / au_percentage - 1]
    return measure(steps)


def outcome_with(workload: Workload, metrics: Metrics) -> Outcome:
    ended = Summary(
        status="complete",
        start="",
        end="",
        measured={"page_cache_share": None},
        limit={"name": "none", "evidence": ""},
    )
    return Outcome(Path("unused"), metrics, with_metrics(ended, workload, metrics))


def said_by_each(au_percentage: float, threshold: float) -> dict[str, bool]:
    """Return what each command says of one AU."""
    workload, metrics = job(threshold), run_with(au_percentage)
    outcome = outcome_with(workload, metrics)
    au = metrics.au_percentage
    found = search(
        lambda number: Point(number, au, 0.0, 0.0, "none"),
        Goal(100 * workload.metric.au, max_accelerators=1, confirm=2),
    )
    return {
        "run": outcome.summary["verdict"] == "PASS",
        "verdict": verdict_of(workload, metrics).startswith("PASS"),
        "runs": judge_runs(RunsSummary(), [outcome.summary] * 2)["verdict"] == "PASS",
        "summary": outcome.summary["metric"]["train_au_meet_expectation"] == "success",
        "epochs": not row_of("run", outcome.summary)["epochs_under"],
        "size": found.num_accelerators == 1,
        "size's confirming runs": len(found.confirmations) == 2,
        "size's failing number": found.fewest_failed is None,
    }


@given(threshold=st.sampled_from([70.0, 85.0, 90.0, 99.9]), off=st.floats(-0.02, 0.02))
def test_every_command_says_the_same_of_any_au(threshold: float, off: float) -> None:
    au = min(100.0, threshold + off)
    said = said_by_each(au, threshold)
    assert set(said.values()) == {passes(run_with(au).au_percentage, threshold)}, said


def test_a_prediction_counts_as_a_run_would() -> None:
    """The most that pass by rounding, too: AU of 8 is 89.996."""
    exact = 8 * 0.89996
    asked = PredictionInput(
        computation_time=1.0,
        batch_bytes=1e9,
        threshold=90,
        drive_read_bytes_per_second=exact * 1e9,
    )

    assert predict(asked).au_percentage == pytest.approx(89.996)
    assert predict(asked).num_accelerators == 8
    assert predict(asked).real_accelerators < 8


def test_nothing_else_compares_utilisation_with_a_threshold() -> None:
    au = re.compile(r"\bau\b|au_percentage|\bceiling\b")
    threshold = re.compile(r"threshold|metric\.au|\bwanted\b")
    found = []
    for path in sorted(PACKAGE.glob("**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Compare):
                continue
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            # How far a miss lies below the threshold decides whether it is repeated.
            if any(re.search(r"threshold [-+] near", side) for side in sides):
                continue
            if any(map(au.search, sides)) and any(map(threshold.search, sides)):
                found.append(f"{path.name}: {ast.unparse(node)}")

    assert found == ["metrics.py: round(au_percentage, 2) >= round(threshold, 2)"]


@given(au=st.floats(0, 100), threshold=st.floats(1, 100))
def test_the_rule_is_that_of_public_figures(au: float, threshold: float) -> None:
    printed = (float(f"{round(au, 2):.2f}"), float(f"{round(threshold, 2):.2f}"))

    assert passes(au, threshold) is (printed[0] >= printed[1])
