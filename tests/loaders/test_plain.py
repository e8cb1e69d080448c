"""Workers that cost what a plain DataLoader's cost (reader.cost=dataloader)."""

import builtins
import io
import math
import os
import shutil
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from dlemu.dataset.layout import Dataset
from dlemu.errors import DatasetError, WorkloadError
from dlemu.loaders import pipes, plain, pytorch
from dlemu.loaders.source import Source, Task
from dlemu.loaders.steps import IDLE
from tests.lab.dataset import flip
from tests.lab.waiting import until
from tests.loaders.contract import (
    DATASETS,
    Case,
    check_epoch,
    make_case,
    payload_bytes,
    read_all,
    source_of,
)
from tests.loaders.test_faults import put

PLAIN: dict[str, object] = {
    "reader.data_loader": "pytorch",
    "reader.cost": "dataloader",
    "reader.prefetch_size": 4,
}
HERE = PLAIN | {"reader.read_threads": 0}
ROWS = [name for name in DATASETS if not name.startswith("parquet")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where datasets lie: each is written once."""
    return tmp_path_factory.mktemp("plain")


def shared_files() -> set[str]:
    """Return what workers that have ended left in shared memory; living ones name it for a moment.

    Their names have the process: torch_PID_RANDOM_NUMBER.
    """
    named = {name for name in os.listdir("/dev/shm") if name.startswith("torch_")}
    return {name for name in named if not Path("/proc", name.split("_")[1]).exists()}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", ROWS)
def test_hands_over_what_the_plan_and_the_generator_say(
    dataset: str, workers: int, folders: Path
) -> None:
    case = make_case(
        folders / dataset.replace(" ", "_"), dataset, PLAIN | {"reader.read_threads": workers}
    )
    with closing(case.open()) as loader:
        for epoch in range(2):
            steps = check_epoch(case, loader, epoch)
            num_bytes = sum(batch.num_bytes for batches in steps for batch in batches)
            assert num_bytes >= payload_bytes(case, steps)
        assert loader.read_counts().sum() >= 12
        del steps  # whose batches keep their memory
        with closing(loader.epoch(2, case.plan(2))) as later:  # type: ignore[type-var]
            data = next(later)[0].data
            assert data is not None
            assert any(np.shares_memory(data, each) for each in loader.memory())
    assert not shared_files()


@pytest.mark.parametrize("resize", [5_000, 30_000])
def test_rows_are_cut_and_padded(resize: int, folders: Path) -> None:
    keys = PLAIN | {"reader.read_threads": 1, "dataset.record_length_bytes_resize": resize}
    case = make_case(folders / "npz", "npz", keys)
    with closing(case.open(keep=2)) as loader:
        check_epoch(case, loader, 0)


def test_an_epoch_may_be_left_and_bytes_need_not_be_wanted(folders: Path) -> None:
    case = make_case(folders / "npy", "npy", PLAIN | {"reader.read_threads": 2})
    with closing(case.open(keep=0)) as loader:
        steps = loader.epoch(0, case.plan(0))
        next(steps)
        steps.close()  # type: ignore[attr-defined]
        check_epoch(case, loader, 1)


STARTS: dict[str, tuple[dict[str, object], list[float]]] = {
    "given": ({"reader.worker_start_time": 5.0}, [10.0, 10.0]),
    "given, and they last": (
        {"reader.worker_start_time": 5.0, "reader.persistent_workers": True},
        [10.0],
    ),
    "given for lean ones": (
        {"reader.worker_start_time": 5.0, "reader.cost": "lean"},
        [10.0, 10.0],
    ),
    "as here": ({}, [0.5]),
    "as here, and they last": ({"reader.persistent_workers": True}, []),
    "lean": ({"reader.cost": "lean"}, []),
}


@pytest.mark.parametrize("name", STARTS)
def test_the_start_of_workers_takes_as_long_as_a_job_s(
    name: str, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch is read before all are there; each epoch of a job has new ones."""
    keys, expected = STARTS[name]
    case = make_case(folders / "npy", "npy", PLAIN | {"reader.read_threads": 2} | keys)
    slept, reads, now = list[float](), list[float](), iter(range(10**6))

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        reads.append(float(loader.read_counts().sum()))

    monkeypatch.setattr(pytorch, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(pytorch, "perf_counter", lambda: next(now) / 2)
    with closing(case.open()) as loader:
        for epoch in range(2):
            check_epoch(case, loader, epoch)
    clock = 0.5 * len(slept) if "given" in name else 0.0  # each look at the clock is half a second
    assert slept == pytest.approx(expected, abs=2 * clock)
    assert reads[:1] in ([], [0.0]) or "as here" in name


def test_batches_are_pinned_in_the_order_in_which_they_come(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's thread does: one that comes first is copied first, though a later step's."""
    keys = {"reader.read_threads": 2, "reader.prefetch_size": 2, "train.loop": "pipelined"}
    case = make_case(folders / "npy", "npy", PLAIN | keys)
    make, take, pinned = plain.PlainReader.make, plain.PinnedBatches.take, list[bytes]()
    come = tmp_path / "come"

    def making(self: Any, task: Task, wanted: Any) -> Any:
        if task.step == 0:  # in its worker
            until(come.exists, "the batch of step 1")
        return make(self, task, wanted)

    def taking(self: Any, batch: Any) -> Any:
        pinned.append(batch.numpy().tobytes())
        come.touch()
        return take(self, batch)

    monkeypatch.setattr(plain.PlainReader, "make", making)
    monkeypatch.setattr(plain.PinnedBatches, "take", taking)
    with closing(case.open()) as loader:
        taken = [step[0].data for step in loader.epoch(0, case.plan(0))]
    taken_bytes = [data.tobytes() for data in taken if data is not None]
    assert pinned[:2] == [taken_bytes[1], taken_bytes[0]]
    assert sorted(pinned) == sorted(taken_bytes)


def test_memory_is_locked_when_no_batch_has_left_any(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`reader.page_lock_time` is that of 1 GB; memory that was locked once stays so."""
    keys = {"reader.read_threads": 1, "reader.prefetch_size": 1, "reader.page_lock_time": 900.0}
    case = make_case(folders / "npy", "npy", PLAIN | keys)
    slept, seen = list[float](), list[int]()
    monkeypatch.setattr(plain, "time", SimpleNamespace(sleep=slept.append))
    with closing(case.open()) as loader:
        for epoch in range(3):
            for [batch] in loader.epoch(epoch, case.plan(epoch)):
                assert batch.data is not None
                seen.append(batch.data.__array_interface__["data"][0])
        memory = loader.memory()
        assert len(seen) > len(memory) >= len(set(seen)) == len(slept)
        lasts = 900.0 * 2 ** math.ceil(math.log2(memory[0].nbytes)) / 1e9  # as torch rounds
        assert lasts / 2 < min(slept) and max(slept) < lasts, "less what the pages have taken"


@pytest.mark.parametrize("cost", ["dataloader", "lean"])
@pytest.mark.parametrize("own_thread", [False, True])
def test_a_plain_loader_s_workers_are_forked_off_the_main_thread_as_a_job_s(
    own_thread: bool, cost: str, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have its heap. Off a thread that may end early, another one starts them, and lives."""
    case = make_case(
        folders / "npy", "npy", PLAIN | {"reader.read_threads": 1, "reader.cost": cost}
    )
    by_starter: list[str] = []
    call = pipes.Starter.call

    def called(self: Any, function: Any) -> Any:
        by_starter.append("started")
        return call(self, function)

    monkeypatch.setattr(pipes.Starter, "call", called)

    def read() -> None:
        with closing(case.open()) as loader:
            check_epoch(case, loader, 0)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(read).result() if own_thread else read()
    assert bool(by_starter) == (own_thread or cost == "lean")


def test_one_more_batch_is_asked_for_when_one_has_been_pinned(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's loop gets it from the thread that pins; workers that wait for it wait longer."""
    keys = {"reader.read_threads": 1, "reader.prefetch_size": 1, "train.loop": "pipelined"}
    case = make_case(folders / "npy", "npy", PLAIN | keys)
    events: list[str] = []
    take, watch = plain.PinnedBatches.take, pipes.Requests.send

    def taking(self: Any, *given: Any) -> Any:
        events.append("pinned")
        return take(self, *given)

    def sending(self: Any) -> None:
        events.extend(["asked"] * len(self._kept))
        watch(self)

    monkeypatch.setattr(plain.PinnedBatches, "take", taking)
    monkeypatch.setattr(pipes.Requests, "send", sending)
    with closing(case.open()) as loader:
        steps = len(check_epoch(case, loader, 0))
    # The first request starts the epoch, each other one follows a batch; the last has none.
    assert events == ["asked", *["pinned", "asked"] * (steps - 1), "pinned"]


CALLS = {"npy": "numpy.load", "npz": "numpy.load", "hdf5": "h5py.File"}


@pytest.mark.parametrize("dataset", CALLS)
def test_a_file_is_opened_as_a_dataset_would(
    dataset: str, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name: so the library makes its own requests to the storage."""
    case = make_case(folders / dataset, dataset, HERE)
    module, _, function = CALLS[dataset].partition(".")
    library = pytest.importorskip(module)
    opened, call = [], getattr(library, function)

    def noting(path: Any, *given: Any, **named: Any) -> Any:
        opened.append(path)
        return call(path, *given, **named)

    monkeypatch.setattr(library, function, noting)
    monkeypatch.setitem(plain._LOADS, "npy", noting)
    [[batch], *_] = read_all(case)
    assert opened[:3] == [
        str(case.workload.data_folder / case.layout.path(each)) for each in batch.samples.tolist()
    ]


FAULTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "missing": ("npy", Path.unlink, "is missing"),
    "cut": ("npy", lambda path: os.truncate(path, 9_000), "is damaged: Failed to read all data"),
    "grown": ("hdf5", lambda path: path.write_bytes(path.read_bytes() + b"x"), "are wanted"),
    "a FIFO": ("npz", put(os.mkfifo), "is a FIFO, not a file"),
    "npy header": ("npy", partial(flip, at=1, bits=0xFF), "is damaged"),
    "zip header": ("npz", partial(flip, at=0, bits=0xFF), "is damaged"),
    "HDF5 header": ("hdf5", partial(flip, at=0, bits=0xFF), "is damaged"),
    "TFRecord": ("tfrecord", partial(flip, at=0, bits=0xFF), "is damaged|checksum"),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_is_named(fault: str, workers: int, tmp_path: Path) -> None:
    dataset, damage, words = FAULTS[fault]
    case = make_case(tmp_path, dataset, PLAIN | {"reader.read_threads": workers})
    path = case.workload.data_folder / case.layout.path(int(case.plan(0).samples.ravel()[-1]))
    damage(path)
    with pytest.raises(DatasetError, match=words) as refused:
        read_all(case)
    assert str(path) in str(refused.value)


def reader_of(case: Case, monkeypatch: pytest.MonkeyPatch, load: plain.Load) -> Any:
    """Return a reader whose files are loaded by `load`, and a task of it."""
    from dlemu.dataset.layout import Dataset
    from dlemu.loaders.source import Source, sample_bytes

    source = Source.open(Dataset(case.workload, case.layout), keep=1)
    monkeypatch.setattr(plain, "load_of", lambda source: load)
    rows, notes = sample_bytes(source), []
    reader = plain.PlainReader(
        source,
        accelerator=0,
        worker=0,
        row_bytes=rows,
        note=lambda what, file: notes.append(what),
    )
    task = next(iter(source.tasks(0, case.plan(0), 0)))
    made = reader.make(task, lambda: True)
    assert made is not None
    assert notes[-1] == IDLE
    reader.close()
    return made[0]


def test_waiting_counts_as_reading_and_work_as_decoding(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(folders / "npy", "npy", HERE)

    def slow(path: str) -> Any:
        time.sleep(0.02)
        return np.load(path)

    def busy(path: str) -> Any:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return np.load(path)

    cost = reader_of(case, monkeypatch, slow)
    assert cost.read_seconds >= 0.05 > cost.decode_seconds
    cost = reader_of(case, monkeypatch, busy)
    assert cost.decode_seconds >= 0.06
    assert cost.hand_over_seconds > 0


REFUSED: dict[str, dict[str, object]] = {
    "reader.odirect=true": {"reader.odirect": True},
    "reader.hand_over=none": {"reader.hand_over": "none"},
    "reader.check_crc=true": {"reader.check_crc": True},
    "cache.folder": {"cache.folder": "/tmp/cache"},
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_no_dataset_does_is_refused(key: str, folders: Path) -> None:
    case = make_case(folders / "npz", "npz")
    with pytest.raises(WorkloadError, match=f"{key} is not for.*reader.cost=lean takes it"):
        case.workload.with_keys(PLAIN | REFUSED[key])
    assert not case.workload.with_keys(
        {"reader.cost": "dataloader", "reader.data_loader": "threads"}
    ).plain_workers


def test_too_little_shared_memory_is_said_before_a_worker_is_killed(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(folders / "npz", "npz", PLAIN | {"reader.read_threads": 2})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=65536))
    with pytest.raises(WorkloadError, match=r"/dev/shm, as torch does: .* are free"):
        case.open()


def test_pictures_of_a_job_are_decoded_unless_its_own_time_holds_that(tmp_path: Path) -> None:
    from PIL import Image

    case = make_case(tmp_path, "jpeg", HERE)
    picture = Image.fromarray(np.full((8, 8, 3), 200, np.uint8))
    path = tmp_path / "one.jpg"
    picture.save(path)

    def load(known: bool, **keys: object) -> Any:
        workload = case.workload.with_keys(keys)
        found = plain.load_of(Source(Dataset(workload, case.layout, known), direct=False))
        assert found is not None
        return found(str(path))

    assert load(False).shape == (8, 8, 3)
    scaled = load(False, **{"dataset.record_length_bytes_resize": 3 * 5 * 5})
    assert scaled.shape == (5, 5, 3), "training gets the bytes of a square"
    assert (scaled >= 190).all()
    assert load(False, **{"dataset.record_length_bytes_resize": 100}).shape == (8, 8, 3)
    assert scaled.flags.writeable, "torch says to users what an array that is not does"
    assert load(True).tobytes() == path.read_bytes()
    assert load(False, **{"reader.preprocess_time": 0.01}).tobytes() == path.read_bytes()


def test_a_part_of_a_picture_is_scaled_as_recipes_do(tmp_path: Path) -> None:
    """To scale all of it took twice as long, and workers computed 5 to 9 % more than a job's."""
    from PIL import Image

    across = np.arange(0, 200, 2, dtype=np.uint8)  # 2 more for each pixel to the right
    path = tmp_path / "one.png"
    Image.fromarray(np.broadcast_to(across[None, :, None], (100, 100, 3)).copy()).save(path)
    spans, mirrored = [], 0
    for _ in range(200):
        row = plain._picture(str(path), 10)[0, :, 0].astype(int)
        spans.append(abs(row[-1] - row[0]) / (2 * 90))  # of its width, between centres
        mirrored += row[0] > row[-1]
    assert 0.2 < min(spans) < 0.5, "8 % of the area, 3/4 as wide as high, at least"
    assert max(spans) <= 1.01
    assert 40 < mirrored < 160


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 500), (500, 1), (640, 480)])
def test_a_part_lies_within_its_picture(width: int, height: int) -> None:
    for _ in range(100):
        left, top, right, bottom = plain._random_part(width, height)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


class Requests(io.FileIO):
    """A file that notes how many bytes each call asks the kernel for."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.asked: list[int] = []

    def readinto(self, buffer: Any, /) -> int | None:
        self.asked.append(len(buffer))
        return super().readinto(buffer)


def test_a_picture_is_asked_for_as_pil_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reads ahead by the first call: by one long call a file came in a third of requests."""
    from PIL import Image

    path = str(tmp_path / "one.jpg")
    noise = np.random.default_rng(0).integers(0, 256, (250, 250, 3), np.uint8)
    Image.fromarray(noise).save(path, quality=95)
    raw = Requests(path)
    with Image.open(io.BufferedReader(raw)) as image:
        image.load()
    ours = Requests(path)
    opened = lambda path, mode: io.BufferedReader(ours)  # noqa: E731
    monkeypatch.setattr(builtins, "open", opened)
    found = plain._undecoded(path)
    monkeypatch.undo()
    assert found.tobytes() == Path(path).read_bytes()
    assert len(found) > 65_536, "more than a call"
    assert ours.asked[0] == raw.asked[0] <= 8192
    assert ours.asked[1] == raw.asked[1]


_BEFORE = {"returned": {-1: 1 << 30, -3: 32 << 20}, "kept": {-1: 0, -3: 65_536}}
"""Of each state, options of mallopt that bring about the other one: a process's thresholds."""
_NO_HUGE_PAGES = 41  # PR_SET_THP_DISABLE: one fault would give 2 MiB


def _begin_otherwise(state: str | float, worker: int) -> None:
    for option, value in _BEFORE.get(str(state), {}).items():
        assert plain._LIBC.mallopt(option, value) == 1
    plain._LIBC.prctl(_NO_HUGE_PAGES, 1, 0, 0, 0)


class Faults(plain._Batches):
    """Of each batch that a worker makes, the faults that it has had so far."""

    def __getitem__(self, step: int) -> Any:
        super().__getitem__(step)
        return getrusage(RUSAGE_SELF).ru_minflt


@pytest.mark.parametrize(
    ("state", "own_heap"),
    [("returned", False), ("returned", True), ("kept", False), ("kept", True), (0.4, False)],
)
def test_a_worker_returns_or_keeps_the_memory_of_samples(
    state: str | float, own_heap: bool, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever glibc would do by itself, and in whichever heap: threads have heaps of 64 MiB.

    A batch has 120 samples of 0.9 MB, cut to a few bytes: nearly all of its faults are theirs.
    """
    monkeypatch.setitem(plain._LOADS, "npy", lambda path: np.full(900_000, 1, np.uint8))
    keys: dict[str, object] = {"reader.read_threads": 1, "reader.worker_memory": state}
    keys |= {"reader.batch_size": 120, "dataset.record_length_bytes_resize": 8}
    keys |= {"dataset.record_length_bytes": 900_000}
    source = source_of(folders / "of_120", PLAIN | keys, format="npy", num_files_train=120)

    def take() -> list[int]:
        loader: Any = DataLoader(
            Faults(source, 8),
            batch_size=None,
            sampler=range(6),
            num_workers=1,
            multiprocessing_context="fork",
            worker_init_fn=partial(_begin_otherwise, state),
        )
        return [*loader]

    with ThreadPoolExecutor(1) as pool:
        faults = pool.submit(take).result() if own_heap else take()
    if not any(faults):
        pytest.skip("this kernel counts no page faults")
    pages = 120 * 900_000 / os.sysconf("SC_PAGE_SIZE")
    counts = np.diff(faults)[1:] / pages
    expected = {"returned": 1.0, "kept": 0.0}.get(str(state), 0.6)
    assert np.abs(counts - expected).max() < 0.1, counts


@pytest.mark.parametrize("glibc", [True, False])
def test_memory_of_a_batch_goes_back_to_the_kernel(
    glibc: bool, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a real job's worker gives it back: when its samples are free, not before."""
    case = make_case(folders / "npy", "npy", HERE | {"reader.batch_size": 4})
    source = Source(Dataset(case.workload, case.layout), direct=False)
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def noted(padding: int) -> None:
        assert padding == 0
        alive.append(sum(each() is not None for each in made))

    library = SimpleNamespace(malloc_trim=noted) if glibc else SimpleNamespace()
    monkeypatch.setattr(plain, "_LIBC", library)
    reader = plain.PlainReader(
        source, accelerator=0, worker=0, row_bytes=40_000, note=lambda what, file: None
    )
    take = reader._sample

    def taken(sample: int) -> Any:
        found = take(sample)
        made.append(weakref.ref(found[1][0]))
        return found

    monkeypatch.setattr(reader, "_sample", taken)
    reader.start_epoch(0)
    for step in range(2):
        samples = np.arange(4) + 4 * step
        assert reader.make(Task(0, step, samples, np.arange(4), samples, None), lambda: True)
    reader.close()
    assert len(made) == 8
    assert alive == ([0, 0] if glibc else [])
