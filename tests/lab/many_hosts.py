"""Thousands of ranks in one process: dlemu's own World, between ranks whose messages are simulated.

Each rank is a greenlet with a time of its own. Replay, barrier, start and gathering are the
product's code; simulated are what lies below it: the sockets (`Links`), MPI, and the clock. A
message takes time to be sent, to travel and to be read. MPI's collectives are binomial trees here;
an MPI library may choose better ones.
"""

import heapq
import itertools
import pickle
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds that messages take, about as on a host of 2026."""

    send: float = 6e-6
    """Of the sender's CPU."""
    receive: float = 12e-6
    """Of the receiver's CPU."""
    admit: float = 150e-6
    """Of the parent's CPU, to check who connects."""
    near: float = 10e-6
    """Between two ranks of a host."""
    far: float = 40e-6
    """Between two hosts, one way."""
    jitter: float = 20e-6
    """Mean of what is added to `far` each time, exponentially distributed."""
    bytes_per_second: float = 3e9


@dataclass
class Traffic:
    """What a rank has sent and received."""

    sent: int = 0
    received: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass
class _Node:
    """A rank as the network sees it."""

    now: float = 0.0
    runs: greenlet | None = None
    said: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    """Messages of links: arrival, number, sender, message; a heap."""
    values: dict[Any, deque[tuple[float, Any, int]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    """Messages of MPI by communicator and sender: arrival, value, bytes."""
    traffic: Traffic = field(default_factory=Traffic)


class ManyHosts:
    """So many hosts with so many ranks each; `run` runs them all."""

    def __init__(
        self, num_hosts: int, ranks_per_host: int = 1, *, costs: Costs | None = None, seed: int = 0
    ) -> None:
        self.num_ranks = num_hosts * ranks_per_host
        self.ranks_per_host = ranks_per_host
        self.costs = costs or Costs()
        self.nodes = [_Node() for _ in range(self.num_ranks)]
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, int]] = []
        self._numbers = itertools.count()
        self._last: dict[tuple[int, int], float] = {}
        self._current = 0

    def run(self, work: Callable[["SimulatedRank"], T]) -> list[T]:
        """Call `work` on each rank; return what they return."""
        found: dict[int, T] = {}

        def play(rank: int) -> None:
            found[rank] = work(SimulatedRank(self, rank))

        for rank, node in enumerate(self.nodes):
            node.runs = greenlet(lambda rank=rank: play(rank))
            self._wake(node.now, rank)
        with _virtual_time(self.now):
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

    def post(self, sender: int, to: int, num_bytes: int) -> float:
        """Have a message sent; return when it arrives."""
        costs, node = self.costs, self.nodes[sender]
        node.now += costs.send
        node.traffic.sent += 1
        node.traffic.sent_bytes += num_bytes
        near = sender // self.ranks_per_host == to // self.ranks_per_host
        way = costs.near if near else costs.far + self._random.expovariate(1 / costs.jitter)
        arrival = node.now + way + num_bytes / costs.bytes_per_second
        # A connection keeps the order.
        arrival = self._last[sender, to] = max(arrival, self._last.get((sender, to), 0.0))
        self._wake(arrival, to)
        return arrival

    def take(self, rank: int, num_bytes: int, seconds: float | None = None) -> None:
        """Have a rank read a message."""
        node = self.nodes[rank]
        node.now += self.costs.receive if seconds is None else seconds
        node.traffic.received += 1
        node.traffic.received_bytes += num_bytes

    def _wake(self, time: float, rank: int) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), rank))


