"""One record per step and accelerator, and the files that a run leaves behind.

The steps are stored as they were measured, and all metrics are computed from them. So a definition
can be corrected later, and `dlemu report` can apply another edition.

    summary.json       the outcome; `status` tells whether the run ended (dlemu/judge/summary.py)
    steps.<rank>.npy   the records, one structured array a rank
    config.yaml        the workload as it was run
    host.<rank>.jsonl  the counters of each host's devices and CPUs

Whatever writes here raises RunError if the disk is full or read-only.
"""

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import yaml
from numpy.typing import NDArray

from dlemu.config.compose import leaves, read_yaml, set_key, value_of
from dlemu.config.model import Workload, check_workload
from dlemu.config.source import SIZES, WordSource, acts
from dlemu.errors import DAMAGE, DlemuError, RunError, in_short, system_error
from dlemu.judge.earlier import is_tools_own, sizing_of_today, summary_of_today, tool_of_today
from dlemu.plugins import own_version
from dlemu.storage.files import (
    append_whole,
    check_regular,
    create,
    partial_path,
    read_regular,
    replacing,
    write_atomically,
)

SUMMARY = "summary.json"
SIZING = "sizing.json"
CONFIG = "config.yaml"
UNFINISHED = ("incomplete", "failed")
"""Values of `status` for a run that did not end well: interrupted or killed, or failed."""
_CONDITIONS = (
    *("start", "end", "hostname", "num_hosts", "system", "versions", "data_loader", "dataset"),
)
"""Fields of a run's summary that say where and when a search was measured."""
_OF_A_RUN = ("num_accelerators", "au_percentage", "samples_per_second", "read_bytes_per_second")
"""Numbers of a search's run that are shown."""
_ROOM = 1 << 14
"""Bytes that results other than steps take, about."""

STEP = np.dtype(
    [
        ("epoch", np.int32),
        ("step", np.int32),
        ("accelerator", np.int32),
        ("num_samples", np.int32),
        ("num_bytes", np.int64),  # really read for the batch
        ("num_reads", np.int64),  # calls that read them; 0 where they are not counted
        ("start", np.float64),  # seconds on the rank's own clock
        ("wait", np.float64),  # for the batch
        ("overhead", np.float64),  # of a real loop: the device idle or copying, batch at hand
        ("compute", np.float64),  # measured
        ("barrier", np.float64),  # for the other accelerators
        ("computation_time", np.float64),  # asked for
        ("read", np.float64),  # seconds of the workers in read calls, summed
        ("decode", np.float64),  # in parsing, checking, cutting
        ("hand_over", np.float64),  # in giving the batch to training
        ("stall", np.float64),  # after the step, until a checkpoint let the accelerators go on
        ("writing", np.bool_),  # this rank wrote a checkpoint during most of the step
    ]
)

Steps = NDArray[np.void]
"""A structured array of STEP, any shape."""


def write_config(folder: Path, workload: Workload) -> None:
    """Write config.yaml, the workload as it is run."""
    write_text(folder / CONFIG, dump_workload(workload))


_GONE = (("predict", "tool"),)
"""Keys of earlier versions, which changed no run."""


def read_config(folder: Path, keys: Mapping[str, object]) -> Workload:
    """Return the workload of a stored run, with other values of dotted keys.

    config.yaml is read as it stands: a path may hold a literal `${`, and nothing is interpolated.
    It may be a stranger's: no module is imported for it, and no other file is read.

    Raises:
        WorkloadError: the file is damaged, or a key or value is refused.
    """
    tree = values_of(read_yaml(folder / CONFIG), partial(read_summary, folder))
    for section, key in _GONE:
        if isinstance(group := tree.get(section), dict):
            group.pop(key, None)
    for key, value in keys.items():
        set_key(tree, key, value)
    return check_workload({**tree, "given": tuple(keys)}, source=WordSource.FOUND)


