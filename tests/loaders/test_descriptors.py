"""What a rank opens is what the formula says, and too few descriptors end a run in one line."""

import errno
import gc
import itertools
import multiprocessing
import os
import resource
import subprocess
from contextlib import closing
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest

from dlemu.config.model import Workload
from dlemu.dataset import rule
from dlemu.errors import RunError, WorkloadError
from dlemu.host.processes import usable_cpus
from dlemu.judge.records import dump_workload
from dlemu.library import size
from dlemu.loaders import (
    OTHERS,
    check_loader,
    descriptors_needed,
    most_accelerators,
    most_of_job,
)
from dlemu.ranks.world import Alone
from tests.lab import warm
from tests.lab.commands import small_job
from tests.lab.dataset import workload_of
from tests.lab.waiting import LONG, until
from tests.loaders.contract import Case, check_epoch, make_case, read_all


def open_files(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def most_open(case: Case) -> int:
    """Return the descriptors that reading an epoch adds to this process, at most.

    Another epoch is looked at byte by byte: of workers that are started in any way.
    """
    gc.collect()  # what the tests before this one have left
    workload, before = case.workload, open_files()
    forked = workload.reader.multiprocessing_context == "fork"
    keep = int(workload.reader.hand_over != "none")
    with closing(case.open(keep=keep)) as loader:
        most = max(open_files() for _ in loader.epoch(0, case.plan(0)))
        if keep:
            check_epoch(case, loader, 1)
        if forked:
            allowed = descriptors_needed(workload, case.num_accelerators)
            assert all(open_files(pid) <= allowed for pid in loader.pids())
    del loader
    most_left = before + (0 if forked else 2)  # servers
    # Threads that fill multiprocessing's queues end by themselves.
    until(lambda: (gc.collect(), open_files())[1] <= most_left, "all others to be closed")
    # What others had left was closed meanwhile, and would hide what this loader opened.
    return most - before if open_files() >= before else most_open(case)


@pytest.fixture(scope="module", autouse=True)
def opened_for_good(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have the libraries open what they keep open for as long as this process lives."""
    keys = {"reader.data_loader": "pytorch"}
    read_all(make_case(tmp_path_factory.mktemp("first"), "npz", keys))


@pytest.mark.parametrize(
    "keys",
    [
        {"reader.read_threads": 0, "reader.hand_over": "none"},
        {"reader.read_threads": 1, "reader.hand_over": "none"},
        {"reader.read_threads": 5},
        {"reader.multiprocessing_context": "spawn", "reader.read_threads": 1},
        {"reader.multiprocessing_context": "forkserver", "reader.read_threads": 1},
        {"reader.read_threads": 4, "reader.prefetch_size": 300},
        {"reader.data_loader": "threads", "reader.read_threads": 4},
    ],
    ids=str,
)
def test_readers_cost_what_the_formula_says(keys: dict[str, object], tmp_path: Path) -> None:
    """A file that is closed at once may not be seen, but workers and queues are."""
    keys = {"reader.data_loader": "pytorch"} | keys
    has_workers = keys["reader.data_loader"] == "pytorch" and keys["reader.read_threads"]
    number = 3
    if "reader.multiprocessing_context" in keys:  # its servers stay open
        resource_tracker.ensure_running()
        forkserver.ensure_running()
        number = 1  # each worker imports torch
    dataset = "hdf5 of 5" if keys["reader.read_threads"] == 5 else "npz"
    case = make_case(tmp_path, dataset, keys, num_accelerators=number)
    counted, formula = most_open(case), descriptors_needed(case.workload, number) - OTHERS
    assert counted == formula if has_workers else counted <= formula
    if dataset != "npz":
        assert formula == 3 * (1 + 5), "a descriptor each, and one"


def tiny(folder: Path, **more: object) -> Workload:
    """400 samples, enough for a quick search up to 10 accelerators."""
    keys: dict[str, object] = {"reader__data_loader": "pytorch", "reader__batch_size": 1}
    keys |= {"reader__read_threads": 2, "reader__prefetch_size": 2, "train__epochs": 1}
    keys |= {"dataset__num_files_train": 400, "train__total_training_steps": 31}
    keys |= {"size__confirm": 1, "size__quick": True, "size__max_accelerators": 12}
    return small_job(folder, **keys | more)


def limited_to(
    soft: int, command: str, job: Workload, *words: str, hard: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Run a command over a job where a process may open so many files."""

    def limit(pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard or soft))

    folder = job.data_folder.parent
    (folder / "job.yaml").write_text(dump_workload(job))
    words = (*warm.COMMAND, command, "workload=job.yaml", *words)
    return warm.run(words, cwd=folder, enter=limit, timeout=LONG)


def test_too_few_are_told_before_the_cold_start(tmp_path: Path) -> None:
    """The line's own number is enough, and one less is not."""
    job = tiny(tmp_path, num_accelerators=4)
    need = OTHERS + 4 * 3
    ended = limited_to(need - 1, "run", job)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"dlemu: 4 accelerators of reader.read_threads=2 in a rank need {need} open files, a "
        f"process may have {need - 1} here; emulate at most 3 in a rank, use more ranks or fewer "
        f"reader.read_threads, or raise the limit as root: ulimit -n {need}\n"
    )
    assert "cold start" not in ended.stdout and not (tmp_path / "run").exists()
    ended = limited_to(need, "run", job)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    assert "epoch 1 of 1: 31 steps" in ended.stdout


