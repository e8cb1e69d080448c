"""Sizes as people write them, and figures as they read them."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.units import (
    ceil_div,
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    round_up,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        (4096, 4096),
        (1.5, 2),
        ("0", 0),
        ("64k", 65_536),
        ("64KB", 64_000),
        (" 1.5 TB ", 1_500_000_000_000),
        ("512gib", 549_755_813_888),
        (".5M", 524_288),
        ("2PiB", 2_251_799_813_685_248),
        ("7B", 7),
    ],
)
def test_a_size_is_read_as_it_is_meant(text: str | float, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "12 parsecs", "-1", "1e9", "0x10", "1,5GB"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_bytes(text)
    assert str(error.value) == (
        f"{text!r} is not a size; write it like 4096, 64KiB, 512GiB or 1.5TB"
    )


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf"), "9" * 400])
def test_a_size_without_bounds_is_refused(size: str | float) -> None:
    with pytest.raises(ValueError, match="is not a size in bytes"):
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
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3_822.9 * 2**30, "3.7 TiB"),
        (2.5 * 2**50, "2.5 PiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_are_shown_in_binary_units(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0, "0 B/s"),
        (950, "950 B/s"),
        (999_900_000, "1 GB/s"),
        (3_029e9, "3.03 TB/s"),
    ],
)
def test_rates_are_shown_in_decimal_units(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (12.4e-6, "12 µs"),
        (0.0035, "3.5 ms"),
        (0.9996, "1 s"),
        (99.4, "99.4 s"),
        (119.6, "2:00"),
        (3599.6, "1:00:00"),
        (3725, "1:02:05"),
    ],
)
def test_a_duration_is_shown_as_a_person_wants_it(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.floats(0, 1e15))
def test_no_figure_is_shown_with_an_exponent(value: float) -> None:
    assert "e+" not in format_rate(min(value, 9e14)) + format_seconds(value) + format_bytes(value)


def test_rounding_up_of_numbers_and_arrays() -> None:
    assert [ceil_div(number, 3) for number in (0, 1, 3, 4)] == [0, 1, 1, 2]
    assert [round_up(number) for number in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
    assert round_up(np.array([0, 5, 6]), 3).tolist() == [0, 6, 6]