def values_of(
    tree: Mapping[str, Any], summary: Callable[[], Mapping[str, Any]] = dict
) -> dict[str, Any]:
    """Return the keys of a stored job without those that only its runs needed.

    A part that nobody registered is left out, as are files: a format is then that of plain bytes.
    Of a file of sizes the mean stays, by the number of bytes in the run's `summary()`.
    """
    kept = deepcopy(dict(tree))
    for key, _ in [each for each in leaves(tree) if acts(*each)]:
        group, _, leaf = key.rpartition(".")
        value_of(kept, group).pop(leaf)
        if key == "dataset.format":
            set_key(kept, key, "raw")
        elif key == SIZES and (read := summary().get("dataset")):
            files = read["num_files"] * kept["dataset"].get("num_samples_per_file", 1)
            set_key(kept, "dataset.record_length_bytes", read["num_bytes"] / files)
    return kept


def dump_workload(workload: Workload) -> str:
    """Return a workload as YAML that read_config reads back."""
    tree = plain(workload.model_dump(mode="json"))
    for key in ("given", "ignored", "made_from"):
        tree.pop(key, None)
    for key in ("access_key_id", "secret_access_key"):
        tree["storage"].pop(key, None)
    return yaml.safe_dump(tree, sort_keys=False)


def steps_file(folder: Path, rank: int) -> Path:
    """Return the file with a rank's records."""
    return folder / f"steps.{rank}.npy"


def host_file(folder: Path, rank: int) -> Path:
    """Return the file in which the first rank of a host keeps the host's counters."""
    return folder / f"host.{rank}.jsonl"


def write_steps(folder: Path, rank: int, steps: Steps) -> None:
    """Write a rank's records, of any shape; whole or not at all."""
    path = steps_file(folder, rank)
    # NumPy's own writing to a file hides an error's cause.
    with named(path), replacing(path) as partial, open(partial, "wb", opener=create) as file:
        _write_header(file, steps.size)
        file.write(_bytes_of(steps))


def append_steps(folder: Path, rank: int, steps: Steps) -> None:
    """Append records to those that `write_steps` wrote; all or none of them."""
    path = steps_file(folder, rank)
    with named(path), path.open("r+b", buffering=0) as file:
        np.lib.format.read_magic(file)
        (before,), _, _ = np.lib.format.read_array_header_1_0(file)
        append_whole(file, _bytes_of(steps), sync=False)
        # Last, so that the header never tells of more records than there are. It has room for any
        # number, so its length stays the same.
        file.seek(0)
        _write_header(file, before + steps.size)


def _write_header(file: IO[bytes], num: int) -> None:
    header = {"descr": STEP.descr, "fortran_order": False, "shape": (num,)}
    np.lib.format.write_array_header_1_0(file, header)


def _bytes_of(steps: Steps) -> memoryview:
    data: NDArray[np.uint8] = np.ascontiguousarray(steps).reshape(-1).view(np.uint8)
    return data.data


def read_steps(folder: Path) -> Steps:
    """Return the records of all ranks of a run, one row a step and accelerator.

    Raises:
        RunError: the folder holds none, or a damaged file.
    """
    return np.concatenate([steps for _, steps in map_steps(folder)])


def map_steps(folder: Path) -> list[tuple[int, Steps]]:
    """Return each rank's number and records, mapped from its file: they take no memory.

    Raises:
        RunError: the folder holds none, or a damaged file.
    """
    paths = sorted(folder.glob("steps.*.npy"), key=lambda path: (len(path.name), path.name))
    if not paths:
        raise RunError(f"{folder} holds no steps.<rank>.npy; is it a run's folder?")
    for path in paths:
        if not path.name.split(".")[1].isdecimal():
            raise RunError(f"{path} is no steps.<rank>.npy; remove it")
    return [(int(path.name.split(".")[1]), _map(path)) for path in paths]


def map_rank(folder: Path, rank: int) -> Steps | None:
    """Return one rank's records, mapped from its file; None if it has none.

    Raises:
        RunError: the file is damaged.
    """
    path = steps_file(folder, rank)
    return _map(path) if path.exists() else None


