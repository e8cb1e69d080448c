"""Words that were typed and text that is shown, such that neither does what nobody meant.

Nothing that came from a file or a name acts on a terminal.
"""

import os
import re
import sys
from contextlib import suppress

from dlemu.errors import WorkloadError

# Control characters (C0, DEL, C1), marks that turn the writing direction, separators of lines and
# paragraphs, and the halves of a character that stand for a byte that is no UTF-8.
_ACTS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_LONGEST_LINE = 10_000
"""Letters: two paths as long as Linux allows, and what is said of them."""
_KEY = re.compile(r"[+~]*[\w.@]*", re.ASCII)


def shown(text: str) -> str:
    r"""Return a text of several lines with what acts on a terminal written out, like \x1b."""
    return _ACTS.sub(lambda found: found[0] if found[0] == "\n" else _written_out(found), text)


def shown_line(text: str) -> str:
    """Return the same of a text that is to stay one line: line feeds are written out, too."""
    return _ACTS.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def say(text: str, *, to_stderr: bool = False) -> None:
    """Print a text of one line or several, at once."""
    print(shown(text), file=sys.stderr if to_stderr else None, flush=True)


def complain(text: str) -> None:
    """Print "dlemu: <text>" to stderr as one line, at once; of a very long one the two ends."""
    line = shown_line(text)
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}"
    with suppress(BrokenPipeError):  # nobody is left to be told
        say(f"dlemu: {line}", to_stderr=True)


def is_key_value(word: str) -> bool:
    """Return whether a word of a command line sets a key; if not, it is a path as it stands."""
    key, is_set, _ = word.partition("=")
    return bool(is_set and _KEY.fullmatch(key))


def refuse_tilde(key: str, path: str) -> None:
    """Refuse a path that the user expects a shell to have expanded, and none has.

    Raises:
        WorkloadError: it begins with a lone ~.
    """
    if path == "~" or path.startswith("~/"):
        home = f"$HOME{path[1:]}"
        raise WorkloadError(
            f"{key}={path}: a shell expands no ~ behind =; write {home}, or ./{path} for a folder "
            "of that name"
        )


def open_streams() -> None:
    r"""Let stdout and stderr take every character, whatever their encoding, closed ones as well.

    A character that the encoding lacks is written out, like \xb5 for µ.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            # For as long as the process lives.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
