"""What a user is shown in one line: the cause, the value, the bound, the remedy."""

import difflib
import errno
import linecache
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType


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


_REMEDIES = {
    errno.ENOENT: "create it, or name another",
    errno.EACCES: "choose a path that you can write to",
    errno.EPERM: "choose a path that you can write to",
    errno.EROFS: "name a place that can be written to",
    errno.ENOSPC: "make room, or name a place with more",
    errno.EDQUOT: "make room in your quota, or name another place",
    errno.EIO: "look for the drive in the kernel's log (dmesg)",
    errno.EFBIG: "name a place for larger files; ulimit -f may forbid them, too",
    errno.EMFILE: "raise ulimit -n",
    errno.ENFILE: "close programs that hold many files",
    errno.ESTALE: "mount the server again",
    errno.ETIMEDOUT: "see whether the server is up",
    errno.ENOSYS: "take a newer kernel, or a container that does not forbid the call",
    errno.EINVAL: "name another file system; this one does not take the call",
    errno.EOPNOTSUPP: "name another file system; this one does not take the call",
}
_CALL = re.compile(r"\b(?:os|fcntl|mmap|socket|select|shutil)\.\w+")


def system_line(error: OSError, path: object = None) -> str:
    """Return an error of the operating system as a line: file, call, reason, and what to do.

    Where the system does not name the file, `path` does, or a variable of the code that met it.
    """
    call, nearby = _where(error.__traceback__)
    named = error.filename if error.filename is not None else path or nearby
    if isinstance(named, bytes):
        named = named.decode(errors="replace")
    why, remedy = error.strerror or str(error), _REMEDIES.get(error.errno or 0, "")
    end = f"; {remedy}" if remedy else ""
    if named is not None and error.filename is not None:
        return f"{named}: {why}{end}"
    tried = f"{call} failed" if call else "the operating system refuses"
    return f"{named}: {tried}: {why}{end}" if named else f"{tried}: {why}{end}"


def _where(trace: TracebackType | None) -> tuple[str, str | None]:
    """Return the call that failed, and the innermost path that the code there had in hand."""
    call, path = "", None
    while trace is not None:
        code, names = trace.tb_frame.f_code, trace.tb_frame.f_locals
        found = _CALL.findall(linecache.getline(code.co_filename, trace.tb_lineno))
        call = found[-1] if found else call
        paths = [names.get(name) for name in ("path", "partial", "folder", "target", "name")]
        path = next((str(each) for each in paths if isinstance(each, str | Path)), path)
        trace = trace.tb_next
    return call, path


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
