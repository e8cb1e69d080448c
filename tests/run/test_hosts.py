"""Jobs over several hosts: each a network namespace of this machine, with ranks of its own."""

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlemu.cli.main import run
from dlemu.host.limits import host_memory_bytes
from tests.lab import warm
from tests.lab.cgroups import Group, freezer, memory_limit
from tests.lab.commands import QUICK, with_checkout
from tests.lab.drives import own_drive
from tests.lab.hosts import Hosts, hosts
from tests.lab.waiting import LONG, until

_STALL_SECONDS = 5
_LONG = ["train.epochs=100000", f"output.stall_seconds={_STALL_SECONDS}"]
"""A run that ends by itself only when no test waits any more."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path / "hosts", 3) as made:
        yield made


class Job:
    """`dlemu` on several hosts, in a folder that they share."""

    def __init__(self, lab: Hosts, folder: Path, ranks: Sequence[int], *words: str) -> None:
        self.lab = lab
        self.folder = folder / "run"
        self.mark = str(folder)
        command = [*warm.command(), *words]
        environment = with_checkout()
        self.launcher = subprocess.Popen(
            lab.mpirun(ranks, *command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self.lines: list[str] = []

    def until(self, pattern: str) -> str:
        """Read lines up to one that matches; return it."""
        assert self.launcher.stdout is not None
        for line in self.launcher.stdout:
            self.lines.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"no line matches {pattern!r}:\n{self.told()}")

    def end(self) -> int:
        out, _ = self.launcher.communicate(timeout=LONG)
        self.lines += out.splitlines(keepends=True)
        return self.launcher.returncode

    def told(self) -> str:
        return "".join(self.lines)

    def complaints(self) -> list[str]:
        return [line.rstrip() for line in self.lines if line.startswith("dlemu: ")]

    @property
    def summary(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return read

    def processes(self) -> list[psutil.Process]:
        """Return the job's processes that live, the launcher's on every host included."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            is_ours = any(self.mark in word for word in process.info["cmdline"] or [])
            if is_ours and process.pid != os.getpid():
                found.append(process)
        return found

    def ranks(self) -> dict[int, list[psutil.Process]]:
        """Return the processes of the ranks that live, by the ranks' numbers."""
        found: dict[int, list[psutil.Process]] = {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                number = process.environ().get("OMPI_COMM_WORLD_RANK")
                if number is not None and process.status() != psutil.STATUS_ZOMBIE:
                    found.setdefault(int(number), []).append(process)
        return found

    def gone(self, *, ranks_only: bool = False) -> None:
        """Return when no process is left."""
        left = self.ranks if ranks_only else self.processes
        until(lambda: not left(), "the end of all processes", pause=0.1)

    def kill(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.launcher.kill()
        self.launcher.wait()


@contextlib.contextmanager
def job(
    lab: Hosts,
    folder: Path,
    ranks: Sequence[int],
    *words: str,
    held: Mapping[str, Group] | None = None,
) -> Iterator[Job]:
    """Start a job on a small dataset; nothing of it outlives the `with`.

    What runs on a host of `held` is in its cgroup.
    """
    for name, group in (held or {}).items():
        lab.hold(name, group)
    data = f"dataset.data_folder={folder / 'data'}"
    if words[0] == "run":
        assert run(["datagen", *QUICK, data]) == 0
        words = (*words, f"output.folder={folder / 'run'}")
    started = Job(lab, folder, ranks, words[0], *QUICK, data, *words[1:])
    try:
        yield started
    finally:
        started.kill()


def test_hosts_that_differ(lab: Hosts, tmp_path: Path) -> None:
    """Two share a drive of one machine, one has a wrong time of day."""
    sizes = [f"dataset.{each}" for each in ("record_length_bytes=200000", "num_files_train=126")]
    words = [
        *QUICK,
        *sizes,
        "train.computation_time=0.1",
        "train.epochs=1",
        "reader.read_threads=2",
    ]
    (tmp_path / "seen").mkdir()
    with own_drive(80 << 20) as shared, own_drive(80 << 20) as other:
        for drive in (shared, other):
            assert run(["datagen", *words, f"dataset.data_folder={drive / 'data'}"]) == 0
        for name, drive in zip(lab.names, (shared, other, shared), strict=True):
            lab.mount(name, drive / "data", tmp_path / "seen")
        lab.set_clock("h2", 3600.0)
        words += [f"dataset.data_folder={tmp_path / 'seen'}", f"output.folder={tmp_path / 'run'}"]
        ran = Job(lab, tmp_path, [1, 1, 1], "run", *words)
        try:
            ran.end()
            assert "\nresults: " in ran.told(), ran.told()
        finally:
            ran.kill()
    summary = ran.summary
    assert summary["status"] == "complete"
    measured = summary["measured"]
    # All files were read once. Twice the shared drive's bytes would be five thirds of them.
    assert 0.98 < measured["device_read_bytes"] / measured["read_bytes"] < 1.3
    assert len(measured["wear"]["drives"]) == 2
    assert re.search(r"^start: (host h\d [\d.]+ s(, )?){3} from launch", ran.told(), re.M)
    with (tmp_path / "run" / "series.csv").open(newline="") as file:
        seconds = {row["host"]: float(row["seconds"]) for row in csv.DictReader(file)}
    assert set(seconds) == {"h0", "h1", "h2"}
    assert max(seconds.values()) < 600, "the hour is not in it"


def test_the_memory_of_hosts_is_added_up_as_each_has_it(lab: Hosts, tmp_path: Path) -> None:
    """The rule wants five times the memory of all: of a container, the limit of its cgroup."""
    words = [*QUICK, "dataset.num_files_train=auto", "output.stall_seconds=60"]
    with memory_limit(1 << 30) as group:
        lab.hold("h1", group)
        ran = Job(lab, tmp_path, [1, 1], "datasize", *words, "--json")
        try:
            assert ran.end() == 0, ran.told()
        finally:
            ran.kill()
    told = json.loads(ran.told()[ran.told().index("{") :])
    assert told["memory"]["num_bytes"] == host_memory_bytes()[0] + (1 << 30), told
    assert "(of 2 hosts)" in told["memory"]["text"]


def test_a_host_whose_link_is_cut_is_named(lab: Hosts, tmp_path: Path) -> None:
    """The launcher waits for that host; the line that says how to end it is right."""
    with job(lab, tmp_path, [1, 1, 1], "run", *_LONG) as ran:
        ran.until("^epoch 2 of")
        lab.cut("h2")
        ran.until("^dlemu: rank 0 on host h0: waited .* for rank 2 on host h2$")
        assert ran.summary["status"] == "failed"
        assert "rank 2 on host h2" in ran.summary["error"]
        how = ran.until("goes on waiting for host h2, this ends it: kill -9 ").split()
        assert psutil.Process(int(how[-1])).name() == "prterun"
        ran.gone(ranks_only=True)
        subprocess.run(how[-3:], check=True)
        lab.mend("h2")
        ran.gone()
        assert [file for file in lab.left() if "dlemu" in file.name] == []


def test_a_host_that_is_frozen_is_named(lab: Hosts, tmp_path: Path) -> None:
    """All of it stops, the launcher's process there as well. It ends when it is thawed."""
    with (
        freezer() as group,
        job(lab, tmp_path, [1, 2, 1], "run", *_LONG, held={"h1": group}) as ran,
    ):
        ran.until("^epoch 2 of")
        group.freeze()
        ran.until("^dlemu: rank 0 on host h0: waited .* for rank 1 on host h1$")
        assert ran.summary["status"] == "failed"
        assert "rank 1 on host h1" in ran.summary["error"]
        group.thaw()
        assert ran.end() != 0
        ran.gone()
        assert lab.left() == []


def test_a_data_folder_that_vanishes_on_one_host_is_named(lab: Hosts, tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    for name in lab.names:
        lab.mount(name, tmp_path / "data", tmp_path / "seen")
    seen = f"dataset.data_folder={tmp_path / 'seen'}"
    with job(lab, tmp_path, [1, 1], "run", *_LONG, seen) as ran:
        ran.until("^epoch 2 of")
        (rank,) = ran.ranks()[1]
        unmount = ["nsenter", "-t", str(rank.pid), "-m", "umount", "-l", str(tmp_path / "seen")]
        subprocess.run(unmount, check=True)
        named = f"rank 1 on host h1: {tmp_path / 'seen'}/"
        ended_by(ran, named, "is missing")


def ended_by(ran: Job, *words: str) -> None:
    """Check that a job has ended in time, with these words in a line and in its summary."""
    assert ran.end() != 0
    assert any(all(word in line for word in words) for line in ran.complaints()), ran.told()
    assert ran.summary["status"] == "failed"
    assert words[-1] in ran.summary["error"]
    ran.gone()
    assert ran.lab.left() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_launcher_that_is_ended(
    lab: Hosts, tmp_path: Path, number: signal.Signals
) -> None:
    with job(lab, tmp_path, [1, 1, 1], "run", *_LONG) as ran:
        ran.until("^epoch 2 of")
        (launcher,) = (each for each in ran.processes() if each.name() == "prterun")
        launcher.send_signal(number)
        ran.gone()
        # mpirun kills its ranks a second after it asked them to end: not all may have said so.
        ended = (
            ("interrupted", "incomplete") if number == signal.SIGINT else ("failed", "incomplete")
        )
        assert ran.summary["status"] in ended


def test_each_host_has_a_cache_of_its_own(lab: Hosts, tmp_path: Path) -> None:
    """The same path is another folder on each; a host reads a part of the files, and hits less."""
    words = [f"cache.folder={tmp_path}/cache", "cache.policy=keep", "cache.capacity=0.5"]
    own = [tmp_path / f"drive {name}" for name in lab.names]
    for name, folder in zip(lab.names, own, strict=True):
        folder.mkdir()
        (tmp_path / "cache").mkdir(exist_ok=True)
        lab.mount(name, folder, tmp_path / "cache")
    with job(lab, tmp_path, [2, 1, 1], "run", *words, "train.epochs=4") as ran:
        assert ran.end() in (0, 2), ran.told()
    cached = ran.summary["measured"]["cache"]
    each = cached["hosts"]
    assert [host["host"] for host in each] == ["h0", "h1", "h2"]
    for host, folder in zip(each, own, strict=True):
        assert host["hit_bytes_per_epoch"] == host["planned_hit_bytes_per_epoch"]
        assert host["hit_share_per_epoch"][0] == 0 < host["hit_share_per_epoch"][-1] < 1
        held = sum(path.stat().st_size for path in folder.iterdir() if path.suffix != ".json")
        assert 0 < held <= host["capacity_bytes"]
    for name in ("hit_bytes_per_epoch", "planned_hit_bytes_per_epoch"):
        sums = [sum(epoch) for epoch in zip(*(host[name] for host in each), strict=True)]
        assert cached[name] == sums
    assert not any((tmp_path / "cache").iterdir())
