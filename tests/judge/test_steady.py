"""Rounds and levels of a rate: made-up seconds of a drive."""

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dlemu.config.model import load_workload
from dlemu.judge import own_rates
from dlemu.judge.outcome import with_metrics
from dlemu.judge.own_rates import OwnRates, pieces_of
from dlemu.judge.steady import Level, Piece, Steadiness, steadiness, trend_of
from dlemu.judge.summary import Measured, Summary
from dlemu.report.words import fed, sentence
from tests.sizing.conftest import outcome


def after(*parts: tuple[int, float, float], noise: float = 0.0) -> Steadiness:
    """Return how steady a rate was that was so for some seconds each: seconds, rate, AU."""
    generator = random.Random(1)
    pieces = [
        Piece(1.0, rate * (1 + generator.gauss(0, noise)), au)
        for seconds, rate, au in parts
        for _ in range(seconds)
    ]
    found = steadiness(pieces)
    assert found is not None
    return found


def levels(found: Steadiness) -> list[tuple[float, float]]:
    return [(level.seconds, round(level.bytes_per_second, -1)) for level in found.levels]


def test_a_rate_that_falls_has_two_levels() -> None:
    found = after((33, 400.0, 99.0), (27, 150.0, 37.0), noise=0.02)
    assert found.trend == "fell" and not found.agrees
    assert levels(found) == [(33.0, 400.0), (27.0, 150.0)]
    assert [level.begin for level in found.levels] == [0.0, 33.0]
    assert found.levels[1].au_percentage == pytest.approx(37.0)
    mean = (33 * 400 + 27 * 150) / 60
    assert found.levels[1].share == pytest.approx(150 / mean, rel=0.01)


def test_rounds_are_those_of_the_specification() -> None:
    steady = after((50, 400.0, 80.0))
    assert steady.agrees and steady.trend == "steady"
    assert steady.rounds == pytest.approx((400.0,) * 5)
    # A slope of 12 % within an excursion of 12 %: no level, but no agreement.
    rising = steadiness([Piece(1.0, 376 + 48 * at / 49, 80.0) for at in range(50)])
    assert rising is not None and rising.trend == "steady"
    assert rising.slope == pytest.approx(0.096, rel=0.05) and rising.agrees
    more = steadiness([Piece(1.0, 364 + 72 * at / 49, 80.0) for at in range(50)])
    assert more is not None and more.slope > 0.1 and not more.agrees


def test_a_rate_that_goes_up_and_down_varies() -> None:
    found = after(*[(10, 400.0, 80.0), (10, 150.0, 40.0)] * 3, noise=0.03)
    assert found.trend == "varies" and len(found.levels) == 6


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_noise_is_no_level(noise: float) -> None:
    assert after((60, 400.0, 80.0), noise=noise).trend == "steady"


def test_where_nothing_waited_the_storage_could_give_more() -> None:
    """204 MB/s are what one accelerator asks for: only the 150 after it are the storage's."""
    found = after((70, 204.0, 99.5), (30, 150.0, 80.0))
    assert levels(found) == [(70.0, 200.0), (30.0, 150.0)]
    assert found.levels[0].is_free
    # An end at which all was read ahead is none of the storage's, and no level.
    assert after((40, 360.0, 70.0), (5, 100.0, 99.9)).trend == "steady"
    assert after((40, 360.0, 99.9), (20, 200.0, 99.9)).trend == "steady"


def test_few_seconds_tell_nothing() -> None:
    assert steadiness([Piece(1.0, 1e9)] * 4) is None


def test_long_runs_are_looked_at_in_longer_pieces() -> None:
    found = after((2000, 400.0, 80.0), (1000, 150.0, 40.0))
    assert found.trend == "fell"
    assert found.levels[1].begin == pytest.approx(2000, abs=16)


def test_trends() -> None:
    low, high = Level(0, 10, 1e8), Level(10, 10, 3e8)
    found = [trend_of(each) for each in ([], [low], [low, high], [high, low], [low, high, low])]
    assert found == ["steady", "steady", "rose", "fell", "varies"]


