"""How far ahead batches are read, under both training loops."""

from collections.abc import Callable, Iterator, Sequence
from time import sleep as real_sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.loaders import Batch
from dlemu.loaders.steps import Takers, Window
from tests.lab.simulated import Loop, Read, true_au


def alone(*seconds: float) -> list[list[Read]]:
    return [[Read(each)] for each in seconds]


@pytest.mark.parametrize(
    ("batches", "keys", "au"),
    [
        # Two workers share the storage: 3 s for each batch, 1 s of them computing.
        ([[Read(num_bytes=6)]] * 3, {"workers": 2, "bytes_per_second": 2}, 100 * 1 / 3),
        # All four are asked for at once: the last is there 0.3 s after the third has computed.
        (alone(0.4, 0.4, 0.4, 2.5), {"workers": 1, "prefetch_factor": 4}, 100 * 3 / 3.3),
        # A pipelined loop asks for the last with the first.
        (alone(0.4, 0.4, 2.5), {"workers": 1, "loop": "pipelined"}, 100 * 2 / 2.9),
        # Each wait ends 0.5 s late: 3.5 s for a batch.
        (alone(3, 3, 3), {"workers": 1, "late": 0.5}, 100 * 2 / 7),
    ],
)
def test_the_truth_is_told_by_events(
    batches: list[list[Read]], keys: dict[str, Any], au: float
) -> None:
    given = {"prefetch_factor": 1} | keys
    assert true_au(batches, computation_time=1.0, **given) == pytest.approx(au)


def au_of_ours(seconds: Sequence[float], *, workers: int, ahead: int, loop: Loop) -> float:
    """Return the AU in percent of our loop, whose workers read as far ahead as a window lets them.

    `seconds` is what each batch takes to read; a step computes for 1 s; the first is left out.
    """
    window = Window(ahead=ahead, takes_early=1 if loop == "pipelined" else 0)
    window.begin(0)
    following = list(range(workers))
    arrives: dict[int, float] = {}  # by worker
    made: set[int] = set()
    now, step, first_step, ends = 0.0, 0, 0.0, None
    while step < len(seconds):
        for worker, batch in enumerate(following):
            if worker not in arrives and batch < min(len(seconds), window.limit):
                arrives[worker] = now + seconds[batch]
        if ends is None and step in made:
            ends = now + 1
        now = min([*arrives.values(), *([] if ends is None else [ends])])
        for worker in [each for each, time in arrives.items() if time <= now]:
            del arrives[worker]
            made.add(following[worker])
            window.made(following[worker])
            following[worker] += workers
        if ends == now:
            ends, step = None, step + 1
            window.begin(step)
            first_step = first_step or now
    return 100 * (len(seconds) - 1) / (now - first_step)


@given(
    st.lists(st.floats(0.1, 5), min_size=3, max_size=40),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from(["rule", "pipelined"]),
)
@settings(max_examples=200, deadline=None)
def test_the_window_of_our_loaders_lets_them_do_what_the_truth_says(
    seconds: list[float], workers: int, factor: int, loop: Loop
) -> None:
    """Batches of several records and other sizes, read by several workers that read ahead."""
    ours = au_of_ours(seconds, workers=workers, ahead=workers * factor, loop=loop)
    batches = [[Read(each / 2), Read(each / 2)] for each in seconds]
    truth = true_au(
        batches, workers=workers, prefetch_factor=factor, computation_time=1.0, loop=loop
    )
    assert ours == pytest.approx(truth, abs=1e-6)


def test_a_pipelined_loop_asks_for_a_batch_when_it_has_queued_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It launches for 0.3 s. Its second batch comes while it waits, the third one early."""
    now, slept, asked, looked = 0.0, list[float](), list[float](), list[float]()

    def look() -> float:
        looked.append(now)
        return now

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    def batches() -> Iterator[Batch]:
        for step in range(3):
            asked.append(now)
            yield Batch(0, step, 0, np.arange(0), 0, 0.0)

    def wait_for(condition: Callable[[], bool]) -> None:
        while not condition():
            real_sleep(0.001)

    monkeypatch.setattr("dlemu.loaders.steps.perf_counter", look)
    monkeypatch.setattr("dlemu.loaders.steps.time", SimpleNamespace(sleep=sleep))
    takers = Takers([batches()], when_asked=False, launch=0.3)
    steps = takers.steps(3)
    next(steps)
    wait_for(lambda: len(looked) == 3)  # the second batch has come
    assert (slept, asked) == ([0.3], [0.0, 0.3])
    now = 5.0  # the first step has ended
    next(steps)
    wait_for(lambda: len(asked) == 3)
    assert (slept[1:], asked[2]) == ([0.0], 5.0)
    next(steps)
    takers.end()
