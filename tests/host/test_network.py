"""The network's counters, from copies of the kernel's files, and what was made of the links."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dlemu.host.devices import growth, total
from dlemu.host.network import (
    NetworkCounters,
    NicCounters,
    find_links,
    network_use,
    read_network,
)
from tests.host.copies import Host

DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0
  eth0: 513042855   10483    0    0    0     0          0         0   523116    5868    0    0    0
""".replace("fifo\n", "fifo colls carrier compressed\n").replace(
    "    0    0\n", "    0    0 0 0 0\n"
)
SNMP = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm MaxConn InSegs OutSegs RetransSegs
Tcp: 1 -1 10429 5808 7
"""
NETSTAT = """\
TcpExt: SyncookiesSent TCPOFOQueue
TcpExt: 0 12
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def interfaces(host: Host, **files: dict[str, str]) -> list[tuple[int, str]]:
    """Make /sys/class/net: a file for each entry, a link to another interface for "->NAME"."""
    index = list(enumerate(files, start=1))
    net = host.sys / "class" / "net"
    for number, name in index:
        host.write(net / name / "ifindex", f"{number}\n")
        for key, text in files[name].items():
            if text.startswith("->"):
                host.link(net / name / key, net / text[2:])
            elif key == "device":
                (net / name / key).mkdir()
            else:
                host.write(net / name / key, f"{text}\n")
    host.write(net / "bonding_masters", "bond0\n")
    return index


def test_counters_are_those_of_the_kernels_files_and_none_where_it_tells_nothing(
    host: Host,
) -> None:
    assert read_network(proc=host.proc) is None
    eth0 = {"eth0": NicCounters(513042855, 523116)}
    host.write("proc/self/net/dev", DEV)
    host.write("proc/self/net/netstat", "TcpExt: Other\nTcpExt: 1\n")
    assert read_network(proc=host.proc) == NetworkCounters(eth0)
    host.write("proc/self/net/snmp", SNMP)
    host.write("proc/self/net/netstat", NETSTAT)
    assert read_network(proc=host.proc) == NetworkCounters(eth0, 10429, 5808, 7, 12)


def test_growth_is_that_of_what_was_there_at_both_times() -> None:
    first = NetworkCounters({"a": NicCounters(10, 20), "gone": NicCounters(1, 1)}, 5, 6, None, 8)
    last = NetworkCounters({"a": NicCounters(110, 25), "new": NicCounters(9, 9)}, 9, 16, 3, 10)
    grown = growth(last, first)
    assert grown == NetworkCounters({"a": NicCounters(100, 5)}, 4, 10, None, 2)
    twice = total([grown, grown])
    assert twice == NetworkCounters({"a": NicCounters(200, 10)}, 8, 20, None, 4)
    both = total([twice, NetworkCounters({"b": NicCounters(1, 2)}, 1, 1, 1, 1)])
    assert (both.received_bytes, both.sent_bytes, both.resent_segments) == (201, 12, None)


UP = {"device": "", "speed": "100000"}


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({"lo": {}, "eth0": UP}, {"eth0": 100_000_000_000}),
        ({"eth0": {"device": "", "speed": "-1"}}, {"eth0": None}),  # virtio, or no cable
        ({"eth0": {"device": ""}}, {"eth0": None}),
        # veth says 10000, whatever carries it
        ({"lo": {}, "eth0": {"speed": "10000"}}, {"eth0": None}),
        (
            {"bond0": {"speed": "200000"}, "a": UP | {"master": "->bond0"}, "b": UP},
            {"a": 100_000_000_000, "b": 100_000_000_000},
        ),
        ({"eth0": UP, "vf": UP | {"master": "->eth0"}}, {"eth0": 100_000_000_000}),  # Azure
        ({"eth0": {}, "eth0.5": {"lower_eth0": "->eth0"}}, {"eth0": None}),
    ],
)
def test_the_links_are_those_whose_bytes_count_once(
    files: dict[str, dict[str, str]], links: dict[str, int | None], host: Host
) -> None:
    index = interfaces(host, **files)
    assert find_links(files, sys=host.sys, index=lambda: index) == links


@pytest.mark.parametrize("own", [[(1, "lo"), (7, "eth0")], [(1, "lo"), (2, "eth0"), (3, "x")], []])
def test_the_interfaces_of_another_namespace_tell_no_rate(
    own: Sequence[tuple[int, str]], host: Host
) -> None:
    """/sys shows the interfaces of the process that mounted it."""
    interfaces(host, lo={}, eth0=UP)
    assert find_links(["lo", "eth0"], sys=host.sys, index=lambda: own) == {"eth0": None}


COUNTED = NetworkCounters(
    {"a": NicCounters(1_000_000_000, 0), "b": NicCounters(600_000_000, 750_000_000)}, 200, 100, 3, 1
)


def test_the_link_nearest_to_its_rate_is_named() -> None:
    use = network_use(COUNTED, 10.0, {"a": 25 * 10**9, "b": 10**9})
    assert use is not None
    assert (use.nic, use.gbps) == ("b", 1.0)
    assert [use.received_share, use.sent_share] == pytest.approx([0.48, 0.6])
    assert (use.received_bytes_per_second, use.sent_bytes_per_second) == (160e6, 75e6)
    assert (use.resent_share, use.unordered_share) == (0.03, 0.005)
    use = network_use(COUNTED, 10.0, {"a": 10**9, "b": None}, gbps=2.0)
    assert use is not None and use.nic == "a, b", "the user's rate is that of all links together"
    assert [use.gbps, use.received_share, use.sent_share] == pytest.approx([2.0, 0.64, 0.3])


def test_without_a_rate_there_is_no_share() -> None:
    use = network_use(NetworkCounters(COUNTED.nics), 10.0, {"a": None, "b": None})
    assert use is not None
    assert (use.nic, use.gbps, use.received_share, use.sent_share) == ("a", None, None, None)
    assert (use.resent_share, use.unordered_share) == (None, None)
    assert network_use(NetworkCounters({}), 10.0, {}) is None
