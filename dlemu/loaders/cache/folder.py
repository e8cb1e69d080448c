"""The folder of a cache: whose it is, what it holds, and how a file comes into it.

An entry's name is the file's number in the dataset, a point, and its generation. A file is written
under a temporary name and renamed when it is whole, so a run that is killed leaves no half entry.

The kernel may still hold names and sizes of what was written. They reach the drive at the end of a
run, and the mark says so: entries of a run that did not get there are kept as long as the host has
not been started anew. A flush for each file would cost a small one more than its writing.
"""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

from dlemu.config.model import Workload
from dlemu.dataset.layout import Layout, Samples
from dlemu.errors import RunError, WorkloadError, system_line
from dlemu.host.wear import flush
from dlemu.storage.files import PARTIAL, writing
from dlemu.storage.owned import OwnedFolder, disk_bytes, room
from dlemu.units import format_bytes, round_up

MARK = "dlemu-cache.json"
"""File that says of which dataset a folder is a cache."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNSAFE = "may_be_lost_after_boot"
"""Key of the mark: the start of the host in which entries were written; empty: all are on the
drive."""
_ENTRY = re.compile(rf"(\d+)\.(\d+)(?:{re.escape(PARTIAL)})?")


def entry_path(folder: str, file: int, generation: int) -> str:
    """Return where a file of the dataset lies in the cache."""
    return f"{folder}/{file:08}.{generation}"


def write_entry(path: str, memory: memoryview, num_bytes: int) -> None:
    """Write a file into the cache, past the page cache. The memory is whole pages.

    Raises:
        RunError: the drive refuses it.
    """
    try:
        with writing(Path(path), direct=True, sync=False) as write:
            write(memory[: round_up(num_bytes)], 0, num_bytes)
    except OSError as error:
        raise RunError.of_system(
            error,
            path,
            "cannot be written to the cache",
            "set a smaller cache.capacity, or name another cache.folder",
        ) from None


class CacheFolder:
    """The cache of one host, held by the host's first rank."""

    def __init__(
        self, workload: Workload, layout: Layout, sizes: Samples, *, claim: bool = True
    ) -> None:
        """Claim and lock the folder. `sizes`: bytes of each file of the dataset.

        With `claim` false only look at it: nothing is made, locked or written.

        Raises:
            WorkloadError: it holds what is not this dataset's, is in use, or has too little room.
            RunError: it cannot be written.
        """
        assert workload.cache.folder is not None
        self.path = Path(workload.cache.folder).absolute()
        self._sizes = sizes
        self.blocks = round_up(sizes)
        """(files,): bytes that each file takes on a drive, where capacity is counted."""
        self._dataset = {
            "data_folder": str(workload.data_folder.absolute()),
            "dataset": {key: str(value) for key, value in asdict(layout).items() if key != "paths"},
        }
        self._claims = claim
        self._owned = OwnedFolder(self.path, MARK, _is_entry, "cache.folder")
        self._held = ExitStack()
        if not self.path.parent.is_dir():  # a drive that is not mounted, for example
            raise WorkloadError(
                f"cache.folder {self.path}: there is no folder {self.path.parent}",
                remedy="name an empty folder on the cache's drive",
            )
        try:
            if claim:
                self._held.enter_context(self._owned.held())
            names = self._names()
            self.capacity = self._find_room(workload.cache.capacity, names)
            self.is_lost = self._written_in not in ("", _boot_id()) and bool(names)
            """Whether the host was started anew before all entries were on the drive."""
            if claim:
                self._write_mark(_boot_id())
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise WorkloadError.of_system(
                    error,
                    f"cache.folder {self.path}",
                    "cannot be used",
                    "name an empty folder on the cache's drive",
                ) from None
            raise

    def _write_mark(self, written_in: str) -> None:
        self._owned.write(self._dataset | {_UNSAFE: written_in})

    def _names(self) -> list[str]:
        """Return the names of the entries; refuse a folder that is not this dataset's cache."""
        names, found = self._owned.entries(), self._owned.fields()
        self._written_in = "" if found is None else found.pop(_UNSAFE, "")
        if found not in (None, self._dataset):
            of = found.get("data_folder")
            what = f"another dataset in {of}" if of else "an unknown dataset"
            raise WorkloadError(
                f"cache.folder {self.path} is a cache of {what}; remove that folder, or name "
                "another one"
            )
        return names

    def _find_room(self, asked: float, names: Sequence[str]) -> int:
        """Return the capacity in bytes; refuse one that the drive has no room for."""
        total, smallest = int(self.blocks.sum()), int(self.blocks.min())
        capacity = int(asked * total) if asked <= 1 else int(asked)
        own = sum(os.stat(self.path / name).st_blocks * 512 for name in names)
        self.free_bytes = disk_bytes(self.path)[1] + own
        """Of the drive, with what the entries take."""
        room(
            self.path,
            min(capacity, total),
            "set a smaller cache.capacity",
            what="cache.capacity",
            held_bytes=own,
            error=WorkloadError,
        )
        if capacity < smallest:
            raise WorkloadError(
                f"cache.capacity holds no file: it is {format_bytes(capacity)}, the smallest file "
                f"takes {format_bytes(smallest)}; set a larger cache.capacity"
            )
        return min(capacity, total)

    def entries(self) -> list[tuple[int, int]]:
        """Return file and generation of what is whole, the oldest first.

        Where the folder is claimed, the rest is removed.
        """
        found: dict[int, int] = {}
        remove: Callable[[Path], object] = os.unlink if self._claims else str
        for name in self._names():
            match = _ENTRY.fullmatch(name)
            assert match is not None
            file, generation = int(match[1]), int(match[2])
            size = os.stat(self.path / name).st_size
            whole = file < len(self._sizes) and size == self._sizes[file]
            if self.is_lost or name.endswith(PARTIAL) or not whole:
                remove(self.path / name)
            elif file in found:  # the run was killed before it removed the older one
                older, found[file] = sorted((found[file], generation))
                remove(Path(entry_path(str(self.path), file, older)))
            else:
                found[file] = generation
        return sorted(found.items(), key=lambda entry: entry[1])

    def remove(self, file: int, generation: int) -> None:
        """Remove an entry; it may be gone."""
        with suppress(FileNotFoundError):
            os.unlink(entry_path(str(self.path), file, generation))

    def settle(self) -> None:
        """Bring all entries to the drive, and note that they are there."""
        flush(self.path)
        with suppress(OSError):  # then they are removed if the host is started anew
            self._write_mark("")

    def unsettle(self) -> None:
        """Note that entries will be written which may not reach the drive.

        Raises:
            RunError: the folder cannot be written.
        """
        try:
            self._write_mark(_boot_id())
        except OSError as error:
            raise RunError(system_line(error, self.path)) from None

    def close(self) -> None:
        """Unlock the folder."""
        self._held.close()


def _is_entry(name: str) -> bool:
    return _ENTRY.fullmatch(name) is not None


def _boot_id() -> str:
    """Return the id of this start of the host."""
    return _BOOT_ID.read_text(encoding="ascii").strip()
