"""The connections of a rank to its parent and children: who may join, and what they say.

They are sockets, or MPI where there is no TCP; at a barrier the ranks of a host meet in shared
memory (`meeting`). Who may join a job over sockets: the ranks that
prove, with an HMAC, that they know the job's secret. Both sides prove it: `introduce` on the side
that connects, `admit` on the side that listens. On one host, both must also be processes of the
same user.
"""

import ipaddress
import math
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from dlemu.ranks.meeting import Meeting, make_files, receive_files, send_files

_PROOF = struct.Struct("<Q32s")
"""The first message of a rank: its number, and an HMAC of it."""
_ANSWER_BYTES = 32
"""Of the HMAC that it gets back; what follows is no part of it."""
_UP, _DOWN = b"to the first rank", b"from the first rank"
"""Part of the HMAC's input, so that a proof cannot be sent back as the answer to itself."""

NETWORK_SECONDS = 3.0
"""Time for the leaders of hosts to connect; after that their messages go through MPI."""
_ADDRESS_SECONDS = 0.5
"""Time for one address to answer."""
_LOOK_AGAIN_SECONDS = 1.0
"""So often a rank that sleeps looks whether its barrier is open, should nobody have woken it."""
# A host that has lost power sends nothing: probe after 10 s of silence, give up after 3 probes.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}


def admit(
    server: socket.socket, expected: set[int], secret: bytes, seconds: float
) -> dict[int, socket.socket]:
    """Return the connections of the expected ranks that prove themselves in time, by rank.

    Other connections are closed. One that sends nothing does not delay the others.
    """
    deadline = time.perf_counter() + seconds
    admitted: dict[int, socket.socket] = {}
    unknown: dict[int, socket.socket] = {}  # accepted, but without a proof so far, by descriptor
    poll = select.poll()
    poll.register(server, select.POLLIN)
    while expected - admitted.keys() and (left := deadline - time.perf_counter()) > 0:
        for file, _ in poll.poll(1000 * left):
            if file == server.fileno():
                peer = _accept(server)
                if peer is not None:
                    unknown[peer.fileno()] = peer
                    poll.register(peer, select.POLLIN)
                continue
            poll.unregister(file)
            peer = unknown.pop(file)
            rank = _introduced(peer, expected - admitted.keys(), secret)
            if rank is None:
                peer.close()
            else:
                admitted[rank] = peer
    for peer in unknown.values():
        peer.close()
    return admitted


def introduce(peer: socket.socket, rank: int, secret: bytes) -> bool:
    """Prove to the other side to be this rank; return whether it knows the secret as well."""
    if not _is_same_user(peer):
        return False
    with suppress(OSError):
        peer.sendall(_PROOF.pack(rank, _prove(secret, _UP, rank)))
        if _proves(peer.recv(_ANSWER_BYTES), secret, _DOWN, rank):
            _set_options(peer)
            return True
    return False


def reach(addresses: list[str], port: int, rank: int, secret: bytes) -> socket.socket | None:
    """Return a connection to rank 0 over the first address that leads to it; None if none does."""
    deadline = time.perf_counter() + NETWORK_SECONDS
    for address in addresses:
        left = deadline - time.perf_counter()
        if left <= 0:
            break
        with suppress(OSError):
            peer = socket.create_connection((address, port), min(_ADDRESS_SECONDS, left))
            peer.settimeout(left)
            if introduce(peer, rank, secret):
                return peer
            peer.close()
    return None


