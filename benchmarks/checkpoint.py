"""What checkpoints cost on drives of known rates: python -m benchmarks.truth checkpoint.

A drive that serves one request after the other, reads and writes each at a set rate: so reads and
writes take its time from each other. `python -m benchmarks.checkpoint FOLDER POINT READ WRITE`
shows the image file in a folder again, by the FUSE server of `slow_files`; a loop device lies over
that.
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
from typing import NamedTuple

import pytest

from benchmarks.known import job
from tests.lab.bench import start
from tests.lab.slow_files import INIT, IO, OPEN, READ, Server, attach, serving

_MIB = 1 << 20
_DIRECT = ("workflow.checkpoint=true", "checkpoint.odirect=true", "model.name=flat")
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
        with serving("benchmarks.checkpoint", words, shown):
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


class Held(NamedTuple):
    """What a run said, beside the truth."""

    what: str
    found: float
    truth: float
    within: float
    """How far it may be from the truth."""


def synchronous(
    *, loader: str, num_bytes: int = 40 * _MIB, read: int = 40_000_000, write: int = 10_000_000
) -> list[Held]:
    """Write a checkpoint to a drive that reads and writes at set rates: a stall of bytes / rate."""
    with serial_drive(4 * num_bytes, read, write) as drive:
        workload = job(drive, loader, 0.01, (8, 100_000), 1, reader__odirect=True)
        words = (
            *_DIRECT,
            f"checkpoint.checkpoint_folder={drive}/checkpoints",
            f"model.model_size_bytes={num_bytes}",
            "checkpoint.steps_between_checkpoints=4",
            "train.total_training_steps=6",
        )
        with start(workload, *words) as run:
            run.completes()
        stall, truth = run.summary["checkpoints"]["stall_seconds"][0], num_bytes / write
    return [Held("stall of a synchronous checkpoint", stall, truth, 0.01 * truth)]


def asynchronous(*, loader: str, rate: int = 20_000_000, num_steps: int = 50) -> list[Held]:
    """Write a checkpoint while a drive that serves one request after the other is read from.

    The drive gives 0.8 of the demand, so nothing is read ahead. One worker reads and one thread
    writes, each one request at a time. So they take turns: a step takes the time of a batch and of
    a piece. The checkpoint is begun between two epochs, and outlasts the second one.
    """
    with serial_drive(4 * num_steps * _MIB, rate, rate) as drive:
        seconds = 0.8 * 1_003_520 / rate
        workload = job(drive, loader, seconds, (num_steps, 1_000_000), 1, reader__odirect=True)
        words = (
            *_DIRECT,
            f"checkpoint.checkpoint_folder={drive}/checkpoints",
            f"model.model_size_bytes={num_steps * 5 // 4 * _MIB}",
            "checkpoint.epochs_between_checkpoints=2",
            "train.epochs=2",
            "checkpoint.asynchronous=true",
        )
        file = next((drive / "data" / "train").iterdir()).stat().st_size
        with start(workload, *words) as run:
            run.completes()
        told = run.summary["checkpoints"]
    batch = -(-file // 4096) * 4096
    return [
        Held(f"AU {when}", told[f"au_{key}_percentage"], 100 * seconds * rate / taken, 1.0)
        for when, key, taken in (
            ("while a checkpoint is written", "while_writing", batch + _MIB),
            ("in the other steps", "otherwise", batch),
        )
    ]


if __name__ == "__main__":
    _, source, point, read, write = sys.argv
    with contextlib.suppress(OSError):  # a drive does not wait for a CPU
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    if (device := attach(Path(point))) is not None:
        _Serial(device, Path(source), float(read), float(write)).serve()
