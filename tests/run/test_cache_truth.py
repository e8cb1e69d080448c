"""The AU of a cold, a mixed and warm epochs between two drives of known rates."""

from pathlib import Path
from statistics import fmean

import pytest

from tests.lab.bench import sleeps_late
from tests.lab.cache_truth import Case, run
from tests.lab.drives import own_drive

_TRIES, _POINTS = 3, 2.0
_IMAGE_BYTES = 256 << 20
_LATE = 0.02
"""Of a step: a host whose own sleeps end later cannot be told from a slow cache."""


@pytest.mark.clock
@pytest.mark.waits
@pytest.mark.root
@pytest.mark.parametrize(
    "case",
    [
        Case("cold, then warm", 100e6, {"train.epochs": 2}, num_files=96, sample=2_000_000),
        Case(
            "a third is kept",
            100e6,
            {"train.epochs": 2, "cache.capacity": 0.33, "cache.policy": "keep"},
            num_files=96,
            sample=2_000_000,
        ),
    ],
)
def test_the_au_is_that_of_the_supply(case: Case, tmp_path: Path) -> None:
    """A busy host computes less, so there are several tries."""
    for attempt in range(1, _TRIES + 1):
        with own_drive(_IMAGE_BYTES) as origin, own_drive(_IMAGE_BYTES) as cache:
            folders = {"origin": origin, "cache": cache, "out": tmp_path / str(attempt)}
            with sleeps_late() as late:
                rows = run(case, folders)
        print(f"try {attempt}: {rows}")
        if all(abs(row.found - row.true) <= _POINTS for row in rows):
            break
    else:
        if fmean(late) > _LATE * 2 * case.sample / case.demand:
            pytest.skip(f"sleeps of this host ended {fmean(late) * 1e3:.1f} ms late meanwhile")
        pytest.fail(f"AU found and true: {[(row.found, row.true) for row in rows]}")
    assert rows[0].hits == 0
    assert rows[1].true > rows[0].true + 15
