"""Who says the words of a job, and what such words may do.

| who | import a module | interpolate | say where is written, or read elsewhere |
|---|---|---|---|
| USER: the command line, a caller, and the files that they name | any | yes | yes |
| INSTALLED: rows of dlemu's, parts that packages register | what is registered | no | no |
| FOUND: a document in a folder, of a dataset or of a result | what is registered | no | no |

A folder may be a stranger's. What is found in it is values, and values alone.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any

from dlemu.errors import WorkloadError
from dlemu.plugins import Registry, is_url, named_place

PATH_KEYS = frozenset(
    {
        "dataset.data_folder",
        "storage.storage_root",
        "output.folder",
        "output.log",
        "predict.calibration",
        "cache.folder",
        "cache.origin",
        "checkpoint.checkpoint_folder",
    }
)
"""Keys whose value is one path: on the command line it is taken as it stands."""

OF_FOLDER = frozenset({"dataset.data_folder", "storage.storage_root"})
"""Keys in whose place comes the folder in which a document was found."""
_PLACES = PATH_KEYS | {
    *("cache.devices", "size.targets", "size.workloads", "storage.endpoint_url", "storage.proxy"),
    *("storage.ca_file", "storage.endpoint_uris", "storage.storage_options.endpoint_url"),
}
"""Keys that say where is written or read, DLIO's spellings among them."""
_URLS = frozenset({"dataset.data_folder", "checkpoint.checkpoint_folder", "size.targets"})
"""Keys whose values may be URLs, of which the first part names a place that is imported."""
SIZES = "dataset.record_length_bytes_distribution"
"""A key that may name a file of sizes."""
_FUNCTIONS = frozenset({"steptime.model", "steptime.preprocess", "train.network"})
"""Keys that may name a function of a module."""
_ENTRY = re.compile(r"(?:override )?/?\w[\w -]*(?:/\w[\w-]*)?")
"""What `defaults` of a found file may hold: names of rows, and of groups."""


class WordSource(Enum):
    """Who says words."""

    USER = "user"
    INSTALLED = "installed"
    FOUND = "found"


def check_found(path: Path, tree: Mapping[str, Any]) -> None:
    """Refuse what would interpolate, or would lead Hydra to other files, in a file that was found.

    Raises:
        WorkloadError: the line says which word of the user's allows it.
    """
    for text in _texts(tree):
        if "${" in text:
            raise _only_users(path, f"an interpolation, {text[:80]!a}")
    if "hydra" in tree:
        raise _only_users(path, "settings of Hydra")
    for text in _texts(tree.get("defaults", ())):
        if not _ENTRY.fullmatch(text) or "hydra" in text:
            raise _only_users(path, f"defaults: {text[:80]!a}")


def refuse_beyond(path: Path, leaves: Iterable[tuple[str, object]], said: Container[str]) -> None:
    """Refuse keys of a file that was found which only a user may say; he has `said` some.

    Raises:
        WorkloadError: the line says which word of the user's allows it.
    """
    for key, value in beyond(leaves):
        if key not in said and key not in OF_FOLDER:
            raise _only_users(path, f"{key}={str(value)[:80]!a}", key)


def _only_users(path: Path, what: str, key: str = "") -> WorkloadError:
    name = f"{key}=... or " if key else ""
    return WorkloadError(
        f"{path} was found by a dataset and has {what}, which only you may say; add "
        f"{name}workload={path}, if it is yours"
    )


def beyond(leaves: Iterable[tuple[str, object]]) -> Iterator[tuple[str, object]]:
    """Yield the dotted keys, with values, that import, or say where is read or written."""
    for key, value in leaves:
        is_place = key in _PLACES and value not in (None, "", [], ())
        if is_place or acts(key, value) or (key in _FUNCTIONS and ":" in str(value)):
            yield key, value


def acts(key: str, value: object) -> bool:
    """Return whether a check of this value imports what nobody registered, or opens a file."""
    if key in ("drive", "model"):
        return str(value).endswith((".yaml", ".yml"))
    if (registry := _registries().get(key)) is not None:
        return isinstance(value, str) and not registry.trusts(value)
    if key in _URLS:
        return any(not _places().trusts(name) for name in _named_places(value))
    return key == SIZES and value not in (None, "normal", "lognormal")


def _named_places(value: object) -> Iterator[str]:
    """Yield the names of the places in the URLs of a key."""
    return (named_place(text) for text in _texts(value) if is_url(text))


def _places() -> Registry[Any]:
    from dlemu.storage.place import PLACES  # slow, and few commands need it

    return PLACES


def _registries() -> dict[str, Registry[Any]]:
    """Return the parts that keys name; data_reader is DLIO's name of the reader."""
    from dlemu.config.sections import POLICIES  # slow, and few commands need them
    from dlemu.config.types import LOADERS
    from dlemu.formats import FORMATS

    loaders = dict.fromkeys(("reader.data_loader", "data_reader.data_loader"), LOADERS)
    return {"dataset.format": FORMATS, "cache.policy": POLICIES, **loaders}


def taken_from_here(workload: Any) -> Iterator[tuple[str, str]]:
    """Yield each part of a job that a user takes from the working directory: `key=name`, and where.

    A place stands as `key=name://...`.
    """
    registries = _registries()
    del registries["data_reader.data_loader"]
    for key, registry in registries.items():
        name = attrgetter(key)(workload)
        if place := registry.taken_from_here(name):
            yield f"{key}={name}", place
    for key in sorted(_URLS):
        for name in _named_places(attrgetter(key)(workload)):
            if place := _places().taken_from_here(name):
                yield f"{key}={name}://...", place


def _texts(value: object) -> Iterator[str]:
    """Yield all texts of a tree, keys among them."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value
