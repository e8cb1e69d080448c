"""What a published row stands for, and in which keys a job differs from it."""

from collections.abc import Collection
from functools import cache

from dlemu.units import format_seconds
from dlemu.workload.compose import known_workloads
from dlemu.workload.derived import origin_of
from dlemu.workload.model import Workload, leaves, load_workload, use_of
from dlemu.workload.refusal import NO_KEYS

_PUBLISHED, _REAL = "_h100", "_real_h100"
_WORTH_SAYING = 1.3
"""From this factor between published and measured step on, in either direction, it is said."""


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
    return name.endswith(("_h200", _REAL))


def what_it_stands_for(workload: Workload) -> str:
    """Return a line about the row's computation_time, or "" if there is nothing to say.

    Said of MLPerf Storage's H100 rows only, beside a real H100 with plain PyTorch.
    """
    published = origin_of(workload)
    if published is None or is_measured(published.name):
        return ""
    measured_name = f"{published.name.removesuffix(_PUBLISHED)}{_REAL}"
    if measured_name not in known_workloads():
        return ""
    same = published.train.computation_time, published.reader.batch_size
    if same != (workload.train.computation_time, workload.reader.batch_size):
        return ""
    measured = load_workload(measured_name)
    step, real = published.train.computation_time.mean, measured.train.computation_time.mean
    if max(step / real, real / step) <= _WORTH_SAYING:
        return ""
    return (
        f"{published.name} is MLPerf Storage's H100, {format_seconds(step)} a step; a real one "
        f"with PyTorch in bf16 took {format_seconds(real)} and reads {step / real:.1f} times as "
        f"fast (workload={measured_name}; docs/fidelity.md)"
    )
