"""What torch's DataLoader and its workers talk through, with the torch that is installed."""

import multiprocessing
import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from torch._C import _error_if_any_worker_fails
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from dlemu.loaders import pipes
from dlemu.loaders.pipes import Flag, LeanProcess, Pipe, Requests, lean_context
from tests.lab.waiting import LONG, until


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = lean_context("fork", num_messages=1, requests=Requests(), processes=[]).Queue()
    assert isinstance(made, Pipe)
    yield made
    made.close()


def test_messages_come_in_their_order_and_may_be_larger_than_the_pipe(pipe: Pipe) -> None:
    sizes = [0, 1, 65_535, 65_536, 1_000_000]
    messages = [(0, b""), None, ValueError("no"), list(range(1000)), *map(bytes, sizes)]
    sender = threading.Thread(target=lambda: list(map(pipe.put, messages)))
    sender.start()
    assert [repr(pipe.get(timeout=LONG)) for _ in messages] == [repr(each) for each in messages]
    sender.join()


def test_half_a_message_is_none(pipe: Pipe) -> None:
    pipe.put("whole")
    written = os.read(pipe._both, 100)
    os.write(pipe._both, written[:7])
    with pytest.raises(queue.Empty):
        pipe.get(timeout=0.01)
    os.write(pipe._both, written[7:])
    assert pipe.get(timeout=LONG) == "whole"


def test_who_is_killed_while_looking_at_a_flag_holds_up_nobody() -> None:
    context: Any = lean_context("fork", num_messages=1, requests=Requests(), processes=[])
    flag, (begins, begun) = context.Event(), os.pipe()

    def look() -> None:
        os.write(begun, bytes([flag.is_set()]))
        while True:
            flag.is_set()

    for _ in range(10):
        looker = context.Process(target=look)
        looker.start()
        assert os.read(begins, 1) == b"\0"
        looker.kill()
        looker.join()
    setter = threading.Thread(target=flag.set, daemon=True)
    setter.start()
    setter.join(LONG)
    assert flag.is_set()
    os.close(begins)
    os.close(begun)


def test_a_process_ends_though_a_thread_was_printing_when_it_was_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread holds the lock of sys.stderr for ever, as on a terminal that nobody reads."""
    unread, full = os.pipe()
    monkeypatch.setattr(sys, "stderr", os.fdopen(full, "w"))
    printer = threading.Thread(target=lambda: print("x" * (1 << 20), file=sys.stderr), daemon=True)
    fork = os.fork

    def fork_while_it_prints() -> int:
        printer.start()
        task = Path(f"/proc/self/task/{printer.native_id}/wchan")
        until(lambda: "pipe" in task.read_text(), "a thread that waits in write(2)")
        return fork()

    monkeypatch.setattr(os, "fork", fork_while_it_prints)
    process = LeanProcess(target=int, daemon=True)
    process.start()
    process.join(LONG)
    assert process.exitcode == 0
    left = 1 << 20
    while left:
        left -= len(os.read(unread, left))
    printer.join(LONG)
    sys.stderr.close()
    os.close(unread)


def test_too_many_messages_take_queues_that_never_are_full() -> None:
    context = lean_context("fork", num_messages=257, requests=Requests(), processes=[])
    plain = multiprocessing.get_context("fork")
    assert type(context.Queue()) is type(plain.Queue()) and isinstance(context.Event(), Flag)
    assert not isinstance(plain.Queue(), Pipe) and not isinstance(plain.Event(), Flag), "its own"


@pytest.mark.parametrize("num_messages", [1, 257])
def test_requests_are_sent_when_they_are_to_be(num_messages: int) -> None:
    """Held back in order, whichever queue it is; and what is dropped is never sent."""
    requests = Requests()
    made: Any = lean_context(
        "fork", num_messages=num_messages, requests=requests, processes=[]
    ).Queue()
    made.put("first")
    requests.held = True
    made.put("second")
    made.put("third")
    requests.held = False
    assert made.get(timeout=LONG) == "first"
    with pytest.raises(queue.Empty):
        made.get(timeout=0.05)
    requests.send()
    assert [made.get(timeout=LONG), made.get(timeout=LONG)] == ["second", "third"]
    requests.held = True
    made.put("fourth")
    requests.drop()
    made.put("fifth")
    requests.send()
    assert made.get(timeout=LONG) == "fifth"


@pytest.mark.parametrize("watched", [True, False])
def test_a_worker_that_is_ended_is_no_error_once_nobody_watches(
    watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch's handler of SIGCHLD calls raises if one of the workers was killed."""
    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", True)  # no handler, then
    context: Any = lean_context("fork", num_messages=8, requests=Requests(), processes=[])
    several = {"persistent_workers": True, "multiprocessing_context": context}
    loader: Any = DataLoader(range(100), batch_size=None, num_workers=1, **several)  # type: ignore[arg-type]
    next(iter(loader))
    [worker] = loader._iterator._workers
    if not watched:
        pipes.stop_watching(loader)
    worker.kill()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(RuntimeError, match="Killed") if watched else nullcontext():
        _error_if_any_worker_fails()
    pipes.stop_watching(loader)
