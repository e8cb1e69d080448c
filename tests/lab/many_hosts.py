"""Thousands of ranks in one process: dlemu's own World, between ranks whose messages are simulated.

Each rank is a greenlet with a time of its own. Replay, barrier, start and gathering are the
product's code; simulated are what lies below it: the sockets (`Links`), MPI, and the clock. A
message takes time to be sent, to travel and to be read; what MPI brings together takes none.
"""

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest.mock import patch

import numpy as np
from greenlet import getcurrent, greenlet

from dlemu.judge.records import Steps
from dlemu.loaders import Batch
from dlemu.ranks import mpi
from dlemu.ranks.links import Links, Tree
from dlemu.ranks.mpi import Mpi
from dlemu.run.replay import new_steps, replay_epoch

T = TypeVar("T")


_SEND, _RECEIVE = 6e-6, 12e-6
"""Seconds of CPU that a message takes the sender and the receiver, about as on a host of 2026."""
_NEAR, _FAR, _JITTER = 10e-6, 40e-6, 20e-6
"""Seconds on the way: between two ranks of a host, and between two hosts with a random part."""


@dataclass
class _Node:
    """A rank as the network sees it."""

    now: float = 0.0
    runs: greenlet | None = None
    said: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    """Messages of links: arrival, number, sender, message; a heap."""
    received: int = 0


class ManyHosts:
    """So many hosts with so many ranks each; `run` runs them all."""

    def __init__(self, num_hosts: int, ranks_per_host: int = 1) -> None:
        self.num_ranks = num_hosts * ranks_per_host
        self.ranks_per_host = ranks_per_host
        self.nodes = [_Node() for _ in range(self.num_ranks)]
        self._random = random.Random(0)
        self._events: list[tuple[float, int, int]] = []
        self._numbers = itertools.count()
        self._last: dict[tuple[int, int], float] = {}
        self._meetings: defaultdict[Any, dict[int, Any]] = defaultdict(dict)
        self._current = 0

    def run(self, work: Callable[["SimulatedRank"], T]) -> list[T]:
        """Call `work` on each rank; return what they return."""
        found: dict[int, T] = {}

        def play(rank: int) -> None:
            found[rank] = work(SimulatedRank(self, rank))

        for rank, node in enumerate(self.nodes):
            node.runs = greenlet(lambda rank=rank: play(rank))
            self._wake(node.now, rank)
        # The deadlines of barriers are of this clock.
        with patch.object(mpi, "time", SimpleNamespace(perf_counter=self.now)):
            while self._events and len(found) < self.num_ranks:
                time, _, rank = heapq.heappop(self._events)
                node = self.nodes[rank]
                if node.now > time:  # it was still at work when this came
                    self._wake(node.now, rank)
                elif not node.runs.dead:  # type: ignore[union-attr]
                    node.now, self._current = time, rank
                    node.runs.switch()  # type: ignore[union-attr]
        if len(found) < self.num_ranks:
            raise RuntimeError(f"{self.num_ranks - len(found)} ranks wait for ever")
        return [found[rank] for rank in range(self.num_ranks)]

    def now(self) -> float:
        """Return the time of the rank that runs, in seconds."""
        return self.nodes[self._current].now

    def sleep_until(self, deadline: float) -> None:
        """Let the rank that runs be at work until then."""
        node = self.nodes[self._current]
        node.now = max(node.now, deadline)

    def pause(self, rank: int, until: float = float("inf")) -> None:
        """Let other ranks run until something comes, or until a time."""
        if until < float("inf"):
            self._wake(until, rank)
        assert getcurrent() is self.nodes[rank].runs
        cast(greenlet, getcurrent().parent).switch()

    def post(self, sender: int, to: int, message: bytes) -> None:
        """Have a message sent."""
        node = self.nodes[sender]
        node.now += _SEND
        near = sender // self.ranks_per_host == to // self.ranks_per_host
        way = _NEAR if near else _FAR + self._random.expovariate(1 / _JITTER)
        # A connection keeps the order.
        arrival = max(node.now + way, self._last.get((sender, to), 0.0))
        self._last[sender, to] = arrival
        heapq.heappush(self.nodes[to].said, (arrival, next(self._numbers), sender, message))
        self._wake(arrival, to)

    def _wake(self, time: float, rank: int) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), rank))


