"""A file system whose answers take a set time, or never come: python -m tests.lab.slow_files …

A FUSE server of its own (linux/fuse.h, protocol 7.31), so that it needs no package: it shows a
folder read-only, and answers each read so many seconds after it came, however many come at once.
"""

import contextlib
import ctypes
import errno
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2  # linux/mount.h
LOOKUP, _FORGET, _GETATTR, OPEN, READ, _RELEASE, _FLUSH = 1, 2, 3, 14, 15, 18, 25
INIT, _OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 26, 27, 28, 29, 36, 42
_UNANSWERED = (_FORGET, _INTERRUPT, _BATCH_FORGET)
_FUSE_ASYNC_READ, _FUSE_MAX_PAGES = 1, 1 << 22
_ROOT = 1  # a node's number is its place in the list of paths, plus this
_FOR_LONG = 3600  # seconds that the kernel may keep names and attributes
_HEADER = struct.Struct("<IIQQIIIHH")
IO = struct.Struct("<QQI")


@contextlib.contextmanager
def slow_files(
    source: Path,
    *,
    seconds: float = 0,
    stalls: str = "",
    on: str = "read",
    log: Path | None = None,
) -> Iterator[Path]:
    """Show a folder at a new place, where reads take `seconds`.

    Of the file or folder `stalls` what `on` names is never answered: "read", "open", "list" or
    "lookup". The thread and name of each file that is opened go to `log`; "hangs" follows the name
    of what is never answered.
    """
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting a FUSE file system takes root and /dev/fuse")
    point = source.with_name(f"{source.name}-slow-{os.getpid()}")
    point.mkdir()
    slow = json.dumps([seconds, stalls, on, str(log or os.devnull)])
    try:
        with serving("tests.lab.slow_files", [str(source), str(point), slow], point):
            yield point
    finally:
        point.rmdir()


