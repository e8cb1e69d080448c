"""From runs to N, N* and an interval; the search's tests have whole histories."""

import math
from dataclasses import replace

import pytest

from dlemu.judge.capacity import Observed, infer, phases_of, real_accelerators
from dlemu.judge.steady import Level


def run(number: int, au: float, *, held: bool | None = True, noise: float = 0.003) -> Observed:
    return Observed(number, au, au, held, noise)


def half(*runs: Observed) -> float:
    """Return half of the width of the interval of N*."""
    interval = infer(runs, threshold=90.0, passed=0, failed=None).interval
    assert interval is not None
    return (interval[1] - interval[0]) / 2


def test_n_star_is_where_the_same_bytes_meet_the_threshold() -> None:
    assert real_accelerators(9, 84.0, 90.0) == pytest.approx(8.4)
    found = infer([run(9, 84.0)], threshold=90.0, passed=8, failed=9)
    assert found.real_accelerators == pytest.approx(8.4)
    assert (found.low, found.high, found.disagree) == (8, 8, None)


def test_the_interval_narrows_with_the_root_of_the_runs() -> None:
    """With 2.5 standard errors to either side, as they are themselves estimates."""
    one, four = half(run(10, 90.0)), half(*[run(10, 90.0)] * 4)
    assert one == pytest.approx(10 * 2.5 * 0.003, rel=1e-3)
    assert four == pytest.approx(one / 2, rel=1e-3)
    assert half(run(12, 75.0)) > 1.2 * one, "what is further off the threshold says less"


def test_reads_ahead_widen_it_to_both_ends() -> None:
    ahead = replace(run(4, 81.0), least_au_percentage=81 * 0.92)
    low, high = ahead.ends(90.0)
    assert low == pytest.approx(3.6 * 0.92 * (1 - 0.0075))
    assert high == pytest.approx(3.6 * (1 + 0.0075))


def test_runs_that_differ_by_more_than_noise_widen_it_and_are_named() -> None:
    found = infer([run(10, 88.0), run(12, 60.0)], threshold=90.0, passed=9, failed=10)
    assert found.disagree is None, "12 are too far off to count"
    two = [run(10, 88.0), run(11, 84.0)]
    found = infer(two, threshold=90.0, passed=9, failed=10)
    assert found.disagree == (two[1], two[0])
    assert found.interval is not None
    assert found.interval[0] < 9.78 < 10.27 < found.interval[1]


def test_what_nothing_held_back_is_a_lower_bound() -> None:
    free = run(10, 99.78, held=False)
    found = infer([run(20, 44.73), free], threshold=90.0, passed=10, failed=20)
    assert (found.low, found.high, found.real_accelerators) == (10, 19, None)
    assert found.disagree is not None and found.disagree[1] is free


def test_what_the_host_held_back_bounds_nothing_from_above() -> None:
    found = infer([run(10, 50.0, held=None)], threshold=90.0, passed=8, failed=10)
    assert (found.low, found.high, found.real_accelerators) == (8, None, None)


def test_the_levels_of_a_rate_feed_by_their_bytes() -> None:
    levels = [Level(0, 33, 4e8, 98.5, 1.6), Level(35, 40, 1.5e8, 37.0, 0.6)]
    first, last = phases_of(2, 60.0, levels, 90.0)
    assert (first.seconds, first.at_least) == (35, True), "until the next begins"
    assert first.feeds == pytest.approx(2 * 60 / 90 * 1.6)
    assert last.seconds == 40 and last.feeds == pytest.approx(2 * 60 / 90 * 0.6)
    assert math.floor(last.feeds) == 0


def test_free_runs_above_all_that_were_held_back_have_no_upper_end() -> None:
    """Nine got 1.1 times what the storage gave to two, and nobody failed: it may feed more."""
    found = infer([run(2, 60.0), run(9, 99.0, held=False)], threshold=90.0, passed=9, failed=None)
    assert (found.low, found.high, found.real_accelerators) == (9, None, None)
    assert found.disagree is not None
