"""What all tests begin with, and which of them are quick."""

import _thread
import gc
import multiprocessing.util
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import settings

from dlemu.cli.main import run
from dlemu.host.devices import lies_in_memory
from dlemu.units import ceil_div
from tests.lab import warm
from tests.lab.bench import folder_in_memory
from tests.lab.commands import generate
from tests.lab.settings import QUICK, apply

_NOT_QUICK = {"root", "mpi", "gpu"}
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""Audit events of a process that begins."""
_MOST_ROWS = 2
"""So many rows of one test are quick, at equal distances; `make test` has all."""
_SETTINGS = "_hypothesis_internal_use_settings"
"""Where Hypothesis keeps what a property is decorated with."""
_MOST_EXAMPLES = 20
"""So many examples a property gets in quick tests, whatever number it names."""
_left: list[str] = []
"""What the current test was about to start, where quick tests alone are wanted."""


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach what tests start, and let probes be short.

    A shell starts background jobs with SIGINT ignored, children inherit that, and a process that
    ignores a signal from the start rightly goes on ignoring it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # On a busy host an example takes longer than usual; that is no mistake.
    quick = config.option.markexpr == "quick"
    most = _MOST_EXAMPLES if quick else 100
    # The same examples each time, or those of a seed.
    same = config.getoption("--hypothesis-seed") is None
    settings.register_profile("suite", deadline=None, max_examples=most, derandomize=same)
    settings.load_profile("suite")
    apply(QUICK)
    warm.settings = QUICK


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as quick what may be: some rows of each test that is not bound to root, MPI or a GPU.

    A test that has the mark itself is quick with all its rows.
    """
    for _, rows in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        may = [row for row in rows if not any(row.get_closest_marker(each) for each in _NOT_QUICK)]
        for row in may[:: ceil_div(len(may), _MOST_ROWS) or 1]:
            row.add_marker("quick")
            own = getattr(row.obj, _SETTINGS, None)  # type: ignore[attr-defined]
            if own is not None and config.option.markexpr == "quick":
                few = min(own.max_examples, _MOST_EXAMPLES)
                setattr(row.obj, _SETTINGS, settings(own, max_examples=few))  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Fork the server of commands while no test has changed anything; quick tests need none."""
    if not session.items or session.config.option.collectonly:
        return
    gc.freeze()  # what was imported stays, so no collection has to look at it
    if session.config.option.markexpr == "quick":
        sys.addaudithook(_leave_at_a_start)
        multiprocessing.util.spawnv_passfds = _leave  # type: ignore[assignment]
    else:
        warm.prepare()


def _leave_at_a_start(event: str, arguments: tuple[object, ...]) -> None:
    # Python's platform module runs `uname -p` once, in whichever test imports h5py or DALI first.
    if event in _STARTS and arguments[:1] != ("uname",):
        _leave(event)


def _leave(what: object, *_: object) -> NoReturn:
    """Leave the test that is about to start a process: so it is none of the quick ones."""
    _left.append(str(what))
    if threading.current_thread() is not threading.main_thread():
        _thread.interrupt_main(signal.SIGUSR1)  # which may wait for this thread
    pytest.skip("starts a process")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Let a thread that is about to start a process end the test's wait for it."""
    # Hypothesis measures collections for its deadlines, which are off; an interrupt is lost there.
    gc.callbacks.clear()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: pytest.skip("starts a process"))
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Leave a test as well that fails because a thread of it could not start a process."""
    outcome: Any = yield
    report = outcome.get_result()
    if _left and report.failed:
        report.outcome = "skipped"
        report.longrepr = (str(Path(__file__)), 0, "Skipped: starts a process")
    if call.when == "teardown":
        _left.clear()


@pytest.fixture
def time_flies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """What lets as many seconds pass as the watchdog waits, in all commands that are started."""
    file = tmp_path / "time flies"
    monkeypatch.setattr(warm, "settings", {**warm.settings, "tests.lab.flying.file": str(file)})
    return file.touch


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The override that names the small dataset; who changes its files takes a copy."""
    return generate(tmp_path_factory.mktemp("data"))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where storage is no limit."""
    if not lies_in_memory(Path("/dev/shm")):
        pytest.skip("/dev/shm of this host is no tmpfs")
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints, in process: printed("report", "run", status=1); stderr comes last."""

    def answer(*words: object, status: int = 0) -> str:
        capsys.readouterr()
        ended = run([str(word) for word in words])
        said = capsys.readouterr()
        assert ended == status, said
        return said.out + said.err

    return answer