class SimulatedRank(Mpi):
    """A rank of the product whose sockets and whose MPI are simulated."""

    def __init__(self, hosts: ManyHosts, rank: int) -> None:
        comm: Any = _Comm(hosts, range(hosts.num_ranks), rank)
        self.hosts = hosts
        self._join(comm, f"h{rank // hosts.ranks_per_host}", _Links(comm))

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent and received so far."""
        return self.hosts.nodes[self.rank].traffic


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
        self._shake_hands(None if is_leader else local[0], local[1:] if is_leader else [])

    def _connect_parent(self, group: Any, tree: Tree, secret: bytes) -> None:
        group.allgather((["10.0.0.1"], 12345) if tree.below else None)
        self._shake_hands(tree.parent, tree.below)

    def _shake_hands(self, parent: int | None, below: Sequence[int]) -> None:
        """Prove who we are, as `links` does: 40 bytes up and 32 down."""
        comm = cast(_Comm, self._comm)
        if parent is not None:
            comm.put(parent, None, 40)
            comm.get(parent)
        for child in below:
            comm.get(child, seconds=self._hosts.costs.admit)
            comm.put(child, None, 32)
        peers = [*below, *([] if parent is None else [parent])]
        self._carriers |= dict.fromkeys(peers, cast(Any, None))

    def send(self, rank: int, message: bytes) -> None:
        hosts = self._hosts
        arrival = hosts.post(self._rank, rank, len(message))
        entry = (arrival, next(hosts._numbers), self._rank, message)
        heapq.heappush(hosts.nodes[rank].said, entry)

    def receive(self, pending: set[int], since: float, deadline: float) -> list[tuple[int, bytes]]:
        hosts, node = self._hosts, self._hosts.nodes[self._rank]
        messages: list[tuple[int, bytes]] = []
        while True:
            while node.said and node.said[0][0] <= node.now:
                _, _, sender, message = heapq.heappop(node.said)
                hosts.take(self._rank, len(message))
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
        self._own = members[rank]
        self._tag = (members[0], self.size)

    def put(self, to: int, value: Any, num_bytes: int) -> None:
        receiver = self._members[to]
        arrival = self.hosts.post(self._own, receiver, num_bytes)
        self.hosts.nodes[receiver].values[self._tag, self.rank].append((arrival, value, num_bytes))

    def get(self, sender: int, seconds: float | None = None) -> tuple[Any, int]:
        node = self.hosts.nodes[self._own]
        waiting = node.values[self._tag, sender]
        while not waiting or waiting[0][0] > node.now:
            self.hosts.pause(self._own)
        _, value, num_bytes = waiting.popleft()
        self.hosts.take(self._own, num_bytes, seconds)
        return value, num_bytes

    def reduce(self, value: T, op: Callable[[T, T], T]) -> T | None:
        return self._up(value, op, lambda each: len(pickle.dumps(each, 5)))

    def gather(self, value: T) -> list[T] | None:
        own = ([value], len(pickle.dumps(value)))
        found = self._up(own, lambda a, b: (a[0] + b[0], a[1] + b[1]), lambda each: each[1])
        return None if found is None else found[0]

    def allgather(self, value: T) -> list[T]:
        found = self._down(self.gather(value), lambda: len(pickle.dumps(value)) * self.size)
        assert found is not None
        return found

    def bcast(self, value: T | None) -> T | None:
        return self._down(value, lambda: len(pickle.dumps(value)))

    def Barrier(self) -> None:
        self.bcast(self.gather(None) and None)

    def Split(self, color: int) -> "_Comm":
        colors = self.allgather(color)
        members = [self._members[rank] for rank, each in enumerate(colors) if each == color]
        return _Comm(self.hosts, members, members.index(self._own))

    def Free(self) -> None:
        pass

    def _up(self, value: T, op: Callable[[T, T], T], size: Callable[[T], int]) -> T | None:
        mask = 1
        while mask < self.size:
            if self.rank & mask:
                self.put(self.rank - mask, value, size(value))
                return None
            if self.rank | mask < self.size:
                value = op(value, self.get(self.rank | mask)[0])
            mask *= 2
        return value

    def _down(self, value: T, size: Callable[[], int]) -> T:
        mask = 1
        while mask < self.size and not self.rank & mask:
            mask *= 2
        if self.rank:
            value, num_bytes = self.get(self.rank - mask)
        else:
            num_bytes = size()
        while mask := mask // 2:
            if self.rank + mask < self.size:
                self.put(self.rank + mask, value, num_bytes)
        return value


@contextmanager
def _virtual_time(now: Callable[[], float]) -> Iterator[None]:
    """Let the deadlines of barriers be of this clock."""
    with patch.object(mpi, "time", SimpleNamespace(perf_counter=now)):
        yield


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
