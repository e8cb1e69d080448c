"""What counts as progress, and what the end of a run says; time passes when a test says so."""

import math
import os
import threading
import time
from pathlib import Path
from unittest.mock import Mock, call

import numpy as np
import pytest

from dlemu.config.types import Distribution
from dlemu.errors import RunError
from dlemu.ranks import ending, watchdog
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import Alone, World
from dlemu.run import job
from tests.lab.commands import small_job
from tests.lab.virtual import VirtualClock
from tests.lab.waiting import LONG


class Ranks(Alone):
    """One rank of several, whose barriers end at once and are kept."""

    def __init__(self, rank: int = 0, num_ranks: int = 2) -> None:
        super().__init__()
        self.rank, self.num_ranks, self.host = rank, num_ranks, "a"
        self.timeouts: list[float | None] = []
        self.told: list[str] = []

    def barrier(self, timeout: float | None = None) -> None:
        self.timeouts.append(timeout)

    def fail(self, error: str) -> None:
        self.told.append(error)


class Ended(Exception):
    """Instead of the end of the process."""


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1000.0)


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(error: BaseException, status: int, *, leave: object) -> None:
        raise Ended(str(error), status)

    monkeypatch.setattr(watchdog, "end_process", end)


def watch(clock: VirtualClock, world: Alone | None = None, stall: float = 10.0) -> Watchdog:
    return Watchdog(stall, world or Ranks(num_ranks=1), now=clock.now)


def idle() -> str:
    """What a phase waits for; the CPU time of this test is no progress then."""
    return "worker 0 reads b"


def seconds_to_the_end(clock: VirtualClock, dog: Watchdog) -> float:
    """Return the seconds until the watchdog ends the run, looking each tenth."""
    begin = clock.time
    for tenths in range(1, 10_000):
        clock.time = begin + tenths / 10
        try:
            dog.look()
        except Ended:
            return clock.time - begin
    return math.inf


def test_files_and_steps_are_progress_and_between_phases_nothing_is_watched(
    clock: VirtualClock,
) -> None:
    dog = watch(clock)
    assert seconds_to_the_end(clock, dog) == math.inf
    with dog.phase("dropping the dataset from the page cache", dog.longest_at):
        for number in range(5):
            clock.time += 9
            dog.at(f"/data/{number}")
            dog.look()
        for _ in range(5):
            clock.time += 9
            dog.barrier()
            dog.look()
        assert seconds_to_the_end(clock, dog) == pytest.approx(10.1)
    assert seconds_to_the_end(clock, dog) == math.inf


def test_the_file_is_named_that_a_thread_was_at_for_the_longest(clock: VirtualClock) -> None:
    dog = watch(clock)
    came, hold = threading.Semaphore(0), threading.Event()

    def go(paths: tuple[str, ...]) -> None:
        for path in paths:
            dog.at(path)
        came.release()
        hold.wait(LONG)

    with dog.phase("dropping the dataset from the page cache", dog.longest_at):
        for paths in (("/data/0", ""), ("/data/1", "/data/2"), ("/data/3",)):
            threading.Thread(target=go, args=(paths,), daemon=True).start()
            assert came.acquire(timeout=LONG)
            clock.time += 1
        clock.time += 10
        with pytest.raises(Ended, match="while dropping the dataset from the page cache: /data/2'"):
            try:
                dog.look()
            finally:
                hold.set()


