"""Utilisation and rates of both editions by hand (times in seconds), and the rule to pass."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.errors import RunError, WorkloadError
from dlemu.judge.metrics import measure, passes
from dlemu.judge.outcome import counting_rows, spread_of
from dlemu.judge.records import STEP, Steps
from dlemu.judge.summary import RunRow, Spread
from dlemu.judge.sums import Edition
from dlemu.sizing.formula import PredictionInput, predict


def steps(*waits: float, compute: float = 1.0, accelerator: int = 0, epoch: int = 0) -> Steps:
    """Return the records of one accelerator's epoch, whose steps should take 1 s each."""
    rows = np.zeros(len(waits), STEP)
    rows["epoch"], rows["accelerator"], rows["step"] = epoch, accelerator, np.arange(len(waits))
    rows["wait"], rows["compute"], rows["computation_time"] = waits, compute, 1.0
    rows["num_samples"], rows["num_bytes"] = 7, 1000
    return rows


def test_edition_1_by_hand() -> None:
    """5 steps of 1 s, waits of 8, 0.25, 0, 0.5 and 0.25 s: 14 s, of which the first takes 9."""
    epoch = measure(steps(8, 0.25, 0, 0.5, 0.25)).epochs[0]
    assert epoch.au_percentage == pytest.approx(100 * 4 * 1.0 / (14 - 9))
    assert epoch.samples_per_second == pytest.approx(5 * 7 / 14), "the first step counts"
    assert epoch.true_samples_per_second == pytest.approx(5 * 7 / 14)
    assert epoch.whole_epoch_au_percentage == pytest.approx(100 * 5 / 14)
    assert epoch.first_step_seconds == 9
    assert epoch.seconds == 14
    assert (epoch.num_steps, epoch.num_samples, epoch.read_bytes) == (5, 35, 5000)
    assert epoch.read_bytes_per_second == pytest.approx(5000 / 14)
    assert epoch.wait_mean_seconds == pytest.approx(0.25)
    assert epoch.wait_share == pytest.approx(1 / 5)


def test_edition_2_by_hand() -> None:
    """The same; samples/s lose two steps over a window that lost one: the published defect."""
    epoch = measure(steps(8, 0.25, 0, 0.5, 0.25), edition="v2.0").epochs[0]
    assert epoch.au_percentage == pytest.approx(100 * 4 * 1.0 / 5)
    assert epoch.samples_per_second == pytest.approx((5 - 2) * 7 / 5)
    assert epoch.true_samples_per_second == pytest.approx(5 * 7 / 14), "and ours is right"
    assert epoch.whole_epoch_au_percentage == pytest.approx(100 * 5 / 14)


def test_edition_2_has_a_window() -> None:
    epoch = measure(
        steps(8, 3, 0, 0.5, 4), edition="v2.0", exclude_start_steps=2, exclude_end_steps=1
    ).epochs[0]
    assert epoch.au_percentage == pytest.approx(100 * 2 / 2.5)
    assert epoch.samples_per_second == pytest.approx((5 - 2) * 7 / 2.5)
    assert epoch.wait_mean_seconds == pytest.approx(0.25)


def test_oversleep_is_credited_in_edition_2_only() -> None:
    """Asked for 1 s, the host computed for 1.25 s: nothing was waited for, and yet."""
    rows = steps(0, 0, 0, 0, 0, compute=1.25)
    assert measure(rows).au_percentage == pytest.approx(100 / 1.25)
    assert measure(rows, edition="v2.0").au_percentage == pytest.approx(100)
    (epoch,) = measure(rows).epochs
    assert epoch.wait_share == epoch.barrier_share == 0
    assert epoch.lost.oversleep == pytest.approx(0.2)


