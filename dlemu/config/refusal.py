"""The one line for a key or value that is refused: the key, the bound, the value."""

from collections.abc import Callable, Container, Iterable, Iterator
from typing import get_args

from pydantic import BaseModel, ValidationError

from dlemu.errors import did_you_mean

NO_KEYS = ("ignored", "given", "made_from")
"""Fields of a workload that a user cannot set."""

_BOUNDS = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "greater than {gt:g}",
    "less_than_equal": "at most {le:,.15g}",
    "less_than": "less than {lt:g}",
    "literal_error": "{expected}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_too_short": "text of at least one character",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "finite_number": "a finite number",
    "multiple_of": "a multiple of {multiple_of}",
    "tuple_type": "a list, as [A,B]",
    "model_type": "a group of keys",
}


def describe(
    error: ValidationError,
    model: type[BaseModel],
    ignored: Iterable[str],
    first: Callable[[], Container[str]] = frozenset,
) -> str:
    """Return the first error of a model; `ignored` are keys that are known but not its own.

    `first` returns the keys that are meant rather than others.
    """
    errors = error.errors(include_url=False)
    one = errors[0]
    key = _dotted(one["loc"], model)
    if one["type"] == "extra_forbidden":
        return unknown_key(key, model, ignored, first())
    if one["type"] == "missing":
        return f"{key} is not set"
    if one["type"] == "value_error":
        text = str(one["ctx"]["error"])
        if text.startswith("="):
            return f"{key}{text}"
        if text.startswith(key.split(".")[0]):
            return text
        return f"{key} {text}" if text.startswith("must ") else f"{key}: {text}"
    # For a choice of types pydantic reports an error for each type: their bounds are joined.
    bounds = []
    for other in errors:
        if _dotted(other["loc"], model) == key:
            bound = _BOUNDS.get(other["type"])
            bounds.append(bound.format(**other.get("ctx", {})) if bound else other["msg"])
    return f"{key} must be {' or '.join(dict.fromkeys(bounds))}, got {_shown(one['input'])}"


def unknown_key(
    key: str, model: type[BaseModel], ignored: Iterable[str], first: Container[str] = ()
) -> str:
    """Return the line for an unknown key, with the nearest of its section, or else of any.

    Keys that are `first` come before the others.
    """
    section, _, leaf = key.rpartition(".")
    if leaf in _MEANT and _MEANT[leaf] in model.model_fields:
        return f"unknown key {key}; did you mean {_MEANT[leaf]}?"
    own, theirs = [*known_keys(model)], sorted(ignored)
    beside = [
        [each for each in keys if each.rpartition(".")[0] == section] for keys in (own, theirs)
    ]
    for names in (*beside, [each for each in own if each in first], own, theirs):
        leaves = {name.rpartition(".")[2]: name for name in reversed(names)}
        hint = did_you_mean(leaf, leaves, cutoff=0.7, full=leaves)
        if hint:
            return f"unknown key {key}{hint}"
    return f"unknown key {key}{did_you_mean(key, own, cutoff=0.85)}"


_MEANT = dict.fromkeys(("gpus", "num_gpus", "accelerators"), "num_accelerators")
"""What others call a key."""


def known_keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Yield the dotted names of a model's keys and groups, in its order."""
    for name, field in model.model_fields.items():
        if name not in NO_KEYS:
            yield f"{above}{name}"
            group = group_of(field.annotation)
            if group is not None:
                yield from known_keys(group, f"{above}{name}.")


def group_of(annotation: object) -> type[BaseModel] | None:
    """Return the group of keys that a field holds, though it may be None instead."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(group_of, get_args(annotation))), None)


def _shown(value: object) -> str:
    """Return a value as it is shown beside its bound."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return repr(value)
    return f"{value:,.0f}" if abs(value) < 1e15 and value == int(value) else f"{value:,}"


def _dotted(location: Iterable[int | str], model: type[BaseModel]) -> str:
    """Return a key without the names that pydantic gives to the types of a choice."""
    parts: list[str] = []
    group: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int):
            parts[-1] += f"[{part}]"
            continue
        if group is None:
            break
        parts.append(part)
        field = group.model_fields.get(part)
        group = group_of(field.annotation) if field is not None else None
    return ".".join(parts)
