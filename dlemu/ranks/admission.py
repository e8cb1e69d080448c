"""Who may join a job: the ranks that prove, with an HMAC, that they know the job's secret.

Both sides prove it: `introduce` on the side that connects, `admit` on the side that listens. On one
host, both must also be processes of the same user.
"""

import ipaddress
import os
import select
import socket
import struct
import time
from contextlib import suppress

_PROOF = struct.Struct("<Q32s")
"""What a rank sends first: its number, and an HMAC of it."""
_UP, _DOWN = b"to the first rank", b"from the first rank"
"""Part of the HMAC's input, so that a proof cannot be sent back as the answer to itself."""

NETWORK_SECONDS = 3.0
"""Time for the leaders of hosts to connect; after that their messages go through MPI."""
_ADDRESS_SECONDS = 0.5
"""Time for one address to answer."""
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
        if _proves(peer.recv(_PROOF.size), secret, _DOWN, rank):
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
