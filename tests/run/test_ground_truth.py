"""AU, limit and cached share are compared with what they must be, where that is known beforehand.

A shared host disturbs a run now and then, so each case has three tries, and each try is printed.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab import loops
from tests.lab.bench import CASES, Found
from tests.lab.simulated import Read, true_au

_TRIES = 3
_DISK, _SLOW, _CACHED = 1.0, 2.0, 0.03
"""Points of AU, points where each batch also costs a worker some time, share of the bytes."""
_LATE = 0.02
"""A host whose own sleeps end late by such a share of a step cannot be told from a wrong loader."""

_ONE_LOADER = {
    "disk at 0.3 of the demand": "threads",
    "disk at 0.9 of the demand": "pytorch",
    "disk at 1.5 times the demand": "threads",
    "disk at 0.6 of the demand of 4 accelerators on 2 ranks": "pytorch",
    "rank 1 of 2 with a disk at 0.5 of its demand": "pytorch",
    "files in memory, a fifth of a core": "threads",
    "4 workers on one core": "pytorch",
    "others' work on all cores": "threads",
    "reads take 100 ms, 1 worker": "threads",
    "reads take 100 ms, 4 workers": "threads",
    "preprocessing takes 100 ms, 1 worker": "pytorch",
    "40% of the files in the page cache": "pytorch",
    "reads take 30 ms, 3 workers, batches of 4 records of 1 to 6 reads": "pytorch",
    "disk at 0.7 of the demand, 3 workers, batches of 4 records of many sizes": "threads",
}
"""Where one is enough for a suite; benchmarks/truth runs both."""
_NEED_CPUS = {"4 workers on one core", "others' work on all cores"}
"""Cases that keep a core busy. A fifth of a core is held by a quota."""


def _cases() -> list[Any]:
    return [
        pytest.param(*case, marks=[] if case[0] in _NEED_CPUS else [pytest.mark.waits])
        for case in CASES
        if _ONE_LOADER.get(case[0], case[1]) == case[1]
    ]


def alone(*seconds: float) -> list[list[Read]]:
    return [[Read(each)] for each in seconds]


@pytest.mark.parametrize(
    ("batches", "keys", "au"),
    [
        # Nothing is read ahead of the first request: 3 s for each batch, 1 s of them computing.
        (alone(3, 3, 3), {"workers": 1}, 100 * 1 / 3),
        # Two workers bring a batch each 1.5 s.
        (alone(3, 3, 3, 3, 3), {"workers": 2}, 100 * 4 / 6),
        # Both share the storage: a batch each 3 s again.
        ([[Read(num_bytes=6)]] * 3, {"workers": 2, "bytes_per_second": 2}, 100 * 1 / 3),
        # A batch of three records of other sizes, request by request: 1 + 2 + 3 s.
        ([[Read(1), Read(2), Read(3)]] * 3, {"workers": 1}, 100 * 1 / 6),
        # All four are asked for at once: the last is there 0.3 s after the third has computed.
        (alone(0.4, 0.4, 0.4, 2.5), {"workers": 1, "prefetch_factor": 4}, 100 * 3 / 3.3),
        # Only one is asked for at once: the last begins with the second step.
        (alone(0.4, 0.4, 2.5), {"workers": 1}, 100 * 2 / 3.5),
        # A pipelined loop asks for it with the first.
        (alone(0.4, 0.4, 2.5), {"workers": 1, "loop": "pipelined"}, 100 * 2 / 2.9),
        # Each wait ends 0.5 s late: 3.5 s for a batch.
        (alone(3, 3, 3), {"workers": 1, "late": 0.5}, 100 * 2 / 7),
    ],
)
def test_the_truth_is_told_by_events(
    batches: list[list[Read]], keys: dict[str, Any], au: float
) -> None:
    given = {"prefetch_factor": 1} | keys
    assert true_au(batches, computation_time=1.0, **given) == pytest.approx(au)


@given(
    st.lists(st.floats(0.1, 5), min_size=3, max_size=40),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from(["rule", "pipelined"]),
)
@settings(max_examples=200, deadline=None)
def test_the_window_of_our_loaders_lets_them_do_what_the_truth_says(
    seconds: list[float], workers: int, factor: int, loop: loops.Loop
) -> None:
    """Batches of several records and other sizes, read by several workers that read ahead."""
    ours = loops.simulate(
        seconds,
        workers=workers,
        ahead=workers * factor,
        computation_time=1.0,
        loop=loop,
        shared=False,
    )
    batches = [[Read(each / 2), Read(each / 2)] for each in seconds]
    truth = true_au(
        batches, workers=workers, prefetch_factor=factor, computation_time=1.0, loop=loop
    )
    assert ours == pytest.approx(truth, abs=1e-6)


@pytest.mark.clock
@pytest.mark.root
@pytest.mark.parametrize(("name", "loader"), _cases())
def test_what_is_found_is_the_truth(name: str, loader: str) -> None:
    for attempt in range(1, _TRIES + 1):
        found = CASES[name, loader]()
        wrong = _wrong(found, _DISK if "disk" in name else _SLOW)
        print(f"{name}, {loader}, try {attempt}: {found}")
        if not wrong:
            return
    if found.late > _LATE * found.step_seconds:
        pytest.skip(f"sleeps of this host ended {found.late * 1e3:.1f} ms late meanwhile: {wrong}")
    pytest.fail(f"{wrong}; {found.evidence}")


def _wrong(found: Found, points: float) -> str:
    """Return what is wrong; empty if nothing is."""
    if found.true_au is not None:
        least = found.true_au if found.late_au is None else found.late_au
        if not least - points <= found.au <= found.true_au + points:
            return f"AU is {found.au:.2f}, not {least:.2f} to {found.true_au:.2f}"
    if found.true_limit not in (None, found.limit):
        return f"the limit is {found.limit}, not {found.true_limit}"
    if found.true_cached is None:
        return ""
    said = np.array([*found.cached, found.resident])
    truth = np.array([*found.true_cached, found.true_cached[0]])
    if np.abs(said - truth).max() > _CACHED:
        return f"the shares from memory, and before, are {said}, not {truth}"
    return ""
