"""Preprocessing that computes takes a core; one that sleeps does not."""

import io
import itertools
import zlib
from pathlib import Path

import pytest

import dlemu
from dlemu.judge.sums import Rule
from dlemu.loaders import source
from dlemu.loaders.source import Work, block_seconds
from tests.lab.dataset import generated


def test_the_rest_of_a_block_is_left_for_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = []
    monkeypatch.setattr(zlib, "decompress", lambda block, **_: blocks.append(block))
    work = Work(1.0)
    done = []
    for seconds in (2.5, 0.4, 0.2, 0.0, 1.9):
        work.spend(seconds)
        done.append(len(blocks))
    assert done == [2, 2, 3, 3, 5]


def test_what_a_block_took_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, now = itertools.cycle([5.0, 2.0, 3.0]), [0.0]

    def decompress(block: bytes, **_: int) -> None:
        now[0] += next(taken)

    monkeypatch.setattr(zlib, "decompress", decompress)
    monkeypatch.setattr(source, "perf_counter", lambda: now[0])
    assert Work(2.0).spend(6.0) == 10.0, "what it took, not what was asked for"


def test_blocks_are_timed_by_as_many_processes_as_there_are_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []

    class Process:
        stdin, stdout = io.BytesIO(), None

        def __init__(self, words: list[str], **_: object) -> None:
            started.append(words)
            self.stdin, self.stdout = io.BytesIO(), io.BytesIO(b"0.002\n")

        def kill(self) -> None:
            pass

        wait = kill

    monkeypatch.setattr("dlemu.loaders.source.subprocess.Popen", Process)
    monkeypatch.setattr("dlemu.loaders.source.usable_cpus", lambda: 6.5)
    for workers, processes in ((1, 1), (5, 5), (12, 7)):
        started.clear()
        assert block_seconds.__wrapped__(workers) == 0.002
        assert len(started) == processes


@pytest.mark.parametrize("loader", ["pytorch", "threads"])
@pytest.mark.parametrize("how", ["cpu", "sleep"])
def test_a_worker_computes_or_sleeps(
    loader: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"data_loader": loader, "batch_size": 2, "read_threads": 0}
    keys |= {"preprocess_time": 0.01, "preprocess": how}
    workload = generated(tmp_path, {f"reader.{key}": value for key, value in keys.items()})
    computed: list[float] = []

    def spend(self: Work, seconds: float) -> float:
        computed.append(seconds)
        return 7.0

    monkeypatch.setattr(Work, "spend", spend)
    with dlemu.make_loader(workload) as batches:
        decode = [batch.decode_seconds for batch in batches]
    if how == "cpu":
        assert computed == pytest.approx([0.01] * 6), "sample by sample"
        assert min(decode) >= 7.0, "it is in the record, as decoding"
    else:
        assert computed == [] and max(decode) < 7.0
    assert Rule.of(workload).preprocess_seconds == (0 if how == "cpu" else pytest.approx(0.01))
