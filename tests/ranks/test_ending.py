"""The first Ctrl-C ends a process, though its main thread is stuck or slow to clean up.

A thread that blocks signals does not handle them, as one that is stuck in a system call.
"""

import signal
import subprocess
import sys
import time

import pytest

from dlemu.ranks.ending import Interrupts
from tests.lab.commands import with_checkout
from tests.lab.waiting import LONG

_INT = (signal.SIGINT,)
_BEGIN = """
import os, signal, sys, threading, time
from dlemu.ranks.ending import Interrupts, end_soon, last_act
def act(error):
    print("act", type(error).__name__, flush=True)
"""
_LATE = """
act = lambda error: time.sleep(100)
with Interrupts() as interrupts, last_act(act, late=lambda: print("late", flush=True)):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    print("begun", flush=True)
    time.sleep(100)
"""
_STUCK = """
with Interrupts() as interrupts, last_act(act):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    print("begun", flush=True)
    time.sleep(100)
"""
_SLOW_TO_CLEAN = """
with Interrupts() as interrupts, last_act(act):
    try:
        print("begun", flush=True)
        time.sleep(100)
    finally:
        print("cleaning", flush=True)
        time.sleep(100)
"""
_CLEAN = """
with Interrupts() as interrupts, last_act(act):
    try:
        print("begun", flush=True)
        time.sleep(100)
    except KeyboardInterrupt:
        print("cleaned", flush=True)
        sys.exit(interrupts.say())
"""
_BUSY_LATER = """
with Interrupts() as interrupts, last_act(act):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    print("begun", flush=True)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        time.sleep(100)
    except KeyboardInterrupt:
        print("cleaned", flush=True)
        sys.exit(interrupts.say())
"""
_LOST = _STUCK.replace(
    "    signal.pthread",
    """    from dlemu.errors import LostRankError
    interrupts.cause = lambda error: LostRankError("rank 1 on host a ended without a word")
    signal.pthread""",
)
_SILENT = _CLEAN.replace("    try:", "    interrupts.speaks = False\n    try:")
_IGNORES = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
with Interrupts():
    print("begun", flush=True)
    time.sleep(1)
print("went on", flush=True)
"""


def interrupted(program: str, *numbers: signal.Signals) -> tuple[int, list[str], str]:
    """Return status, lines after "begun", and errors of a program that gets these signals."""
    process = subprocess.Popen(
        [sys.executable, "-c", _BEGIN + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=with_checkout(),
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.1)
        out, errors = process.communicate(timeout=LONG)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out.splitlines(), errors


ENDS = {
    "a main thread that is stuck": (_STUCK, _INT, 130, ["act KeyboardInterrupt"]),
    "so by SIGTERM": (_STUCK, (signal.SIGTERM,), 130, ["act KeyboardInterrupt"]),
    "so, as another rank was killed": (_LOST, (signal.SIGTERM,), 1, ["act LostRankError"]),
    "one that cleans up for ever, which a second Ctrl-C does not disturb": (
        _SLOW_TO_CLEAN,
        (signal.SIGINT, signal.SIGTERM, signal.SIGINT),
        130,
        ["cleaning", "act KeyboardInterrupt"],
    ),
    "what a last act has not done in time is told": (_LATE, _INT, 130, ["late"]),
    "one that can ends by itself": (_CLEAN, _INT, 130, ["cleaned"]),
    "another thread takes the signal": (_BUSY_LATER, _INT, 130, ["cleaned"]),
    "one of several ranks speaks": (_SILENT, _INT, 130, ["cleaned"]),
    "a background job goes on": (_IGNORES, _INT, 0, ["went on"]),
}
"""A program, its signals, its exit status, and what it prints."""


@pytest.mark.parametrize("case", ENDS)
def test_the_first_signal_ends_a_process_that_takes_it(case: str) -> None:
    program, numbers, status, lines = ENDS[case]
    said = {_SILENT: "", _IGNORES: "", _LOST: "dlemu: rank 1 on host a ended without a word\n"}
    errors = said.get(program, "dlemu: interrupted\n")
    assert interrupted(program, *numbers) == (status, lines, errors)


def test_an_exit_that_waits_for_a_stuck_thread_comes_to_an_end() -> None:
    program = """
import dlemu.ranks.ending
dlemu.ranks.ending._EXIT_SECONDS = 0.5
threading.Thread(target=time.sleep, args=(100,)).start()
print("begun", flush=True)
end_soon(3)
sys.exit(4)
"""
    assert interrupted(program) == (3, [], "")


def test_handlers_are_put_back_and_no_thread_stays() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with Interrupts() as interrupts:
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in before} == before
    assert not interrupts._thread.is_alive()


def test_the_signal_that_wakes_the_thread_interrupts_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy host a short command has ended before the thread blocks signals."""
    monkeypatch.setattr(Interrupts, "_watch", lambda self: time.sleep(0.2))
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        pass
    assert signal.getsignal(signal.SIGINT) is before
