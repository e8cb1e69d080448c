"""Several hosts on this one: each a network namespace with a host name, an address and a link.

For tests of jobs over hosts, launched by Open MPI's mpirun as over ssh: its agent enters the
namespace instead. They need root, and skip with the reason where the kernel has no namespaces.
"""

import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.lab.cgroups import Group

_numbers = itertools.count()

_ENTER = """#!/bin/sh
# Runs a line of shell on a host: ENTER HOST WORDS, as mpirun calls ssh. It sees the mounts of the
# tests and its own, not those of the host that called.
export DLEMU_LAB_HOST=$1 DLEMU_LAB_PWD=$PWD
shift
export DLEMU_LAB_LINE="$*"
exec nsenter --net=/run/netns/{prefix}$DLEMU_LAB_HOST --mount=/proc/{pid}/ns/mnt \\
    unshare --uts --mount sh -c '
cd "$DLEMU_LAB_PWD"
hostname "$DLEMU_LAB_HOST"
. {folder}/"$DLEMU_LAB_HOST".sh
mount --bind {shared}/"$DLEMU_LAB_HOST" /dev/shm
eval "$DLEMU_LAB_LINE"'
"""


_CLOCK = """\
import time

_time = time.time
time.time = lambda: _time() + {seconds}
"""


@dataclass
class Hosts:
    """Hosts on a bridge of their own, and how to start ranks on them."""

    names: list[str]
    folder: Path
    """Holds the scripts that enter the hosts."""
    prefix: str
    """What the names of the namespaces begin with."""
    shared: Path
    """Has the /dev/shm of each host, by its name."""
    _lines: dict[str, list[str]] = field(default_factory=dict)

    def mpirun(self, ranks: Sequence[int], *command: str) -> list[str]:
        """Return the command line that runs `command` in so many ranks on each host, in order."""
        launcher = Path(sys.executable).with_name("mpirun")
        if not launcher.exists():
            pytest.skip(f"no mpirun beside {sys.executable}; pip install 'dlemu[mpi]'")
        slots = ",".join(f"{name}:{num}" for name, num in zip(self.names, ranks, strict=False))
        words = [str(launcher), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        words += ["--prtemca", "plm_ssh_agent", str(self.folder / "enter"), "--host", slots]
        words += ["--map-by", "slot", "-n", str(sum(ranks)), *command]
        return self.on(self.names[0], *words)

    def on(self, name: str, *command: str) -> list[str]:
        """Return the command line that runs `command` on one host."""
        return [str(self.folder / "enter"), name, f"exec {shlex.join(command)}"]

    def hold(self, name: str, group: Group) -> None:
        """Put what will be started on a host into a cgroup."""
        self._add(name, f"echo 0 > {group.folder}/cgroup.procs")

    def mount(self, name: str, source: Path, target: Path) -> None:
        """Show a folder of this machine at another path on one host: a disk of its own."""
        self._add(name, f"mount --bind {shlex.quote(str(source))} {shlex.quote(str(target))}")

    def set(self, name: str, variables: Mapping[str, str]) -> None:
        """Set environment variables for what will be started on a host."""
        for key, value in variables.items():
            self._add(name, f"export {key}={shlex.quote(value)}")

    def set_clock(self, name: str, seconds: float) -> None:
        """Put the time of day (`time.time`) of Python programs on a host forward.

        Namespaces have a clock of their own for the time since the start, not for the time of day.
        """
        place = self.folder / "clock" / name
        place.mkdir(parents=True)
        (place / "sitecustomize.py").write_text(_CLOCK.format(seconds=seconds))
        self._add(name, f"export PYTHONPATH={shlex.quote(str(place))}:$PYTHONPATH")

    def left(self) -> list[Path]:
        """Return what lies in the hosts' /dev/shm and temporary folders."""
        return [
            file
            for name in self.names
            for place in (self.shared, self.folder / "tmp")
            for file in (place / name).iterdir()
        ]

    def cut(self, name: str) -> None:
        """Take the link of a host down, as a pulled cable."""
        self._link(name, "down")

    def mend(self, name: str) -> None:
        self._link(name, "up")

    def _add(self, name: str, line: str) -> None:
        self._lines.setdefault(name, []).append(line)
        (self.folder / f"{name}.sh").write_text("\n".join([*self._lines[name], ""]))

    def _link(self, name: str, state: str) -> None:
        outer = f"{self.prefix}{self.names.index(name)}"
        ip("-n", self.prefix + "br", "link", "set", outer, state)


@contextlib.contextmanager
def hosts(folder: Path, num: int) -> Iterator[Hosts]:
    """Make so many hosts, h0, h1 and so on, with addresses 10.77.0.1 and so on."""
    if os.geteuid() != 0:
        pytest.skip("only root may make network namespaces")
    if missing := [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install iproute2 util-linux")
    prefix = f"d{os.getpid()}{next(_numbers)}"
    # Not a process may be started in the quick tests: that ends this with a skip, too.
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dlemu-hosts-") as shared:
        made = Hosts([f"h{index}" for index in range(num)], folder, prefix, Path(shared))
        bridge = prefix + "br"
        try:
            _make(made, bridge)
        except subprocess.CalledProcessError as error:
            _remove(made, bridge)
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        for name in made.names:
            Path(shared, name).mkdir()
            (folder / "tmp" / name).mkdir(parents=True)
            made.set(name, {"TMPDIR": str(folder / "tmp" / name)})
        enter = folder / "enter"
        pid = os.getpid()
        enter.write_text(_ENTER.format(prefix=prefix, folder=folder, shared=shared, pid=pid))
        enter.chmod(0o755)
        try:
            yield made
        finally:
            _remove(made, bridge)


def _make(made: Hosts, bridge: str) -> None:
    ip("netns", "add", bridge)
    ip("-n", bridge, "link", "add", "br0", "type", "bridge")
    ip("-n", bridge, "link", "set", "br0", "up")
    for index, name in enumerate(made.names):
        space, outer = made.prefix + name, f"{made.prefix}{index}"
        ip("netns", "add", space)
        ip("-n", bridge, "link", "add", outer, "type", "veth", "peer", "eth0", "netns", space)
        ip("-n", bridge, "link", "set", outer, "master", "br0", "up")
        ip("-n", space, "address", "add", f"10.77.0.{index + 1}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")
        ip("-n", space, "link", "set", "lo", "up")


def _remove(made: Hosts, bridge: str) -> None:
    for space in [*(made.prefix + name for name in made.names), bridge]:
        with contextlib.suppress(subprocess.CalledProcessError):  # not made
            ip("netns", "delete", space)


def ip(*words: str) -> None:
    """Run the program of this name."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
