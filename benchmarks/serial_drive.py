"""A drive that serves one request after the other, reads and writes each at a set rate.

So reads and writes take its time from each other. `python -m benchmarks.serial_drive FOLDER POINT
READ WRITE` shows the image file in a folder again, by the FUSE server of `slow_files`; a loop
device lies over that.
"""

import contextlib
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.slow_files import INIT, IO, OPEN, READ, Server, attach, serving

_WRITE, _FSYNC = 16, 20
_WRITE_HEAD = struct.Struct("<QQIIQII")
_FOPEN_DIRECT_IO = 1
_LATE = 0.05
"""Seconds by which requests may come late."""
_LARGEST = 1 << 20
"""Bytes of a request, at most."""


@contextlib.contextmanager
def serial_drive(num_bytes: int, read: int, write: int) -> Iterator[Path]:
    """Mount an ext4 file system on such a drive, whose image takes memory; rates are bytes/s.

    They hold from the mount on: to make the file system takes no time.
    """
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting a FUSE file system takes root and /dev/fuse")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dlemu-serial-") as folder:
        source, shown, point = (Path(folder, name) for name in ("source", "shown", "mounted"))
        for path in (source, shown, point):
            path.mkdir()
        with (source / "image").open("wb") as file:
            file.truncate(num_bytes)
        quiet = ("-q", "-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=0")
        subprocess.run(["mkfs.ext4", *quiet, source / "image"], check=True)
        words = [str(source), str(shown), str(read), str(write)]
        with serving("benchmarks.serial_drive", words, shown):
            subprocess.run(["mount", "-o", "loop,noatime", shown / "image", point], check=True)
            try:
                yield point
            finally:
                subprocess.run(["umount", point], check=True)


class _Serial(Server):
    request_bytes = _LARGEST + (1 << 16)

    def __init__(self, device: int, source: Path, read: float, write: float) -> None:
        super().__init__(device, source)
        self._image = os.open(source / "image", os.O_RDWR)
        self._rates = {READ: read, _WRITE: write}
        self._free_at = 0.0

    def serve(self) -> None:
        while True:
            what, unique, node, body, _, came = self.next_request()
            if unique:
                try:
                    self.answer(unique, self._do(what, node, body, came))
                except OSError as error:
                    self.answer(unique, b"", error.errno or 5)

    def _do(self, what: int, node: int, body: bytes, came: float) -> bytes:
        if what == INIT:
            # As in slow_files, but with large writes.
            return struct.pack(
                "<4IHHIIHHII24x", 7, 31, 0, 1 | 1 << 22, 64, 64, _LARGEST, 1, 256, 0, 0, 0
            )
        if what == OPEN:
            return struct.pack("<QII", 0, _FOPEN_DIRECT_IO, 0)
        if what == READ:
            _, offset, size = IO.unpack_from(body)
            self._take(what, size, came)
            return os.pread(self._image, size, offset)
        if what == _WRITE:
            _, offset, size, *_ = _WRITE_HEAD.unpack_from(body)
            self._take(what, size, came)
            return struct.pack("<II", os.pwrite(self._image, body[_WRITE_HEAD.size :], offset), 0)
        if what == _FSYNC:
            return b""
        return self.reply(what, node, body)

    def _take(self, what: int, num_bytes: int, came: float) -> None:
        """Let the time pass that a request takes, after those before it.

        A request that comes a little after the one before counts as waiting: the host was busy.
        """
        if came - self._free_at > _LATE:
            self._free_at = came
        self._free_at += num_bytes / self._rates[what]
        time.sleep(max(0.0, self._free_at - time.perf_counter()))


if __name__ == "__main__":
    _, source, point, read, write = sys.argv
    with contextlib.suppress(OSError):  # a drive does not wait for a CPU
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    if (device := attach(Path(point))) is not None:
        _Serial(device, Path(source), float(read), float(write)).serve()
