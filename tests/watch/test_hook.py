"""What the hook finds in objects of a job."""

import gc
import io
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import IO, Any

import pytest

from dlemu.watch import hook
from dlemu.watch.events import Journals, Process


@pytest.mark.parametrize("inner", [None, "dataset", "reader"], ids=["itself", "Subset", "timm's"])
def test_the_files_that_a_dataset_names_are_found_behind_wrappers(
    tmp_path: Path, inner: str | None
) -> None:
    names = [str(tmp_path / f"{number}.jpg") for number in range(600)]
    (tmp_path / "0.jpg").write_bytes(b"x")
    dataset = SimpleNamespace(samples=[(name, 0) for name in names], root=str(tmp_path))
    if inner is not None:
        dataset = SimpleNamespace(**{inner: dataset})
    found = hook._files_of(dataset)
    assert found["root"] == str(tmp_path) and found["num_files"] == 600
    assert found["files"][:2] == [names[0], names[2]], "some of them, evenly drawn"
    assert hook._files_of(SimpleNamespace()) == {}
    own = SimpleNamespace(labels=[0, 1], words=["no file"], mine=names)
    assert hook._files_of(own)["num_files"] == 600, "a name of the job's own"


def test_the_shards_of_a_pipeline_are_files_and_urls_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"x")
    shards = [str(tmp_path / "a.tar"), str(tmp_path / "b.tar")]
    pipeline = [SimpleNamespace(urls=shards), len]
    assert hook._files_of(SimpleNamespace(pipeline=pipeline))["files"] == shards
    remote = [SimpleNamespace(urls=["https://host/a.tar"])]
    assert hook._files_of(SimpleNamespace(pipeline=remote)) == {}


def test_a_checkpoint_into_an_open_file_has_its_bytes() -> None:
    lines: list[str] = []
    watch: Any = SimpleNamespace(journal=SimpleNamespace(write=lines.append))

    def save(what: bytes, where: IO[bytes]) -> int:
        return where.write(what)

    file = io.BytesIO(b"before")
    file.seek(0, io.SEEK_END)
    assert hook._saving(save, watch)(bytes(500), file) == 500
    kind, _, _, size, path = lines[0].split(" ", 4)
    assert (kind, size, path) == ("C", "500", '""')


class _Gpu:
    """A CUDA of a few lines, whose clock is that of its marks."""

    def __init__(self, *, own: bool) -> None:
        self.now, self.passed = 0.0, True
        self.freed, self.made = list[int](), list[int]()
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                gpu.made.append(id(self))
                self.at = -1.0

            def __del__(self) -> None:
                gpu.freed.append(id(self))

            def record(self, stream: str) -> None:
                assert stream == "stream"
                self.at = gpu.now

            def query(self) -> bool:
                return gpu.passed

            def elapsed_time(self, end: "Event") -> float:
                return end.at - self.at

        cuda = SimpleNamespace(
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: False,
            current_stream=lambda _=None: "stream",
            Stream=lambda **_: "stream",
            Event=Event,
        )
        self.torch = SimpleNamespace(cuda=cuda, is_grad_enabled=lambda: True)
        if own:
            self.torch._C = SimpleNamespace(
                _cuda_getDevice=lambda: 0,
                _cuda_getCurrentStream=lambda device: (0, device, 1),
                _cuda_isCurrentStreamCapturing=lambda: False,
                _CudaEventBase=Event,
            )


