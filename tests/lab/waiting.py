"""Waits for what will be so, however busy the host is."""

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LONG = 600.0
"""Seconds after which something is wrong; no test is about how long it took."""


def until(
    ready: Callable[[], T],
    what: str = "it",
    *,
    pause: float = 0.01,
    by: "subprocess.Popen[Any] | None" = None,
) -> T:
    """Ask again and again until the answer is true; return it. A process `by` which ended is told.

    Without that, a test whose command has failed would wait as long as for one that hangs.
    """
    deadline = time.monotonic() + LONG
    while True:
        status = None if by is None else by.poll()
        if answer := ready():
            return answer
        assert status is None, f"the process ended with {status} before {what}"
        assert time.monotonic() < deadline, f"waited {LONG:.0f} s for {what}"
        time.sleep(pause)
