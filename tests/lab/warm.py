"""Starts `python -m dlemu` without the second or more that its imports take.

A server that has imported dlemu and its libraries forks a process for each command. That process is
a real one, and the caller's own child: it has its arguments, folder, environment and streams, takes
signals, and ends as the interpreter ends. What differs from a new interpreter is that modules are
imported already, and that memory is shared with the server. Tests of imports, of memory and of the
interpreter's own streams start a new interpreter.

The server is forked off the process that asks first. Tests have it forked before the first of them
runs: so it has what they import, and nothing of what a test changes.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import inspect
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from tests.lab.settings import apply

COMMAND = [sys.executable, "-m", "dlemu"]
_IMPORTED = (
    *("dlemu.__main__", "dlemu.cli.main", "dlemu.cli.jobs", "dlemu.cli.report", "dlemu.run.job"),
    *("dlemu.sizing.measured", "dlemu.sizing.calibrate", "dlemu.sizing.predict", "h5py"),
    *("dlemu.loaders.pytorch", "dlemu.loaders.threads", "dlemu.tools.paths", "dlemu.report.png"),
)
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18  # linux/sched.h, linux/mount.h
_LIBC = ctypes.CDLL(None, use_errno=True)


settings: Mapping[str, object] = {}
"""What modules of dlemu hold otherwise in the processes that are started: name and value."""


def command() -> list[str]:
    """Return the words that start `dlemu` in a new interpreter, with the settings."""
    if not settings:
        return COMMAND
    return [sys.executable, str(Path(__file__).with_name("settings.py")), json.dumps(settings)]


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, but a plain `python -m dlemu` is forked off the server.

    `own_shared`: it has a /dev/shm of its own. `enter(pid)` is called before it begins.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        own_shared: bool = False,
        enter: Callable[[int], None] | None = None,
        **keys: Any,
    ) -> None:
        self._own_shared = own_shared
        self._enter = enter
        super().__init__(command, **keys)

    def _execute_child(self, *given: Any) -> None:
        call = inspect.signature(subprocess.Popen._execute_child).bind(self, *given)  # type: ignore[attr-defined]
        asked = call.arguments
        words, environment = list(asked["args"]), asked["env"] or os.environ
        assert words[:3] == COMMAND and asked["preexec_fn"] is None
        streams = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = _server().fork(
            {
                "words": words[3:],
                "cwd": str(asked["cwd"] or Path.cwd()),
                "environment": dict(environment),
                "new_session": asked["start_new_session"],
                "own_shared": self._own_shared,
                "settings": dict(settings),
            },
            [own if own >= 0 else number for number, own in enumerate(streams)],
            self._enter,
        )
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in names))  # type: ignore[attr-defined]


def run(
    command: Sequence[str], *, timeout: float | None = None, **keys: Any
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of a `python -m dlemu`, its output captured as text."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | keys
    with Popen(command, **pipes) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


class _Server:
    """The client's end; the server ends when this process does."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                status = _serve(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()
        atexit.register(self._end)

    def fork(
        self, request: dict[str, Any], streams: list[int], enter: Callable[[int], None] | None
    ) -> int:
        """Return the process id of a new child of this process."""
        waits, go = os.pipe()
        # The server's child forks and ends; its own child then becomes ours.
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            body = json.dumps(request).encode()
            socket.send_fds(self._socket, [len(body).to_bytes(8, "big")], [*streams, waits])
            self._socket.sendall(body)
            pid = int.from_bytes(_receive(self._socket, 8), "big")
        finally:
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            os.close(waits)
        try:
            if enter is not None:
                enter(pid)
            os.write(go, b"!")
        finally:
            os.close(go)
        return pid

    def _end(self) -> None:
        self._socket.close()
        os.waitpid(self.pid, 0)


@cache
def _server() -> _Server:
    return _Server()


def prepare() -> int:
    """Fork the server off this process as it is; return its process id."""
    return _server().pid


def _receive(link: socket.socket, size: int) -> bytes:
    data = link.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise EOFError("the other end of the server of warm processes is gone")
    return data


def serve(link: socket.socket) -> bool:
    """Fork a process for each request; return True in it, and False at the end."""
    while True:
        head, streams, _, _ = socket.recv_fds(link, 8, 4)
        if not head:
            return False
        request = json.loads(_receive(link, int.from_bytes(head, "big")))
        of_child, to_us = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid:
                os.write(to_us, pid.to_bytes(8, "big"))
                os._exit(0)
            _become(request, streams)
            return True
        os.waitpid(between, 0)
        link.sendall(os.read(of_child, 8))
        for number in (of_child, to_us, *streams):
            os.close(number)


def _become(request: Mapping[str, Any], streams: list[int]) -> None:
    """Make this process what `python -m dlemu` would be before its first line."""
    *own, waits = streams
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    began = os.read(waits, 1)
    for number, stream in enumerate(own):
        os.dup2(stream, number)
    os.closerange(3, 1024)
    if not began:
        os._exit(1)
    if request["own_shared"]:
        _mount_own_shared()
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    kinds = (
        ("stdin", "r", "strict"),
        ("stdout", "w", "strict"),
        ("stderr", "w", "backslashreplace"),
    )
    for number, (name, mode, errors) in enumerate(kinds):
        text: Any = open(number, mode, closefd=False, errors=errors)  # noqa: SIM115
        if mode == "w":
            text.reconfigure(line_buffering=name == "stderr", write_through=unbuffered)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    # As a new interpreter has it: what pytest shows of them is no output of the command.
    warnings.simplefilter("ignore", DeprecationWarning)
    apply(request["settings"])
    main = importlib.import_module("dlemu.__main__")
    sys.modules["__main__"] = main
    sys.argv = [str(main.__file__), *request["words"]]
    sys.path[0] = request["cwd"]


def _mount_own_shared() -> None:
    steps: tuple[tuple[Any, ...], ...] = (
        (_LIBC.unshare, _CLONE_NEWNS),
        (_LIBC.mount, b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None),
        (_LIBC.mount, b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(0), None),
    )
    for call, *arguments in steps:
        if call(*arguments):
            raise OSError(ctypes.get_errno(), "no /dev/shm of its own")


def _serve(link: socket.socket) -> int:
    """Serve; in a process that is forked off, run the command line, and do not return."""
    os.setsid()
    atexit._clear()  # what the process that asked does at its end
    faulthandler.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.closerange(3, link.fileno())
    os.closerange(link.fileno() + 1, 1 << 16)
    if not link.recv(1, socket.MSG_PEEK):  # nobody has asked for a command
        return 0
    for name in _IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()):  # what Hydra imports and keeps with the first
        sys.modules["dlemu.cli.main"].run(
            ["run", "workload=unet3d_h100", "name='x'", "--cfg", "job"]
        )
    gc.collect()
    gc.freeze()
    if not serve(link):
        return 0
    try:
        status = sys.modules["__main__"].main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    _end(status)


def _end(status: int) -> NoReturn:
    """End as the interpreter ends, but do not take apart the modules: that takes longest."""
    for end in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        end()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = 120
    os._exit(status)
