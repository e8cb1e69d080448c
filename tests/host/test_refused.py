"""A container may refuse any look at /proc and /sys: nothing ends by it."""

import builtins
import errno
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlemu.clock import WallClock, timer_error
from dlemu.host.devices import devices_under, memory_below
from dlemu.host.intervals import HostObserver, WatchedPlaces
from dlemu.host.network import find_links, network_name, read_network
from dlemu.host.place import find_attachment, find_connection, find_host, name_storage
from dlemu.host.processes import free_memory_bytes, process_age
from dlemu.host.wear import controller_of, lifetime
from dlemu.ranks.cost import BarrierCost
from dlemu.sizing import calibrate
from dlemu.storage.gpu import cufile
from dlemu.tools import doctor
from dlemu.tools.paths import cells, uring

_LOOKS = ("stat", "lstat", "open", "listdir", "scandir", "readlink", "access")


def _of_kernel(path: object) -> str:
    """Return a path below /proc or /sys, "" for others; no process has a number."""
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
    except TypeError:  # a descriptor
        return ""
    return re.sub(r"^/proc/\d+", "/proc/N", text) if re.match(r"/(proc|sys)(/|$)", text) else ""


@contextmanager
def _looked_at(refused: Callable[[str], bool]) -> Iterator[set[str]]:
    """Yield the paths that are looked at; those that are `refused` cannot be."""
    seen: set[str] = set()

    def watched(name: str, look: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(path: Any = ".", *words: Any, **named: Any) -> Any:
            if kernel := _of_kernel(path):
                seen.add(kernel)
                if refused(kernel):
                    if name == "access":
                        return False
                    raise PermissionError(errno.EACCES, "Permission denied", path)
            return look(path, *words, **named)

        return stand_in

    with pytest.MonkeyPatch.context() as patch:
        for name in _LOOKS:
            patch.setattr(os, name, watched(name, getattr(os, name)))
        opened = watched("open", io.open)
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)
        yield seen


def _below(top: str) -> Callable[[str], bool]:
    return lambda path: path.startswith(top)


def _observe(folder: Path) -> None:
    with HostObserver([folder], lambda: [os.getpid()]) as observer:
        observer.mark("here")


def _wear(folder: Path) -> None:
    for device in devices_under(folder):
        lifetime(device, read=lambda *_: bytes(4096))
    controller_of("nvme0n1")


def _network(_: Path) -> None:
    network_name()
    find_links(getattr(read_network(), "nics", ("eth0",)))


def _place(folder: Path) -> None:
    find_host(folder)
    name_storage(folder)
    find_connection(folder)
    find_attachment(folder)
    memory_below(["loop0", "ram0"])
    WatchedPlaces(folder, folder, [folder]).counts()


def _tools(folder: Path) -> None:
    free_memory_bytes()
    process_age()
    cells.read_joules()
    uring._why(errno.EPERM)
    calibrate._cores()
    cufile.lists_gpu()
    cufile._missing_for(folder, Path("/"))
    cufile.expected_mode(folder, 1150)


@pytest.mark.parametrize(
    "look",
    [
        lambda folder: list(doctor._host()),
        lambda folder: list(doctor._folder(folder)),
        _place,
        _wear,
        _network,
        _tools,
        _observe,
    ],
    ids=["doctor", "doctor of a folder", "place", "wear", "network", "tools", "observer"],
)
def test_whatever_is_refused_is_unknown(
    look: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = timer_error(WallClock.calibrate(), seconds=0.0, num_sleeps=1)
    monkeypatch.setattr(doctor, "timer_error", lambda *_, **__: late)
    met = BarrierCost(2, 1e-5, 1e-5)
    monkeypatch.setattr(doctor, "barrier_cost", lambda: met)
    with _looked_at(lambda path: False) as seen:
        look(tmp_path)
    assert seen
    tops = {"/proc", "/sys"} | {f"{Path(one).parent}/" for one in seen} - {"//", "/proc/", "/sys/"}
    every: list[Callable[[str], bool]] = [lambda path: True, *map(_below, sorted(tops))]
    if look is not _observe:  # it would take long
        every += [one.__eq__ for one in sorted(seen)]
    for refused in every:
        with _looked_at(refused):
            look(tmp_path)
