"""Whom a rank talks to, who may connect to it, and what becomes of what is said."""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlemu.ranks import links
from dlemu.ranks.links import (
    MAX_BYTES,
    Links,
    Stream,
    Tree,
    Word,
    admit,
    decode,
    encode,
    introduce,
    own_addresses,
    reach,
)
from tests.lab.waiting import LONG

SECRET = bytes(32)
T = TypeVar("T")


def test_many_hosts_make_a_tree_of_few_levels() -> None:
    hosts = [f"h{rank // 2}" for rank in range(2 * 300)]
    places = {rank: Tree.of(rank, hosts) for rank in range(0, len(hosts), 2)}
    above = {child: rank for rank, place in places.items() for child in place.below}
    assert sorted(above) == list(places)[1:], "each leader but rank 0 has one parent"
    assert all(places[child].parent == rank for child, rank in above.items())
    assert max(len(place.below) for place in places.values()) == Tree.FAN_OUT

    def depth(rank: int) -> int:
        return 1 + depth(above[rank]) if rank else 0

    assert max(map(depth, places)) == 3
    assert Tree.of(0, hosts[: 2 * 17]).below == list(range(2, 34, 2)), "few hosts: one level"


@contextmanager
def host_server() -> Iterator[tuple[socket.socket, str]]:
    """Yield a server as a host's first rank has it, and its name."""
    name = f"\0dlemu-test-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        yield server, name