def own_addresses() -> list[str]:
    """Return the addresses of this host's interfaces that are up: loopback last, IPv4 first."""
    import psutil

    states = psutil.net_if_stats()
    found = [
        ipaddress.ip_address(entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
        and "%" not in entry.address  # a link-local address
        and name in states
        and states[name].isup
    ]
    return [str(each) for each in sorted(found, key=lambda each: (each.is_loopback, each.version))]


def only_loopback() -> str | None:
    """Return the name of this host's loopback interface if no other one is up."""
    import psutil

    up = {
        name: state.flags.split(",") for name, state in psutil.net_if_stats().items() if state.isup
    }
    names = [name for name, flags in up.items() if "loopback" in flags]
    return names[0] if names and len(names) == len(up) else None


def _accept(server: socket.socket) -> socket.socket | None:
    """Return the next connection; None if it has gone, or is another user's."""
    try:
        peer = server.accept()[0]
    except OSError:  # it was closed meanwhile, or this process has no file descriptor left
        time.sleep(0.01)
        return None
    if _is_same_user(peer):
        return peer
    peer.close()
    return None


def _introduced(peer: socket.socket, expected: set[int], secret: bytes) -> int | None:
    """Return the rank that a connection proves to be, and send it our own proof; else None."""
    with suppress(OSError):
        message = peer.recv(_PROOF.size, socket.MSG_DONTWAIT)
        if len(message) == _PROOF.size:
            rank, proof = _PROOF.unpack(message)
            if rank in expected and _proves(proof, secret, _UP, rank):
                peer.sendall(_prove(secret, _DOWN, rank))
                _set_options(peer)
                return int(rank)
    return None


def _prove(secret: bytes, direction: bytes, rank: int) -> bytes:
    """Return an HMAC that needs the secret and does not reveal it."""
    import hmac  # takes 6 ms; a rank without neighbours does not need it

    return hmac.digest(secret, direction + rank.to_bytes(8, "little"), "sha256")


def _proves(proof: bytes, secret: bytes, direction: bytes, rank: int) -> bool:
    import hmac

    return hmac.compare_digest(proof, _prove(secret, direction, rank))


def _set_options(peer: socket.socket) -> None:
    """Let reads block for ever; over TCP, send at once and notice a host that is gone."""
    peer.settimeout(None)
    if peer.family != socket.AF_UNIX:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            peer.setsockopt(socket.IPPROTO_TCP, option, value)


def _is_same_user(peer: socket.socket) -> bool:
    """Return whether the other side of a Unix socket is this user's; True for TCP."""
    if peer.family != socket.AF_UNIX:
        return True
    format = struct.Struct("3i")  # struct ucred: pid, uid, gid
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, format.size)
    _, user, _ = format.unpack(credentials)
    return bool(user == os.geteuid())


MAX_BYTES = 60_000
"""The longest message."""
_SIZE = struct.Struct("<I")


class Word(Enum):
    """The first byte of a message; FAILED, ENDING and END are followed by a text."""

    ARRIVED = b"a"
    """To the parent: this rank and all below it are at the barrier."""
    RELEASED = b"r"
    """To the children: all ranks are at the barrier."""
    PING = b"?"
    """Are you at the barrier?"""
    PONG = b"h"
    """Yes; the rank that is missing is further away."""
    FAILED = b"f"
    """Some rank cannot go on; the text is its error."""
    ENDING = b"e"
    """To the parent: this rank and all below it are ready to end; the text is their exit status."""
    END = b"x"
    """To the children: all ranks are ready to end; the text is the job's exit status."""
    GONE = b""
    """The peer's process has ended; said by the kernel."""


_WITH_TEXT = (Word.FAILED, Word.ENDING, Word.END)


def encode(word: Word, text: str = "") -> bytes:
    """Return the message, cut to MAX_BYTES."""
    # File names that are not UTF-8 contain lone surrogates, which need this error handler.
    return (word.value + text.encode(errors="backslashreplace"))[:MAX_BYTES]


def decode(message: bytes) -> tuple[Word | None, str]:
    """Return a message's word and text; the word is None if no rank sends such a message."""
    try:
        word = Word(message[:1])
    except ValueError:
        return None, ""
    text = message[1:].decode(errors="replace")
    return (word if not text or word in _WITH_TEXT else None), text