def test_a_run_says_what_it_fed_over_time_and_never_from_the_mean(tmp_path: Path) -> None:
    """60 % with 2 accelerators: 2.2 for the first 33 s, then 0.8."""
    ran = outcome(tmp_path / "run", accelerators=2, seconds=0.002 / 0.6)
    both = [Level(0, 33, 4e8, 94.0, 1.643), Level(33, 40, 1.5e8, 37.0, 0.616)]

    def told(*levels: Level) -> Any:
        steady = Steadiness((4e8,) * 5, levels).fields
        measured = {"page_cache_share": 0.0, "steady": steady}
        summary = Summary(limit=ran.summary["limit"], measured=cast(Measured, measured))
        return with_metrics(summary, load_workload("unet3d_h100"), ran.metrics)

    fell = told(*both)
    assert fell["verdict"] == "FAIL"
    assert fell["real_accelerators"] == pytest.approx(0.82, abs=0.01)
    assert [round(phase["feeds"], 1) for phase in fell["phases"]] == [2.2, 0.8]
    (found,) = (each for each in fell["findings"] if each["kind"] == "not_steady")
    assert found["weight"] == "weakens"
    assert sentence(found) == (
        "BUT not steady: 400 MB/s for the first 33 s, then 150 MB/s; AU of the last 40 s 37%"
    )
    assert fed(fell["phases"]) == "2 accelerators (2.2) for the first 33 s, then 0 (0.8)"

    varies = told(*both, Level(73, 10, 4e8, 94.0, 1.643))
    assert varies["real_accelerators"] is None
    assert fed(varies["phases"]) == "2 accelerators at its best, 0 at its worst"
    (found,) = (each for each in varies["findings"] if each["kind"] == "not_steady")
    assert sentence(found) == "BUT not steady: 150 MB/s to 400 MB/s, in 3 levels over 83 s"

    steady = told(both[0])
    assert steady["phases"] == [] and steady["real_accelerators"] == pytest.approx(1.33, abs=0.01)
    assert not [each for each in steady["findings"] if each["kind"] == "not_steady"]


def test_what_a_level_fed_is_told_by_its_bytes_whatever_the_length_of_epochs(
    tmp_path: Path,
) -> None:
    """Two epochs of the same bytes: AU 95 % for 10 s, then 38 % for 25 s. It fed 2.1, then 0.8."""
    ran = outcome(tmp_path / "run", accelerators=2, seconds=0.004)
    fast, slow = (
        replace(ran.metrics.epochs[0], whole_epoch_au_percentage=au, seconds=seconds)
        for au, seconds in ((95.0, 10.0), (38.0, 25.0))
    )
    mean = (10 * 1e8 + 25 * 4e7) / 35
    both = (Level(0, 10, 1e8, 95.0, 1e8 / mean), Level(10, 25, 4e7, 38.0, 4e7 / mean))
    measured = {"page_cache_share": 0.0, "steady": Steadiness((1e8,) * 5, both).fields}
    summary = Summary(limit=ran.summary["limit"], measured=cast(Measured, measured))
    metrics = replace(ran.metrics, epochs=(fast, slow))
    found = with_metrics(summary, load_workload("unet3d_h100"), metrics)
    fed_then = [phase["feeds"] for phase in found["phases"]]
    assert fed_then == pytest.approx([2 * 95 / 90, 2 * 38 / 90], rel=1e-3)  # AU has two decimals


def test_bytes_are_counted_while_something_moves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's: ten seconds at one rate, then ten at a fifth."""
    monkeypatch.setattr(own_rates, "_PERIOD", 1e6)  # the test looks itself
    now, moved = iter(range(100)), [1e9]
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    with OwnRates(lambda: moved[0]) as rates:
        for second in range(20):
            moved[0] += 2e8 if second < 10 else 4e7
            rates._look()
        found = rates.steadiness()
    assert found is not None and found.trend == "fell"
    assert levels(found)[0] == (10.0, 2e8)
    assert pieces_of(rates.moved[:1]) == pieces_of([]) == []
    with OwnRates(lambda: moved[0]) as still:
        still._look()
    assert pieces_of(still.moved) == [], "no byte was counted"
    assert pieces_of([(0.0, 0.0), (1.0, 5e8), (2.0, 0.0)]) == [Piece(1.0, 5e8)], "its process ended"
    close = [(0.0, 0.0), (0.1, 5e8), (1.0, 1e9), (1.2, 1e9)]
    assert pieces_of(close) == [Piece(1.0, 1e9)], "looks too close to tell a rate are left out"
