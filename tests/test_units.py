"""Sizes as people write them, and figures as they read them."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.units import (
    ceil_div,
    counted,
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    round_up,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        (1.5, 2),
        ("64k", 65_536),
        ("64KB", 64_000),
        (" 1.5 TB ", 1_500_000_000_000),
        (".5M", 524_288),
        ("7B", 7),
    ],
)
def test_a_size_is_read_as_it_is_meant(text: str | float, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("size", ["", "GiB", "1e9", "1,5GB", -1, float("nan"), "9" * 400])
def test_what_is_no_size_is_refused(size: str | float) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(size)


@given(st.integers(0, 2**53), st.sampled_from(["", "B", "K", "KiB", "MiB", "GiB", "TiB", "PiB"]))
def test_binary_units_are_powers_of_1024(number: int, unit: str) -> None:
    power = " KMGTP".index(unit[0]) if unit not in ("", "B") else 0
    assert parse_bytes(f"{number}{unit}") == pytest.approx(number * 1024**power)


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_bytes(text) >= 0


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (format_bytes(0), "0 B"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(1024), "1.0 KiB"),
        (format_bytes(3_822.9 * 2**30), "3.7 TiB"),
        (format_bytes(-2048), "-2.0 KiB"),
        (format_rate(0), "0 B/s"),
        (format_rate(950), "950 B/s"),
        (format_rate(999_900_000), "1 GB/s"),
        (format_rate(3_029e9), "3.03 TB/s"),
        (format_seconds(0), "0 µs"),
        (format_seconds(12.4e-6), "12 µs"),
        (format_seconds(0.0035), "3.5 ms"),
        (format_seconds(0.9996), "1 s"),
        (format_seconds(99.4), "99.4 s"),
        (format_seconds(119.6), "2:00"),
        (format_seconds(3599.6), "1:00:00"),
    ],
)
def test_a_figure_is_shown_as_a_person_wants_it(shown: str, text: str) -> None:
    assert shown == text


@given(st.floats(0, 1e15))
def test_no_figure_is_shown_with_an_exponent(value: float) -> None:
    assert "e+" not in format_rate(min(value, 9e14)) + format_seconds(value) + format_bytes(value)


def test_more_than_one_of_a_thing_is_spelt_so() -> None:
    told = [counted(number, noun) for noun in ("epoch", "batch", "process") for number in (1, 2000)]
    assert told[:4] == ["1 epoch", "2,000 epochs", "1 batch", "2,000 batches"]
    assert told[4:] == ["1 process", "2,000 processes"]


def test_rounding_up_of_numbers_and_arrays() -> None:
    assert [ceil_div(number, 3) for number in (0, 1, 3, 4)] == [0, 1, 1, 2]
    assert [round_up(number) for number in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
    assert round_up(np.array([0, 5, 6]), 3).tolist() == [0, 6, 6]