def test_the_jobs_value_is_a_mean_of_accelerators_then_of_epochs() -> None:
    rows = [
        steps(0, 0, 0, accelerator=0, epoch=0),  # AU 100, 7 samples/s
        steps(0, 1, 1, accelerator=1, epoch=0),  # AU 50, 21 in 5 s
        steps(1, 3, 3, accelerator=0, epoch=1),  # AU 25, 21 in 10 s
        steps(1, 3, 3, accelerator=1, epoch=1),
    ]
    metrics = measure(rows)
    assert [epoch.au_percentage for epoch in metrics.epochs] == [75, 25]
    assert metrics.au_percentage == 50
    rates = [epoch.samples_per_second for epoch in metrics.epochs]
    assert rates == pytest.approx([21 / 3 + 21 / 5, 2 * 21 / 10]), "summed over accelerators"
    assert metrics.samples_per_second == pytest.approx(np.mean(rates))
    assert metrics.whole_epoch_au_percentage == pytest.approx(np.mean([80, 30]))
    assert metrics.read_bytes == 12_000
    assert metrics.read_bytes_per_second == pytest.approx(12_000 / (5 + 10))


@pytest.mark.parametrize(("edition", "num_steps"), [("v1.0", 1), ("v2.0", 2)])
def test_too_few_steps_are_an_error_and_no_number(edition: Edition, num_steps: int) -> None:
    """Two steps make a rate of 0 samples/s in edition v2.0."""
    line = f"^epoch 0 has {num_steps} steps, too few for edition {edition}, which leaves out 1; r"
    with pytest.raises(WorkloadError, match=line):
        measure(steps(*[0.0] * num_steps), edition=edition)
    with pytest.raises(WorkloadError, match=r"^no step was run, so there is nothing to measure; r"):
        measure(steps(), edition=edition)


@pytest.mark.parametrize("damaged", [float("nan"), float("inf")])
def test_a_time_that_is_no_number_is_refused(damaged: float) -> None:
    line = r"^epoch 0: a step's time is no number; .* is damaged: restore it from a copy, or run "
    with pytest.raises(RunError, match=line):
        measure(steps(0, damaged, 0))


def test_mean_sd_and_interval_are_students() -> None:
    # By R: t.test(c(9, 10, 11, 10, 12))
    values = spread_of([9, 10, 11, 10, 12])
    assert values["mean"] == pytest.approx(10.4)
    assert values["sd"] == pytest.approx(1.140175)
    assert values["interval"] == pytest.approx([8.984287, 11.815713], abs=1e-3)
    assert spread_of([9]) == Spread(mean=9.0, sd=None, interval=None)


def test_warm_ups_do_not_count() -> None:
    rows = [RunRow(name=name) for name in ("warmup.1", "run.1", "run.2")]
    assert counting_rows(rows) == rows[1:]


def test_an_interval_ends_where_the_quantity_does() -> None:
    au = spread_of([60.0, 99.0, 98.0], most=100.0)
    assert au["interval"] is not None and au["sd"] is not None
    assert au["mean"] + 4.303 * au["sd"] / 3**0.5 > 140
    assert au["interval"][1] == 100.0
    assert spread_of([1.0, 99.0], most=100.0)["interval"] == [0.0, 100.0]
    rates = spread_of([1.0, 99.0])["interval"]
    assert rates is not None and rates[0] == 0.0 and rates[1] > 600


def test_a_prediction_counts_as_a_run_would() -> None:
    """The most that pass by rounding, too: AU of 8 is 89.996."""
    asked = PredictionInput(
        computation_time=1.0, batch_bytes=1e9, threshold=90, drive_read_bytes_per_second=7.19968e9
    )
    found = predict(asked)
    assert found.au_percentage == pytest.approx(89.996)
    assert found.num_accelerators == 8 == found.real_accelerators


def test_nothing_else_compares_utilisation_with_a_threshold() -> None:
    au = re.compile(r"\bau\b|au_percentage|\bceiling\b")
    threshold = re.compile(r"threshold|metric\.au|\bwanted\b")
    found = []
    for path in sorted((Path(__file__).parents[2] / "dlemu").glob("**/*.py")):
        text = path.read_text()
        if not (au.search(text) and threshold.search(text)):
            continue
        for node in ast.walk(ast.parse(text)):
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