def _map(path: Path) -> Steps:
    try:
        check_regular(path, error=RunError)
        # Mapped: a damaged header with a large shape then takes no memory.
        part: Steps = np.lib.format.open_memmap(path, mode="r")
    except (*DAMAGE, TokenError) as error:
        raise damaged(path, in_short(error)) from None
    if part.dtype != STEP:
        raise RunError(
            f"{path} holds {part.dtype.names}, not steps of this version of dlemu; take the one "
            "that wrote it, or run it again"
        )
    return part.ravel()


def write_summary(
    folder: Path, summary: Mapping[str, Any], *, room: int = 0, name: str = SUMMARY
) -> None:
    """Write a job's document, whole or not at all; with so many spaces for `overwrite_summary`."""
    text = _json_text(dict(summary))  # a last act may add its error meanwhile
    write_text(folder / name, text + " " * room)


def overwrite_summary(folder: Path, summary: Mapping[str, Any], *, name: str = SUMMARY) -> bool:
    """Write a document over itself, as a full disk still allows; return whether it had room."""
    data = _json_text(dict(summary)).encode()
    try:
        with (folder / name).open("r+b", buffering=0) as file:
            room = file.seek(0, os.SEEK_END)
            if len(data) > room:
                return False
            file.seek(0)
            return file.write(data.ljust(room)) == room
    except OSError:
        return False


def read_summary(folder: Path) -> dict[str, Any]:
    """Return a run's summary.

    Raises:
        RunError: there is none, it is no JSON, or `folder` is no folder.
    """
    try:
        return summary_of_today(read_object(folder / SUMMARY, _finite))
    except FileNotFoundError:
        if (found := _tools_own(folder)) is not None:
            return found
        if folder.exists():
            raise RunError(f"{folder} holds no {SUMMARY}; is it a run's folder?") from None
        raise RunError(f"{folder} is not there; name the folder of a run") from None
    except NotADirectoryError:
        raise RunError(f"{folder} is no folder; name the folder of a run") from None


def holds_result(names: Iterable[str]) -> bool:
    """Return whether files of these names, of one folder, are a result."""
    return any(name in (SUMMARY, SIZING) or is_tools_own(name) for name in names)


