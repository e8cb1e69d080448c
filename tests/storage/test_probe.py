"""What few and many readers get, by turns."""

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dlemu.config.model import load_workload
from dlemu.dataset.layout import Dataset
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import Alone
from dlemu.run import live
from dlemu.run.live import RunMonitor
from dlemu.storage import probe
from dlemu.storage.probe import Probe, probe_rate, probe_readers
from tests.lab.waiting import LONG

MIB = 1 << 20
_MANY = 200_000
"""Reads after which what was waited for will not come: a thread is not kept waiting for so long."""


@pytest.fixture(autouse=True)
def full_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let probes be as long as they are asked to be; other tests have short ones."""
    monkeypatch.setattr(probe, "longest_seconds", math.inf)


def test_few_and_many_take_turns_and_a_slow_moment_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = Mock(side_effect=[100.0, 104.0, 1.0, 2.0, 110.0, 109.0])
    monkeypatch.setattr(probe, "probe_rate", rates)
    found = probe_readers([Path("a")], few=4, many=16, seconds=3.0)
    assert found == Probe(num_few=4, few=100.0, num_many=16, many=104.0)
    asked = [(each.kwargs["num_readers"], each.kwargs["seconds"]) for each in rates.call_args_list]
    assert asked == [(4, 0.5), (16, 0.5)] * 3


@pytest.mark.parametrize(("lasting", "many"), [(400.0, 400.0), (530.0, 518.0), (None, 518.0)])
def test_what_more_readers_get_must_last(
    lasting: float | None, many: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A throttle of 400 lets a burst pass at the start of each turn."""
    rates = Mock(side_effect=[400.0, 510.0, 400.0, 520.0, 400.0, 518.0, lasting])
    monkeypatch.setattr(probe, "probe_rate", rates)
    monkeypatch.setattr(probe, "lies_in_memory", lambda folder: False)
    assert probe_readers([Path("a")], few=4, many=32, seconds=3.0) == Probe(4, 400.0, 32, many)
    assert rates.call_args.kwargs["seconds"] == 3.0, "as long as all turns"


def test_no_throttle_of_memory_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run from memory would last twice as long behind its last step."""
    rates = Mock(side_effect=[400.0, 510.0, 400.0, 520.0, 400.0, 518.0])
    monkeypatch.setattr(probe, "probe_rate", rates)
    monkeypatch.setattr(probe, "lies_in_memory", lambda folder: folder == Path("shm"))
    assert probe_readers([Path("shm/a")], few=4, many=32, seconds=3.0) == Probe(4, 400.0, 32, 518.0)


def test_as_many_readers_as_there_may_be_are_asked_once_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "probe_rate", Mock(side_effect=[3.0, 1.0, 2.0]))
    assert probe_readers([Path("a")], few=9, many=9, seconds=1.0) == Probe(9, 2.0, 9, 2.0)


def test_where_nothing_can_be_read_nothing_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for nothing in ("none", "fifo"):
        assert probe_readers([tmp_path / nothing], few=1, many=2, seconds=0.06) is None


def test_where_no_read_ended_in_time_the_first_ones_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy host, whose threads come late: the time is over at the third look."""
    over, seconds = threading.Event(), itertools.count()

    def look() -> float:
        if (second := next(seconds)) == 2:
            over.set()
        return float(second)

    monkeypatch.setattr(probe, "time", Mock(perf_counter=look))
    monkeypatch.setattr(probe, "_LAST_READS_SECONDS", 60.0)

    def read(_: object) -> Iterator[int]:
        assert over.wait(LONG)
        yield 300

    assert probe.rate_of(read, num_readers=1, seconds=0.0) == 300 / 3


