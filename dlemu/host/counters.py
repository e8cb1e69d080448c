"""Growth and sum of counters: numbers, records of counters, and tables of them by name.

What one of them does not know, or a table lacks, is unknown: None, or left out of the table.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, fields, is_dataclass, replace
from itertools import chain
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")


def growth(now: T, earlier: T) -> T:
    """Return how much counters grew; None where one has begun anew meanwhile.

    A file system that is mounted again, or a cgroup that has gone, starts a counter at 0.
    """
    grown: T = _each(lambda end, begin=inf: end - begin if end >= begin else None, (now, earlier))
    return grown


def total(counts: Sequence[T]) -> T:
    """Return the sum of at least one."""
    summed: T = _each(lambda *values: sum(values), counts)
    return summed


def _each(work: Callable[..., Any], counts: Sequence[Any]) -> Any:
    """Return what `work` makes of each number."""
    first = counts[0]
    if any(each is None for each in counts):
        return None
    if isinstance(first, dict):
        names = dict.fromkeys(chain(*counts))
        made = {n: _each(work, [each[n] for each in counts if n in each]) for n in names}
        return {name: value for name, value in made.items() if None not in _numbers(value)}
    if not is_dataclass(first):
        return work(*counts)
    parts = {
        field.name: _each(work, [getattr(each, field.name) for each in counts])
        for field in fields(first)
    }
    return replace(first, **parts)  # type: ignore[type-var]


def _numbers(value: Any) -> tuple[Any, ...]:
    return astuple(value) if is_dataclass(value) and not isinstance(value, type) else (value,)