def call(name: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(LONG)
    peer.connect(name)
    return peer


def meanwhile(call: Callable[..., T], *words: object) -> Future[T]:
    """Call from a thread of its own."""
    return ThreadPoolExecutor(1).submit(call, *words)


def proof(rank: int, secret: bytes) -> bytes:
    """Return what a rank says first."""
    return links._PROOF.pack(rank, links._prove(secret, links._UP, rank))


STRANGERS = {
    "nothing": b"",
    "a byte": b"x",
    "zeros": bytes(40),
    "much": bytes(4000),
    "another secret": proof(1, bytes(31) + b"x"),
    "another rank": proof(2, SECRET),
    "no rank at all": proof(2**63, SECRET),
}


@pytest.mark.parametrize("said", STRANGERS)
def test_only_who_knows_the_secret_is_admitted_and_no_other_keeps_it_waiting(said: str) -> None:
    with host_server() as (server, name), call(name) as stranger, call(name) as peer:
        if STRANGERS[said]:
            stranger.send(STRANGERS[said])
        welcome = meanwhile(introduce, peer, 1, SECRET)
        admitted = admit(server, {1}, SECRET, LONG)
        with suppress(ConnectionResetError):  # what it said was not read to the end
            assert stranger.recv(10) == b"", "the stranger is hung up on"
        assert admitted.keys() == {1} and welcome.result(LONG)
        peer.send(b"a")
        assert admitted[1].recv(10) == b"a"
        admitted[1].close()


def test_another_user_is_refused_even_with_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The side that connects, and the side that listens."""
    own = os.geteuid()
    with host_server() as (server, name), call(name) as peer, call(name) as again:
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
        assert not introduce(peer, 1, SECRET)
        again.send(proof(1, SECRET))
        admitted = meanwhile(admit, server, {1}, SECRET, LONG)
        with pytest.raises(ConnectionResetError):  # its proof was not read
            again.recv(1)
        monkeypatch.undo()
        assert introduce(call(name), 1, SECRET)
        admitted.result(LONG)[1].close()


@contextmanager
def servers_of_one_port(*addresses: str) -> Iterator[list[socket.socket]]:
    """Yield a server at each address; a port that another process has at one is not taken."""
    while True:
        with ExitStack() as stack:
            port = 0
            with suppress(OSError):
                servers: list[socket.socket] = []
                for address in addresses:
                    server = stack.enter_context(socket.create_server((address, port)))
                    servers.append(server)
                    port = server.getsockname()[1]
            if len(servers) == len(addresses):
                yield servers
                return


def test_a_rank_tries_all_addresses_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several networks only one may lead there; on another a stranger may listen."""
    monkeypatch.setattr(links, "NETWORK_SECONDS", LONG)
    monkeypatch.setattr(links, "_ADDRESS_SECONDS", LONG)
    with servers_of_one_port("127.0.0.2", "127.0.0.1") as (server, stranger):
        port = server.getsockname()[1]
        hung_up = meanwhile(lambda: stranger.accept()[0].close())
        addresses = ["127.0.0.3", "127.0.0.1", "127.0.0.2"]
        rank = meanwhile(reach, addresses, port, 1, SECRET)
        admitted = admit(server, {1}, SECRET, LONG)
        found = rank.result(LONG)
        hung_up.result(LONG)
    assert found is not None and admitted.keys() == {1}
    Stream(found).send(b"a")
    assert Stream(admitted[1]).read() == [b"a"]
    assert admitted[1].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert admitted[1].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    found.close()
    assert Stream(admitted[1]).read() == [Word.GONE.value]
    admitted[1].close()
    assert reach(["127.0.0.1"], port, 1, SECRET) is reach([], port, 1, SECRET) is None, "nobody"


def test_loopback_addresses_are_tried_last() -> None:
    addresses = own_addresses()
    is_loopback = [address in ("::1",) or address.startswith("127.") for address in addresses]
    assert is_loopback == sorted(is_loopback) and any(is_loopback)


def read_all(pieces: list[bytes]) -> list[bytes]:
    """Return the messages of a socket from which these pieces come."""
    stream = Stream(Mock(recv=Mock(side_effect=[*filter(None, pieces), b""])))
    messages: list[bytes] = []
    while messages[-1:] != [Word.GONE.value]:
        messages += stream.read()
    return messages[:-1]


@given(st.lists(st.binary(min_size=1, max_size=50)), st.integers(1, 9))
def test_messages_come_whole_however_they_are_cut(messages: list[bytes], size: int) -> None:
    sent = b"".join(struct.pack("<I", len(message)) + message for message in messages)
    assert read_all([sent[at : at + size] for at in range(0, len(sent), size)]) == messages


@given(st.lists(st.binary(max_size=200)))
def test_any_bytes_are_messages_of_bounded_length(pieces: list[bytes]) -> None:
    for message in read_all(pieces):
        assert 0 < len(message) <= MAX_BYTES
        decode(message)


@pytest.mark.parametrize("size", [0, MAX_BYTES + 1, 2**32 - 1])
def test_a_size_that_no_rank_sends_is_not_waited_for(size: int) -> None:
    sent = struct.pack("<I", size) + b"x"
    assert read_all([sent]) == [sent]


@example("img_\udcff.npz")
@given(st.text(st.characters(), max_size=300))
def test_any_text_can_be_sent(text: str) -> None:
    """File names that are not UTF-8 hold lone surrogates."""
    word, received = decode(encode(Word.FAILED, text))
    assert word is Word.FAILED
    if text.isprintable():
        assert received == text
    assert len(encode(Word.FAILED, text * 10_000)) <= MAX_BYTES


@pytest.mark.parametrize("message", [b"\xffnoise", b"a?", b"rr", b"hello"])
def test_what_no_rank_sends_is_no_word(message: bytes) -> None:
    assert decode(message)[0] is None


class Polled:
    """MPI, a test of which takes 50 µs of CPU, and a clock that goes on when nobody works."""

    TEST_SECONDS = 50e-6

    def __init__(self, comes_at: float) -> None:
        self.now = self.cpu = 0.0
        self.perf_counter, self.thread_time = lambda: self.now, lambda: self.cpu
        self._comes_at = comes_at

    def improbe(self) -> Any:
        self.sleep(self.TEST_SECONDS / 2)
        self.cpu += self.TEST_SECONDS / 2
        if self.now < self._comes_at:
            return None
        self._comes_at = float("inf")
        return Mock(recv=lambda: (1, Word.ARRIVED.value))

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("wait", "share"), [(0.02, 0.2), (1.0, 0.02), (10.0, 0.0115)])
def test_without_a_socket_a_wait_costs_one_percent_of_a_core_and_ends_soon(
    wait: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for comes_at in (wait * (1 + part / 10) for part in range(10)):
        world = Polled(comes_at)
        monkeypatch.setattr(links, "time", world)
        waiting = Links(world)  # type: ignore[arg-type]
        waiting.polled = [1]
        while not (messages := waiting.receive({1}, 0.0, float("inf"))):
            pass
        assert messages == [(1, Word.ARRIVED.value)]
        assert world.cpu <= share * world.now
        assert world.now - comes_at <= min(0.05 * comes_at, world.TEST_SECONDS / 0.01) + 2e-4
        waiting.close()
