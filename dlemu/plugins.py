"""Parts of dlemu that have names: the house's own, those of installed packages, and the user's.

A package registers its own by an entry point. A user names a module of his own by its dotted path;
it is imported as `python -m` would import it.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, TypeVar

from dlemu.errors import in_short

_Part = TypeVar("_Part")


class UnknownPartError(ValueError):
    """Nobody knows the name of a part."""


class UnusablePartError(ValueError):
    """What a name means is no such part, or cannot be imported."""

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        super().__init__(f"={name} {problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


def own_version() -> str:
    """Return the version of dlemu, or that it is not installed: a checkout may run as it is."""
    from importlib.metadata import PackageNotFoundError, version  # slow, and few commands need it

    try:
        return version("dlemu")
    except PackageNotFoundError:
        return "(a checkout that is not installed)"


def named_by(place: str) -> Any:
    """Return what MODULE:NAME names; NAME may have dots. The module is imported now."""
    module, _, name = place.partition(":")
    return attrgetter(name)(import_module(module))


def _find_modules_here() -> str:
    """Put the working directory on Python's path, for what a user names; return it."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    return here


def is_url(text: str) -> bool:
    """Return whether a text names files in a place that is no folder: PLACE://..."""
    return "://" in text


def named_place(text: str) -> str:
    """Return the name of the place in a URL; "" of a folder."""
    name, mark, _ = text.partition("://")
    return name if mark else ""


class Registry(Mapping[str, _Part]):
    """Parts of one kind by name. A part is imported when it is asked for."""

    def __init__(
        self, group: str, kind: type[_Part], attribute: str, remedy: str, **house: str
    ) -> None:
        """`group`: of entry points. `attribute`: what a part is called in its module.

        `remedy` ends the line on a part that cannot be used. `house`: the names of the house's own,
        each with its module, or MODULE:ATTRIBUTE.
        """
        self._group, self._kind, self._attribute = group, kind, attribute
        self._help, self._house = remedy, house
        self._loaded: dict[str, _Part] = {}

    def __getitem__(self, name: str) -> _Part:
        """Return a part.

        Raises:
            ValueError: nobody knows the name (UnknownPartError), or what it names is no such part.
                The text stands behind the key: "must be ...", or "=NAME ...".
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name, self.place(name))
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._house, *self._installed])

    def __len__(self) -> int:
        return len(self._house) + len(self._installed)

    def place(self, name: str) -> str:
        """Return the module of a part, or MODULE:ATTRIBUTE. Nothing is imported.

        Raises:
            UnknownPartError: nobody knows the name.
        """
        if name in self._house:
            return self._house[name]
        place = name if {*".:"} & {*name} else self._installed.get(name)
        if place is None:
            *most, last = map(repr, self)
            raise UnknownPartError(
                f"must be {', '.join(most)} or {last}, or the dotted path of a module, got {name!r}"
            )
        return place

    @property
    def house(self) -> frozenset[str]:
        """Names of the house's own parts."""
        return frozenset(self._house)

    def trusts(self, name: str) -> bool:
        """Return whether a name that a file holds may be imported: a user has named it as well."""
        return name in self._loaded or self._is_registered(name)

    def taken_from_here(self, name: str) -> str:
        """Return the file or folder in the working directory that has a user's part; "" if none."""
        if self._is_registered(name):
            return ""
        here, places = _find_modules_here(), list[str | None]()
        with suppress(ValueError, ImportError):  # its import shows them
            spec = find_spec(name.partition(":")[0].partition(".")[0])
            places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        return next((each for each in places if each and os.path.dirname(each) == here), "")

    def _is_registered(self, name: str) -> bool:
        return name in self._house or name in self._installed

    @cached_property
    def _installed(self) -> dict[str, str]:
        from importlib.metadata import entry_points

        return {each.name: each.value for each in entry_points(group=self._group)}

    def _load(self, name: str, place: str) -> _Part:
        if not self._is_registered(name):
            _find_modules_here()
        try:
            found = named_by(place if ":" in place else f"{place}:{self._attribute}")
            if not isinstance(found, self._kind):
                raise TypeError(f"{found!r:.80} is no {self._kind.__name__}")
        except Exception as error:  # whatever a user's module raises
            if name in self._house:
                raise
            why = f"{type(error).__name__}: {in_short(error)}"
            raise UnusablePartError(name, f"cannot be used ({why})", self._help) from error
        return found
