"""Damaged datasets, dead workers, ended parents: one clear line, soon, and nothing left running."""

import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dlemu.errors import DatasetError, RunError, WorkloadError
from dlemu.judge.records import dump_workload
from dlemu.loaders import check_loader, pytorch
from dlemu.storage import extents as storage
from dlemu.storage.files import open_sized
from tests.lab.dataset import flip
from tests.lab.waiting import LONG, until
from tests.loaders.contract import Case, make_case, read_all


def put(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return what makes something else in a file's place."""

    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


SIZE = r"holds \d+ bytes, \d+ are wanted"
LENGTH = "checksum of the record's length is wrong"
FAULTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "missing": (
        "npz",
        Path.unlink,
        "is missing; dlemu verify lists what is damaged of a dataset of dlemu's",
    ),
    "cut by a byte": ("npy", lambda path: os.truncate(path, path.stat().st_size - 1), SIZE),
    "grown": ("hdf5", lambda path: path.write_bytes(path.read_bytes() + b"x"), SIZE),
    "a folder": ("npz", put(Path.mkdir), "is a folder, not a file"),
    "a FIFO": ("npz", put(os.mkfifo), "is a FIFO, not a file"),
    "a FIFO of many": ("tfrecord of 13", put(os.mkfifo), "is a FIFO, not a file"),
    "zip header": ("npz", partial(flip, at=0, bits=0xFF), "no zip archive"),
    "npy header": ("npy", partial(flip, at=1, bits=0xFF), "no .npy header"),
    "HDF5 header": ("hdf5", partial(flip, at=0, bits=0xFF), "no HDF5 file"),
    "TFRecord length": ("tfrecord", partial(flip, at=0, bits=0xFF), LENGTH),
    "TFRecord length of many": (
        "tfrecord of 13",
        lambda path: flip(path, int.from_bytes(path.read_bytes()[:8], "little") + 16, 0xFF),
        LENGTH,
    ),
    "Parquet footer": (
        "parquet of 13",
        lambda path: flip(path, -20),
        "its footer differs from what was written",
    ),
    "foreign, compressed": (
        "npz",
        lambda path: np.savez_compressed(path, x=np.zeros(20_000, np.uint8)),
        "compressed",
    ),
    "foreign, shorter than its index says": (
        "indexed of 13",
        lambda path: os.truncate(path, path.stat().st_size - 1),
        "its index points past its end: sample 12",
    ),
    "foreign, without an index": (
        "indexed of 13",
        lambda path: Path(f"{path}.sz.idx").unlink(),
        "its index .*sz.idx cannot be read .No such file",
    ),
}


def victim(case: Case) -> Path:
    """Return the path of a file that the first epoch reads; not the first file."""
    samples = case.plan(0).samples.ravel()
    files = case.layout.file_of(samples)
    return case.workload.data_folder / case.layout.path(int(files[files > 0][0]))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Wait for the end of all workers."""
    yield
    until(lambda: not multiprocessing.active_children(), "the end of the workers")


@pytest.mark.parametrize(
    ("fault", "name"), [*((each, "threads") for each in FAULTS), ("missing", "pytorch")]
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, fault: str) -> None:
    dataset, apply, said = FAULTS[fault]
    case = make_case(tmp_path, dataset, {"reader.data_loader": name, "reader.read_threads": 2})
    path = victim(case)
    apply(path)
    with pytest.raises(DatasetError) as raised:
        read_all(case, keep=False, known_places="foreign" not in fault)
    line = str(raised.value)
    assert line.startswith(str(path)) and re.search(said, line), line
    assert "\n" not in line


@pytest.mark.parametrize("decode", ["raw", "library"])
@pytest.mark.parametrize("dataset", ["npz", "npz of 5", "tfrecord", "tfrecord of 13"])
def test_damaged_content_is_found_where_checksums_are_checked(
    tmp_path: Path, decode: str, dataset: str
) -> None:
    keys = {"reader.data_loader": "threads", "reader.decode": decode, "reader.check_crc": True}
    case = make_case(tmp_path, dataset, keys)
    path = victim(case)
    flip(path, path.stat().st_size // 2, 0xFF)
    with pytest.raises(DatasetError, match=re.escape(str(path))):
        read_all(case)


@pytest.mark.parametrize(
    ("dataset", "keys", "line"),
    [
        ("npz", {"odirect": True, "decode": "library"}, r"reader.odirect must be false or auto"),
        ("npy", {"check_crc": True}, r"reader.check_crc must be false for npy files"),
        ("parquet of 13", {}, r"hand_over=batch needs reader.decode=library"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, dataset: str, keys: dict[str, object], line: str
) -> None:
    case = make_case(tmp_path, dataset, {f"reader.{key}": value for key, value in keys.items()})
    with pytest.raises(WorkloadError, match=line):
        case.open()


def test_rows_need_pyarrow(tmp_path: Path) -> None:
    workload = make_case(tmp_path, "parquet of 13", {"reader.decode": "library"}).workload
    line = r"needs pyarrow .*pip install 'dlemu\[parquet\]'"
    with patch("dlemu.loaders.find_spec", lambda _: None), pytest.raises(WorkloadError, match=line):
        check_loader(workload, 1)


def test_workers_that_pass_tensors_on_leave_no_folder(tmp_path: Path) -> None:
    """They are ended by a signal. Before, each left a folder `pymp-...` in /tmp."""
    workload = make_case(tmp_path / "data", "npy").workload
    keys = {"data_loader": "pytorch", "cost": "dataloader", "read_threads": 2}
    program = (
        "import dlemu\n"
        f"loader = dlemu.make_loader(dlemu.load_workload({str(tmp_path / 'job.yaml')!r}))\n"
        "with loader: assert [batch.data.shape for batch in loader]\n"
    )
    job = workload.with_keys({f"reader.{key}": value for key, value in keys.items()})
    assert job.plain_workers
    (tmp_path / "job.yaml").write_text(dump_workload(job))
    with tempfile.TemporaryDirectory(prefix="dlemu-", dir="/tmp") as folder:  # of a short path
        environment = {**os.environ, "TMPDIR": folder}
        words = [sys.executable, "-c", program]
        subprocess.run(words, check=True, env=environment, timeout=LONG)
        assert os.listdir(folder) == []


def test_a_path_that_is_too_long_for_sockets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the workers failed in a thread, and the loader waited for ever."""
    keys = {"data_loader": "pytorch", "cost": "dataloader", "read_threads": 1}
    case = make_case(tmp_path, "npy", {f"reader.{key}": value for key, value in keys.items()})
    monkeypatch.setattr("dlemu.loaders.pipes.get_temp_dir", lambda: f"/{'x' * 80}/pymp-01234567")
    line = r"sockets below /x+, whose path is 6 bytes too long for that; set TMPDIR=/tmp"
    with pytest.raises(WorkloadError, match=line):
        case.open()


