"""Preprocessing that computes takes a core; one that sleeps does not."""

import io
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

import dlemu
from dlemu.loaders.preprocessing import Work, block_seconds
from dlemu.results.sums import Rule

_SECONDS = 0.3


def test_the_rest_of_a_block_is_left_for_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = []
    monkeypatch.setattr(zlib, "decompress", lambda block, **_: blocks.append(block))
    work = Work(1.0)
    done = []
    for seconds in (2.5, 0.4, 0.2, 0.0, 1.9):
        work.spend(seconds)
        done.append(len(blocks))
    assert done == [2, 2, 3, 3, 5]


def test_a_block_takes_as_long_as_was_measured() -> None:
    alone, together = block_seconds(1), block_seconds(64)
    assert 1e-6 < alone < 1e-2 and 1e-6 < together < 1e-2
    assert Work(alone).spend(200 * alone) > 0


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

    monkeypatch.setattr("dlemu.loaders.preprocessing.subprocess.Popen", Process)
    monkeypatch.setattr("dlemu.loaders.preprocessing.usable_cpus", lambda: 6.5)
    for workers, processes in ((1, 1), (5, 5), (12, 7)):
        started.clear()
        assert block_seconds.__wrapped__(workers) == 0.002
        assert len(started) == processes


@pytest.mark.parametrize("loader", ["pytorch", "threads"])
def test_a_worker_computes_or_sleeps(loader: str, tmp_path: Path) -> None:
    def read(keys: Mapping[str, object]) -> tuple[float, float, dlemu.Workload]:
        workload = dlemu.load_workload(
            "unet3d_h100",
            {
                "dataset.data_folder": str(tmp_path),
                "dataset.num_files_train": 6,
                "dataset.record_length_bytes": 1000,
                "dataset.record_length_bytes_stdev": 0,
                "reader.data_loader": loader,
                "reader.batch_size": 2,
                "reader.read_threads": 0,
                "reader.preprocess_time": _SECONDS / 6,
                **keys,
            },
        )
        dlemu.generate(workload, world=dlemu.Alone())
        block_seconds(1)
        with dlemu.make_loader(workload) as batches:
            cpu, begin = time.process_time(), time.perf_counter()
            decode = sum(batch.decode_seconds for batch in batches)
            assert time.perf_counter() - begin >= 0.9 * _SECONDS
            return time.process_time() - cpu, decode, workload

    cpu, decode, workload = read({})
    assert cpu >= 0.7 * _SECONDS and decode >= 0.7 * _SECONDS
    assert Rule.of(workload).preprocess_seconds == 0, "it is in the record, as decoding"
    cpu, decode, workload = read({"reader.preprocess": "sleep"})
    assert cpu <= 0.4 * _SECONDS and decode <= 0.1 * _SECONDS
    assert Rule.of(workload).preprocess_seconds == pytest.approx(_SECONDS / 6)
