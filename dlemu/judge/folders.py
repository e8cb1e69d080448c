"""Output folders: made late, held by one command at a time, never left empty.

A job's folder is held, its summary is "incomplete", and then says how the job ended. All ranks take
part; rank 0 alone writes.
"""

import errno
import itertools
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from dlemu.config.model import Workload
from dlemu.errors import DlemuError, RunError, WorkloadError, reason_of, system_error
from dlemu.findings import Tell, note
from dlemu.judge.records import (
    CONFIG,
    SUMMARY,
    UNFINISHED,
    overwrite_summary,
    read_summary,
    write_config,
    write_summary,
)
from dlemu.judge.summary import how_it_ended, time_of_day
from dlemu.plugins import own_version
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.storage.owned import held, made
from dlemu.terminal import complain

_EMPTY_RUN = re.compile(
    r"(summary\.json|config\.yaml|survey\.json|host\.\d+\.jsonl)(\.partial)?|steps\.\d+\.npy\.partial"
)
_RECORDS = re.compile(r"steps\.\d+\.npy|series\.csv|(run|warmup)\.\d+(\.attempt-\d+)?")


@contextmanager
def make(folder: Path) -> Iterator[Path]:
    """Yield a folder that is there; what was made for it and is empty in the end is removed.

    Raises:
        WorkloadError: it cannot be made.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(made(folder))
        except OSError as error:
            raise _refusal(folder, "output.folder", error) from None
        yield folder


@contextmanager
def hold(given: str | Path | None, name: str, *, key: str = "output.folder") -> Iterator[Path]:
    """Yield the folder given, else a new one outputs/`name`/<time>, as `make` does, and held.

    Raises:
        WorkloadError: it cannot be made, or another command holds it.
    """
    folder = Path("outputs") / name if given is None else Path(given)
    with ExitStack() as stack:
        try:
            if given is None:
                folder = _hold_new(stack, folder, key)
            else:
                stack.enter_context(held(folder, key=key))
        except OSError as error:
            raise _refusal(folder, key, error) from None
        yield folder


@contextmanager
def hold_for_runs(workload: Workload, tell: Tell) -> Iterator[Path]:
    """Yield, as `hold` does, the folder for a run or for several, in which there is none yet.

    A run that did not end is kept beside it, in <folder>.attempt-<n>. Where a run is refused before
    its first step, nothing stays.

    Raises:
        WorkloadError: it cannot be made, another command holds it, or a run that ended is in it.
    """
    given = workload.output.folder
    if given is not None and (Path(given) / SUMMARY).exists():
        kept = _set_aside(Path(given))
        tell(note("unfinished_run_kept", folder=str(given), kept_as=str(kept)))
    with hold(given, workload.name) as folder:
        if (folder / SUMMARY).exists():  # of a command that was faster
            raise _taken(folder)
        with _nothing_of_refused(folder):
            yield folder


@contextmanager
def _nothing_of_refused(folder: Path) -> Iterator[None]:
    """Empty the folder of a job that is refused in the `with`, or fails before a result is kept."""
    try:
        yield
    except DlemuError as error:
        entries = list(folder.iterdir())
        begun = len(entries) > 1  # a run has its summary.json and config.yaml, several run.1
        refused = isinstance(error, WorkloadError) or not begun
        if refused and all(_EMPTY_RUN.fullmatch(entry.name) for entry in entries):
            for entry in entries:
                entry.unlink()
        raise


def check_free(workload: Workload) -> None:
    """Raise what `hold_for_runs` would, as far as it can be told without making anything."""
    given = workload.output.folder
    folder = Path(given or "outputs")
    if given is not None and (folder / SUMMARY).exists():
        if _has_ended(folder):
            raise _taken(folder)
        return
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        number = errno.EEXIST if there == folder else errno.ENOTDIR
        raise _refusal(folder, "output.folder", system_error(number))
    if not os.access(there, os.W_OK):
        raise _refusal(folder, "output.folder", system_error(errno.EACCES))


def _has_ended(folder: Path) -> bool:
    return read_summary(folder).get("status") not in UNFINISHED


def keep_leftovers(folder: Path) -> None:
    """Rename a folder with an earlier run's records, on a host that does not share rank 0's.

    There is no config.yaml there: rank 0 has written its own before it names the folder.
    """
    if not (folder / CONFIG).exists() and any(folder.glob("host.*.jsonl")):
        _rename(folder)


def _set_aside(folder: Path) -> Path:
    """Rename the folder of a run that did not end; return its new name."""
    with hold(folder, ""):
        if _has_ended(folder):
            raise _taken(folder)
        names = sorted(entry.name for entry in folder.iterdir())
        others = [n for n in names if not _EMPTY_RUN.fullmatch(n) and not _RECORDS.fullmatch(n)]
        reason = f"and other files ({', '.join(others[:3])})" if others else ""
        if Path.cwd().is_relative_to(folder.resolve()):
            reason = "and is the working directory"
        if not reason:
            try:
                return _rename(folder)
            except OSError as error:
                reason = f"and cannot be renamed ({reason_of(error)})"
        raise WorkloadError(
            f"output.folder {folder} holds a run that did not end, {reason}; name another"
        )


def _rename(folder: Path) -> Path:
    """Rename a folder to the next <folder>.attempt-<n>, and put an empty one in its place."""
    folder = folder.resolve()  # a link goes on to lead there
    names = (folder.with_name(f"{folder.name}.attempt-{n}") for n in itertools.count(1))
    attempt = folder.rename(next(name for name in names if not name.exists()))
    folder.mkdir()
    return attempt


def _taken(folder: Path, key: str = "output.folder") -> WorkloadError:
    return WorkloadError(f"{key} {folder} holds a run already; name another, or remove it")


def _refusal(folder: Path, key: str, error: OSError) -> WorkloadError:
    return WorkloadError.of_system(error, f"{key} {folder}", "cannot be written", f"set {key}")


def _hold_new(stack: ExitStack, parent: Path, key: str) -> Path:
    """Hold a folder named by the time, which no other command makes; return it. Raises OSError."""
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        folder = parent / (now if number == 1 else f"{now}-{number}")
        try:
            stack.enter_context(held(folder, key=key, new=True))
            return folder
        except FileExistsError:
            if not os.path.lexists(folder):  # a file has the name of one above
                raise
    raise AssertionError("there is always a next number")


# --- the record of a job --------------------------------------------------------------------------


_ROOM_FOR_AN_ERROR = 2048
"""Bytes that a summary has to spare until its job ends: its disk may be full by then."""


def versions() -> dict[str, str]:
    """Return the versions of dlemu, Python, the kernel and the libraries that read."""
    from importlib import metadata  # slow, and few commands need it

    found = {"dlemu": own_version(), "python": platform.python_version()}
    found["kernel"] = platform.release()
    for name in ("numpy", "h5py", "torch", "mpi4py", "obstore", "nvidia-dali-cuda130"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def first_fields(kind: str, workload: Workload | None, world: World) -> dict[str, Any]:
    """Return the fields that a job's summary begins with; not each job has a workload."""
    return {
        "kind": kind,
        "status": "incomplete",
        "workload": "" if workload is None else workload.name,
        "num_ranks": world.num_ranks,
        "num_hosts": world.num_hosts,
        "hostname": world.host,
        "start": time_of_day(),
        "metric": {},
        "ignored": [] if workload is None else list(workload.ignored),
        "notes": list(world.notes),
        "versions": versions(),
    }


