"""Waits for what will be so, however busy the host is."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LONG = 600.0
"""Seconds after which something is wrong; no test is about how long it took."""


def until(ready: Callable[[], T], what: str = "it", *, pause: float = 0.01) -> T:
    """Ask again and again until the answer is true; return it."""
    deadline = time.monotonic() + LONG
    while not (answer := ready()):
        assert time.monotonic() < deadline, f"waited {LONG:.0f} s for {what}"
        time.sleep(pause)
    return answer
