"""The ranks of a host meet in shared memory: none leaves early, none is left asleep."""

import os
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dlemu.ranks.meeting import (
    BUSY_SPIN_SECONDS,
    SPIN_SECONDS,
    Meeting,
    make_files,
    receive_files,
    send_files,
)
from tests.lab.waiting import LONG

pytestmark = pytest.mark.quick


def copies(files: list[int]) -> list[int]:
    """Return the descriptors as another process would have them."""
    return [os.dup(file) for file in files]


class _Clock:
    """Goes on by 5 µs each time that it is asked."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 5e-6
        return self.time


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def three(clock: _Clock) -> Iterator[list[Meeting]]:
    files = make_files(3)
    ranks = [Meeting(place, copies(files), now=clock) for place in range(3)]
    yield ranks
    for rank in ranks:
        rank.close()
    for file in files:
        os.close(file)


def is_woken(rank: Meeting) -> bool:
    return bool(select.select([rank.file], [], [], 0)[0])


def test_the_last_one_opens_and_wakes_those_that_sleep(three: list[Meeting]) -> None:
    for _ in range(600):  # numbers of barriers come again after 256
        for place, rank in enumerate(three[:2]):
            rank.arrive()
            rank.look(at_last=lambda: pytest.fail("not all are here"))
            assert list(rank.here()) == list(range(place + 1))
            assert not any(each.is_open for each in three[: place + 1])
        three[2].arrive()
        three[2].look(at_last=three[2].open)
        assert all(each.is_open for each in three)
        for rank in three[:2]:
            assert is_woken(rank)
            rank.rest()
            assert not is_woken(rank)
        for rank in three:
            rank.leave()


def test_who_looks_leaves_as_soon_as_all_have_come_and_is_not_woken(
    three: list[Meeting], clock: _Clock
) -> None:
    first, second, last = three
    looks = 0

    def come() -> float:
        """Let the others come while the first one looks."""
        nonlocal looks
        looks += 1
        if looks == 4:
            second.arrive()
        if looks == 6:
            last.arrive()
        return clock()

    first._now = come
    first.arrive()
    first.look(at_last=first.open)
    assert all(rank.is_open for rank in three) and looks < 9
    assert not any(map(is_woken, three)), "none of them sleeps"


def test_two_that_come_at_once_and_do_not_see_each_other_do_not_wait(three: list[Meeting]) -> None:
    first, *others = three
    for rank in three:
        rank.arrive()
    all_here, now, opened = first._all, first._now, []

    def see() -> float:
        first._all = all_here
        return now()

    def open() -> None:
        opened.append(now())
        first.open()

    # At its first look it does not see what the others have written at the same moment, and they
    # do not see it.
    first._all, first._now = bytes(3), see
    first.look(at_last=open)
    assert len(opened) == 1 and all(rank.is_open for rank in others)
    assert opened[0] - first._arrived < BUSY_SPIN_SECONDS


def meet(three: list[Meeting], clock: _Clock, late: float) -> float:
    """Return how long the first one looked for the others, which come so much later."""
    first, *others = three
    clock.time += 0.0035
    first.arrive()
    begun = clock.time
    if late:
        first.look(at_last=first.open)
    looked = clock.time - begun
    clock.time += late
    for rank in others:
        rank.arrive()
    others[-1].look(at_last=others[-1].open)
    for rank in three:
        rank.leave()
    return looked


def test_a_rank_looks_only_where_the_others_came_soon_a_moment_ago(
    three: list[Meeting], clock: _Clock
) -> None:
    for _ in range(4):
        meet(three, clock, 0.0)
    for _ in range(2):  # one that comes soon lets it look again
        found = [meet(three, clock, 0.01) for _ in range(8)]
        assert found[:4] == pytest.approx([BUSY_SPIN_SECONDS] * 4, rel=0.2), "once late is not late"
        assert max(found[4:]) < BUSY_SPIN_SECONDS / 4, "now it goes to sleep at once"
        for _ in range(4):
            meet(three, clock, 0.0)


def test_a_rank_looks_longer_where_no_other_program_wants_its_cpu(clock: _Clock) -> None:
    files, taken = make_files(3), [0]
    three = [
        Meeting(place, copies(files), now=clock, preempted=lambda: taken[0]) for place in range(3)
    ]

    def looks(preemptions: int) -> float:
        """Return how long a rank looks after barriers within which its CPU was taken so often."""
        for turn in range(64):
            taken[0] += turn < preemptions
            meet(three, clock, 0.0)
        return meet(three, clock, 0.01)

    assert looks(0) == pytest.approx(SPIN_SECONDS, rel=0.1)
    assert looks(64) == pytest.approx(BUSY_SPIN_SECONDS, rel=0.2)
    assert looks(3) == pytest.approx(SPIN_SECONDS, rel=0.1), "and longer again where it is calm"
    for rank in three:
        rank.close()
    for file in files:
        os.close(file)


def test_none_leaves_early_and_none_is_left_asleep() -> None:
    num, turns = 4, 400
    files = make_files(num)
    arrived: list[list[float]] = [[] for _ in range(num)]
    left: list[list[float]] = [[] for _ in range(num)]

    def run(place: int) -> None:
        meeting = Meeting(place, copies(files))
        poll = select.epoll()
        poll.register(meeting.file, select.EPOLLIN)
        for turn in range(turns):
            if turn % (7 * num) == place:
                time.sleep(2e-3)
            arrived[place].append(time.perf_counter())
            meeting.arrive()
            meeting.look(at_last=meeting.open)
            while not meeting.is_open:
                assert poll.poll(LONG), "nobody has woken it"
                meeting.rest()
            meeting.leave()
            left[place].append(time.perf_counter())
        poll.close()
        meeting.close()

    threads = [threading.Thread(target=run, args=[place], daemon=True) for place in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    for file in files:
        os.close(file)
    assert [len(each) for each in left] == [turns] * num
    for arrivals, leaves in zip(zip(*arrived, strict=True), zip(*left, strict=True), strict=True):
        assert max(arrivals) <= min(leaves)


def test_descriptors_of_many_ranks_reach_another_rank() -> None:
    here, there = socket.socketpair()
    with here, there:
        files = make_files(300)
        sender = threading.Thread(target=send_files, args=[here, files])
        sender.start()
        received = receive_files(there, len(files))
        sender.join(LONG)
        assert [os.fstat(file).st_ino for file in received] == [
            os.fstat(file).st_ino for file in files
        ]
        for file in [*files, *received]:
            os.close(file)
        here.sendall(b"x")
        with pytest.raises(OSError, match="2 descriptors were expected, and 0 came"):
            receive_files(there, 2)
