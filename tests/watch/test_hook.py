"""What the hook finds in objects of a job."""

import gc
import io
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from dlemu.watch import hook


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


def test_no_event_of_cuda_is_ever_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked worker that collects the iterations of before would be aborted by CUDA."""
    freed, made = list[int](), list[int]()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            made.append(id(self))

        def __del__(self) -> None:
            freed.append(id(self))

        def record(self) -> None: ...

        def query(self) -> bool:
            return True

        def elapsed_time(self, end: "Event") -> float:
            return 1.0

    cuda = SimpleNamespace(
        is_initialized=lambda: True, is_current_stream_capturing=lambda: False, Event=Event
    )
    torch = SimpleNamespace(cuda=cuda, is_grad_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    watch = hook._Watch(hook._Journal(str(tmp_path)))
    for _ in range(20):
        loader = SimpleNamespace()
        loop = watch.begin(loader, lambda _: {})
        for batch in range(10):
            watch.take(loop, partial(list, [batch]))
        del loop, loader
    del watch
    gc.collect()
    assert not freed
    assert 0 < len(made) < 20, "they are used again"
