"""One record per step and accelerator, and the folder that a run leaves behind.

Raw steps are stored and every metric is computed from them, so that a definition can be corrected
later and `dlemu report` can apply another edition's.

    summary.json       what the run came to; `status` tells whether it may be believed
    steps.<rank>.npy   the records, one structured array a rank
    config.yaml        the workload as it was run
    host.<rank>.jsonl  what each host's devices and CPUs did meanwhile
"""

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.lib.recfunctions import require_fields
from numpy.typing import NDArray

from dlemu.errors import RunError, WorkloadError
from dlemu.regular import open_regular, read_regular
from dlemu.workload import Workload

SUMMARY = "summary.json"
CONFIG = "config.yaml"

STEP = np.dtype(
    [
        ("epoch", np.int32),
        ("step", np.int32),
        ("accelerator", np.int32),
        ("num_samples", np.int32),
        ("num_bytes", np.int64),  # really read for the batch
        ("start", np.float64),  # seconds on the rank's own clock
        ("wait", np.float64),  # for the batch
        ("overhead", np.float64),  # of a real loop: the device idle or copying, batch at hand
        ("compute", np.float64),  # measured
        ("barrier", np.float64),  # for the other accelerators
        ("computation_time", np.float64),  # asked for
        ("read", np.float64),  # seconds of the workers in read calls, summed
        ("decode", np.float64),  # in parsing, checking, cutting
        ("hand_over", np.float64),  # in giving the batch to training
    ]
)

Steps = NDArray[np.void]
"""A structured array of STEP, any shape."""


def make_folder(workload: Workload) -> Path:
    """Make and return the run's folder; to be called by rank 0 alone.

    Raises:
        WorkloadError: it holds a run already, or cannot be written.
    """
    if workload.output.folder is not None:
        folder = Path(workload.output.folder)
    else:
        now = datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = Path("outputs") / workload.name / now
        number = 1
        while folder.exists():
            number += 1
            folder = folder.with_name(f"{now}-{number}")
    if (folder / SUMMARY).exists():
        raise WorkloadError(
            f"output.folder {folder} holds a run already; name another, or remove it"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(dump_workload(workload))
    except OSError as error:
        raise WorkloadError(
            f"output.folder {folder} cannot be written ({error.strerror}); set output.folder"
        ) from None
    return folder


def dump_workload(workload: Workload) -> str:
    """Return a workload as YAML that load_workload reads back."""
    tree = plain(workload.model_dump(mode="json"))
    tree.pop("given", None)
    tree.pop("ignored", None)
    return yaml.safe_dump(tree, sort_keys=False)


def write_steps(folder: Path, rank: int, steps: Steps) -> None:
    """Write a rank's records, whole or not at all.

    Raises:
        RunError: the disk is full or read-only.
    """
    array = io.BytesIO()  # NumPy's own writing to a file hides why it failed
    np.save(array, steps)
    with _whole(folder / f"steps.{rank}.npy") as part:
        part.write_bytes(array.getbuffer())


def read_steps(folder: Path) -> Steps:
    """Return the records of all ranks of a run, one row a step and accelerator.

    Raises:
        RunError: the folder holds none, or a damaged file.
    """
    paths = sorted(folder.glob("steps.*.npy"), key=lambda path: (len(path.name), path.name))
    if not paths:
        raise RunError(f"{folder} holds no steps.<rank>.npy; is it a run's folder?")
    parts = []
    for path in paths:
        try:
            with open(open_regular(path, error=RunError), "rb") as file:
                part = np.lib.format.read_array(file)
        except (ValueError, OSError) as error:
            raise RunError(f"{path} is damaged: {error}") from None
        if {*(part.dtype.names or ()), "overhead"} == set(STEP.names or ()):
            # Runs of earlier versions have no such field; there it is 0.
            part = require_fields(part, STEP)
        if part.dtype != STEP:
            raise RunError(f"{path} holds {part.dtype.names}, not steps of this version")
        parts.append(part.ravel())
    return np.concatenate(parts)


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write summary.json, whole or not at all.

    Raises:
        RunError: the disk is full or read-only.
    """
    write_json(folder / SUMMARY, summary)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return a run's summary.

    Raises:
        RunError: there is none, or it is no JSON.
    """
    path = folder / SUMMARY
    try:
        summary = json.loads(read_regular(path, error=RunError))
    except FileNotFoundError:
        raise RunError(f"{folder} holds no {SUMMARY}; is it a run's folder?") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None
    if not isinstance(summary, dict):
        raise RunError(f"{path} is damaged: it holds no object")
    return summary


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all.

    Raises:
        RunError: the disk is full or read-only.
    """
    with _whole(path) as part, part.open("w") as file:
        json.dump(plain(value), file, indent=2, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `path` if all goes well, and is removed if not.

    Raises:
        RunError: the disk is full or read-only.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)  # a full disk has room for the summary again
        raise RunError(
            f"{path} cannot be written ({error.strerror}); free space or set output.folder"
        ) from None


def plain(value: Any) -> Any:
    """Return plain values that JSON and YAML take; what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value
