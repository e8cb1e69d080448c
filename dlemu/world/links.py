"""Sockets between a rank and its neighbours: who may connect, and what they say to each other."""

import ipaddress
import math
import os
import select
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


# What neighbours say: a byte, and after some of them a text.
ARRIVED = b"a"
RELEASED = b"r"
ASK = b"?"  # are you at the barrier?
HERE = b"h"  # yes; whoever is missing, it is not this rank
FAILED = b"f"  # and the error
ENDING = b"e"  # this rank and those below it are ready to end; and their exit status
END = b"x"  # all are ready; and the exit status of the job
GONE = b""  # said by the kernel for a process that has ended

MAX_BYTES = 60_000
"""Of a message."""
_SIZE = struct.Struct("<I")

_PROOF = struct.Struct("<Q32s")
"""A rank, and what proves that it knows the job's secret."""
_UP, _DOWN = b"to the first rank", b"from the first rank"

_HOST_SECONDS = 60.0
"""That the ranks of a host have to connect."""
_NETWORK_SECONDS = 3.0
"""That hosts have to connect, before their ranks test for MPI messages instead."""
_ADDRESS_SECONDS = 0.5
"""That one address has to answer."""
_LAUNCHER_SECONDS = 0.2
"""That a launcher may take to notice the end of a process."""
# A host that has lost its power says nothing: after 10 s of silence ask three times.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}


def with_text(word: bytes, text: str) -> bytes:
    """Return a word and its text, cut to MAX_BYTES."""
    # A file name that is not UTF-8 holds characters that only this can encode.
    return (word + text.encode(errors="backslashreplace"))[:MAX_BYTES]


def text_of(message: bytes) -> str:
    """Return the text that follows the word; what cannot be read is replaced."""
    return message[1:].decode(errors="replace")


class Stream:
    """A TCP socket that carries messages: four bytes of size, then so many."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._rest = b""

    def send(self, message: bytes) -> None:
        self._peer.sendall(_SIZE.pack(len(message)) + message)

    def read(self) -> list[bytes]:
        """Return the messages that are whole now; GONE at the end.

        One that is longer than any rank's comes as its first bytes, and what follows is lost.
        """
        try:
            data = self._peer.recv(MAX_BYTES)
        except OSError:  # its host does not answer any more
            data = b""
        if not data:
            return [GONE]
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


class Packets:
    """A socket between two processes of a host; it keeps messages apart itself."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self.send = peer.send

    def read(self) -> list[bytes]:
        """Return the next message; GONE at the end."""
        try:
            return [self._peer.recv(MAX_BYTES)]
        except ConnectionResetError:  # it ended with our messages unread; its last are still here
            return [self._peer.recv(MAX_BYTES)]


