"""What all tests begin with, and which of them are quick."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.lab import warm

SHORT_PROBES = {
    "dlemu.datagen.probe._PROBE_SECONDS": 0.03,
    "dlemu.run.forecast._PROBE_SECONDS": 0.03,
    "dlemu.run.monitor._PROBE_SECONDS": 0.03,
    "dlemu.sizing.start._PROBE_SECONDS": 0.03,
    "dlemu.sizing.calibrate._PROBE_SECONDS": 0.1,
    "dlemu.load.measure._PROBE_SECONDS": 0.1,
    "dlemu.cli.progress._PLAIN_SECONDS": 600.0,
}
"""A probe after each short run would take longer than all else; no such test is about its rate. Nor
is one about a plain line of progress, which a busy host would add to what a command says."""
SETTINGS = Path(__file__).parent / "lab" / "settings"
"""Has new Pythons set them: see sitecustomize.py there."""
NOT_QUICK = {
    line
    for line in Path(__file__).with_name("not_quick.txt").read_text().splitlines()
    if not line.startswith("#")
}
LONGEST = (
    "tests/test_docs.py",
    "tests/test_fuzz.py",
    "tests/run/test_hosts.py::test_a_worker_that_is_killed_on_another_host_is_named",
    "tests/run/test_hosts.py::test_hosts_that_differ",
    "tests/run/test_hosts.py::test_a_link_that_is_held_to_a_rate_is_the_limit",
    "tests/loaders/test_descriptors.py::test_others_cost_what_the_formula_says",
    "tests/test_terminal.py::test_files_are_opened_with_an_encoding",
    "tests/cli/test_end_to_end.py::test_two_ranks_open_disjoint_files_and_together_the_plans",
    "tests/reports/test_page.py",
    "tests/sizing/test_calibrate.py",
    "tests/training/test_loader.py::test_no_worker_is_left_of_a_loader_that_nobody_closes",
    "tests/training/test_loader.py::test_workers_outlive_the_thread_that_iterates",
    "tests/paths/test_paths.py::test_the_command_writes_its_reports_and_ends_with_0",
    "tests/loaders/test_faults.py::test_workers_may_be_started_in_any_way",
    "tests/results/test_bottleneck.py::test_storage_is_blamed_only_where_nothing_else_can_be",
    "tests/run/test_faults.py::test_a_read_that_never_ends_is_named",
    "tests/formats/test_formats.py::test_an_npz_beyond_4_gib_is_sound",
    "tests/test_examples.py",
)
"""What takes longest. Begun last, one of them would be waited for while all else has ended. A file
whose tests share what is long to make stands here as a whole: it goes to one worker."""
_SLOW_MARKS = {"clock", "root", "mpi", "gpu"}
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""Audit events of a process that begins."""
_started: list[str] = []
_timed: set[Path] = set()
"""Files with tests that need probes of full length."""


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


@pytest.hookimpl(hookwrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark as quick what is neither on the list nor bound to root, MPI, a GPU or the clock."""
    for item in items:
        listed = any(place in NOT_QUICK for place in _places(item))
        if not listed and not any(item.get_closest_marker(mark) for mark in _SLOW_MARKS):
            item.add_marker("quick")
    yield  # -m leaves out others
    _timed.update(item.path for item in items if _is_timed(item))
    _spread_the_longest(items, workers=int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _places(item: pytest.Item) -> list[str]:
    """Return the test's file, class and function as the lists name them."""
    parts = item.nodeid.partition("[")[0].split("::")
    return ["::".join(parts[: end + 1]) for end in range(len(parts))]


def _spread_the_longest(items: list[pytest.Item], workers: int) -> None:
    """Put some of the longest first in each worker's part; xdist's parts are equal."""
    groups: dict[str, list[pytest.Item]] = {place: [] for place in LONGEST}
    rest: list[pytest.Item] = []
    for item in items:
        place = next((place for place in _places(item) if place in groups), None)
        (rest if place is None else groups[place]).append(item)
    left = len(items)
    spread: list[pytest.Item] = []
    for worker in range(workers):
        part = [item for group in [*groups.values()][worker::workers] for item in group]
        room = max(0, left // (workers - worker) - len(part))
        part, rest = part + rest[:room], rest[room:]
        spread += part
        left -= len(part)
    items[:] = spread + rest


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Fork the server of commands while no test has changed anything."""
    if session.items and not session.config.option.collectonly:
        warm.prepare()


@pytest.fixture(autouse=True)
def no_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a quick test that starts a process: its line is missing in not_quick.txt."""
    _started.clear()
    yield
    if request.node.get_closest_marker("quick") and _started:
        pytest.fail(f"a quick test starts a process: {_started[0]}; see tests/not_quick.txt")


@pytest.fixture(scope="module", autouse=True)
def short_probes_of_a_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Probe storage for a moment only in what the tests of a module share, too."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.path not in _timed:
            _probe_shortly(monkeypatch)
        yield


@pytest.fixture(autouse=True)
def short_probes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe storage for a moment only, here and in all processes that a test starts.

    But not where the clock is read, nor in a module with FULL_PROBES, which is about them.
    """
    if not _is_timed(request.node):
        _probe_shortly(monkeypatch)


def _is_timed(item: pytest.Item) -> bool:
    full = getattr(getattr(item, "module", None), "FULL_PROBES", False)
    return full or item.get_closest_marker("clock") is not None


def _probe_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in SHORT_PROBES.items():
        monkeypatch.setattr(name, seconds)
    monkeypatch.setattr(warm, "settings", SHORT_PROBES)
    monkeypatch.setenv("DLEMU_TEST_SETTINGS", json.dumps(SHORT_PROBES))
    if str(SETTINGS) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        monkeypatch.setenv("PYTHONPATH", str(SETTINGS), prepend=os.pathsep)