class Reads:
    """Counts reads, by a clock that costs nothing: each look at it is a second later."""

    def __init__(self, patch: pytest.MonkeyPatch, enough: Callable[["Reads"], bool]) -> None:
        self.offsets: set[int] = set()
        self.readers: set[int] = set()
        self.num = 0
        self._enough, self._ended = enough, threading.Event()
        self._preadv = os.preadv
        self._seconds = itertools.count()
        patch.setattr(os, "preadv", self.preadv)
        patch.setattr(probe, "time", self)

    def preadv(self, file: int, into: Sequence[memoryview], offset: int) -> int:
        assert [len(memory) for memory in into] == [MIB]
        self.offsets.add(offset)
        self.readers.add(threading.get_ident())
        self.num += 1
        if self._enough(self) or self.num > _MANY:
            self._ended.set()
        return self._preadv(file, into, offset)

    def perf_counter(self) -> float:
        return float(next(self._seconds))

    def sleep(self, seconds: float) -> None:
        """Return when there were reads enough, or never will be."""
        assert self._ended.wait(LONG)


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(8 * MIB))
    return path


def test_all_readers_read_and_from_everywhere_in_a_file(
    sparse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere = {piece * MIB for piece in range(8)}
    reads = Reads(monkeypatch, lambda seen: len(seen.readers) == 4 and seen.offsets == everywhere)
    assert probe_rate([sparse], num_readers=4, seconds=1e6)
    assert (len(reads.readers), reads.offsets) == (4, everywhere)


def test_no_reader_begins_before_all_are_started(
    sparse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that reads takes the interpreter from the one that starts the rest: half a minute."""
    before = {*threading.enumerate()}
    others: list[int] = []

    def enough(seen: Reads) -> bool:
        others.append(len({*threading.enumerate()} - before))
        return True

    Reads(monkeypatch, enough)
    assert probe_rate([sparse], num_readers=30, seconds=1e6)
    assert others[0] == 30


def test_the_rate_is_that_up_to_the_last_piece_that_came(
    sparse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Reads(monkeypatch, lambda seen: seen.num == 50)
    found = probe_rate([sparse], num_readers=1, seconds=1e6)
    assert found == MIB, "each look at the clock takes a second, and each read has one"


class Ranks(Alone):
    """Two ranks here, with 8 and 4 workers, and one elsewhere."""

    def all_gather(self, value: Any) -> list[Any]:
        assert value == (0, os.getpid(), 8)
        return [value, (0, os.getppid(), 4), (1, 1, 16)]


@pytest.mark.parametrize(
    ("world", "keys", "few", "many"),
    [
        (Alone(), {"read_threads": 4, "io_depth": 1}, 8, 16),
        (Alone(), {"read_threads": 4, "io_depth": 2}, 16, 32),
        (Alone(), {"read_threads": 2, "io_depth": 1}, 4, 16),
        (Alone(), {"read_threads": 64, "io_depth": 4}, 256, 256),
        (Ranks(), {"read_threads": 4, "io_depth": 1}, 12, 24),
    ],
)
def test_storage_is_probed_with_the_readers_of_the_host_and_with_more(
    world: Alone,
    keys: dict[str, int],
    few: int,
    many: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two accelerators, and files of which every second one is taken."""
    asked: list[tuple[int, dict[str, Any]]] = []
    monkeypatch.setattr(live, "probe_readers", lambda paths, **how: asked.append((len(paths), how)))
    places = {"dataset.data_folder": str(tmp_path), "dataset.num_files_train": 1024}
    reader = {f"reader.{key}": value for key, value in keys.items()}
    loader: Any = SimpleNamespace(direct=False)
    dataset, dog = Dataset.of(load_workload("unet3d_h100", places | reader)), Watchdog(60, Alone())
    with RunMonitor(dataset, tmp_path, world, loader, num_accelerators=2, watchdog=dog) as seen:
        seen.probe(0.02)
        assert not asked, "nothing was lost that storage could be asked about"
        seen.probe(0.021)
        own = [os.getpid(), os.getppid()]
        assert seen._pids == (own if isinstance(world, Ranks) else own[:1])
    assert asked == [(512, {"few": few, "many": many, "seconds": 2.4})]
