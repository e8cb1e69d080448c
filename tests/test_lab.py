"""What tests rely on: waits that end, and a user without privileges."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.commands import execute
from tests.lab.waiting import until
from tests.plain import REFUSED, filter_of


def test_a_wait_ends_with_the_process_that_is_waited_for() -> None:
    """Before: a test whose command had failed waited for ten minutes."""
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    assert until(lambda: "there", by=process) == "there"
    with pytest.raises(AssertionError, match="the process ended with 3 before a file"):
        until(lambda: False, "a file", by=process)


CALLS = """
import ctypes, os, sys, tests.plain
tests.plain.give_up()
libc = ctypes.CDLL(None, use_errno=True)
calls = ("unshare", 0x10000000), ("mount", None, b"/", None, 32, None), ("chroot", b"/")
for call, *words in calls:
    assert getattr(libc, call)(*words) == -1, call
    print(call, os.strerror(ctypes.get_errno()))
assert libc.syscall(425, 8, None) == -1, "io_uring_setup"
print("io_uring", os.strerror(ctypes.get_errno()))
print(os.listdir("/proc/self/fd") and "all else goes on")
"""


@pytest.mark.skipif(os.uname().machine not in REFUSED, reason="no numbers of its system calls")
def test_who_has_given_up_makes_no_privileged_call(tmp_path: Path) -> None:
    ended = execute([sys.executable, "-c", CALLS], cwd=tmp_path)
    refused = [f"{name} Operation not permitted" for name in ("unshare", "mount", "chroot")]
    assert ended.stdout.splitlines() == [
        *refused,
        "io_uring Operation not permitted",
        "all else goes on",
    ], ended.stderr
    assert len(filter_of("aarch64")) == 8 * (4 + 8 + 5 + 2)