def test_work_of_the_cpu_is_progress_where_nothing_else_tells(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    dog = watch(clock)
    with dog.phase("the loader was opened"):
        clock.time += 11
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        dog.look()
    taken = [1.0]
    monkeypatch.setattr(watchdog, "_cpu_seconds", lambda thread: taken[0])
    with dog.phase("the loader was opened"):
        taken[0] += 0.0005  # as much as a thread that is stuck may take, woken in vain
        assert seconds_to_the_end(clock, dog) == pytest.approx(10.1)
        taken[0] += 0.001
        dog.look()
    with dog.phase("replaying epoch 1", idle):
        clock.time += 11
        taken[0] += 1.0
        with pytest.raises(Ended):
            dog.look()


def test_a_long_computation_time_is_no_stall(clock: VirtualClock) -> None:
    dog = watch(clock)
    seen = []

    def sleep_until(deadline: float) -> None:
        while clock.time < deadline:
            clock.time += 7
            dog.look()
        seen.append(clock.time)

    wait_until = dog.computing(sleep_until, clock)
    with dog.phase("replaying epoch 1", idle):
        wait_until(clock.time + 1000)
        dog.barrier()
        dog.barrier()
        assert seconds_to_the_end(clock, dog) == pytest.approx(10.1), "waiting is one again"
        wait_until(clock.time - 5)  # is over already
        dog.barrier()
        stuck = dog.computing(lambda deadline: setattr(clock, "time", deadline + 11), clock)
        stuck(clock.time + 100)  # a device that does not end
        with pytest.raises(Ended):
            dog.look()
    assert seen[0] >= 2000


def test_a_run_is_not_ended_by_a_long_computation_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that compute for longer than a stall may last, with a look in the middle of each."""
    dogs: list[Watchdog] = []

    class Looking(VirtualClock):
        def sleep_until(self, deadline: float) -> None:
            for part in (0.6, 1.0):
                self.time += max(0.0, part * (deadline - self.time))
                dogs[0].look()

    clock = Looking(time.perf_counter())

    def watched(stall: float, world: World) -> Watchdog:
        dogs.append(Watchdog(stall, world, now=clock.now))
        return dogs[0]

    monkeypatch.setattr(job, "Watchdog", watched)
    small = {"dataset__num_files_train": 4, "reader__batch_size": 1, "train__epochs": 1}
    long = {"train__computation_time": 100.0, "output__stall_seconds": 10.0}
    workload = small_job(tmp_path, **small, **long)
    outcome = job.run_job(workload, world=Alone(), clock=clock, say=lambda text: None)
    assert outcome is not None and outcome.metrics.epochs[0].seconds >= 400


def test_others_wait_for_whoever_computes_or_prepares(clock: VirtualClock) -> None:
    world = Ranks()
    dog = watch(clock, world)
    dog.barrier()
    dog.expect(compute=1000.0, prepare=50.0)
    dog.barrier()
    first, second = world.timeouts
    assert first is not None and second is not None
    assert first > 10 and second - first == 1050
    with dog.phase("replaying epoch 1", idle):
        assert seconds_to_the_end(clock, dog) == pytest.approx(60.1), "a worker sleeps"


def test_a_rank_at_the_barrier_is_not_watched(clock: VirtualClock) -> None:
    world = Ranks()
    dog = watch(clock, world)

    def barrier(timeout: float | None = None) -> None:
        assert seconds_to_the_end(clock, dog) == math.inf

    world.barrier = barrier  # type: ignore[method-assign]
    with dog.phase("replaying epoch 1", idle):
        dog.barrier()
        assert seconds_to_the_end(clock, dog) == pytest.approx(10.1)


def test_rank_0_speaks_first_and_ranks_at_the_barrier_last(clock: VirtualClock) -> None:
    ends_after = []
    for rank in (0, 1):
        dog = watch(clock, Ranks(rank))
        with dog.phase("dropping the dataset from the page cache", idle):
            ends_after.append(seconds_to_the_end(clock, dog))
    world = Ranks()
    watch(clock, world).barrier()
    (timeout,) = world.timeouts
    assert timeout is not None
    # It has 2 s for its last words; another looks each second.
    assert ends_after[0] + 2 < ends_after[1] < timeout - 1


def test_last_acts_tell_the_others_though_the_runs_folder_hangs_too(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, hold = list[str](), threading.Event()
    exits = Mock()
    monkeypatch.setattr(ending, "_ACT_SECONDS", 0.1)
    monkeypatch.setattr(watchdog, "_LAST_WORDS", 0.0)
    monkeypatch.setattr(os, "_exit", exits)
    world = Ranks()

    def record(error: BaseException) -> None:
        said.append(str(error))
        hold.wait(LONG)

    with watch(clock, world) as dog:
        dog.record = record
        ending.end_process(RunError("stuck"), 7)
    assert said == world.told == ["stuck"]
    ending.end_process(RunError("later"), 8)
    assert said == ["stuck"], "the watchdog has left"
    assert exits.call_args_list == [call(7), call(8)]
    hold.set()


@pytest.mark.parametrize(
    "times",
    [
        {"mean": 3.0},
        {"mean": 1.0, "stdev": 0.5},
        {"type": "uniform", "min": 1.0, "max": 9.0},
        {"type": "exponential", "scale": 2.0},
        {"type": "gamma", "mean": 1.0, "stdev": 10.0},
    ],
)
def test_no_draw_takes_longer_than_others_wait(times: dict[str, object]) -> None:
    distribution = Distribution.model_validate(times)
    generator = np.random.default_rng(1)
    drawn = max(distribution.draw(generator) for _ in range(20_000))
    assert drawn <= distribution.longest
    if times == {"mean": 3.0}:
        assert distribution.longest == 3.0
