"""Jobs over several hosts: each a network namespace of this machine, with ranks of its own."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlemu.cli.main import run
from tests.lab.commands import QUICK
from tests.lab.hosts import Hosts, hosts

_STALL_SECONDS = 5
_LONG = ["train.epochs=100000", f"output.stall_seconds={_STALL_SECONDS}"]
"""A run that ends by itself only when no test waits any more."""
_ENDS = _STALL_SECONDS + 10 + 30
"""Seconds in which the reachable ranks must have ended; the last 30 are for a busy machine."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path / "hosts", 3) as made:
        yield made


class Job:
    """`dlemu` on several hosts, in a folder that they share."""

    def __init__(self, lab: Hosts, folder: Path, ranks: Sequence[int], *words: str) -> None:
        self.folder = folder / "run"
        self.mark = str(folder)
        command = [sys.executable, "-m", "dlemu", *words]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
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

    def end(self, seconds: float = 90) -> int:
        out, _ = self.launcher.communicate(timeout=seconds)
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

    def ranks(self) -> dict[int, psutil.Process]:
        """Return the ranks that live, by their numbers."""
        found = {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                number = process.environ().get("OMPI_COMM_WORLD_RANK")
                if number is not None and process.status() != psutil.STATUS_ZOMBIE:
                    found[int(number)] = process
        return found

    def gone(self, seconds: float, *, ranks_only: bool = False) -> bool:
        """Wait until no process is left."""
        deadline = time.monotonic() + seconds
        while self.ranks() if ranks_only else self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

    def kill(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.launcher.kill()
        self.launcher.wait()


@contextlib.contextmanager
def job(lab: Hosts, folder: Path, ranks: Sequence[int], *words: str) -> Iterator[Job]:
    """Start a job on a small dataset; nothing of it outlives the `with`."""
    data = f"dataset.data_folder={folder / 'data'}"
    if words[0] == "run":
        assert run(["datagen", *QUICK, data]) == 0
        words = (*words, f"output.folder={folder / 'run'}")
    started = Job(lab, folder, ranks, words[0], *QUICK, data, *words[1:])
    try:
        yield started
    finally:
        started.kill()


def test_hosts_have_uneven_numbers_of_ranks(lab: Hosts, tmp_path: Path) -> None:
    with job(lab, tmp_path, [2, 1, 1], "run") as ran:
        assert ran.end() in (0, 2), ran.told()
    assert "host:     h0, and 2 other hosts, " in ran.told()
    summary = ran.summary
    assert (summary["num_hosts"], summary["num_ranks"], summary["num_accelerators"]) == (3, 4, 4)
    assert [each["host"] for each in summary["measured"]["hosts"]] == ["h0", "h1", "h2"]


def test_a_link_that_is_held_to_a_rate_is_the_limit(lab: Hosts, tmp_path: Path) -> None:
    """5 MB/s of files that another host serves. The link has its headers, too."""
    sizes = [f"dataset.{each}" for each in ("record_length_bytes=200000", "num_files_train=28")]
    words = [*QUICK, *sizes, "train.epochs=1"]
    assert run(["datagen", *words, f"dataset.data_folder={tmp_path / 'data'}"]) == 0
    point = tmp_path / "mounted"
    point.mkdir()
    lab.limit_rate("h0", 40_000_000)
    lab.mount_from("h1", "h0", tmp_path / "data", point)
    words += [f"dataset.data_folder={point}", f"output.folder={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "dlemu", "run", *words, "client.nic_gbps=0.04"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run(
        lab.on("h1", *command), capture_output=True, text=True, env=environment, timeout=90
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["limit"]["name"] == "network", summary["limit"]
    assert summary["limit"]["evidence"].startswith("eth0 of host h1 received ")
    counted, read = summary["measured"]["network"], summary["measured"]["read_bytes"]
    assert read < counted["received_bytes"] < 1.15 * read
    assert counted["sent_bytes"] < 0.1 * read
    assert "% of 0.04 Gb/s (eth0)" in ran.stdout


def test_a_dataset_is_written_by_all_hosts(lab: Hosts, tmp_path: Path) -> None:
    with job(lab, tmp_path, [1, 1, 1], "datagen") as wrote:
        assert wrote.end() == 0, wrote.told()
    assert len(list((tmp_path / "data").glob("train/*.npz"))) == 56
    assert run(["verify", *QUICK, f"dataset.data_folder={tmp_path / 'data'}"]) == 0


def test_a_host_whose_link_is_cut_is_named(lab: Hosts, tmp_path: Path) -> None:
    """The launcher waits for that host; the line that says how to end it is right."""
    with job(lab, tmp_path, [1, 1, 1], "run", *_LONG) as ran:
        ran.until("^epoch 2 of")
        lab.cut("h2")
        since = time.monotonic()
        line = ran.until("^dlemu: rank 0 on host h0: waited .* for rank 2 on host h2$")
        assert time.monotonic() - since < _ENDS, line
        assert ran.summary["status"] == "failed"
        assert "rank 2 on host h2" in ran.summary["error"]
        how = ran.until("goes on waiting for host h2, this ends it: kill -9 ").split()
        assert psutil.Process(int(how[-1])).name() == "prterun"
        assert ran.gone(_ENDS, ranks_only=True), ran.processes()
        subprocess.run(how[-3:], check=True)
        lab.mend("h2")
        assert ran.gone(60), ran.processes()


def test_a_host_that_is_frozen_is_named(lab: Hosts, tmp_path: Path) -> None:
    with job(lab, tmp_path, [1, 2, 1], "run", *_LONG) as ran:
        ran.until("^epoch 2 of")
        frozen = [ran.ranks()[1], ran.ranks()[2]]
        for process in frozen:
            process.suspend()
        ran.until("^dlemu: rank 0 on host h0: waited .* for rank 1 on host h1$")
        for process in frozen:
            process.resume()
        assert ran.end() != 0
        assert ran.summary["status"] == "failed"
        assert ran.gone(60), ran.processes()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_launcher_that_is_ended(
    lab: Hosts, tmp_path: Path, number: signal.Signals
) -> None:
    with job(lab, tmp_path, [1, 1, 1], "run", *_LONG) as ran:
        ran.until("^epoch 2 of")
        (launcher,) = (each for each in ran.processes() if each.name() == "prterun")
        launcher.send_signal(number)
        assert ran.gone(_ENDS), ran.processes()
        # mpirun kills its ranks a second after it asked them to end: not all may have said so.
        ended = (
            ("interrupted", "incomplete") if number == signal.SIGINT else ("failed", "incomplete")
        )
        assert ran.summary["status"] in ended


def test_a_rank_that_is_killed_on_another_host_is_named(lab: Hosts, tmp_path: Path) -> None:
    with job(lab, tmp_path, [1, 1, 1], "run", *_LONG) as ran:
        ran.until("^epoch 2 of")
        ran.ranks()[1].kill()
        assert ran.end() != 0
        assert "rank 1 on host h1 ended without a word" in ran.told(), ran.told()
        assert ran.summary["status"] == "failed"
        assert ran.gone(60), ran.processes()


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
