"""Sums of records whose accelerators belong to named ranks."""

from collections.abc import Sequence

import numpy as np

from dlemu.judge.records import Steps
from dlemu.judge.sums import Rule, Sums, sum_all


def sums_of(steps: Steps, names: Sequence[str], rule: Rule | None = None) -> Sums:
    """Return the sums of records, any shape; `names` has the rank of each accelerator."""
    flat, owners = steps.ravel(), np.asarray(names)
    parts = (
        (name, flat[np.isin(flat["accelerator"], np.flatnonzero(owners == name))])
        for name in dict.fromkeys(names)
    )
    return sum_all(parts, rule or Rule())