class Record:
    """The document of a job, in the job's folder. The job changes it, and calls `write`."""

    def __init__(
        self,
        folder: Path,
        summary: Any,
        rank: int = 0,
        watch: Watchdog | None = None,
        *,
        name: str = SUMMARY,
    ) -> None:
        self.folder = folder
        self.summary, self._rank, self._watch, self._name = summary, rank, watch, name

    def write(self) -> None:
        """Write the summary as it is now."""
        room = _ROOM_FOR_AN_ERROR if self.summary["status"] == "incomplete" else 0
        if self._rank == 0:
            with self.writing():
                write_summary(self.folder, self.summary, room=room, name=self._name)

    def complete(self, found: Mapping[str, Any]) -> None:
        """Write what the job has found, and that it has ended."""
        self.summary |= {**found, "status": "complete", "end": time_of_day()}
        self.write()

    def fail(self, error: BaseException) -> None:
        """Write why the job did not end, over the old summary if the disk is full."""
        if self._rank == 0:
            summary = self.summary
            summary["status"], summary["error"] = how_it_ended(error)
            summary["end"] = time_of_day()
            with self.writing():
                try:
                    write_summary(self.folder, summary, name=self._name)
                except RunError as second:
                    failed = error.path if isinstance(error, DlemuError) else None
                    same_disk = failed is not None and failed.is_relative_to(self.folder)
                    written = overwrite_summary(self.folder, summary, name=self._name)
                    if not (written or same_disk):
                        complain(str(second))

    def writing(self) -> AbstractContextManager[None]:
        """Return what watches writing to the folder."""
        return _phase(self._watch, f"writing to {self.folder}")


@contextmanager
def begun(
    workload: Workload,
    world: World,
    summary: Any,
    tell: Tell,
    *,
    watch: Watchdog | None = None,
    several: bool = False,
) -> Iterator[Record]:
    """Yield the record of a job in its folder, which rank 0 holds. All ranks call it.

    `several`: the folder will hold the folders of several runs, each with a config.yaml. If the
    `with` fails, the error is recorded, and that of another rank if it was the cause.

    Raises:
        WorkloadError: the folder cannot be made or is in use, or a run that ended is in it.
    """
    with ExitStack() as stack:
        own = None
        if world.rank == 0:
            with _phase(watch, "making the output folder"):
                own = stack.enter_context(hold_for_runs(workload, tell))
                if not several:
                    write_config(own, workload)
        folder = world.broadcast(own)
        assert folder is not None
        record = Record(folder, summary, world.rank, watch)
        if watch is not None:
            watch.record = record.fail
        with _failing(record, world):
            yield record


@contextmanager
def recorded(
    given: str | Path | None,
    kind: str,
    world: World,
    workload: Workload | None = None,
    *,
    key: str = "output.folder",
) -> Iterator[Record]:
    """Yield the record of a job in a folder, as `hold` has it, that may hold one of its kind.

    Rank 0 alone calls it. The summary is "incomplete" from now on, and an error is recorded; of a
    job that is refused nothing stays.

    Raises:
        WorkloadError: as `hold` does, or the result of a job of another kind is in the folder.
        RunError: it cannot be written.
    """
    with hold(given, kind, key=key) as folder:
        if (folder / SUMMARY).exists() and read_summary(folder).get("kind") != kind:
            raise _taken(folder, key)
        record = Record(folder, first_fields(kind, workload, world))
        with _nothing_of_refused(folder), _failing(record, world):
            record.write()
            yield record


@contextmanager
def _failing(record: Record, world: World) -> Iterator[None]:
    """Record an error of the `with`, and that of another rank if it was the cause."""
    try:
        yield
    except BaseException as error:
        record.fail(error)  # first: launchers kill soon
        cause = world.cause(error)
        if cause is not error:
            record.fail(cause)
            raise cause from None
        raise


def _phase(watch: Watchdog | None, name: str) -> AbstractContextManager[None]:
    return nullcontext() if watch is None else watch.phase(name)