class Stream:
    """Messages over a socket, TCP or Unix: the size in four bytes, then the message."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self._rest = b""

    def send(self, message: bytes) -> None:
        self.peer.sendall(_SIZE.pack(len(message)) + message)

    def read(self) -> list[bytes]:
        """Return the messages that are complete by now; b"" (GONE) at the end.

        If a size is impossible, the first bytes are returned as a message and the rest is dropped.
        """
        try:
            data = self.peer.recv(MAX_BYTES)
        except OSError:  # its host answers no more, or it ended and left a message unread
            data = b""
        if not data:
            return [Word.GONE.value]
        self._rest += data
        messages = []
        while len(self._rest) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._rest)
            end = _SIZE.size + size
            if not 0 < size <= MAX_BYTES:
                messages.append(self._rest[:20])
                self._rest = b""
            elif len(self._rest) < end:
                break
            else:
                messages.append(self._rest[_SIZE.size : end])
                self._rest = self._rest[end:]
        return messages


if TYPE_CHECKING:
    from mpi4py import MPI

_HOST_SECONDS = 60.0
"""Time for the ranks of a host to connect."""
_LAUNCHER_SECONDS = 0.2
"""Time for a launcher to notice that a process has ended."""


@dataclass(frozen=True)
class Tree:
    """One rank's place in the tree, in which each rank talks to its parent and its children.

        rank 0 ─┬─ rank 1, rank 2, rank 3             host a
                ├─ rank 4 ─── rank 5, rank 6, rank 7  host b
                └─ rank 8 ─── rank 9                  host c

    The first rank of a host is its leader: the parent of the host's other ranks. Rank 0 is the
    parent of the next FAN_OUT leaders, each of them of FAN_OUT more, and so on. So no rank has
    more than FAN_OUT neighbours on other hosts below it, whatever the number of hosts.
    """

    FAN_OUT: ClassVar[int] = 16
    """Few levels, each of few messages: docs/performance.md has other numbers."""

    leaders: list[int]
    """The first rank of each host, in the order of host_index; the first is rank 0."""
    local: list[int]
    """The ranks of this rank's host; the first is its leader."""
    parent: int | None
    """None for rank 0."""
    below: list[int]
    """The leaders of other hosts whose parent this rank is."""
    children: list[int]
    """All ranks whose parent it is; other hosts first: they have ranks of their own to release."""

    @classmethod
    def of(cls, rank: int, hosts: Sequence[str]) -> "Tree":
        """Return the place of a rank, given the name of each rank's host."""
        by_host: dict[str, list[int]] = {}
        for other, host in enumerate(hosts):
            by_host.setdefault(host, []).append(other)
        leaders = [ranks[0] for ranks in by_host.values()]
        local = by_host[hosts[rank]]
        if rank != local[0]:
            return cls(leaders, local, local[0], [], [])
        first = cls.FAN_OUT * leaders.index(rank) + 1
        below = leaders[first : first + cls.FAN_OUT]
        return cls(leaders, local, cls.above(leaders, rank), below, below + local[1:])

    @classmethod
    def above(cls, leaders: Sequence[int], rank: int) -> int | None:
        """Return the parent of a leader; None for rank 0."""
        number = leaders.index(rank)
        return leaders[(number - 1) // cls.FAN_OUT] if number else None


class Links:
    """Carries messages between a rank and its neighbours: by socket, or else by MPI.

    A rank sleeps until a socket has a message. MPI has no such wait: it must be polled.
    """

    # Between two polls of MPI, sleep for this share of the time waited so far; a message is seen
    # that much later. A poll costs 15 to 100 µs of CPU, so in long waits sleep so long that polling
    # takes no more than _CPU_SHARE of a core.
    _PAUSE_SHARE = 0.05
    _SHORTEST_PAUSE = 1e-4
    _CPU_SHARE = 0.01
    # While only neighbours with a socket are awaited, MPI can bring nothing but a failure.
    _SOCKET_PAUSE = 0.05

    def __init__(self, comm: "MPI.Intracomm") -> None:
        self.polled: list[int] = []
        """Neighbours without a socket: their hosts cannot be reached over TCP."""
        self.unreached: list[int] = []
        """The leaders, of all hosts, that cannot reach their parents over TCP."""
        self._comm = comm
        self._carriers: dict[int, Stream] = {}
        self._ranks: dict[int, int] = {}  # by file descriptor
        self._poll = select.epoll()
        self._test_seconds = 0.0  # CPU time of the last poll of MPI
        self._sent: list[MPI.Request] = []
        self._meeting: Meeting | None = None
        self._local: list[int] = []
        self._is_only_host = self._is_leader = False

    def connect(self, tree: Tree) -> None:
        """Connect this rank to its parent and children; all ranks must call it.

        Raises:
            OSError: the ranks of this host cannot reach each other.
        """
        # Any process can see the socket's name, but only ranks get the secret.
        name, secret = self._comm.bcast((os.urandom(16).hex(), os.urandom(32)))
        self._local, self._is_leader = tree.local, self._comm.rank == tree.local[0]
        self._is_only_host = len(tree.leaders) == 1
        self._connect_host(f"\0dlemu-{name}-{tree.local[0]}", tree.local, secret)
        group = self._comm.Split(0 if self._is_leader else 1)
        if self._is_leader and len(tree.leaders) > 1:
            self._connect_leaders(group, tree, secret)
        group.Free()

    def _connect_host(self, name: str, local: list[int], secret: bytes) -> None:
        """Connect the ranks of a host to its leader, and let them meet in shared memory."""
        # The name begins with a zero byte, so the socket has no file.
        with socket.socket(socket.AF_UNIX) as server:
            if self._comm.rank == local[0]:
                server.bind(name)
                server.listen(len(local))
            self._comm.Barrier()
            if self._comm.rank == local[0]:
                self._add(admit(server, set(local[1:]), secret, _HOST_SECONDS))
                if missing := set(local[1:]) - self._carriers.keys():
                    raise TimeoutError(f"ranks {sorted(missing)} did not connect")
                if len(local) > 1:
                    files = make_files(len(local))
                    for rank in local[1:]:
                        send_files(self._carriers[rank].peer, files)
                    self._meet(Meeting(0, files))
                return
        leader = socket.socket(socket.AF_UNIX)
        leader.settimeout(_HOST_SECONDS)
        leader.connect(name)
        if not introduce(leader, self._comm.rank, secret):
            leader.close()
            raise ConnectionRefusedError("what answers is no rank of this job")
        self._add({local[0]: leader})
        files = receive_files(leader, 1 + len(local))
        self._meet(Meeting(local.index(self._comm.rank), files))

    def _meet(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._poll.register(meeting.file, select.EPOLLIN)

    def _connect_leaders(self, group: "MPI.Comm", tree: Tree, secret: bytes) -> None:
        """Connect the leaders of the hosts along the tree; poll MPI where they cannot connect."""
        self._connect_parent(group, tree, secret)
        is_there = group.allgather(tree.parent is None or tree.parent in self._carriers)
        self.unreached = [
            leader for leader, there in zip(tree.leaders, is_there, strict=True) if not there
        ]
        self.polled = [rank for rank in tree.below if rank in self.unreached]
        for rank in set(self.polled) & self._carriers.keys():
            self._carriers.pop(rank).peer.close()
        # MPI connects two ranks at their first message, and only while both are in an MPI call. So
        # they say something here, else the first message would wait for a later call.
        for rank in self.polled:
            self._comm.recv(source=rank)
        if tree.parent is not None and self._comm.rank in self.unreached:
            self._comm.send(None, tree.parent)
            self.polled.append(tree.parent)

    def _connect_parent(self, group: "MPI.Comm", tree: Tree, secret: bytes) -> None:
        """Connect the leaders that can reach their parents over TCP."""
        admitted: dict[int, socket.socket] = {}
        with ExitStack() as stack:
            address: tuple[list[str], int] | None = None
            if tree.below:
                server = stack.enter_context(_serve(len(tree.below)))
                address = own_addresses(), server.getsockname()[1]
            known = group.allgather(address)

            def admit_below() -> None:
                # At the same time as our own connection: a firewall above us delays nobody below.
                below, seconds = set(tree.below), NETWORK_SECONDS
                admitted.update(admit(server, below, secret, seconds))

            if tree.below:
                thread = threading.Thread(target=admit_below)
                thread.start()
                stack.callback(thread.join)
            if tree.parent is not None:
                addresses, port = known[tree.leaders.index(tree.parent)]
                reached = reach(addresses, port, self._comm.rank, secret)
                self._add({} if reached is None else {tree.parent: reached})
        self._add(admitted)

    def send(self, rank: int, message: bytes) -> None:
        """Send to a neighbour; if its process has ended, drop the message: `receive` tells GONE."""
        if rank in self._carriers:
            with suppress(OSError):
                self._carriers[rank].send(message)
        elif rank in self.polled:
            self._sent = [request for request in self._sent if not request.test()[0]]
            self._sent.append(self._comm.isend((self._comm.rank, message), rank))

    def arrive(self) -> bool:
        """Be at the next barrier, as seen by the ranks of this host; return whether it is over.

        Those that usually come at once are looked for, for a short time. Where that is in vain,
        or there are other hosts, the rest is for `here`, `up`, `receive` and `down`.
        """
        meeting = self._meeting
        if meeting is None:
            return False
        meeting.arrive()
        if self._is_only_host:
            meeting.look(at_last=meeting.open)
        elif not self._is_leader:  # a leader's other neighbours are on sockets
            meeting.look(at_last=lambda: meeting.wake(0))
        if not meeting.is_open:
            return False
        meeting.leave()
        return True

    @property
    def opened(self) -> float:
        """When the last barrier opened on this host; now, if this rank is alone there."""
        return time.perf_counter() if self._meeting is None else self._meeting.opened

    def here(self, pending: set[int]) -> set[int]:
        """Return which of the awaited ranks have arrived, or have released us, on this host."""
        meeting = self._meeting
        if meeting is None or pending.isdisjoint(self._local):
            return set()
        if meeting.is_open:
            return pending.intersection(self._local)
        if not self._is_leader:
            return set()
        return pending.intersection(self._local[place] for place in meeting.here())

    def up(self, parent: int) -> None:
        """Tell the parent that this rank and all below it have arrived."""
        if self._meeting is None or parent not in self._local:
            self.send(parent, Word.ARRIVED.value)

    def down(self, children: Iterable[int]) -> None:
        """Release the children: those on other hosts first, which have ranks of their own."""
        meeting = self._meeting
        for rank in children:
            if meeting is None or rank not in self._local:
                self.send(rank, Word.RELEASED.value)
        if meeting is not None:
            if self._is_leader and not meeting.is_open:
                meeting.open()
            meeting.leave()

    def receive(self, pending: set[int], since: float, deadline: float) -> list[tuple[int, bytes]]:
        """Sleep until a neighbour sends something; return the messages, each with its rank.

        May return an empty list at any time, at the latest at the deadline: where MPI is polled,
        the pause depends on which ranks are awaited (`pending`) and since when.
        """
        pause = max(deadline - time.perf_counter(), 0.0)
        if not self.polled:
            return self._read_sockets(pause)
        cpu = time.thread_time()
        pause = min(pause, self._longest_pause(pending, since))
        if pause < self._SOCKET_PAUSE:  # too short for epoll, which rounds up to milliseconds
            time.sleep(pause)
            pause = 0.0
        messages = self._read_sockets(pause)
        # Probe twice: Open MPI's first probe takes messages in, only its second one finds them.
        while found := self._comm.improbe() or self._comm.improbe():
            messages.append(found.recv())
        self._test_seconds = time.thread_time() - cpu
        return messages

    def _longest_pause(self, pending: set[int], since: float) -> float:
        """Return the seconds to sleep before the next poll of MPI."""
        if pending.isdisjoint(self.polled):
            return self._SOCKET_PAUSE
        grown = max(self._PAUSE_SHARE * (time.perf_counter() - since), self._SHORTEST_PAUSE)
        return min(grown, self._test_seconds / self._CPU_SHARE or grown)

    def _read_sockets(self, seconds: float) -> list[tuple[int, bytes]]:
        """Wait so long for a message on any socket; return what has come."""
        messages = []
        if self._meeting is not None:
            seconds = min(seconds, _LOOK_AGAIN_SECONDS)
        for file, _ in self._poll.poll(None if seconds == math.inf else seconds):
            if self._meeting is not None and file == self._meeting.file:
                self._meeting.rest()
                continue
            rank = self._ranks[file]
            messages += [(rank, message) for message in self._carriers[rank].read()]
            if messages[-1:] == [(rank, Word.GONE.value)]:
                self._carriers.pop(rank).peer.close()
        return messages

    def outlast(self, ranks: Iterable[int], seconds: float) -> None:
        """Wait until the processes of these neighbours have ended and their launcher knows.

        Waits at most so many seconds, and not for neighbours without a socket. Leaves the sockets
        to the kernel, which closes them only after this process has ended.
        """
        self.polled = []  # MPI has been finalised
        deadline = time.perf_counter() + seconds
        pending = set(ranks) & self._carriers.keys()
        while pending and time.perf_counter() < deadline:
            for rank, message in self.receive(pending, deadline - seconds, deadline):
                if message == Word.GONE.value:
                    pending.discard(rank)
        time.sleep(_LAUNCHER_SECONDS)
        for carrier in self._carriers.values():
            carrier.peer.detach()

    def close(self) -> None:
        self._poll.close()
        for carrier in self._carriers.values():
            carrier.peer.close()
        self._carriers.clear()
        if self._meeting is not None:
            self._meeting.close()
        self._meeting = None
        self.polled = []

    def _add(self, peers: dict[int, socket.socket]) -> None:
        for rank, peer in peers.items():
            self._carriers[rank] = Stream(peer)
            self._ranks[peer.fileno()] = rank
            self._poll.register(peer, select.EPOLLIN)


def _serve(num: int) -> socket.socket:
    """Return a socket on which so many leaders may call."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=num, dualstack_ipv6=both)
