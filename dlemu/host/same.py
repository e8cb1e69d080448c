"""Whether figures that were measured before hold now: they are of one storage, host and dataset.

A search, a sweep and a calibration keep with their figures what they depend on, in words. The next
command compares that with what is there now.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlemu.host.place import name_storage
from dlemu.units import counted, format_seconds

OLD_SECONDS = 3600.0
"""Figures that are older are not taken unless they are asked for by name."""
_FILES = "files of the dataset"


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
        at = f" at {', '.join(servers)}" if servers else ""
        storage = {"bucket": f"{folder}{at}"}
    elif folder is not None:
        storage = name_storage(folder)
    host = f"{', '.join(hosts)} with {counted(os.cpu_count() or 1, 'CPU')}"
    return {**storage, "host": host, **versions}


def dataset_identity(layout: Mapping[str, Any]) -> dict[str, str]:
    """Return what identifies a dataset, from the fields of its layout.

    The number of files stands alone, as datagen extends a dataset.
    """
    fields = {name: each for name, each in sorted(layout.items()) if name != "num_files"}
    digest = hashlib.sha256(repr(fields).encode()).hexdigest()[:12]
    kind, size, seed = (fields[name] for name in ("format", "mean_bytes", "seed"))
    words = f"{kind} of {size:,.0f} bytes, seed {seed} ({digest})"
    return {"dataset": words, _FILES: f"{layout['num_files']:,}"}


def what_differs(then: object, now: Mapping[str, str], *, may_grow: bool = False) -> str:
    """Return "drive loop1, was loop0; torch 2.2, was 2.1"; "" where all is the same.

    `then` was stored; where nothing was, what is now cannot be compared. `may_grow`: a dataset that
    was extended is the same.
    """
    if not isinstance(then, Mapping) or not then:
        return "nothing tells of which drive, dataset and host"
    names = [name for name in {**now, **then} if then.get(name) != now.get(name)]
    if may_grow and _FILES in names and _number(now) > _number(then):
        names.remove(_FILES)
    return "; ".join(
        f"{name} {now.get(name, 'none')}, was {then.get(name, 'none')}" for name in names
    )


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


def why_not_taken(folder: Path, other: str, age: float | None) -> str:
    """Return the line for a search that is not taken up; "" where it is.

    `other` is what differs, `age` the seconds since its last run.
    """
    if other:
        return f"{folder} has this search of something else ({other}); a new one begins"
    if age is not None and age <= OLD_SECONDS:
        return ""
    return (
        f"{folder} has this search, but {age_in_words(age)}; a new one begins; to go on with that "
        f"one: output.folder={folder}"
    )


def differing_here(age: float | None, other: str) -> str:
    """Return how old figures are, and what differs here."""
    return age_in_words(age) + (f"; here {other}" if other else "")


def age_in_words(age: float | None) -> str:
    """Return "12:05 old"; times of a day are stored to the second, so none is younger than that."""
    return "of unknown age" if age is None else f"{format_seconds(max(1, round(age)))} old"
