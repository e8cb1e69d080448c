"""What few and many readers get, by turns."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dlemu import probe
from dlemu.probe import Probe, probe_rate, probe_readers


def test_few_and_many_take_turns_and_a_slow_moment_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = iter([100.0, 200.0, 1.0, 2.0, 110.0, 190.0])
    asked: list[tuple[int, float]] = []

    def fake(paths: Sequence[Path], *, num_readers: int, seconds: float, seed: int) -> float:
        assert paths == [Path("a")]
        asked.append((num_readers, seconds))
        return next(rates)

    monkeypatch.setattr(probe, "probe_rate", fake)
    found = probe_readers([Path("a")], few=4, many=16, seconds=3.0)
    assert found == Probe(num_few=4, few=100.0, num_many=16, many=190.0)
    assert asked == [(4, 0.5), (16, 0.5)] * 3


def test_as_many_readers_as_there_may_be_are_asked_once_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(probe, "probe_rate", lambda *_, **__: next(rates))
    assert probe_readers([Path("a")], few=9, many=9, seconds=1.0) == Probe(9, 2.0, 9, 2.0)


def test_where_nothing_can_be_read_nothing_is_said(tmp_path: Path) -> None:
    assert probe_readers([tmp_path / "none"], few=1, many=2, seconds=0.06) is None


def test_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 << 20))
    assert (probe_rate([path], num_readers=2, seconds=0.05) or 0) > 0
    found = probe_readers([path], few=1, many=4, seconds=0.3)
    assert found is not None and found.few > 0 and found.many > 0
    assert (found.num_few, found.num_many) == (1, 4)