def test_workers_that_read_through_a_cache_have_descriptors_for_it(tmp_path: Path) -> None:
    """64 workers, each with the cache's state, files in memory and the file that is written."""
    keys = {"reader__data_loader": "threads", "reader__read_threads": 8, "num_accelerators": 8}
    cache = [f"cache.folder={tmp_path}/cache", "cache.capacity=1GiB"]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ended = limited_to(150, "run", tiny(tmp_path, **keys), *cache, hard=hard)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_requests_to_a_bucket_are_connections(tmp_path: Path) -> None:
    keys = {"reader.data_loader": "threads", "reader.read_threads": 2, "reader.gets_in_flight": 16}
    keys["storage.endpoint_url"] = "http://localhost:9000"
    in_bucket = workload_of(Path("/"), keys, data_folder="s3://bucket/data")
    assert descriptors_needed(in_bucket, 3) == OTHERS + 3 * 2 * 16


def test_a_search_ends_at_the_most_that_can_be_run(tmp_path: Path) -> None:
    ended = limited_to(OTHERS + 5 * 3 + 1, "size", tiny(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "feeds at least 5 H100s of 3D U-Net" in ended.stdout
    assert f"6 need {OTHERS + 18} open files" in ended.stdout, ended.stdout


@pytest.mark.parametrize(
    ("processes", "num_ranks", "most"),
    [(1, 1, 5), (3, 1, 15), (9, 1, 20), (1, 4, 20), ("auto", 1, 15)],
)
def test_a_job_emulates_what_all_its_processes_can(
    processes: int | str,
    num_ranks: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Each has files for 5. `auto` takes a process for every 4 here, and 3 at most."""
    workload = tiny(tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (OTHERS + 16, OTHERS + 16))
    monkeypatch.setattr(rule, "_MOST_CALLS", 4 * 2 / 0.002)
    monkeypatch.setattr(rule, "cpus_a_process", usable_cpus() / 3)
    job = workload.with_keys({"train.processes": processes, "train.computation_time": 0.002})
    job = job.with_keys({"reader.batch_size": 1})
    world = Alone()
    world.num_ranks = num_ranks
    assert most_of_job(job, world, 20) == most


def test_where_not_even_one_can_be_run_no_other_number_is_proposed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    workload = tiny(tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    assert most_accelerators(workload) == 0
    with pytest.raises(WorkloadError, match=r"have 20 here; use more ranks or fewer"):
        check_loader(workload, 1)
    with pytest.raises(WorkloadError, match="need 131 open files"):
        size(workload)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_host_that_gives_no_more_processes_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torch's half-made iterator prints nothing when it is collected, and no worker is left."""
    keys = {"reader.data_loader": "pytorch", "reader.read_threads": 2}
    case = make_case(tmp_path, "npz", keys, num_accelerators=2)
    refused = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    thrice = itertools.chain([DEFAULT] * 3, itertools.repeat(refused))
    monkeypatch.setattr(os, "fork", Mock(wraps=os.fork, side_effect=thrice))
    loader = case.open()
    with pytest.raises(RunError, match=r"^no worker 1 of accelerator 1: Resource temporarily"):
        next(iter(loader.epoch(0, case.plan(0))))
    loader.close()
    del loader
    gc.collect()
    assert not multiprocessing.active_children()
