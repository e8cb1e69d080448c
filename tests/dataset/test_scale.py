"""A tenth of 10 million files for 1,024 accelerators: time and memory grow as the files do."""

import pytest

from tests.lab.scale import PARTS, costs

MOST_BYTES = {
    "names": 2,
    "sizes": 48,
    "plan": 24,
    "streams": 64,
    "tf.data": 64,
    "manifest": 32,
    "drop": 8,
    "records": 4,
    "metrics": 300,
}
"""Bytes for each file that a part may take at its peak: records have 88, the plan 8."""


@pytest.mark.parametrize("part", PARTS)
def test_ten_times_the_files_take_ten_times_as_much(part: str) -> None:
    """By the CPU time and the memory of a process of its own, whatever else runs."""
    large = 100_000 if part == "drop" else 1_000_000

    few, many = costs(part, [large // 10, large])

    assert many.cpu_seconds < 30 * few.cpu_seconds + 0.1, "100 times would be quadratic"
    assert many.peak_bytes < MOST_BYTES[part] * large + 2e6
