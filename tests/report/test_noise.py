"""Differences and their noise, by hand."""

import math
from dataclasses import replace

import pytest

from dlemu.report.noise import (
    Difference,
    Figure,
    difference,
    figure_of,
    figure_of_interval,
)


def test_two_series_are_compared_as_welch_does() -> None:
    old, new = figure_of([10.0, 11.0, 12.0, 13.0, 14.0]), figure_of([11.0, 12.0, 13.0, 14.0, 15.0])
    # Both have sd² = 2.5, so 8 degrees of freedom: t = 2.306, and sqrt(2.5 / 5 + 2.5 / 5) = 1.
    found = difference(new, old)
    assert (found.value, found.against) == (1.0, 12.0)
    assert found.share == pytest.approx(1 / 12) and found.noise == pytest.approx(2.306)
    assert found.within_noise
    assert difference(Figure(15.0, 0.1, 4), old).within_noise is False


def test_the_noisier_of_two_has_the_fewer_degrees_of_freedom() -> None:
    found = difference(Figure(1.0, 1.0, 2), Figure(0.0, 0.0, 100))
    assert found.noise == pytest.approx(4.303)
    assert found.share is None, "of nothing"


def test_what_has_no_spread_has_no_noise() -> None:
    assert difference(figure_of([1.0]), figure_of([1.0, 2.0])) == Difference(-0.5, 1.5, None)
    assert difference(figure_of([1.0]), figure_of([1.0])).within_noise is None
    assert difference(Figure(2.0, 0.0), Figure(2.0, 0.0)).within_noise is True


def test_parts_of_one_run_tell_no_interval_of_a_difference() -> None:
    one = replace(figure_of([1.0, 2.0, 3.0]), of_one_run=True)
    found = difference(one, figure_of([1.0, 2.0, 3.0]))
    assert (found.noise, found.within_noise) == (None, None)
    assert found.within_one_run == pytest.approx(2.776 * math.sqrt(2 / 3))


def test_an_interval_comes_back() -> None:
    one = figure_of_interval(5.0, 4.0, 6.0)
    assert difference(one, Figure(5.0, 0.0)).noise == pytest.approx(1.0)
    assert difference(one, one).noise == pytest.approx(math.sqrt(2))