@contextlib.contextmanager
def serving(module: str, words: Sequence[str], point: Path) -> Iterator[None]:
    """Run a FUSE server, which says "mounted", until left."""
    command = [sys.executable, "-m", module, *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        if (said := server.stdout.readline().strip()) != "mounted":
            pytest.skip(f"no FUSE file system can be mounted here: {said}")
        yield
    finally:
        server.kill()
        server.wait()
        _LIBC.umount2(bytes(point), _MNT_DETACH)


class Server:
    """Shows a folder; what reads do is a subclass's."""

    request_bytes = 1 << 17
    """Of the largest request."""

    def __init__(self, device: int, source: Path) -> None:
        self._device = device
        self._paths = [source]
        self._numbers = {source: _ROOT}
        self._lock = threading.Lock()

    def next_request(self) -> tuple[int, int, int, bytes, int, float]:
        """Wait for a request; return what is asked, its number, node, body, process and time.

        The number is 0 if no answer is wanted.
        """
        request = os.read(self._device, self.request_bytes)
        came = time.perf_counter()
        _, what, unique, node, _, _, pid, *_ = _HEADER.unpack_from(request)
        wanted = 0 if what in _UNANSWERED else unique
        return what, wanted, node, request[_HEADER.size :], pid, came

    def answer(self, unique: int, body: bytes, error: int = 0) -> None:
        """Answer a request."""
        # The kernel refuses an answer to a process that was killed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            os.write(self._device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)

    def reply(self, what: int, node: int, body: bytes) -> bytes:
        """Return the answer to a request about names and attributes."""
        path = self._paths[node - _ROOT]
        if what == INIT:
            _, _, readahead, _ = struct.unpack_from("<4I", body)
            flags = _FUSE_ASYNC_READ | _FUSE_MAX_PAGES
            return struct.pack(
                "<4IHHIIHHII24x", 7, 31, readahead, flags, 64, 64, 4096, 1, 256, 0, 0, 0
            )
        if what == LOOKUP:
            path = path / os.fsdecode(body.rstrip(b"\0"))
            attributes = _attributes(path)
            with self._lock:
                if path not in self._numbers:
                    self._numbers[path] = len(self._paths) + _ROOT
                    self._paths.append(path)
            head = struct.pack("<4Q2I", self._numbers[path], 0, _FOR_LONG, _FOR_LONG, 0, 0)
            return head + attributes
        if what == _GETATTR:
            return struct.pack("<QII", _FOR_LONG, 0, 0) + _attributes(path)
        if what in (OPEN, _OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if what in (_RELEASE, _RELEASEDIR, _FLUSH):
            return b""
        if what == _READDIR:
            return _names(path, *IO.unpack_from(body)[1:])
        raise OSError(errno.ENOSYS, "not here")


class _SlowServer(Server):
    def __init__(self, device: int, source: Path, slow: str) -> None:
        super().__init__(device, source)
        given: tuple[float, str, str, str] = json.loads(slow)
        self._seconds, self._stalls, self._on, log = given
        self._log = Path(log)
        self._threads = ThreadPoolExecutor(64)

    def serve(self) -> None:
        while True:
            what, unique, node, body, pid, came = self.next_request()
            if not unique:
                continue
            if self._never_answers(what, node, body):
                self._note(pid, f"{self._stalls} hangs")
                self._threads.submit(self._stall, unique, pid)
                continue
            if what == READ:
                self._threads.submit(self._read, unique, node, body, came)
                continue
            if what == OPEN:
                self._note(pid, self._paths[node - _ROOT].name)
            try:
                self.answer(unique, self.reply(what, node, body))
            except OSError as error:
                self.answer(unique, b"", error.errno or errno.EIO)

    def _stall(self, unique: int, pid: int) -> None:
        """Answer a thread that is killed, and no other: as NFS does, which signals do not reach."""
        with contextlib.suppress(FileNotFoundError):
            while not _is_killed(Path(f"/proc/{pid}/status").read_text()):
                time.sleep(0.05)
        self.answer(unique, b"", errno.EINTR)

    def _note(self, pid: int, name: str) -> None:
        with self._log.open("a") as log:
            print(pid, name, file=log)

    def _never_answers(self, what: int, node: int, body: bytes) -> bool:
        if what == LOOKUP:
            return bool(self._on == "lookup" and os.fsdecode(body.rstrip(b"\0")) == self._stalls)
        kinds = {READ: "read", OPEN: "open", _READDIR: "list"}
        return bool(kinds.get(what) == self._on and self._paths[node - _ROOT].name == self._stalls)

    def _read(self, unique: int, node: int, body: bytes, came: float) -> None:
        path = self._paths[node - _ROOT]
        _, offset, size = IO.unpack_from(body)
        with path.open("rb") as file:
            data = os.pread(file.fileno(), size, offset)
        time.sleep(max(0.0, came + self._seconds - time.perf_counter()))
        self.answer(unique, data)


def _is_killed(status: str) -> bool:
    pending = next(line for line in status.splitlines() if line.startswith("SigPnd:"))
    return bool(int(pending.split()[1], 16) >> (signal.SIGKILL - 1) & 1)


def _attributes(path: Path) -> bytes:
    """Return a `struct fuse_attr`."""
    a = path.stat()
    times = int(a.st_atime), int(a.st_mtime), int(a.st_ctime)
    return struct.pack(
        "<6Q3I7I", a.st_ino, a.st_size, a.st_blocks, *times, 0, 0, 0, a.st_mode, 1, 0, 0, 0, 4096, 0
    )


def _names(path: Path, offset: int, size: int) -> bytes:
    """Return a `struct fuse_dirent` each, as many as fit."""
    entries = b""
    for number, name in enumerate(sorted(os.listdir(path))[offset:], offset + 1):
        text = os.fsencode(name)
        entry = struct.pack("<QQII", number, number, len(text), 0) + text
        entry += bytes(-len(entry) % 8)
        if len(entries) + len(entry) > size:
            break
        entries += entry
    return entries


def attach(point: Path) -> int | None:
    """Mount at a folder, and say so or why not; return the descriptor that requests come from."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    where = b"dlemu-test", bytes(point), b"fuse"
    if _LIBC.mount(*where, ctypes.c_ulong(_MS_NOSUID | _MS_NODEV), options.encode()):
        print(os.strerror(ctypes.get_errno()), flush=True)
        return None
    print("mounted", flush=True)
    return device


if __name__ == "__main__":
    _, source, point, slow = sys.argv
    if (device := attach(Path(point))) is not None:
        _SlowServer(device, Path(source), slow).serve()
