"""Differences and their noise, by hand."""

import math
from dataclasses import replace

import pytest

from dlemu.report.compare import Figure, difference, figure_of


def test_two_series_are_compared_as_welch_does() -> None:
    old, new = figure_of([10.0, 11.0, 12.0, 13.0, 14.0]), figure_of([11.0, 12.0, 13.0, 14.0, 15.0])
    # Both have sd² = 2.5, so 8 degrees of freedom: t = 2.306, and sqrt(2.5 / 5 + 2.5 / 5) = 1.
    assert difference(new, old) == {
        "value": 1.0,
        "against": 12.0,
        "noise": pytest.approx(2.306),
        "within_one_run": None,
        "share": pytest.approx(1 / 12),
        "within_noise": True,
    }
    assert difference(Figure(15.0, 0.1, 4), old)["within_noise"] is False
    # The noisier of two has the fewer degrees of freedom.
    found = difference(Figure(1.0, 1.0, 2), Figure(0.0, 0.0, 100))
    assert found["noise"] == pytest.approx(4.303) and found["share"] is None


def test_what_has_no_spread_has_no_noise() -> None:
    for new in ([1.0], [1.0, 2.0]):
        found = difference(figure_of(new), figure_of([1.0]))
        assert (found["noise"], found["within_noise"]) == (None, None)
    assert difference(Figure(2.0, 0.0), Figure(2.0, 0.0))["within_noise"] is True


def test_parts_of_one_run_tell_no_interval_of_a_difference() -> None:
    one = replace(figure_of([1.0, 2.0, 3.0]), of_one_run=True)
    found = difference(one, figure_of([1.0, 2.0, 3.0]))
    assert (found["noise"], found["within_noise"]) == (None, None)
    assert found["within_one_run"] == pytest.approx(2.776 * math.sqrt(2 / 3))
