"""What all tests begin with, and which of them are quick."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.lab import warm

SHORT_PROBES = {
    "dlemu.datagen.probe._PROBE_SECONDS": 0.1,
    "dlemu.run.forecast._PROBE_SECONDS": 0.1,
    "dlemu.run.monitor._PROBE_SECONDS": 0.3,
    "dlemu.sizing.start._PROBE_SECONDS": 0.1,
    "dlemu.cli.progress._PLAIN_SECONDS": 600.0,
}
"""A probe after each short run would take longer than all else; no such test is about its rate. Nor
is one about a plain line of progress, which a busy host would add to what a command says."""
NOT_QUICK = [
    line
    for line in Path(__file__).with_name("not_quick.txt").read_text().splitlines()
    if not line.startswith("#")
]
_SLOW_MARKS = {"clock", "root", "mpi", "gpu"}
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""Audit events of a process that begins."""
_started: list[str] = []


def _note_starts(event: str, arguments: tuple[object, ...]) -> None:
    # Python's platform module runs `uname -p` once, in whichever test imports h5py or DALI first.
    if event in _STARTS and arguments[:1] != ("uname",):
        _started.append(f"{event} {arguments}"[:200])


def pytest_configure() -> None:
    """Let Ctrl-C reach what tests start.

    A shell starts background jobs with SIGINT ignored, children inherit that, and whoever ignores a
    signal from the start rightly goes on ignoring it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.addaudithook(_note_starts)
    # On a busy host an example takes longer than usual; that is no mistake.
    settings.register_profile("suite", deadline=None)
    settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as quick what is neither on the list nor bound to root, MPI, a GPU or the clock."""
    for item in items:
        place = item.nodeid.partition("[")[0]
        listed = any(place == name or place.startswith(f"{name}::") for name in NOT_QUICK)
        if not listed and not any(item.get_closest_marker(mark) for mark in _SLOW_MARKS):
            item.add_marker("quick")


@pytest.fixture(autouse=True)
def no_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a quick test that starts a process: its line is missing in not_quick.txt."""
    _started.clear()
    yield
    if request.node.get_closest_marker("quick") and _started:
        pytest.fail(f"a quick test starts a process: {_started[0]}; see tests/not_quick.txt")


@pytest.fixture(autouse=True)
def short_probes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe storage for a moment only, here and in warm processes.

    But not where the clock is read, nor in a module with FULL_PROBES, which is about them.
    """
    full = getattr(request.module, "FULL_PROBES", False)
    if not full and request.node.get_closest_marker("clock") is None:
        for name, seconds in SHORT_PROBES.items():
            monkeypatch.setattr(name, seconds)
        monkeypatch.setattr(warm, "settings", SHORT_PROBES)
