"""The published row that a job was made from, and in which keys it differs from it."""

from collections.abc import Collection
from functools import cache

from dlemu.workload.compose import known_workloads
from dlemu.workload.model import Workload, leaves, load_workload, use_of
from dlemu.workload.refusal import NO_KEYS


def published_row(workload: Workload) -> Workload | None:
    """Return the published workload that a job was made from; None where it is of its own."""
    names = (workload.made_from, workload.name)
    name = next((name for name in names if name in known_workloads()), None)
    return None if name is None else _published(name)


_published = cache(load_workload)


def differing(
    workload: Workload, row: Workload, but: Collection[str] = ()
) -> dict[str, tuple[object, object]]:
    """Return the keys in which a job differs from a published row, with both values.

    Left out are keys that the closed division may change, or that change no run, and `but`.
    """
    was = dict(leaves(row.model_dump()))
    return {
        key: (value, was.get(key))
        for key, value in leaves(workload.model_dump())
        if was.get(key) != value and not (use_of(key).closed or key in but or key in NO_KEYS)
    }


def is_measured(name: str) -> bool:
    """Return whether a row that comes with dlemu has a step time that `dlemu steptime` measured."""
    return name.endswith(("_h200", "_real_h100"))