@pytest.fixture(params=[True, False], ids=["by its own functions", "by public ones"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> _Gpu:
    """Return a GPU of a torch that has the functions below `Event.record`, or has not."""
    made = _Gpu(own=request.param)
    monkeypatch.setitem(sys.modules, "torch", made.torch)
    return made


def test_no_event_of_cuda_is_ever_freed(tmp_path: Path, gpu: _Gpu) -> None:
    """A forked worker that collects the iterations of before would be aborted by CUDA."""
    watch = hook._Watch(hook._Journal(str(tmp_path)))
    for _ in range(20):
        loader = SimpleNamespace()
        loop = watch.begin(loader, lambda _: {})
        for batch in range(10):
            watch.take(loop, list, [batch])
            loop.settle()
        del loop, loader
    del watch
    gc.collect()
    assert not gpu.freed
    assert 0 < len(gpu.made) < 20, "they are used again"


def _told(tmp_path: Path) -> Process:
    journals = Journals(tmp_path)
    journals.look()
    assert not journals.damaged
    (process,) = journals.processes.values()
    assert not process.notes
    return process


def test_the_gpu_is_asked_for_its_own_wait_where_the_hosts_was_long(
    tmp_path: Path, gpu: _Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of short ones it tells the first of eight; the others are within the step's time."""
    host = 0
    monkeypatch.setattr(hook, "_now", lambda: host)
    watch = hook._Watch(hook._Journal(str(tmp_path)))
    loop = watch.begin(SimpleNamespace(), lambda _: {})

    def take(waited: int) -> list[int]:
        nonlocal host
        host += waited
        gpu.now += 0.01
        return [1]

    for number in range(17):
        watch.take(loop, take, 900_000 if number in (3, 4) else 1_000)
        gpu.now += 10
        host += 10_000_000
    loop.settle()
    watch.journal.write()
    told = next(iter(_told(tmp_path).iterations.values())).on_gpu
    assert sorted(told) == list(range(16)), "the last step has not ended"
    waits = {number for number, (idle, _) in told.items() if idle >= 0}
    assert waits == {0, 3, 4, 8}
    assert told[3] == pytest.approx((1e-5, 0.01)) and told[5][1] == pytest.approx(0.01001)


def test_steps_are_told_up_to_the_first_mark_that_its_stream_has_not_passed(
    tmp_path: Path,
) -> None:
    class Mark:
        def __init__(self, at: float, passed: bool) -> None:
            self.at, self.passed = at, passed

        def query(self) -> bool:
            return self.passed

        def elapsed_time(self, end: "Mark") -> float:
            return end.at - self.at

    watch = hook._Watch(hook._Journal(str(tmp_path)))
    loop = watch.begin(SimpleNamespace(), lambda _: {})
    one, other = list[Mark](), list[Mark]()
    passed = [(True, one), (True, one), (False, other), (True, one), (False, one)]
    loop.waiting = [(n, Mark(n, has), None, pool) for n, (has, pool) in enumerate(passed)]
    loop.settle()
    watch.journal.write()
    told = next(iter(_told(tmp_path).iterations.values())).on_gpu
    assert list(told) == [0] and told[0][1] == pytest.approx(1e-3)
    assert [number for number, *_ in loop.waiting] == [1, 2, 3, 4]
    assert len(one) == 1, "a mark that is told is used again"


def test_lines_are_kept_and_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each quarter of a second, and with any line of another kind."""
    now = 1
    monkeypatch.setattr(hook, "_now", lambda: now)
    watch = hook._Watch(hook._Journal(str(tmp_path)))
    loop = watch.begin(SimpleNamespace(), lambda _: {})
    written = []
    for _ in range(6):
        now += 100_000_000
        watch.take(loop, list, [1])
        watch.ended()
        (file,) = tmp_path.iterdir()
        written.append(file.read_text().count("\nB "))
    assert written == [0, 0, 3, 3, 3, 6]
    watch.end()
    assert len(_told(tmp_path).optimizer_steps) == 6


def test_optimizers_without_a_loader_keep_no_lines_for_ever(tmp_path: Path) -> None:
    watch = hook._Watch(hook._Journal(str(tmp_path)))
    for _ in range(5000):
        watch.ended()
    assert len(watch.journal.kept) <= hook._MOST_KEPT
    watch.end()
    assert len(_told(tmp_path).optimizer_steps) == 5000


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit()"])
def test_a_fork_leaves_its_parents_lines_alone(tmp_path: Path, leave: str) -> None:
    """And `os._exit`, which runs nothing at the end, writes the own ones before."""
    program = (
        "import os, sys, runpy\n"
        "runpy.run_path(sys.argv[1], run_name='sitecustomize')\n"
        "watch = sys.meta_path[0].watch\n"
        "watch.ended()\n"
        "child = os.fork()\n"
        "watch.ended()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        f"{leave}\n"
    )
    words = [sys.executable, "-c", program, hook.__file__]
    subprocess.run(words, check=True, env={**os.environ, "DLEMU_WATCH": str(tmp_path)})
    journals = Journals(tmp_path)
    journals.look()
    steps = sorted(len(each.optimizer_steps) for each in journals.processes.values())
    assert steps == [1, 2]


def test_loaders_of_two_threads_are_both_watched(tmp_path: Path) -> None:
    """One within another one, in the same thread, is a part of it."""
    watch = hook._Watch(hook._Journal(str(tmp_path)))
    one, other = (watch.begin(SimpleNamespace(), lambda _: {}) for _ in range(2))

    def take_inside(batches: list[int]) -> list[int]:
        watch.take(other, list, [1, 2])
        thread = Thread(target=watch.take, args=(other, list, [3]))
        thread.start()
        thread.join()
        return batches

    watch.take(one, take_inside, [0])
    watch.end()
    iterations = _told(tmp_path).iterations
    assert [each.samples for each in iterations.values()] == [[1], [1]]


def test_accelerates_sampler_is_found_within_its_samplers_of_batches() -> None:
    """Its loader has torch's SequentialSampler for a default, and draws by another one."""
    drawn = SimpleNamespace(sampler="random")
    loader = SimpleNamespace(
        sampler="sequential", batch_sampler=SimpleNamespace(batch_sampler=drawn)
    )
    assert hook._sampler_of(loader) == "random"
    assert hook._sampler_of(SimpleNamespace(sampler="own", batch_sampler=None)) == "own"


def test_the_pictures_of_a_table_are_named_by_its_paths(tmp_path: Path) -> None:
    """As `datasets` has those of a folder; what has other columns or no paths names none."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    paths = [str(tmp_path / f"{number}.jpg") for number in range(600)]
    pictures = [{"bytes": None, "path": path} for path in paths]

    class Dataset(SimpleNamespace):
        def __len__(self) -> int:
            return 500  # a part of it

    def dataset(images: list[Any]) -> Dataset:
        table = pa.table({"label": [0] * len(images), "image": images})
        return Dataset(data=table, column_names=table.column_names)

    found = hook._files_of(dataset(pictures))
    assert found["num_files"] == 500 and found["files"][:2] == [paths[0], paths[2]]
    inside = [{"bytes": b"x", "path": "0.jpg"}]
    assert hook._files_of(dataset(inside)) == {}


def test_the_batch_that_dali_takes_while_it_is_made_is_counted_once(tmp_path: Path) -> None:
    class DALIGenericIterator:
        def __init__(self, number: int) -> None:
            self.left, self.first = number, None
            self.first = DALIGenericIterator.__next__(self)

        def __next__(self) -> int:
            if self.first is not None:
                found, self.first = self.first, None
                return found
            if not self.left:
                raise StopIteration
            self.left -= 1
            return self.left

    watch = hook._Watch(hook._Journal(str(tmp_path)))
    hook._wrap_dali(SimpleNamespace(DALIGenericIterator=DALIGenericIterator), watch)
    batches = DALIGenericIterator(3)
    assert [next(batches) for _ in range(3)] == [2, 1, 0]
    with pytest.raises(StopIteration):
        next(batches)
    watch.end()
    (found,) = _told(tmp_path).iterations.values()
    assert len(found.taken) == 3 and found.exhausted is not None
