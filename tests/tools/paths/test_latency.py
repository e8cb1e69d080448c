"""Percentiles from the histogram against numpy's on the raw values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.tools.paths.blocks import Latencies

times = st.lists(st.integers(1, 10**12), min_size=1, max_size=200)


@given(times, st.floats(0, 100))
def test_percentiles_are_right_to_a_hundred_and_twenty_eighth(
    values: list[int], percent: float
) -> None:
    latencies = Latencies()
    latencies.add(values)

    expected = np.percentile(values, percent, method="inverted_cdf") / 1e9

    assert latencies.percentile(percent) == pytest.approx(expected, rel=1 / 128)


@given(times, times)
def test_merging_is_adding(left: list[int], right: list[int]) -> None:
    one, other, both = Latencies(), Latencies(), Latencies()
    one.add(left)
    other.add(right)
    both.add(left + right)

    one.merge(other)

    assert (one.counts == both.counts).all()
    assert one.num == len(left) + len(right)
    assert one.mean() == pytest.approx(sum(left + right) / len(left + right) / 1e9, rel=1e-12)


def test_no_time_at_all() -> None:
    latencies = Latencies()
    latencies.add([0, 0, 3_000_000])

    assert latencies.percentile(50) < 1e-9
    assert latencies.percentile(99.9) == pytest.approx(0.003, rel=1 / 128)
