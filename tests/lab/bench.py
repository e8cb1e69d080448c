"""Runs dlemu as users do, where the answer is known beforehand.

The rate of a disk is set by a cgroup, its latency by a file system of the tests' own, the CPUs by a
quota.
"""

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from dlemu.report.present import EXIT_STATUS
from tests.lab import warm
from tests.lab.cgroups import Group
from tests.lab.commands import with_checkout
from tests.lab.mpirun import mpirun
from tests.lab.waiting import LONG, until

ROOT = Path(__file__).parents[2]
MARK = "DLEMU_TEST_RUN"
_OWN_SHARED = ["unshare", "--mount", "sh", "-c"]
_OWN_SHARED += ['mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]


@dataclass
class Run:
    """A `dlemu run` that was started, or has ended."""

    process: subprocess.Popen[str]
    folder: Path
    mark: str
    shared: int | None = None
    """Its own /dev/shm, open."""
    out: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _readers: list[threading.Thread] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, Any]:
        """Return summary.json."""
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    def wait_for(self, text: str) -> None:
        """Return once the run has printed this."""

        def printed() -> bool:
            ended = self.process.poll() is not None
            found = any(text in line for line in (*self.out, *self.errors))
            assert found or not ended, f"ended before {text!r}:\n{self.told()}"
            return found

        until(printed, repr(text))

    def end(self, timeout: float = LONG) -> int:
        """Wait for the end; return the exit status."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"runs for over {timeout} s:\n{self.told()}") from None
        for reader in self._readers:
            reader.join(LONG)
        return status

    def completes(self) -> None:
        """Wait for the end, whatever the verdict is; few short steps may well have none."""
        status = self.end()
        assert status in (0, 1, 2) and self.summary["status"] == "complete", self.told()
        assert EXIT_STATUS[self.summary["verdict"]] == status

    def told(self) -> str:
        """Return all that it has printed."""
        return "".join([*self.out, *self.errors])

    def alive(self) -> list[psutil.Process]:
        """Return the processes that belong to it and live, ranks and workers among them."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and self._owns(process):
                    found.append(process)
        return found

    def _owns(self, process: psutil.Process) -> bool:
        """Return whether a process is of its session, or has its mark: mpirun leaves that."""
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == self.process.pid:
                return True
        return process.environ().get(MARK) == self.mark

    def ranks(self) -> dict[int, psutil.Process]:
        """Return the ranks' processes by number."""
        found = {}
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                number = process.environ().get("OMPI_COMM_WORLD_RANK")
                parent = process.parent()
                inside = parent is not None and parent.environ().get("OMPI_COMM_WORLD_RANK")
                if number is not None and not inside:
                    found[int(number)] = process
        return found


@contextlib.contextmanager
def start(
    workload: Path,
    *overrides: str,
    group: Group | None = None,
    num_ranks: int = 1,
    before: tuple[str, ...] = (),
    own_shared: bool = False,
    cpus: Collection[int] | None = None,
) -> Iterator[Run]:
    """Run a workload's file; whatever is left of the run is killed in the end.

    `own_shared`: its /dev/shm is its own, so that what it leaves there can be told from others'.
    `cpus`: those that it may use.
    """
    mark = uuid.uuid4().hex
    folder = workload.parent / f"run-{mark[:8]}"
    alone = num_ranks == 1 and not before
    dlemu = warm.COMMAND if alone else [*before, *warm.command()]
    dlemu = [*dlemu, "run", f"workload={workload}"]
    if not any(override.startswith("output.folder=") for override in overrides):
        overrides = (*overrides, f"output.folder={folder}")
    command = [*dlemu, *overrides]
    if num_ranks > 1:
        command = mpirun(num_ranks, "--bind-to", "none", *command)
    keys: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": ROOT,
        "env": {**os.environ, MARK: mark, "PYTHONUNBUFFERED": "1"},
        "start_new_session": True,
    }

    def enter(pid: int = 0) -> None:
        if group is not None:
            group.enter(pid)
        if cpus is not None:
            os.sched_setaffinity(pid, cpus)

    process: subprocess.Popen[str]
    if alone:
        process = warm.Popen(command, own_shared=own_shared, enter=enter, **keys)
    else:
        own = _OWN_SHARED if own_shared else []
        process = subprocess.Popen([*own, *command], preexec_fn=enter, **keys)
    with followed(process, folder, mark) as run:
        if own_shared:
            run.shared = _own_shared(process.pid)
        yield run


@contextlib.contextmanager
def launched(command: Sequence[str], folder: Path, cwd: Path | None = None) -> Iterator[Run]:
    """Start mpirun with a command whose results go to a folder; nothing outlives the `with`."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=with_checkout() | {MARK: mark, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    with followed(process, folder, mark) as run:
        yield run


@contextlib.contextmanager
def followed(process: subprocess.Popen[str], folder: Path, mark: str) -> Iterator[Run]:
    """Yield a command that was started with this mark; nothing of it outlives the `with`."""
    run = Run(process, folder, mark)
    for stream, lines in ((process.stdout, run.out), (process.stderr, run.errors)):
        reader = threading.Thread(target=_keep, args=(stream, lines), daemon=True)
        reader.start()
        run._readers.append(reader)
    try:
        yield run
    finally:
        if run.shared is not None:
            os.close(run.shared)
        for left in run.alive():
            with contextlib.suppress(psutil.Error):
                left.kill()
        process.wait()


def _own_shared(pid: int) -> int:
    """Return a process's /dev/shm, open, so that it can be looked at when the process is gone."""
    ours = Path("/dev/shm").stat().st_dev
    theirs = f"/proc/{pid}/root/dev/shm"
    while os.stat(theirs).st_dev == ours:
        time.sleep(0.001)
    return os.open(theirs, os.O_RDONLY)


def _keep(stream: Any, lines: list[str]) -> None:
    lines.extend(stream)  # line by line, as they come


def dataset(folder: Path, **keys: Any) -> Path:
    """Generate a dataset in a folder; return its workload's file.

    `keys` are dotted, with "__" for the dot: dataset__format="npz".
    """
    tree: dict[str, Any] = {
        "name": "bench",
        "dataset": {"data_folder": str(folder / "data"), "format": "npz"},
        "reader": {"batch_size": 1, "file_shuffle": "seed", "data_loader": "threads"},
        "train": {"epochs": 1},
    }
    for key, value in keys.items():
        section, _, name = key.partition("__")
        tree.setdefault(section, {})[name] = value
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bench.yaml"
    path.write_text(yaml.safe_dump(tree))
    warm.run([*warm.COMMAND, "datagen", f"workload={path}"], cwd=ROOT).check_returncode()
    return path


def small(folder: Path, **keys: object) -> Path:
    """Generate 24 files of 100 kB."""
    given: dict[str, object] = {
        "dataset__num_files_train": 24,
        "dataset__record_length_bytes": 100_000,
        "reader__read_threads": 2,
        "train__computation_time": 0.01,
    }
    return dataset(folder, **(given | keys))


@contextlib.contextmanager
def folder_on_disk() -> Iterator[Path]:
    """Give a folder on the disk that the checkout lies on."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="bench-") as name:
        yield Path(name)


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Give a folder in tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dlemu-bench-") as name:
        yield Path(name)
