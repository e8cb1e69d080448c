"""Jobs over several hosts: each a network namespace of this machine, with ranks of its own."""

import contextlib
import csv
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from dlemu.cli.main import run
from tests.lab import warm
from tests.lab.bench import Run, launched
from tests.lab.cgroups import freezer
from tests.lab.commands import QUICK
from tests.lab.drives import own_drive
from tests.lab.hosts import Hosts, hosts
from tests.lab.waiting import until

_LONG = ["train.epochs=100000", "output.stall_seconds=5"]
"""A run that ends by itself only when no test waits any more."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path / "hosts", 3) as made:
        yield made


def over(
    lab: Hosts, ranks: Sequence[int], folder: Path, *words: str
) -> contextlib.AbstractContextManager[Run]:
    """Start `dlemu` in so many ranks on each host; nothing of it outlives the `with`."""
    return launched(lab.mpirun(ranks, *warm.command(), *words), folder)


@contextlib.contextmanager
def job(lab: Hosts, folder: Path, ranks: Sequence[int], *words: str) -> Iterator[Run]:
    """Start a run of a small dataset."""
    data = f"dataset.data_folder={folder / 'data'}"
    assert run(["datagen", *QUICK, data]) == 0
    words = (*QUICK, data, f"output.folder={folder / 'run'}", *words)
    with over(lab, ranks, folder / "run", "run", *words) as ran:
        yield ran


def gone(ran: Run) -> None:
    """Return when no process is left."""
    until(lambda: not ran.alive(), "the end of all processes", pause=0.1)


def test_hosts_that_differ(lab: Hosts, tmp_path: Path) -> None:
    """Two share a drive of one machine, one has a wrong time of day."""
    words = [*QUICK, "dataset.record_length_bytes=200000", "dataset.num_files_train=126"]
    words += ["train.computation_time=0.1", "train.epochs=1", "reader.read_threads=2"]
    (tmp_path / "seen").mkdir()
    with own_drive(80 << 20) as shared, own_drive(80 << 20) as other:
        for drive in (shared, other):
            assert run(["datagen", *words, f"dataset.data_folder={drive / 'data'}"]) == 0
        for name, drive in zip(lab.names, (shared, other, shared), strict=True):
            lab.mount(name, drive / "data", tmp_path / "seen")
        lab.set_clock("h2", 3600.0)
        words += [f"dataset.data_folder={tmp_path / 'seen'}", f"output.folder={tmp_path / 'run'}"]
        with over(lab, [1, 1, 1], tmp_path / "run", "run", *words) as ran:
            ran.end()
            assert "\nresults: " in ran.told(), ran.told()
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


def test_a_host_whose_link_is_cut_is_named(lab: Hosts, tmp_path: Path) -> None:
    """The launcher waits for that host; the line that says how to end it is right."""
    with job(lab, tmp_path, [1, 1, 1], *_LONG) as ran:
        ran.wait_for("epoch 2 of")
        lab.cut("h2")
        ran.wait_for("at a barrier for rank 2 on host h2\n")
        assert ran.summary["status"] == "failed"
        assert "rank 2 on host h2" in ran.summary["error"]
        ran.wait_for("goes on waiting for host h2, this ends it: kill -9 ")
        how = next(line for line in ran.errors if "kill -9" in line).split()
        assert psutil.Process(int(how[-1])).name() == "prterun"
        until(lambda: not ran.ranks(), "the end of all ranks", pause=0.1)
        subprocess.run(how[-3:], check=True)
        lab.mend("h2")
        gone(ran)
        assert [file for file in lab.left() if "dlemu" in file.name] == []


def test_a_host_that_is_frozen_is_named(lab: Hosts, tmp_path: Path) -> None:
    """All of it stops, the launcher's process there as well. It ends when it is thawed."""
    with freezer() as group:
        lab.hold("h1", group)
        with job(lab, tmp_path, [1, 2, 1], *_LONG) as ran:
            ran.wait_for("epoch 2 of")
            group.freeze()
            ran.wait_for("at a barrier for rank 1 on host h1\n")
            assert ran.summary["status"] == "failed"
            assert "rank 1 on host h1" in ran.summary["error"]
            group.thaw()
            assert ran.end() != 0
            gone(ran)
        assert lab.left() == []


def test_nothing_outlives_a_launcher_that_is_killed(lab: Hosts, tmp_path: Path) -> None:
    with job(lab, tmp_path, [1, 1, 1], *_LONG) as ran:
        ran.wait_for("epoch 2 of")
        (launcher,) = (each for each in ran.alive() if each.name() == "prterun")
        launcher.kill()
        gone(ran)
        assert ran.summary["status"] in ("failed", "incomplete")


def test_each_host_has_a_cache_of_its_own(lab: Hosts, tmp_path: Path) -> None:
    """The same path is another folder on each; a host reads a part of the files, and hits less."""
    words = [f"cache.folder={tmp_path}/cache", "cache.policy=keep", "cache.capacity=0.5"]
    own = [tmp_path / f"drive {name}" for name in lab.names]
    for name, folder in zip(lab.names, own, strict=True):
        folder.mkdir()
        (tmp_path / "cache").mkdir(exist_ok=True)
        lab.mount(name, folder, tmp_path / "cache")
    with job(lab, tmp_path, [2, 1, 1], *words, "train.epochs=4") as ran:
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


def test_each_reads_checkpoints_of_another_host_and_the_slowest_is_named(
    lab: Hosts, tmp_path: Path
) -> None:
    (tmp_path / "seen").mkdir()
    words = [f"checkpoint.checkpoint_folder={tmp_path / 'seen' / 'ck'}", "model=unet3d"]
    words += ["model.model_size_bytes=1000001", "model.parallelism.zero_stage=3"]
    words += ["num_accelerators=4", "checkpoint.num_checkpoints_write=2", "--verify"]
    words += ["checkpoint.num_checkpoints_read=2", "checkpoint.odirect=true"]
    words += ["checkpoint.time_between_checkpoints=0", f"output.folder={tmp_path / 'out'}"]
    with own_drive(32 << 20) as drive:
        for name in lab.names:  # a host has a /dev/shm of its own
            lab.mount(name, drive, tmp_path / "seen")
        with over(lab, [1, 2, 1], tmp_path / "out", "checkpoint", *words) as ran:
            assert ran.end() == 0 and "dlemu: " not in "".join(ran.errors), ran.told()
    told = ran.summary
    own = told["checkpoint"]
    assert own["num_bytes_of_hosts"] == [1_000_001, 2_000_002, 1_000_001]
    assert (own["shared"], own["foreign_share"], own["verified"]) == (True, 1.0, True)
    host_of = ["h0", "h1", "h1", "h2"]
    for entry in own["saves"]:
        slowest, took = entry["slowest"], entry["hosts"]
        assert slowest["accelerator"] == slowest["rank"]
        assert slowest["host"] == host_of[slowest["rank"]] == max(took, key=took.get)
        assert took[slowest["host"]] == entry["seconds"]
        assert list(entry["counted"]) == list(took) == ["h0", "h1", "h2"]
    wear = told["measured"]["wear"]
    assert wear["file_bytes_written"] == 8_000_008
    assert [each["host"] for each in wear["drives"]] == ["h0", "h1", "h2"]
