"""The files that a job's processes have open for reading, looked at twice a second."""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dlemu.host.devices import PROC

_OF_PROGRAMS = (".py", ".pyc", ".so", ".pth", ".egg", ".pem", ".mo", ".json", ".txt", ".log")
_OF_SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/", "/lib", "/etc/", "/opt/", "/run/", "/memfd:")
_SMALLEST = 256
"""Bytes below which a file is hardly a sample."""
_MOST = 4096
"""Files that are kept: a sample of what a job reads."""


@dataclass
class OpenedFiles:
    """Files seen open for reading, with their sizes; looks cost a few calls a process."""

    proc: Path = PROC
    sizes: dict[str, int] = field(default_factory=dict)

    def look(self, pids: Iterable[int]) -> None:
        """Add what processes have open now; another user's are left out."""
        for pid in pids:
            with suppress(OSError):
                for name in os.listdir(self.proc / str(pid) / "fd"):
                    if len(self.sizes) < _MOST:
                        with suppress(OSError, ValueError):
                            self._look_at(pid, name)

    def _look_at(self, pid: int, name: str) -> None:
        folder = self.proc / str(pid)
        path = os.readlink(folder / "fd" / name)
        is_data = path.startswith("/") and not path.startswith(_OF_SYSTEM)
        if not is_data or path in self.sizes or path.lower().endswith(_OF_PROGRAMS):
            return
        if "site-packages" in path or "/dlemu-watch" in path or path.endswith(" (deleted)"):
            return
        flags = next(
            int(line.split()[1], 8)
            for line in (folder / "fdinfo" / name).read_text("ascii").splitlines()
            if line.startswith("flags:")
        )
        found = os.stat(path)
        is_read = flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_DIRECTORY
        if is_read and stat.S_ISREG(found.st_mode) and found.st_size >= _SMALLEST:
            self.sizes[path] = found.st_size