class SimulatedRank(Mpi):
    """A rank of the product whose sockets and whose MPI are simulated."""

    def __init__(self, hosts: ManyHosts, rank: int) -> None:
        comm: Any = _Comm(hosts, range(hosts.num_ranks), rank)
        self.hosts = hosts
        self._join(comm, f"h{rank // hosts.ranks_per_host}", _Links(comm))


class _Links(Links):
    """Links without sockets."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm)
        self._poll.close()
        self._hosts: ManyHosts = comm.hosts
        self._rank: int = comm.rank

    def _connect_host(self, name: str, local: list[int], secret: bytes) -> None:
        self._comm.Barrier()
        is_leader = self._rank == local[0]
        self._carriers |= dict.fromkeys(local[1:] if is_leader else local[:1], cast(Any, None))

    def _connect_parent(self, group: Any, tree: Tree, secret: bytes) -> None:
        group.Barrier()
        peers = [*tree.below, *([] if tree.parent is None else [tree.parent])]
        self._carriers |= dict.fromkeys(peers, cast(Any, None))

    def send(self, rank: int, message: bytes) -> None:
        self._hosts.post(self._rank, rank, message)

    def receive(self, pending: set[int], since: float, deadline: float) -> list[tuple[int, bytes]]:
        hosts, node = self._hosts, self._hosts.nodes[self._rank]
        messages: list[tuple[int, bytes]] = []
        while True:
            while node.said and node.said[0][0] <= node.now:
                _, _, sender, message = heapq.heappop(node.said)
                node.now += _RECEIVE
                node.received += 1
                messages.append((sender, message))
            if messages or node.now >= deadline:
                return messages
            hosts.pause(self._rank, deadline)

    def close(self) -> None:
        self._carriers.clear()


class _Comm:
    """What dlemu calls of a communicator of MPI."""

    def __init__(self, hosts: ManyHosts, members: Sequence[int], rank: int) -> None:
        self.hosts, self._members, self.rank, self.size = hosts, members, rank, len(members)
        self._turns = itertools.count()

    def allgather(self, value: T) -> list[T]:
        hosts, own = self.hosts, self._members[self.rank]
        meeting = hosts._meetings[self._members[0], self.size, next(self._turns)]
        if len(meeting) == self.size - 1:
            for waiting in meeting:
                hosts._wake(hosts.now(), waiting)
        meeting[own] = value
        while len(meeting) < self.size:
            hosts.pause(own)
        return [meeting[member] for member in self._members]

    def gather(self, value: T) -> list[T] | None:
        found = self.allgather(value)
        return found if self.rank == 0 else None

    def reduce(self, value: T, op: Callable[[T, T], T]) -> T | None:
        found = self.gather(value)
        return None if found is None else reduce(op, found)

    def bcast(self, value: T) -> T:
        return self.allgather(value)[0]

    def Barrier(self) -> None:
        self.allgather(None)

    def Split(self, color: int) -> "_Comm":
        colors = self.allgather(color)
        members = [self._members[rank] for rank, each in enumerate(colors) if each == color]
        return _Comm(self.hosts, members, members.index(self._members[self.rank]))

    def Free(self) -> None:
        pass


def replay_on(
    world: SimulatedRank, *, accelerators: int, num_steps: int, spread: float = 0.02
) -> Steps:
    """Replay an epoch on a rank; return its records.

    Compute takes 1 s, and up to `spread` of that longer; batches are always there.
    """
    first = world.rank * accelerators
    numbers = range(first, first + accelerators)
    samples = np.arange(4)
    batches = [Batch(0, 0, number, samples, 4096, 0.0, 0.0, 0.0, 0.0) for number in numbers]
    times = 1 + spread * np.random.default_rng(world.rank).random((num_steps, accelerators))
    return replay_epoch(
        itertools.repeat(batches, num_steps),
        new_steps(0, times),
        barrier=world.barrier,
        clock=world.hosts,
    )
