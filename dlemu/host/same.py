"""Whether figures that were measured before hold now: they are of one storage, host and dataset.

A search, a sweep and a calibration keep with their figures what they depend on, in words. The next
command compares that with what is there now.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from dlemu.findings import Finding, note
from dlemu.host.place import name_storage
from dlemu.units import counted

OLD_SECONDS = 3600.0
"""Figures that are older are not taken unless they are asked for by name."""
_FILES: Literal["files of the dataset"] = "files of the dataset"


def identity_of(
    folder: Path | None,
    *,
    hosts: Sequence[str],
    versions: Mapping[str, str],
    servers: Sequence[str] | None = None,
) -> dict[str, str]:
    """Return what figures of a storage depend on beside the keys, each in words, by its name.

    `versions` are those of the software, `servers` are those of a bucket or the like. Without a
    folder they are of no storage.
    """
    storage = {}
    if servers is not None:
        name = f"{folder} at {', '.join(servers)}" if servers else f"{folder}"
        storage = {"bucket": name}
    elif folder is not None:
        storage = name_storage(folder)
    name = f"{', '.join(hosts)} with {counted(os.cpu_count() or 1, 'CPU')}"
    return {**storage, "host": name, **versions}


def dataset_identity(layout: Mapping[str, Any]) -> dict[str, str]:
    """Return what identifies a dataset, from the fields of its layout.

    The number of files stands alone, as datagen extends a dataset.
    """
    fields = {name: each for name, each in sorted(layout.items()) if name != "num_files"}
    digest = hashlib.sha256(repr(fields).encode()).hexdigest()[:12]
    kind, size, seed = (fields[name] for name in ("format", "mean_bytes", "seed"))
    name = f"{kind} of {size:,.0f} bytes, seed {seed} ({digest})"
    return {"dataset": name, _FILES: f"{layout['num_files']:,}"}


def what_differs(then: object, now: Mapping[str, str], *, may_grow: bool = False) -> Finding | None:
    """Return which names have other values now, each with both; None where all is the same.

    `then` was stored; where nothing was, what is now cannot be compared. `may_grow`: a dataset that
    was extended is the same.
    """
    if not isinstance(then, Mapping) or not then:
        return note("identity_unknown")
    names = [name for name in {**now, **then} if then.get(name) != now.get(name)]
    if may_grow and _FILES in names and _number(now) > _number(then):
        names.remove(_FILES)
    if not names:
        return None
    both = {name: (now.get(name, "none"), then.get(name, "none")) for name in names}
    return note("identity_differs", keys=both)


def _number(identity: Mapping[str, Any]) -> int:
    text = str(identity.get(_FILES, "0")).replace(",", "")
    return int(text) if text.isdecimal() else 0


def age_of(measured: object) -> float | None:
    """Return the seconds since a time of day, as `time_of_day` writes it.

    None: none is known, or it lies in the future, as after a clock was set back.
    """
    try:
        age = (datetime.now(UTC) - datetime.fromisoformat(str(measured))).total_seconds()
    except (ValueError, TypeError):  # not a time, or one without its zone
        return None
    return age if age >= -1 else None


def why_not_taken(folder: Path, other: Finding | None, age: float | None) -> Finding | None:
    """Return why a search is not taken up; None where it is.

    `other` is what differs, `age` the seconds since its last run.
    """
    if other is not None:
        return note("search_of_others", folder=str(folder), differs=other.fields)
    if age is not None and age <= OLD_SECONDS:
        return None
    return note("search_is_old", folder=str(folder), age_seconds=age)
