"""What short runs say, on storages whose answer is known; the runs are simulated."""

import math
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.sizing.search import Goal, Point, conclude, search


def point(number: int, au: float, limit: str = "storage") -> Point:
    return Point(number, au, 1.0, 1e9, limit if au < 97 else "none", 1.0, f"seen at {number}")


def after(points: list[Point], *, ahead: float = 0.0) -> SimpleNamespace:
    """Return the fields of the answer and of its range."""
    found, between = conclude(points, threshold=90.0, read_ahead_share=ahead, most=512)
    assert found.points == tuple(points) and found.at_least is (between.high is None)
    return SimpleNamespace(**vars(found), **vars(between))


def run(measure: Callable[[int], Point], start: int, runs: int) -> list[Point]:
    """Return the points of a search that has time for so many runs."""
    points: list[Point] = []

    def once(number: int) -> Point:
        if len(points) == runs:
            raise TimeoutError
        points.append(measure(number))
        return points[-1]

    with suppress(TimeoutError):
        search(once, Goal(90.0, 512, start=start, confirm=1))
    return points


@given(
    feeds=st.floats(1.05, 60),
    probe=st.floats(0.9, 1.25),
    runs=st.integers(1, 4),
    ahead=st.floats(0, 0.08),
    noise=st.floats(-0.01, 0.01),
)
def test_the_true_number_is_in_the_interval_however_few_runs_there_is_time_for(
    feeds: float, probe: float, runs: int, ahead: float, noise: float
) -> None:
    def measure(number: int) -> Point:
        au = 90 * feeds / number / (1 - ahead) * (1 + noise)
        return point(number, min(98.0, au))

    start = math.floor(feeds * probe) + 1
    points = run(measure, start, runs)
    found = after(points, ahead=ahead)

    assert found.low <= math.floor(feeds)
    assert found.high is None or found.high >= math.floor(feeds)
    assert found.low <= found.num_accelerators
    if found.interval is not None and found.real_accelerators is not None:
        low, high = found.interval
        assert low <= feeds <= high and low <= found.real_accelerators <= high


def test_one_run_that_fails_gives_number_and_interval() -> None:
    found = after([point(4, 81.0)], ahead=0.08)

    assert (found.num_accelerators, found.low, found.high) == (3, 3, 3)
    assert found.real_accelerators == pytest.approx(3.6 * 0.96)
    assert found.interval is not None
    assert list(found.interval) == pytest.approx([3.6 * 0.92 * 0.97, 3.6 * 1.03])
    assert (found.limit, found.evidence) == ("storage", "seen at 4")
    found = after([point(5, 80.0), point(4, 89.5)])
    assert (found.num_accelerators, found.low, found.high) == (3, 3, 4), "4 have failed"
    assert found.real_accelerators == pytest.approx((5 * 80 + 4 * 89.5) / 2 / 90)


def test_runs_far_under_the_threshold_do_not_count() -> None:
    """At 12 the storage is overloaded and gives less."""
    found = after([point(12, 20.0), point(4, 85.0)])

    assert found.real_accelerators == pytest.approx(4 * 85 / 90)


def test_a_pass_above_what_another_run_gave_is_in_the_interval() -> None:
    found = after([point(9, 56.0), point(6, 92.2, "host cpu")])

    assert (found.num_accelerators, found.low, found.high) == (6, 5, 6)
    assert found.real_accelerators == 6
    assert found.interval is not None
    assert list(found.interval) == pytest.approx([9 * 56 / 90 * 0.97, 6 * 1.03])


def test_what_passes_everywhere_is_at_least_that() -> None:
    found = after([point(8, 98.5), point(12, 98.2)])

    assert (found.num_accelerators, found.low, found.high) == (12, 12, None)
    assert found.high is None and found.real_accelerators is None
    assert (found.limit, found.evidence) == ("none", "nothing failed up to 12")


@pytest.mark.parametrize(("passed", "number"), [([], 7), ([point(8, 98.0)], 8)])
def test_what_the_host_held_back_is_no_number_of_the_storage(
    passed: list[Point], number: int
) -> None:
    found = after([point(10, 70.0, "host cpu"), *passed])

    assert (found.num_accelerators, found.low, found.high) == (number, number, None)
    assert (found.limit, found.real_accelerators) == ("host cpu", None)
