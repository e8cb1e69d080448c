"""A tenth of 10 million files for 1,024 accelerators: memory grows as the files do."""

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
def test_files_take_so_many_bytes_each(part: str) -> None:
    """By the memory of a process of its own; benchmarks/truth.py has the CPU time."""
    large = 100_000 if part == "drop" else 1_000_000

    [many] = costs(part, [large])

    assert many.peak_bytes < MOST_BYTES[part] * large + 2e6