@pytest.mark.parametrize("between_epochs", [False, True])
def test_a_killed_worker_is_named(tmp_path: Path, between_epochs: bool) -> None:
    keys = {"reader.data_loader": "pytorch", "reader.read_threads": 3, "reader.batch_size": 1}
    case = make_case(tmp_path, "npz", keys)
    loader = case.open()
    epoch = loader.epoch(0, case.plan(0))
    # One of each worker: now all have said which one they are, and have others to make.
    taken = len(list(epoch if between_epochs else itertools.islice(epoch, 3)))
    assert taken == (26 if between_epochs else 3)
    pids = loader.pids()
    assert len(pids) == 3
    os.kill(pids[2], signal.SIGKILL)
    if between_epochs:
        epoch = loader.epoch(1, case.plan(1))
    with pytest.raises(RunError) as raised:
        for _ in epoch:
            pass
    assert str(raised.value) == (
        f"worker 2 of accelerator 0 (pid {pids[2]}) was killed by SIGKILL; out of memory?"
    )
    loader.close()


def test_an_interrupt_while_workers_are_started_ends_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    start = BaseProcess.start

    def slow(process: BaseProcess) -> None:
        begun.set()
        go.wait(LONG)
        start(process)

    def interrupt(main: int) -> None:
        begun.wait(LONG)
        signal.pthread_kill(main, signal.SIGINT)

    monkeypatch.setattr(BaseProcess, "start", slow)
    case = make_case(tmp_path, "npz", {"reader.data_loader": "pytorch", "reader.read_threads": 2})
    loader = case.open()
    threading.Thread(target=interrupt, args=[threading.get_ident()]).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(loader.epoch(0, case.plan(0)))
        loader.close()
    finally:
        go.set()
    assert loader.pids() == []


def test_what_is_waited_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that opens when a byte comes; workers are forked, and so have the same pipe."""
    waits, go_on = os.pipe()
    for name in ("threads", "pytorch"):
        folder = tmp_path / name
        case = make_case(folder, "npz", {"reader.data_loader": name, "reader.read_threads": 1})
        path = victim(case)

        def slow(opened: str, *, direct: bool, path: Path = path) -> tuple[int, int]:
            if opened == str(path):
                os.read(waits, 1)
            return open_sized(opened, direct=direct)

        monkeypatch.setattr(storage, "open_sized", slow)
        loader = case.open()
        program = threading.Thread(target=list, args=[loader.epoch(0, case.plan(0))])
        program.start()
        wanted = f"worker 0 of accelerator 0 reads {re.escape(str(path.relative_to(folder)))} for "
        until(lambda: re.search(rf"{wanted}[1-9]\d* s", loader.waiting_for()), wanted)  # noqa: B023
        os.write(go_on, b"!")
        program.join()
        loader.close()
    os.close(waits)
    os.close(go_on)


def _work_for_ever(pids: Connection, late: bool) -> None:
    """What a worker does whose main process is killed before (`late`) or after it begins."""
    main = multiprocessing.parent_process()
    pids.send(os.getpid())
    if late and main is not None:
        main.join()
    pytorch._end_with(None)
    pids.send(0)
    threading.Event().wait()


def _main_of(method: str, late: bool, pids: Connection) -> None:
    """Start such a worker, and wait."""
    context: Any = multiprocessing.get_context(method)
    context.Process(target=_work_for_ever, args=(pids, late)).start()
    threading.Event().wait()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("late", [False, True])
def test_no_worker_outlives_a_main_process_that_is_killed(method: str, late: bool) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    main = context.Process(target=_main_of, args=(method, late, theirs))
    main.start()
    worker = ours.recv()
    assert late or ours.recv() == 0, "it has begun"
    main.kill()
    main.join(LONG)
    until(lambda: not Path(f"/proc/{worker}").exists(), "the end of the worker")


def test_a_worker_that_begins_after_the_end_of_its_parent_ends() -> None:
    fork = multiprocessing.get_context("fork")
    for parent, status in ((os.getpid(), 0), (os.getppid(), 1)):
        worker = fork.Process(target=pytorch._end_with, args=(parent,))
        worker.start()
        worker.join(LONG)
        assert worker.exitcode == status
