"""How far ahead batches are read, under both training loops; and how batches are brought."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from dlemu.loaders import Batch
from dlemu.loaders.steps import Takers, Window


def batch_of(step: int) -> Batch:
    return Batch(0, step, 0, np.array([step]), 1, 0.0, 0.0, 0.0, 0.0)


def test_a_window_moves_when_a_batch_is_taken() -> None:
    """Two workers with two batches each: four ahead. Batch 0 is taken when it is there."""
    window = Window(ahead=4, takes_early=0)
    assert window.limit == 4
    window.begin(0)
    assert window.limit == 4, "asked for, but not there yet"
    window.made(1)
    assert window.limit == 4, "batches are taken in order"
    window.made(0)
    assert window.limit == 5
    window.begin(1)
    assert window.limit == 6


def test_a_pipelined_loop_has_taken_one_more() -> None:
    window = Window(ahead=4, takes_early=1)
    for step in range(3):
        window.made(step)
    window.begin(0)
    assert window.limit == 6, "batch 0 is computed on, batch 1 is taken, four more are asked for"
    window.begin(1)
    assert window.limit == 7


def test_without_workers_a_batch_is_read_when_it_is_asked_for() -> None:
    rule, pipelined = (Window(ahead=0, takes_early=early) for early in (0, 1))
    assert (rule.limit, pipelined.limit) == (0, 1)
    for step in range(3):
        for window in (rule, pipelined):
            window.begin(step)
        assert rule.limit == step + 1
        rule.made(step)
        assert rule.limit == step + 1
        pipelined.made(step)
        assert pipelined.limit == step + 2


@pytest.mark.parametrize("when_asked", [False, True])
def test_a_batch_is_brought_early_but_advanced_only_when_its_step_has_begun(
    when_asked: bool,
) -> None:
    """A stream sends its next request when it is advanced: never before the loop has come there."""
    advanced: list[int] = []
    changed = threading.Condition()

    def stream() -> Iterator[Batch]:
        for step in range(3):
            with changed:
                advanced.append(step)
                changed.notify()
            yield batch_of(step)

    takers = Takers([stream()], when_asked=when_asked)
    steps = takers.steps(3)
    brought = 0 if when_asked else 1
    for step in range(3):
        with changed:
            assert changed.wait_for(lambda n=step + brought: len(advanced) >= min(3, n), 10)  # type: ignore[misc]
            assert len(advanced) == min(3, step + brought)
        assert next(steps)[0].step == step
    takers.end()


def test_what_a_stream_raises_is_raised_where_the_step_is_taken() -> None:
    def stream() -> Iterator[Batch]:
        yield batch_of(0)
        raise ValueError("a broken file")

    takers = Takers([stream()], when_asked=False)
    steps = takers.steps(3)
    assert next(steps)[0].step == 0
    with pytest.raises(ValueError, match="a broken file"):
        next(steps)
    takers.end()
