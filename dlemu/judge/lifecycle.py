"""The life of a job's results: the folder is held, the summary is "incomplete", then how it ended.

All ranks take part; rank 0 alone writes.
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

from dlemu.config.model import Workload
from dlemu.errors import RunError
from dlemu.judge.folders import hold_for_runs
from dlemu.judge.records import SUMMARY, overwrite_summary, write_config, write_summary
from dlemu.judge.summary import how_it_ended, time_of_day
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.terminal import complain

_ROOM_FOR_AN_ERROR = 2048
"""Bytes that a summary has to spare until its job ends: its disk may be full by then."""


def versions() -> dict[str, str]:
    """Return the versions of dlemu, Python, the kernel and the libraries that read."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in ("dlemu", "numpy", "h5py", "torch", "mpi4py", "obstore", "nvidia-dali-cuda130"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


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
        self._summary, self._rank, self._watch, self._name = summary, rank, watch, name

    def write(self) -> None:
        """Write the summary as it is now."""
        room = _ROOM_FOR_AN_ERROR if self._summary["status"] == "incomplete" else 0
        if self._rank == 0:
            with self.writing():
                write_summary(self.folder, self._summary, room=room, name=self._name)

    def fail(self, error: BaseException) -> None:
        """Write why the job did not end, over the old summary if the disk is full."""
        if self._rank == 0:
            summary = self._summary
            summary["status"], summary["error"] = how_it_ended(error)
            summary["end"] = time_of_day()
            with self.writing():
                try:
                    write_summary(self.folder, summary, name=self._name)
                except RunError as second:
                    same_disk = str(self.folder) in summary["error"]
                    written = overwrite_summary(self.folder, summary, name=self._name)
                    if not (written or same_disk):
                        complain(str(second))

    def writing(self) -> AbstractContextManager[None]:
        """Return what watches writing to the folder."""
        return _phase(self._watch, f"while writing to {self.folder}")


@contextmanager
def begun(
    workload: Workload,
    world: World,
    summary: Any,
    say: Callable[[str], None],
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
            with _phase(watch, "while making the output folder"):
                own = stack.enter_context(hold_for_runs(workload, say))
                if not several:
                    write_config(own, workload)
        folder = world.broadcast(own)
        assert folder is not None
        record = Record(folder, summary, world.rank, watch)
        if watch is not None:
            watch.record = record.fail
        try:
            yield record
        except BaseException as error:
            record.fail(error)  # first: launchers kill soon
            cause = world.cause(error)
            if cause is not error:
                record.fail(cause)
                raise cause from None
            raise


def _phase(watch: Watchdog | None, name: str) -> AbstractContextManager[None]:
    return nullcontext() if watch is None else watch.phase(name)
