"""Runs a command as it is, and looks at what its processes write down meanwhile."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dlemu.errors import RunError, WorkloadError
from dlemu.host.intervals import HostObserver
from dlemu.watch import hook
from dlemu.watch.events import Journals
from dlemu.watch.opened import OpenedFiles

_FOLDER = "DLEMU_WATCH"
"""Variable that tells the hook where to write; `watch.hook` reads it."""
_LOOK_SECONDS = 0.1
_FILES_SECONDS = 0.5
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
_DEAF = {"-I": "isolated", "-S": "without site", "-E": "without the environment's words"}
"""Options of Python by which it takes no sitecustomize from PYTHONPATH."""


@dataclass
class Watched:
    """A command that has ended, and what was seen of it."""

    status: int
    """Its exit status; 128 + n where signal n ended it, as shells say."""
    seconds: float
    journals: Journals
    observers: list[HostObserver] = field(default_factory=list)
    """One, from when the data's folders were known; none where that never was."""
    files: OpenedFiles = field(default_factory=OpenedFiles)
    interrupted: bool = False


def check(command: Sequence[str]) -> None:
    """Refuse a command that cannot be watched.

    Raises:
        WorkloadError: it is missing, is no program, or starts a Python that hears no hook.
    """
    if not command:
        raise WorkloadError("no command; write dlemu watch -- python train.py")
    if shutil.which(command[0]) is None:
        raise WorkloadError(f"{command[0]}: no such program; give the command as a shell would")
    if not Path(command[0]).name.startswith("python"):
        return
    for word in command[1:]:
        if not word.startswith("-") or word in ("-c", "-m"):
            return
        for option, how in _DEAF.items():
            if not word.startswith("--") and option[1] in word[1:]:
                raise WorkloadError(
                    f"python {option} ({how}) cannot be watched: it reads no hook at its start; "
                    f"leave out {option}, or put dlemu.Meter into the loop"
                )


def run(command: Sequence[str], folder: Path, *, data: Sequence[Path] = ()) -> Watched:
    """Run a command to its end; return what was seen of it.

    Its stdin, stdout and stderr are ours. SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGQUIT go on to
    it; SIGINT as well, unless the terminal has sent it to both.

    Args:
        command: the words.
        folder: where its processes write.
        data: folders whose drives are counted; those of the loaders' files where it is empty.

    Raises:
        RunError: the command cannot be started.
    """
    own = folder / "hook"
    own.mkdir(exist_ok=True)
    shutil.copyfile(hook.__file__, own / "sitecustomize.py")
    watched = Watched(0, 0.0, Journals(folder))
    begun = time.perf_counter()
    with ExitStack() as stack:
        signals = stack.enter_context(_Signals())
        try:
            process = subprocess.Popen(command, env=_environment(own, folder))
        except OSError as error:
            raise RunError.of_system(
                error, command[0], "cannot be started", "see whether it is there and executable"
            ) from None
        signals.process = process
        looks = _Looks(watched, process.pid, stack, data)
        while process.poll() is None:
            looks.look()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_SECONDS)
        looks.look(last=True)
    watched.status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    watched.seconds = time.perf_counter() - begun
    watched.interrupted = signals.interrupted
    watched.journals.look()
    shutil.rmtree(own, ignore_errors=True)
    return watched


def _environment(own: Path, folder: Path) -> Mapping[str, str]:
    """Return ours with the hook's folder first on the path of Python's modules."""
    before = os.environ.get("PYTHONPATH")
    path = str(own.resolve()) if not before else f"{own.resolve()}{os.pathsep}{before}"
    return {**os.environ, "PYTHONPATH": path, _FOLDER: str(folder.resolve())}


class _Looks:
    """Looks at a running job: its journals, its open files, and its host's counters."""

    def __init__(self, watched: Watched, pid: int, stack: ExitStack, data: Sequence[Path]) -> None:
        self._watched, self._pid, self._stack, self._data = watched, pid, stack, list(data)
        self._files_due = 0.0
        self._iterations = 0

    def look(self, *, last: bool = False) -> None:
        """Look once, at files less often."""
        watched = self._watched
        watched.journals.look()
        now = time.perf_counter()
        if now >= self._files_due:
            watched.files.look(self._pids())
            self._files_due = now + _FILES_SECONDS
        folders = self._data or self._folders()
        if not watched.observers and folders:
            # To measure the memory of a process holds it up, and no figure of a job needs it.
            observer = HostObserver(folders, self._roots, period=0.5, memory=False)
            watched.observers.append(self._stack.enter_context(observer))
        begun = sum(len(each.iterations) for each in watched.journals.processes.values())
        if watched.observers and (begun != self._iterations or last):
            with suppress(OSError):
                name = f"iterations {begun}"
                watched.observers[0].mark(name)
        self._iterations = begun

    def _roots(self) -> list[int]:
        return [self._pid, *self._told_pids()]

    def _told_pids(self) -> list[int]:
        told = (each.info.get("pid") for each in self._watched.journals.processes.values())
        return [pid for pid in told if isinstance(pid, int)]

    def _pids(self) -> list[int]:
        return [pid for pid in self._told_pids() if (Path("/proc") / str(pid)).exists()]

    def _folders(self) -> list[Path]:
        """Return the folders of the data: those that loaders name, else those of open files."""
        processes = list(self._watched.journals.processes.values())
        told = [each for process in processes for each in process.loaders.values()]
        named = [Path(each["root"]) for each in told if "root" in each]
        named += [Path(file).parent for each in told for file in each.get("files", ())[:8]]
        named = named or [Path(file).parent for file in list(self._watched.files.sizes)[:8]]
        found = [path for path in dict.fromkeys(named) if path.is_dir()]
        taken = (i.taken for p in processes for i in p.iterations.values())
        # Without a name the first batches show no file either: then the job's own folder.
        return found or ([Path.cwd()] if any(len(each) > 1 for each in taken) else [])


class _Signals:
    """Passes signals on to the command, and outlives those that end it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.interrupted = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGINT, *_FORWARDED):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._come)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _come(self, number: int, frame: FrameType | None) -> None:
        again = self.interrupted
        self.interrupted |= number in (signal.SIGINT, signal.SIGTERM)
        if number == signal.SIGINT and _by_terminal() and not again:
            return  # which has sent it to the command as well
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


def _by_terminal() -> bool:
    """Return whether a terminal sends its Ctrl-C to our group of processes."""
    with suppress(OSError, ValueError):
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    return False
