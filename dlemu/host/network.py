"""What a host's network interfaces and TCP have counted, and how fast its links are.

The kernel documents the files in Documentation/networking/statistics.rst and snmp_counter.rst, and
in Documentation/ABI/testing/sysfs-class-net. Traffic by RDMA does not pass the network stack, so
it is not counted here. `proc` and `sys` are arguments, so that a copy of another host's files can
be read.
"""

import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlemu.host.devices import PROC, SYS, is_there, listed, read_text

_NIC = re.compile(r"^\s*([^\s:]+):\s*((?:\d+\s+){15}\d+)\s*$", re.M)
_MEGABIT = 1_000_000


@dataclass(frozen=True, slots=True)
class NicCounters:
    """Bytes of one network interface, with the headers of Ethernet, since it was made."""

    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class NetworkCounters:
    """All that a network namespace has counted, or its growth; None where the kernel does not."""

    nics: dict[str, NicCounters]
    """By name of the interface, without lo."""
    received_segments: int | None = None
    """TCP segments, of all interfaces and lo; the next three likewise."""
    sent_segments: int | None = None
    resent_segments: int | None = None
    """Sent again, because the receiver did not confirm them in time."""
    unordered_segments: int | None = None
    """Received before another that was sent earlier: a reader's sign that segments were lost."""

    @property
    def received_bytes(self) -> int:
        """Sum over the interfaces."""
        return sum(nic.received_bytes for nic in self.nics.values())

    @property
    def sent_bytes(self) -> int:
        """Sum over the interfaces."""
        return sum(nic.sent_bytes for nic in self.nics.values())

    def only(self, names: Iterable[str]) -> "NetworkCounters":
        """Return the counters without other interfaces than these."""
        kept = {name: self.nics[name] for name in names if name in self.nics}
        return replace(self, nics=kept)


@dataclass(frozen=True, kw_only=True)
class NetworkUse:
    """What a host's network did for some time; None where nobody knows."""

    nic: str
    """Interface that came nearest to its rate; where no rate is known, the one with most bytes;
    with client.nic_gbps, all of them."""
    gbps: float | None
    """Rate of this link in each direction, Gb/s; with client.nic_gbps, of all together."""
    received_share: float | None
    """Share (0-1) of that rate that was received. Headers and gaps count: 1 is never reached."""
    sent_share: float | None
    received_bytes_per_second: float
    """Over all interfaces, with the headers of Ethernet."""
    sent_bytes_per_second: float
    resent_share: float | None
    """Share (0-1) of the TCP segments sent that were sent again."""
    unordered_share: float | None
    """Share (0-1) of the TCP segments received that came before one that was sent earlier."""


def network_use(
    counted: NetworkCounters,
    seconds: float,
    links: Mapping[str, int | None],
    gbps: float | None = None,
) -> NetworkUse | None:
    """Return what was made of the links; None if there is no interface.

    Args:
        counted: the growth of the counters in these seconds.
        links: the interfaces and their bits per second, as `find_links` returns them.
        gbps: rate of all links together by the user's word, Gb/s.
    """
    if not counted.nics:
        return None

    def use(name: str) -> tuple[float, int]:
        nic, most = counted.nics[name], links.get(name)
        busier = max(nic.received_bytes, nic.sent_bytes)
        return (busier / most if most else 0.0, busier)

    name = max(counted.nics, key=use)
    nic, rate = counted.nics[name], links.get(name)
    received, sent = nic.received_bytes, nic.sent_bytes
    if gbps is not None:
        received, sent, rate = counted.received_bytes, counted.sent_bytes, round(gbps * 1e9)
        name = ", ".join(sorted(counted.nics))
    return NetworkUse(
        nic=name,
        gbps=None if rate is None else rate / 1e9,
        received_share=None if rate is None else 8 * received / seconds / rate,
        sent_share=None if rate is None else 8 * sent / seconds / rate,
        received_bytes_per_second=counted.received_bytes / seconds,
        sent_bytes_per_second=counted.sent_bytes / seconds,
        resent_share=_share(counted.resent_segments, counted.sent_segments),
        unordered_share=_share(counted.unordered_segments, counted.received_segments),
    )


