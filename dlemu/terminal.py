"""Text for the terminal: control characters of a file or a name are written out, not obeyed."""

import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import TextIO

from dlemu.errors import WorkloadError, reason_of

# Control characters (C0, DEL, C1), marks of the writing direction, separators of lines and
# paragraphs, and surrogates, which stand for bytes that are not UTF-8.
_ACTS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_LONGEST_LINE = 10_000
"""Characters: two of the longest paths of Linux, and what is said of them."""
Say = Callable[[str], None]
"""Prints a text for a person: `say`, `silent`, or what somebody else gives."""
_kept: list[TextIO] = []
"""The stdout that `keep_stdout` keeps."""

_untaken: list[OSError] = []
"""Why stdout took no more of this command's output; a reader that has ended is none."""

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


class Answer(str):
    """A text that a command was started for; the quiet mode prints its short form, and no other."""

    short: str
    fitted: str | None

    def __new__(cls, text: str, short: str | None = None, fitted: str | None = None) -> "Answer":
        """Make the text; without a short form it is printed whole.

        `fitted` is the text as wide and as coloured as the terminal is: it is printed as it is, so
        its control characters must be its own.
        """
        made = super().__new__(cls, text)
        made.short = text.lstrip("\n") if short is None else short
        made.fitted = fitted
        return made


@dataclass
class _Mode:
    """How much is printed by this process."""

    quiet: bool = False
    verbose: bool = False
    log: str | None = None


_mode = _Mode()


def set_mode(*, quiet: bool = False, verbose: bool = False) -> None:
    """Print answers and errors only, or what is decided on the way as well; end the log."""
    _mode.quiet, _mode.verbose, _mode.log = quiet, verbose, None


def begin_log(path: str | None, words: Sequence[str]) -> None:
    """Write the command line to the log's file.

    Raises:
        WorkloadError: the file cannot be written.
    """
    if path is None:
        return
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise WorkloadError.of_system(
            error, f"output.log {path}", "cannot be written", "name another file"
        ) from None
    log_to(path)
    _append(f"$ {shlex.join(['dlemu', *words])}")


def log_to(path: str | None) -> None:
    """Append to a file from now on what is printed, also what the quiet mode hides."""
    _mode.log = path


def say(text: str, *, to_stderr: bool = False) -> None:
    """Print a text of one or more lines, and flush. A live line leaves before."""
    _append(text)
    if _mode.quiet:
        if not isinstance(text, Answer):
            return
        text = text.short
    if isinstance(text, Answer) and text.fitted is not None:
        with turn():
            _write(text.fitted, sys.stderr if to_stderr else sys.stdout)
    elif text:
        _print(text, to_stderr)


def detail(text: str) -> None:
    """Print to stderr what was decided on the way, in the verbose mode only; "" is nothing."""
    if _mode.verbose and text:
        _append(text)
        _print(text, to_stderr=True)


def terminal_width() -> int | None:
    """Return the columns of the terminal that stdout is, None if it is none.

    A terminal without a size is that of a launcher as mpirun: programs read behind it, whatever
    $COLUMNS says.
    """
    try:
        own = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):  # no terminal, or no file at all
        return None
    return shutil.get_terminal_size().columns if own else None


def takes_colours() -> bool:
    """Return whether the terminal shows colours and nobody forbids them (no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def is_quiet() -> bool:
    """Return whether answers and errors only are printed."""
    return _mode.quiet


def is_verbose() -> bool:
    """Return whether details are printed."""
    return _mode.verbose


def _print(text: str, to_stderr: bool) -> None:
    with turn():
        _write(shown(text), sys.stderr if to_stderr else sys.stdout)


def _write(text: str, stream: TextIO) -> None:
    """Write a line, and flush. A stream that nobody takes ends the printing, not the command."""
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        _give_up(stream, error)


def _give_up(stream: TextIO, error: OSError) -> None:
    """Let what a stream does not take go nowhere from now on; say why, unless its reader ended."""
    with suppress(OSError, ValueError):  # else the flush at the end would fail, too
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if isinstance(error, BrokenPipeError) or stream is sys.stderr:
        return
    _untaken.append(error)
    complain(
        f"stdout: {reason_of(error)}; nothing more is printed there, and the command goes on: make "
        "room, or name a place with more"
    )


def all_taken() -> bool:
    """Flush stdout; return whether it took what this command printed.

    A reader that ended, as `head` does, wanted no more: it has taken all.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        _give_up(sys.stdout, error)
    return not _untaken


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


def _append(text: str) -> None:
    """Append lines to the log; a log that cannot be written any more ends no run."""
    if _mode.log is None:
        return
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    lines = "".join(f"{now} {line}\n" for line in shown(text).splitlines() if line)
    with suppress(OSError), open(_mode.log, "a", encoding="utf-8", errors="backslashreplace") as f:
        f.write(lines)


@contextmanager
def keep_stdout(kept: bool = True) -> Iterator[None]:
    """Keep stdout for `answer`, where `kept`: whatever else is printed goes to stderr."""
    if not kept:
        yield
        return
    _kept.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _kept.pop()


def answer(text: str) -> None:
    """Print to the stdout that is kept, for programs: the text is taken as it is."""
    _write(text, _kept[-1])


def silent(text: object) -> None:
    """Say nothing: for ranks other than 0, and for the runs of a search."""


def complain(text: str) -> None:
    """Print "dlemu: <text>" to stderr as one line, and flush; a very long text loses its middle."""
    line = shown_line(text)
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}"
    _append(f"dlemu: {line}")
    with suppress(OSError):  # nobody is left to be told
        _print(f"dlemu: {line}", to_stderr=True)


def open_streams() -> None:
    r"""Make stdout and stderr take every character in any encoding; a closed one is replaced.

    A character that the encoding lacks is written out, like \xb5 for µ.
    """
    _untaken.clear()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the process that started us
            # For as long as the process lives.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
