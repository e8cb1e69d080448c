"""What a user is shown in one line: the cause, the value, the bound, the remedy."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path


class DlemuError(Exception):
    """Something that users can mend; `str(error)` is the whole line that the terminal shows."""

    path: Path | None = None
    """The file that could not be written, where that is the problem."""

    def __init__(self, problem: object = "", *, remedy: str = "") -> None:
        """Make the line "problem; remedy"; both are kept as attributes as well."""
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = str(problem)
        self.remedy = remedy


class WorkloadError(DlemuError):
    """A workload asks for what cannot be: an unknown key, a value out of its bounds."""


class DatasetError(DlemuError):
    """A file of the dataset is missing, damaged, or not what the workload says."""


class RunError(DlemuError):
    """A run could not go on: a worker or rank died, a read stalled, the disk is full."""


class LostRankError(RunError):
    """Another rank ended without an error, or cannot be understood; the line names that rank."""


VERIFY = "dlemu verify lists what is damaged"
"""The remedy for a file of a dataset."""
DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What Python raises where a file does not hold what its reader expects."""


def in_short(error: BaseException) -> str:
    """Return an exception's text as one short line."""
    text = " ".join(str(error).split())[:120]
    if isinstance(error, KeyError):
        return f"{type(error).__name__} {text}"
    return text or type(error).__name__


def did_you_mean(
    word: str, known: Iterable[str], *, cutoff: float = 0.6, full: Mapping[str, str] | None = None
) -> str:
    """Return "; did you mean NAME?" with the known name nearest to a word, or "" if none is near.

    `cutoff` is difflib's: 1 means equal. `full` gives what is shown for a name.
    """
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=cutoff)
    return f"; did you mean {(full or {}).get(near[0], near[0])}?" if near else ""