def _tools_own(folder: Path) -> dict[str, Any] | None:
    """Return what a tool of an earlier version has left in a folder; None: there is nothing."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    for path in (folder / name for name in names if is_tools_own(name)):
        day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
        try:
            return tool_of_today(path.name, _read_tree(path, _finite), day)
        except DAMAGE as error:
            raise damaged(path, in_short(error)) from None
    return None


def read_object(path: Path, number: Callable[[str], float] = float) -> dict[str, Any]:
    """Return a JSON file's object; `number` reads its numbers that are not whole.

    Raises:
        RunError: it is damaged, or holds no object.
        FileNotFoundError, NotADirectoryError: it is not there.
    """
    tree = _read_tree(path, number)
    if not isinstance(tree, dict):
        raise damaged(path, "it holds no object")
    return tree


def _read_tree(path: Path, number: Callable[[str], float] = float) -> Any:
    """Return what a JSON file holds; raises as `read_object` does."""
    try:
        data = read_regular(path, error=RunError)
        return json.loads(data, parse_float=number, parse_constant=number)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except DAMAGE as error:
        raise damaged(path, in_short(error)) from None


def read_sizing(folder: Path) -> dict[str, Any]:
    """Return a sizing's document, ended or not; {} if there is none.

    Raises:
        RunError: it is damaged, or of a version that is not read here.
    """
    path = folder / SIZING
    try:
        stored = _read_tree(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        tree = sizing_of_today(stored)
        assert tree["kind"] == "sizing"
        for answer in tree["answers"]:
            assert {"target", "workload", "num_accelerators"} <= dict(answer).keys()
        for search in tree["unfinished"].values():
            for point in search["points"]:
                assert all(np.isfinite(point[name]) for name in _OF_A_RUN)
    except (*DAMAGE, AssertionError) as error:
        by = _written_by(stored, folder)
        why = "" if isinstance(error, AssertionError) else f" ({in_short(error)})"
        raise RunError(
            f"{path} has a form that dlemu {own_version()} does not read{why}; it was written by "
            f"{f'dlemu {by}' if by else 'another version'}, or changed since",
            remedy="read it by the dlemu that wrote it, or name another output.folder",
        ) from None
    return tree


def _written_by(document: object, folder: Path) -> str:
    """Return the version of dlemu that wrote a search, as it or its last run says; else ""."""
    runs = sorted(folder.glob(f"runs/*/{SUMMARY}"))
    with suppress(OSError, DlemuError):
        document = [document, *map(_read_tree, runs[-1:])]
    left = [document]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            versions = each.get("versions")
            if isinstance(versions, Mapping) and isinstance(versions.get("dlemu"), str):
                return ascii(versions["dlemu"])[1:-1][:40]
            left += each.values()
        elif isinstance(each, list):
            left += each
    return ""


def damaged(path: Path, why: str, more: str = "") -> RunError:
    """Return the error for a file of a result that cannot be used, with what to do."""
    remedy = "restore it from a copy, or run again"
    if path.name == SIZING:
        remedy = "restore it from a copy, or name another output.folder"
    return RunError(f"{path}{more} is damaged: {why}", remedy=remedy)


def conditions_of(folder: Path, search: str) -> dict[str, Any]:
    """Return where and when the runs of a search were made, as far as their summaries say.

    `search` is "<target>.<workload>", `folder` the one that holds runs/. What is returned has the
    names of a run's summary; runs whose summary cannot be read are left out.
    """
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob(f"runs/*/{SUMMARY}")):
        if path.parent.name.startswith(f"{search}."):
            with suppress(DlemuError):
                found.append(read_summary(path.parent))
    found.sort(key=lambda each: str(each.get("start") or ""))
    if not found:
        return {}
    last = {**found[-1], "start": found[0].get("start")}
    return {name: last[name] for name in _CONDITIONS if last.get(name)}


def _finite(text: str) -> float:
    number = float(text)
    if not np.isfinite(number):  # none is ever written
        raise ValueError(f"{text} is no finite number")
    return number


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, _json_text(value))


def _json_text(value: Any) -> str:
    return json.dumps(plain(value), indent=2, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all, and to the drive."""
    with named(path):
        write_atomically(path, text.encode())


def check_writable(path: Path) -> None:
    """Check that a file can be written, before hours are spent on its content."""
    part = partial_path(path)
    with named(path):
        if path.is_dir():
            raise system_error(errno.EISDIR, path)
        try:
            with open(part, "wb", opener=create) as file:
                file.write(bytes(_ROOM))
                file.flush()
                os.fsync(file.fileno())
        finally:
            part.unlink(missing_ok=True)


class JsonLines:
    """A file of JSON values, one a line, to which values are appended.

    A last line that a kill or a full disk has cut short is left out, and gone once another is
    appended; other lines never change.
    """

    def __init__(self, path: Path) -> None:
        """Read the lines.

        Raises:
            RunError: it cannot be read, or a line is no JSON.
        """
        self.path = path
        self.values: list[Any] = []
        with named(path):
            content = read_regular(path, error=RunError) if path.exists() else b""
        self._num_bytes = content.rfind(b"\n") + 1
        try:
            whole = content[: self._num_bytes]
            self.values = [json.loads(line) for line in whole.splitlines()]
        except DAMAGE as error:
            again = "remove it, and what it held is measured again"
            raise RunError(f"{path} is damaged: {in_short(error)}", remedy=again) from None

    def append(self, *values: Any) -> None:
        """Append values, all or none of them."""
        lines = "".join(json.dumps(value) + "\n" for value in values).encode()
        with named(self.path), self.path.open("ab", buffering=0) as file:
            file.truncate(self._num_bytes)
            append_whole(file, lines)
        self._num_bytes += len(lines)
        self.values += values


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn an OSError into an error that names the file."""
    try:
        yield
    except OSError as error:
        failure = RunError.of_system(
            error, path, "cannot be written", "free space or name another output folder"
        )
        failure.path = path
        raise failure from None


def plain(value: Any) -> Any:
    """Return plain values that JSON and YAML take; what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value
