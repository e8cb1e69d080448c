"""What a key may be, in words; and the line for one that is refused: the key, these, the value."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic_core import PydanticUndefined

from dlemu.errors import did_you_mean

NO_KEYS = ("ignored", "given", "made_from")
"""Fields of a workload that a user cannot set."""


@dataclass(frozen=True)
class Names:
    """Names that a key takes, though its type does not say them."""

    known: Callable[[], Iterable[str]]


@dataclass(frozen=True)
class ParsedText(BeforeValidator):
    """Reads values that people write, with a unit."""

    words: str = ""
    """Their unit, with an example."""


_SPANS = {
    "gt": "above {}",
    "ge": "at least {}",
    "le": "at most {}",
    "multiple_of": "a multiple of {}",
    "min_length": "not empty",
    "max_length": "of at most {}",
}
_KINDS = {
    "int": "whole number",
    "float": "number",
    "str": "text",
    "SecretStr": "text, never shown",
    "Path": "path",
}
"""By the name of a type: pydantic takes a hundredth of a second to bring one of its own."""


def allowed(hint: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the choices that a type allows, and in words what else it does."""
    found = [*_allowed(hint, {})]
    choices = dict.fromkeys(text for is_choice, text in found if is_choice)
    return tuple(choices), tuple(dict.fromkeys(text for is_choice, text in found if not is_choice))


def in_words(choices: Sequence[str], kinds: Sequence[str]) -> str:
    """Return what `allowed` found in one line."""
    return " or ".join([", ".join(choices), *kinds] if choices else kinds)


def _allowed(hint: object, bounds: Mapping[str, float]) -> Iterator[tuple[bool, str]]:
    """Yield what a type allows: whether it is a choice, and its text."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base, *marks = inner
        for each in (each for mark in marks for each in getattr(mark, "metadata", ())):
            bounds = {**bounds, **{b: getattr(each, b) for b in _SPANS if hasattr(each, b)}}
        for mark in marks:
            if isinstance(mark, Names):
                yield from ((True, name) for name in mark.known())
        if said := [mark.words for mark in marks if isinstance(mark, ParsedText)]:
            yield False, f"{said[-1]}{_span(bounds)}"
        else:
            yield from _allowed(base, bounds)
    elif origin is Literal:
        yield from ((True, written(value)) for value in inner)
    elif inner and origin is tuple:
        each = in_words(*allowed(inner[0]))
        yield False, f"list [A,B,...]{_span(bounds)}, each {each}"
    elif inner:  # a choice of types
        for each in inner:
            yield from _allowed(each, bounds)
    elif hint is bool:
        yield from ((True, "true"), (True, "false"))
    elif isinstance(hint, type) and issubclass(hint, BaseModel):
        yield False, "a group of keys"
    elif kind := _KINDS.get(getattr(hint, "__name__", "")):
        yield False, f"{kind}{_span(bounds)}"


def _span(bounds: Mapping[str, float]) -> str:
    """Return ", 1 to 1,000", or the part of it that is known."""
    shown = {name: _number(bound) for name, bound in bounds.items()}
    low, high = shown.get("ge"), shown.get("le")
    parts = []
    if low is not None and high is not None:
        parts = [f"{low} to {high}" if low != high else f"only {low}"]
        shown = {name: bound for name, bound in shown.items() if name not in ("ge", "le")}
    parts += [said.format(shown[name]) for name, said in _SPANS.items() if name in shown]
    return "".join(f", {part}" for part in parts)


def _number(value: float) -> str:
    return f"{value:.4g}" if value >= 2**40 else f"{value:,}".removesuffix(".0")


def written(value: object) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, BaseModel):
        return written(getattr(value, "mean", None))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if value is PydanticUndefined:
        return ""
    if isinstance(value, tuple):
        return f"[{','.join(map(written, value))}]"
    return "null" if value is None else str(value)


def describe(
    error: ValidationError,
    model: type[BaseModel],
    ignored: Iterable[str],
    first: Callable[[], Container[str]] = frozenset,
) -> str:
    """Return the first error of a model; `ignored` are keys that are known but not its own.

    `first` returns the keys that are meant rather than others.
    """
    one = error.errors(include_url=False)[0]
    key, hint = _place(one["loc"], model)
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
    choices, kinds = allowed(hint)
    kinds = tuple(re.sub("^(whole|number|list|path)", r"a \1", kind) for kind in kinds)
    if not kinds:
        choices, kinds = choices[:-1], choices[-1:]
    return f"{key} must be {in_words(choices, kinds)}, got {_shown(one['input'])}"


def missing_key(error: ValidationError) -> str:
    """Return the key that is not set, where that is a model's first error; else ""."""
    one = error.errors(include_url=False)[0]
    return ".".join(map(str, one["loc"])) if one["type"] == "missing" else ""


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
"""Other tools' names of our keys."""


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


def _place(location: Iterable[int | str], model: type[BaseModel]) -> tuple[str, object]:
    """Return a key and its type, without the names that pydantic gives to the types of a choice."""
    parts: list[str] = []
    group: type[BaseModel] | None = model
    hint: object = model
    for part in location:
        if isinstance(part, int):
            parts[-1] += f"[{part}]"
            hint = next(each for each in _types(hint) if get_origin(each) is tuple)
            hint = get_args(hint)[0]
            group = group_of(hint)
        elif group is None:
            break
        else:
            parts.append(part)
            hint = get_type_hints(group, include_extras=True).get(part)
            group = group_of(hint)
    return ".".join(parts), hint


def _types(hint: object) -> Iterator[object]:
    """Yield a type, and those that it is a choice of."""
    yield hint
    if get_origin(hint) is not tuple:
        for each in get_args(hint):
            yield from _types(each)
