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
from dlemu.storage.place import Place
from dlemu.units import format_bytes, format_seconds

_OBJECT_BYTES = 64 << 10
slurm_seconds = 5.0
"""Slurm's programs wait for a controller that is down."""
_FOR_SLURM = {"pmi2": "srun --mpi=pmi2 with MPICH", "pmix": "srun --mpi=pmix with Open MPI"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "missing", "note"]
    """"note": it works, but slower or otherwise than expected."""
    found: str
    remedy: str = ""


def slurm() -> Iterator[Check]:
    """Say what `srun` takes so that its processes find each other; no line without Slurm."""
    if shutil.which("srun") is None:
        return
    try:
        kinds = {line.strip() for line in _told("srun", "--mpi=list").splitlines()}
        default = re.search(r"MpiDefault\s*=\s*(\S+)", _told("scontrol", "show", "config"))
    except (subprocess.TimeoutExpired, OSError):
        yield Check("Slurm", "note", "does not answer", "scontrol ping tells whether it is up")
        return
    fits = [kind for kind in _FOR_SLURM if any(re.match(rf"{kind}\b", each) for each in kinds)]
    given = default[1] if default else "unknown, for slurmctld does not answer"
    found = f"takes --mpi={' and --mpi='.join(fits) or 'of no MPI'}; without it: {given}"
    if default and default[1] in fits:
        yield Check("Slurm", "ok", found)
    else:
        ways = ", or ".join([*(_FOR_SLURM[kind] for kind in fits), "mpirun inside salloc"])
        yield Check("Slurm", "note", found, f"each rank is alone then; write {ways}")


def _told(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=slurm_seconds)
    return done.stdout + done.stderr


def bucket(place: Place) -> Iterator[Check]:
    """Reach a bucket, write an object of our own, read it back, and remove it."""
    module, extra = place.needs
    if module and importlib.util.find_spec(module) is None:
        yield Check(module, "missing", "not installed", f"pip install '{extra}'")
        return
    try:
        holds = "something" if next(iter(place.list("")), None) else "nothing yet"
        where = ", ".join(place.servers)
        yield Check("bucket", "ok", f"{place.path} can be listed, and holds {holds}; {where}")
    except (DlemuError, OSError) as error:
        yield Check("bucket", "missing", in_short(error))
        return
    name, data = f".dlemu-doctor.{secrets.token_hex(4)}", secrets.token_bytes(_OBJECT_BYTES)
    try:
        place.put(name, [data])
        begun = time.perf_counter()
        is_same = place.open(name).read() == data
        took = format_seconds(time.perf_counter() - begun)
    except (DlemuError, OSError) as error:
        remedy = "reading needs no right to write; datagen and checkpoints do"
        yield Check("objects", "note", f"none was written: {in_short(error)}", remedy)
    else:
        found = f"{format_bytes(len(data))} written; read back in {took}"
        yield (
            Check("objects", "ok", found)
            if is_same
            else Check("objects", "missing", "what was written is not what is read")
        )
    finally:
        with suppress(DlemuError, OSError):
            place.delete(name)