class Links:
    """Carries messages between a rank and its neighbours: by socket, or else by MPI.

    A rank sleeps until a socket has something. MPI has to be tested, again and again.
    """

    # Between two tests of MPI, sleep for this share of the time waited so far: what a test finds
    # is so much late. A test costs 15 to 100 µs of CPU; hence a bound, so that long waits take no
    # more than this share of a core.
    _PAUSE_SHARE = 0.05
    _SHORTEST_PAUSE = 1e-4
    _CPU_SHARE = 0.01
    # Nothing but a failure can come by MPI while ranks with a socket are awaited.
    _SOCKET_PAUSE = 0.05

    def __init__(self, comm: "MPI.Intracomm") -> None:
        self.polled: list[int] = []
        """Neighbours without a socket: their hosts cannot be reached over TCP."""
        self._comm = comm
        self._sockets: dict[int, socket.socket] = {}
        self._carriers: dict[int, Packets | Stream] = {}
        self._ranks: dict[int, int] = {}  # by file descriptor
        self._poll = select.epoll()
        self._test_seconds = 0.0
        self._sent: list[MPI.Request] = []

    def connect(self, local: list[int], leaders: list[int]) -> None:
        """Connect the ranks of a host to the first of them, and those to rank 0; all call it.

        Raises:
            OSError: the ranks of this host cannot reach each other.
        """
        # Everybody can read the name of a socket; the secret is in no name.
        name, secret = self._comm.bcast((os.urandom(16).hex(), os.urandom(32)))
        self._connect_host(f"\0dlemu-{name}-{local[0]}", local, secret)
        is_leader = self._comm.rank in leaders
        group = self._comm.Split(0 if is_leader else 1)
        if is_leader and len(leaders) > 1:
            self._connect_network(group, leaders, secret)
        group.Free()

    def _connect_host(self, name: str, local: list[int], secret: bytes) -> None:
        # An abstract name: no file is left.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            if self._comm.rank == local[0]:
                server.bind(name)
                server.listen(len(local))
            self._comm.Barrier()
            if self._comm.rank == local[0]:
                self._add(admit(server, set(local[1:]), secret, _HOST_SECONDS))
                if missing := set(local[1:]) - self._sockets.keys():
                    raise TimeoutError(f"ranks {sorted(missing)} did not connect")
                return
        leader = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        leader.settimeout(_HOST_SECONDS)
        leader.connect(name)
        if not introduce(leader, self._comm.rank, secret):
            leader.close()
            raise ConnectionRefusedError("what answers is no rank of this job")
        self._add({local[0]: leader})

    def _connect_network(self, group: "MPI.Comm", leaders: list[int], secret: bytes) -> None:
        """Connect the first ranks of the hosts to rank 0; who cannot is polled."""
        if group.rank == 0:
            with _listen(len(leaders)) as server:
                group.bcast((own_addresses(), server.getsockname()[1]))
                self._add(admit(server, set(leaders[1:]), secret, _NETWORK_SECONDS))
        else:
            addresses, port = group.bcast(None)
            reached = reach(addresses, port, self._comm.rank, secret)
            self._add({} if reached is None else {0: reached})
        # MPI connects lazily, and that needs both sides to be in MPI: a first message could not
        # leave rank 0 before its next barrier. So all send it one here.
        connected = group.bcast(group.gather(bool(self._sockets.keys() & set(leaders))))
        others = zip(leaders[1:], connected[1:], strict=True)
        if group.rank == 0:
            self.polled = [rank for rank, is_connected in others if not is_connected]
            for rank in set(self.polled) & self._sockets.keys():
                self._drop(rank)
        elif not connected[group.rank]:
            self.polled = [0]

    def send(self, rank: int, message: bytes) -> None:
        """Send; to a process that has ended, nothing: `receive` tells about it."""
        if rank in self._carriers:
            with suppress(OSError):
                self._carriers[rank].send(message)
        elif rank in self.polled:
            self._sent = [request for request in self._sent if not request.test()[0]]
            self._sent.append(self._comm.isend((self._comm.rank, message), rank))

    def receive(self, pending: set[int], since: float, deadline: float) -> list[tuple[int, bytes]]:
        """Sleep until neighbours say something; return it, with their ranks.

        Comes back empty at the deadline or before it; how soon depends on who is awaited, and
        since when.
        """
        now = time.perf_counter()
        pause = max(deadline - now, 0.0)
        if self.polled:
            cpu = time.thread_time()
            if pending.isdisjoint(self.polled):
                longest = self._SOCKET_PAUSE
            else:
                grown = max(self._PAUSE_SHARE * (now - since), self._SHORTEST_PAUSE)
                longest = min(grown, self._test_seconds / self._CPU_SHARE or grown)
            pause = min(pause, longest)
            if pause < self._SOCKET_PAUSE:  # epoll counts in milliseconds, rounded up
                time.sleep(pause)
                pause = 0.0
        ready = self._poll.poll(None if pause == math.inf else pause)
        messages = []
        for file, _ in ready:
            rank = self._ranks[file]
            messages += [(rank, message) for message in self._carriers[rank].read()]
            if messages[-1:] == [(rank, GONE)]:
                self._drop(rank)
        if not self.polled:
            return messages
        # Twice: Open MPI takes in what has arrived only after it has looked, in vain.
        while found := self._comm.improbe() or self._comm.improbe():
            messages.append(found.recv())
        self._test_seconds = time.thread_time() - cpu
        return messages

    def outlast(self, ranks: Iterable[int], seconds: float) -> None:
        """Return when the processes of these neighbours have ended and their launcher knows.

        Or after so many seconds; nothing is known of a neighbour without a socket.
        """
        self.polled = []  # MPI has been left
        deadline = time.perf_counter() + seconds
        pending = set(ranks) & self._sockets.keys()
        while pending and time.perf_counter() < deadline:
            for rank, message in self.receive(pending, deadline - seconds, deadline):
                if message == GONE:
                    pending.discard(rank)
        time.sleep(_LAUNCHER_SECONDS)

    def leave_open(self) -> None:
        """Let the kernel close the sockets, when this process has ended; Python would earlier."""
        for peer in self._sockets.values():
            peer.detach()
        self._sockets.clear()
        self._carriers.clear()

    def close(self) -> None:
        self._poll.close()
        for peer in self._sockets.values():
            peer.close()
        self._sockets.clear()
        self._carriers.clear()
        self.polled = []

    def _add(self, peers: dict[int, socket.socket]) -> None:
        for rank, peer in peers.items():
            self._sockets[rank] = peer
            is_near = peer.family == socket.AF_UNIX
            self._carriers[rank] = Packets(peer) if is_near else Stream(peer)
            self._ranks[peer.fileno()] = rank
            self._poll.register(peer, select.EPOLLIN)

    def _drop(self, rank: int) -> None:
        self._sockets.pop(rank).close()
        del self._carriers[rank]


