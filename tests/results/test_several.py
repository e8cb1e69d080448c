"""The spread of several runs."""

import pytest

from dlemu.results.metrics import t95
from dlemu.results.several import counting_rows, spread_of
from dlemu.results.summary import RunRow, Spread


def test_mean_sd_and_interval_are_students() -> None:
    # By R: t.test(c(9, 10, 11, 10, 12))
    values = spread_of([9, 10, 11, 10, 12])
    assert values["mean"] == pytest.approx(10.4)
    assert values["sd"] == pytest.approx(1.140175)
    assert values["interval"] == pytest.approx([8.984287, 11.815713], abs=1e-3)
    assert spread_of([9]) == Spread(mean=9.0, sd=None, interval=None)


@pytest.mark.parametrize("number", [2, 3, 5, 12])
def test_the_interval_of_the_mean_narrows_with_the_root_of_the_number(number: int) -> None:
    found = spread_of([50.0 + (-1) ** n for n in range(number)])
    assert found["interval"] is not None and found["sd"] is not None
    low, high = found["interval"]
    assert (high - low) / 2 == pytest.approx(t95(number - 1) * found["sd"] / number**0.5)
    assert (high + low) / 2 == pytest.approx(found["mean"])


def test_warm_ups_do_not_count() -> None:
    rows = [RunRow(name=name) for name in ("warmup.1", "run.1", "run.2")]
    assert counting_rows(rows) == rows[1:]


def test_an_interval_ends_where_the_quantity_does() -> None:
    au = spread_of([60.0, 99.0, 98.0], most=100.0)
    assert au["interval"] is not None and au["sd"] is not None
    assert au["mean"] + 4.303 * au["sd"] / 3**0.5 > 140
    assert au["interval"][1] == 100.0
    assert spread_of([1.0, 99.0], most=100.0)["interval"] == [0.0, 100.0]
    rates = spread_of([1.0, 99.0])["interval"]
    assert rates is not None and rates[0] == 0.0 and rates[1] > 600
