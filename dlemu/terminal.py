"""Text for the terminal: control characters of a file or a name are written out, not obeyed."""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

# Control characters (C0, DEL, C1), marks of the writing direction, separators of lines and
# paragraphs, and surrogates, which stand for bytes that are not UTF-8.
_ACTS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_LONGEST_LINE = 10_000
"""Characters: two of the longest paths of Linux, and what is said of them."""

_TURN_SECONDS = 1.0
"""Longest wait for a thread that writes to the terminal: it may never end, where nobody reads."""
_turn = threading.RLock()
_erasers: list[Callable[[], object]] = []


def shown(text: str) -> str:
    r"""Return a text with the characters that act on a terminal written out, like \x1b; not \n."""
    return _ACTS.sub(lambda found: found[0] if found[0] == "\n" else _written_out(found), text)


def shown_line(text: str) -> str:
    """Return a text as one line: as `shown`, with line feeds written out too."""
    return _ACTS.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def say(text: str, *, to_stderr: bool = False) -> None:
    """Print a text of one or more lines, and flush. A live line leaves before."""
    with turn():
        print(shown(text), file=sys.stderr if to_stderr else None, flush=True)


@contextmanager
def turn() -> Iterator[None]:
    """Erase the live line, and keep other threads from writing until the `with` ends."""
    taken = _turn.acquire(timeout=_TURN_SECONDS)
    try:
        for erase in _erasers:
            with suppress(OSError, ValueError):  # the terminal is gone
                erase()
        yield
    finally:
        if taken:
            _turn.release()


@contextmanager
def erased_by(erase: Callable[[], object]) -> Iterator[None]:
    """Call `erase()` before anything is written, until the `with` ends."""
    _erasers.append(erase)
    try:
        yield
    finally:
        _erasers.remove(erase)


def silent(text: str) -> None:
    """Say nothing: for ranks other than 0, and for the runs of a search."""


def complain(text: str) -> None:
    """Print "dlemu: <text>" to stderr as one line, and flush; a very long text loses its middle."""
    line = shown_line(text)
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}"
    with suppress(BrokenPipeError):  # nobody is left to be told
        say(f"dlemu: {line}", to_stderr=True)


def open_streams() -> None:
    r"""Make stdout and stderr take every character in any encoding; a closed one is replaced.

    A character that the encoding lacks is written out, like \xb5 for µ.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            # For as long as the process lives.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
