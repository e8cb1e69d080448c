"""What a DataLoader's workers do with the memory of samples, by their page faults."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlemu.host import faults
from dlemu.host.faults import PAGE_BYTES, Faults, WorkerFaults, faults_of, memory_of

BATCH = 4000 * PAGE_BYTES


@pytest.fixture(autouse=True)
def huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Huge pages are there where a program asks for them."""
    path = tmp_path / "enabled"
    path.write_text("always [madvise] never\n")
    monkeypatch.setattr(faults, "_HUGE_PAGES", path)
    return path


def seen(share: float, *, ahead: float = 0, batch: float = BATCH, sample: float = 1e5) -> Faults:
    """Return the faults of 100 batches, so many for each of their pages."""
    number = share * 100 * batch / PAGE_BYTES
    return Faults(number, (100 - ahead, 100), batch, sample)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([], None, id="none"),
        pytest.param([seen(1.0)], "kept", id="the batches alone"),
        pytest.param([seen(2.0)], "returned", id="the samples, too"),
        pytest.param([seen(5.0)], "returned", id="samples are cut"),
        pytest.param([seen(1.45)], 0.55, id="a part of them"),
        pytest.param([seen(1.7), seen(1.6)], 0.35, id="a part in two epochs"),
        pytest.param([seen(1.45, sample=5e6)], None, id="a part, or huge pages"),
        pytest.param([seen(1.45, ahead=10)], None, id="a part, or few batches"),
        pytest.param([seen(1.0), seen(2.0)], None, id="it changes"),
        pytest.param([seen(2.1), seen(1.9)], "returned", id="two epochs"),
        pytest.param([seen(0.5)], None, id="the kernel does not count"),
        pytest.param([seen(1.0, ahead=40)], None, id="kept, or few batches"),
        pytest.param([seen(1.7, ahead=10)], "returned", id="returned whatever was ahead"),
        pytest.param([seen(1.7, batch=900 * PAGE_BYTES)], None, id="small batches"),
        pytest.param([seen(1.0, sample=5e6)], None, id="kept, or huge pages"),
        pytest.param([seen(2.0, sample=5e6)], "returned", id="large samples"),
    ],
)
def test_faults_tell_the_state_where_they_can(
    found: list[Faults], expected: str | float | None
) -> None:
    assert memory_of(found) == expected


@pytest.mark.parametrize(("share", "expected"), [(1.0, None), (2.0, "returned")])
def test_where_all_memory_is_of_huge_pages_few_faults_tell_nothing(
    share: float, expected: str | None, huge_pages: Path
) -> None:
    huge_pages.write_text("[always] madvise never\n")
    assert memory_of([seen(share)]) == expected


def processes(proc: Path, counts: dict[int, int]) -> None:
    for pid, count in counts.items():
        (proc / str(pid)).mkdir(parents=True, exist_ok=True)
        words = [f"{pid} (a b) c) S 1 2 3 4 5 6", count, "77 88 99", *range(20)]
        (proc / str(pid) / "stat").write_text(" ".join(map(str, words)))


def test_minor_faults_of_processes_are_summed(tmp_path: Path) -> None:
    processes(tmp_path, {5: 1000, 6: 234})
    assert faults_of([5, 6], tmp_path) == 1234
    assert faults_of([5, 7], tmp_path) is None, "one has ended"
    assert faults_of([], tmp_path) is None


class Loader:
    """A DataLoader with two workers, as far as it is looked at."""

    def __init__(self, *, number: int | None = 30, kind: int = 0, prefetch: int = 2) -> None:
        self._number, self._dataset_kind, self.prefetch_factor = number, kind, prefetch

    def __len__(self) -> int:
        if self._number is None:
            raise TypeError
        return self._number


ITERATOR = SimpleNamespace(_workers=[SimpleNamespace(pid=5), SimpleNamespace(pid=6)])


@pytest.mark.parametrize(
    ("loader", "iterator", "sizes", "steps", "expected"),
    [
        pytest.param(
            Loader(), ITERATOR, {}, [4, 29], [Faults(300, (21, 25), 4000, 1500)], id="an epoch"
        ),
        pytest.param(
            Loader(prefetch=1), ITERATOR, {29: 8040}, [4, 29], [], id="samples of all sizes"
        ),
        pytest.param(
            *(Loader(), ITERATOR, {29: 4040}, [4, 29]),
            [Faults(300, (21, 25), 4000, 1500)],
            id="samples of nearly one size",
        ),
        pytest.param(Loader(), ITERATOR, {4: 0}, [4], [], id="no tensors"),
        pytest.param(Loader(number=8), ITERATOR, {}, [4, 7], [], id="a short epoch"),
        pytest.param(Loader(number=None), ITERATOR, {}, [], [], id="no known end"),
        pytest.param(Loader(kind=1), ITERATOR, {}, [], [], id="a stream"),
        pytest.param(Loader(), iter([]), {}, [], [], id="without workers"),
        pytest.param([1, 2, 3], iter([]), {}, [], [], id="a list"),
    ],
)
def test_workers_are_looked_at_twice(
    loader: Any,
    iterator: Any,
    sizes: dict[int, int],
    steps: list[int],
    expected: list[Faults],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After their first batches, and when they have made all: of what came between."""
    counts = iter([1000, 1300])
    monkeypatch.setattr(faults, "faults_of", lambda pids: next(counts) if pids == [5, 6] else None)
    found = WorkerFaults()
    found.begin(loader, iterator)
    looked = []
    for step in range(40):
        if found.is_due(step):
            size = sizes.get(step, 4000)
            found.look(step, batch_bytes=size, samples=4, file_bytes=1500.0)
            looked.append(step)
    assert (looked, found.found) == (steps, expected)
