"""The ranks of a host meet in shared memory: none leaves early, none is left asleep."""

import os
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dlemu.ranks.meeting import SPIN_SECONDS, Meeting, make_files, receive_files, send_files
from tests.lab.waiting import LONG

pytestmark = pytest.mark.quick


def copies(files: list[int]) -> list[int]:
    """Return the descriptors as another process would have them."""
    return [os.dup(file) for file in files]


@pytest.fixture
def three() -> Iterator[list[Meeting]]:
    files = make_files(3)
    ranks = [Meeting(place, copies(files)) for place in range(3)]
    yield ranks
    for rank in ranks:
        rank.close()
    for file in files:
        os.close(file)


def test_the_last_one_opens_and_wakes_all_others(three: list[Meeting]) -> None:
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
            assert select.select([rank.file], [], [], 0)[0]
            rank.rest()
            assert not select.select([rank.file], [], [], 0)[0]
        for rank in three:
            rank.leave()


def test_a_rank_looks_only_where_the_others_came_soon_last_time(three: list[Meeting]) -> None:
    first, *others = three

    def meet(late: float) -> float:
        """Return how long the first one looked."""
        begin = time.perf_counter()
        first.arrive()
        first.look(at_last=first.open)
        looked = time.perf_counter() - begin
        time.sleep(late)
        for rank in others:
            rank.arrive()
        others[-1].look(at_last=others[-1].open)
        first.leave()
        return looked

    assert meet(100 * SPIN_SECONDS) >= SPIN_SECONDS, "the first time it does not know"
    usual = sorted(meet(100 * SPIN_SECONDS) for _ in range(9))
    assert usual[4] < SPIN_SECONDS / 2, "now it goes to sleep at once"


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