def admit(
    server: socket.socket, expected: set[int], secret: bytes, seconds: float
) -> dict[int, socket.socket]:
    """Return connections by rank: those that come in time, of the expected ranks, with the secret.

    Others are hung up on. One that stays silent keeps nobody waiting.
    """
    deadline = time.perf_counter() + seconds
    admitted: dict[int, socket.socket] = {}
    waiting: dict[int, socket.socket] = {}
    poll = select.poll()
    poll.register(server, select.POLLIN)
    while expected - admitted.keys() and (left := deadline - time.perf_counter()) > 0:
        for file, _ in poll.poll(1000 * left):
            if file == server.fileno():
                try:
                    peer = server.accept()[0]
                except OSError:  # no descriptor is left, or the other side has gone
                    time.sleep(0.01)
                    continue
                if _is_own(peer):
                    waiting[peer.fileno()] = peer
                    poll.register(peer, select.POLLIN)
                else:
                    peer.close()
            else:
                poll.unregister(file)
                peer = waiting.pop(file)
                rank = _introduced(peer, expected - admitted.keys(), secret)
                if rank is None:
                    peer.close()
                else:
                    admitted[rank] = peer
    for peer in waiting.values():
        peer.close()
    return admitted


def _introduced(peer: socket.socket, expected: set[int], secret: bytes) -> int | None:
    """Return the rank that a connection proves to be, and prove the same of this side."""
    with suppress(OSError):
        said = peer.recv(_PROOF.size, socket.MSG_DONTWAIT)
        if len(said) == _PROOF.size:
            rank, proof = _PROOF.unpack(said)
            if rank in expected and _proves(proof, secret, _UP, rank):
                peer.sendall(_prove(secret, _DOWN, rank))
                _keep_alive(peer)
                return int(rank)
    return None


def introduce(peer: socket.socket, rank: int, secret: bytes) -> bool:
    """Prove to the other side to be this rank; return whether it proves to know the secret, too."""
    if not _is_own(peer):
        return False
    with suppress(OSError):
        peer.sendall(_PROOF.pack(rank, _prove(secret, _UP, rank)))
        if _proves(peer.recv(_PROOF.size), secret, _DOWN, rank):
            _keep_alive(peer)
            return True
    return False


def _prove(secret: bytes, direction: bytes, rank: int) -> bytes:
    """Return what only who knows the secret can make of a rank, and what does not give it away."""
    import hmac  # takes 6 ms, which one rank alone need not spend

    return hmac.digest(secret, direction + rank.to_bytes(8, "little"), "sha256")


def _proves(proof: bytes, secret: bytes, direction: bytes, rank: int) -> bool:
    import hmac

    return hmac.compare_digest(proof, _prove(secret, direction, rank))


def _keep_alive(peer: socket.socket) -> None:
    peer.settimeout(None)
    if peer.family != socket.AF_UNIX:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            peer.setsockopt(socket.IPPROTO_TCP, option, value)


def _is_own(peer: socket.socket) -> bool:
    """Return whether a socket of this host leads to a process of the same user."""
    if peer.family != socket.AF_UNIX:
        return True
    format = struct.Struct("3i")
    peer_of = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, format.size)
    _, user, _ = format.unpack(peer_of)
    return bool(user == os.geteuid())


def _listen(backlog: int) -> socket.socket:
    """Return a socket that listens on all addresses of this host."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=backlog, dualstack_ipv6=both)


def own_addresses() -> list[str]:
    """Return this host's addresses, those first that others are likeliest to reach."""
    import psutil

    states = psutil.net_if_stats()
    found = [
        ipaddress.ip_address(entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
        and "%" not in entry.address  # of one link alone
        and name in states
        and states[name].isup
    ]
    found.sort(key=lambda address: (address.is_loopback, address.version))
    return [str(address) for address in found]


def reach(addresses: list[str], port: int, rank: int, secret: bytes) -> socket.socket | None:
    """Return a connection to rank 0 by the first address that leads to it; None if none does."""
    deadline = time.perf_counter() + _NETWORK_SECONDS
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