def read_network(*, proc: Path = PROC) -> NetworkCounters | None:
    """Return the counters of this process's network namespace; None if the kernel has none."""
    folder = proc / "self" / "net"
    nics = {
        name: NicCounters(int(words[0]), int(words[8]))
        for name, text in _NIC.findall(read_text(folder / "dev"))
        if (words := text.split()) and name != "lo"
    }
    tcp = _columns(read_text(folder / "snmp"), "Tcp")
    more = _columns(read_text(folder / "netstat"), "TcpExt")
    if not nics and not tcp:
        return None
    return NetworkCounters(
        nics,
        tcp.get("InSegs"),
        tcp.get("OutSegs"),
        tcp.get("RetransSegs"),
        more.get("TCPOFOQueue"),
    )


def find_links(
    names: Iterable[str],
    *,
    sys: Path = SYS,
    index: Callable[[], Sequence[tuple[int, str]]] = socket.if_nameindex,
) -> dict[str, int | None]:
    """Return the interfaces whose bytes make up the host's traffic, with their rates.

    Rates are bits per second in each direction; None where nobody knows: of virtual interfaces, and
    in most virtual machines. Where there are physical interfaces, only they count: bridges, bonds,
    tunnels and the ends of containers carry the same bytes once more.

    Args:
        names: of the interfaces, as in `NetworkCounters.nics`.
        index: numbers and names of this namespace's interfaces.
    """
    folder = sys / "class" / "net"
    names = [name for name in names if name != "lo"]
    if not _is_own(folder, index()):
        return dict.fromkeys(names)
    physical = [name for name in names if is_there(folder / name / "device")]
    # A virtual function below another interface with a device, as on Azure: both count its bytes.
    physical = [name for name in physical if not is_there(folder / name / "master" / "device")]
    if physical:
        return {name: _speed(folder / name) for name in physical}
    stacked = {name for name in names if listed(folder / name, "lower_*")}
    return {name: None for name in names if name not in stacked}


def machine_name(*, proc: Path = PROC) -> str:
    """Return what containers of one machine have in common; "" if the kernel does not tell."""
    return read_text(proc / "sys" / "kernel" / "random" / "boot_id").strip()


def network_name(*, proc: Path = PROC) -> str:
    """Return what two processes have in common only if they share their network interfaces.

    Containers with the host's network have other host names, and the same interfaces. "" if the
    kernel does not tell.
    """
    try:
        space = os.stat(proc / "self" / "ns" / "net").st_ino
    except OSError:
        return ""
    return f"{machine_name(proc=proc)}/{space}"


def _share(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else part / whole


def _columns(text: str, kind: str) -> Mapping[str, int]:
    """Return the values of a line pair of snmp or netstat: names above, numbers below."""
    pairs = re.search(rf"^{kind}: (.+)\n{kind}: ([-\d ]+)$", text, re.M)
    if pairs is None:
        return {}
    return dict(zip(pairs[1].split(), map(int, pairs[2].split()), strict=False))


def _is_own(folder: Path, index: Sequence[tuple[int, str]]) -> bool:
    """Return whether /sys shows this process's network namespace, and not that of its mounter."""
    shown = {
        (read_text(path / "ifindex").strip(), path.name)
        for path in listed(folder)
        if os.path.isdir(path)
    }
    return shown == {(str(number), name) for number, name in index}


def _speed(interface: Path) -> int | None:
    """Return a link's rate in bits per second; None if its driver does not know it."""
    text = read_text(interface / "speed").strip()  # Mb/s; -1 or an error where it is not known
    return int(text) * _MEGABIT if text.isdecimal() and int(text) > 0 else None
