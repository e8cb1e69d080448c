"""What `dlemu doctor` finds out about a bucket and about Slurm, by asking them."""

import importlib.util
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from dlemu.errors import DlemuError, in_short
from dlemu.findings import Finding, as_written, note
from dlemu.storage.place import Place

_OBJECT_BYTES = 64 << 10
slurm_seconds = 5.0
"""Slurm's programs wait for a controller that is down."""
_FOR_SLURM = ("pmi2", "pmix")
"""What `srun --mpi=` takes for ranks that find each other: of MPICH, and of Open MPI."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "missing", "note"]
    """"note": it works, but slower or otherwise than expected."""
    found: Finding
    remedy: Finding | None = None


def slurm() -> Iterator[Check]:
    """Say what `srun` takes so that its processes find each other; no line without Slurm."""
    if shutil.which("srun") is None:
        return
    try:
        kinds = {line.strip() for line in _told("srun", "--mpi=list").splitlines()}
        default = re.search(r"MpiDefault\s*=\s*(\S+)", _told("scontrol", "show", "config"))
    except (subprocess.TimeoutExpired, OSError):
        yield Check("Slurm", "note", note("no_answer"), note("ask_scontrol"))
        return
    fits = [kind for kind in _FOR_SLURM if any(re.match(rf"{kind}\b", each) for each in kinds)]
    found = note("slurm_takes", kinds=fits, default=default[1] if default else None)
    if default and default[1] in fits:
        yield Check("Slurm", "ok", found)
    else:
        yield Check("Slurm", "note", found, note("ranks_are_alone", kinds=fits))


def _told(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=slurm_seconds)
    return done.stdout + done.stderr


def bucket(place: Place) -> Iterator[Check]:
    """Reach a bucket, write an object of our own, read it back, and remove it."""
    module, extra = place.needs
    if module and importlib.util.find_spec(module) is None:
        remedy = note("install", package=extra, only_for=None)
        yield Check(module, "missing", note("not_installed"), remedy)
        return
    try:
        is_empty = next(iter(place.list("")), None) is None
        about = {"path": str(place.path), "servers": list(place.servers)}
        yield Check("bucket", "ok", note("bucket_listed", **about, is_empty=is_empty))
    except (DlemuError, OSError) as error:
        yield Check("bucket", "missing", as_written(in_short(error)))
        return
    name, data = f".dlemu-doctor.{secrets.token_hex(4)}", secrets.token_bytes(_OBJECT_BYTES)
    try:
        place.put(name, [data])
        begun = time.perf_counter()
        is_same = place.open(name).read() == data
        took = time.perf_counter() - begun
    except (DlemuError, OSError) as error:
        why = note("not_written", error=in_short(error))
        yield Check("objects", "note", why, note("reading_needs_no_right"))
    else:
        found = note("object_read", bytes=len(data), seconds=took)
        yield (
            Check("objects", "ok", found)
            if is_same
            else Check("objects", "missing", note("object_differs"))
        )
    finally:
        with suppress(DlemuError, OSError):
            place.delete(name)
