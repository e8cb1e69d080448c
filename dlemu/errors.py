"""What a user is shown in one line: the cause, the value, the bound, the remedy."""

import difflib
import errno
import linecache
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self


class DlemuError(Exception):
    """Something that users can mend; `str(error)` is the whole line that the terminal shows."""

    path: Path | None = None
    """The file that could not be written, where that is the problem."""

    def __init__(self, problem: object = "", *, remedy: str = "") -> None:
        """Make the line "problem; remedy"; both are kept as attributes as well."""
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = str(problem)
        self.remedy = remedy

    @classmethod
    def of_system(cls, error: OSError, what: object, tried: str, remedy: str = "") -> Self:
        """Return the line of an error of the operating system: "WHAT TRIED (its reason); remedy".

        What helps against this very error stands before `remedy`, or alone.
        """
        return cls(f"{what} {tried} ({reason_of(error)})", remedy=_remedy_of(error, what, remedy))

    def within(self, where: object, remedy: str = "") -> Self:
        """Return the same error, met at a place: "WHERE: problem; remedy".

        It keeps its remedy; `remedy` stands where it has none. A place that its line begins with is
        not named again.
        """
        told = self.problem.startswith(f"{where}")
        problem = self.problem if told else f"{where}: {self.problem}"
        return self._again(problem, self.remedy or remedy)

    def mended_by(self, remedy: str) -> Self:
        """Return the same error with another remedy."""
        return self._again(self.problem, remedy)

    def _again(self, problem: str, remedy: str) -> Self:
        again = type(self).__new__(type(self))  # whatever arguments the class takes
        vars(again).update(vars(self))
        DlemuError.__init__(again, problem, remedy=remedy)
        return again


class WorkloadError(DlemuError):
    """A workload asks for what cannot be: an unknown key, a value out of its bounds."""


class DatasetError(DlemuError):
    """A file of the dataset is missing, damaged, or not what the workload says."""


class RunError(DlemuError):
    """A run could not go on: a worker or rank died, a read stalled, the disk is full."""


class LostRankError(RunError):
    """Another rank ended without an error, or cannot be understood; the line names that rank."""


VERIFY = "dlemu verify lists what is damaged of a dataset of dlemu's"
"""The remedy for a file of a dataset."""
FROM_SOURCE = "copy it from its source again"
"""That for a file which dlemu has not written, and of which it does not know what it held."""
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
    errno.EIO: "look for {drive} in the kernel's log (dmesg)",
    errno.ENODEV: "see whether {drive} is still there (lsblk)",
    errno.ENXIO: "see whether {drive} is still there (lsblk)",
    errno.EFBIG: "name a place for larger files; ulimit -f may forbid them, too",
    errno.EMFILE: "raise ulimit -n",
    errno.ENFILE: "close programs that hold many files",
    errno.ESTALE: "mount the server again",
    errno.ETIMEDOUT: "see whether the server is up",
    errno.ENOSYS: "take a newer kernel, or a container that does not forbid the call",
    errno.EINVAL: "name another file system; this one does not take the call",
    errno.EOPNOTSUPP: "name another file system; this one does not take the call",
}
_OF_THE_DRIVE = {
    *(errno.EIO, errno.ENODEV, errno.ENXIO, errno.EMFILE, errno.ENFILE, errno.ESTALE),
    *(errno.ETIMEDOUT, errno.ENOSYS),
}
"""Errors whose own remedy comes before that of what was tried: another name alone does not help."""
_CALL = re.compile(r"\b(?:os|fcntl|mmap|socket|select|shutil)\.\w+")


def system_line(error: OSError, path: object = None) -> str:
    """Return an error of the operating system as a line: file, call, reason, and what to do.

    Where the system does not name the file, `path` does, or a variable of the code that met it.
    """
    call, nearby = _where(error.__traceback__)
    named = error.filename if error.filename is not None else path or nearby
    if isinstance(named, bytes):
        named = named.decode(errors="replace")
    why, remedy = reason_of(error), _remedy_of(error, named)
    end = f"; {remedy}" if remedy else ""
    if named is not None and error.filename is not None:
        return f"{named}: {why}{end}"
    tried = f"{call} failed" if call else "the operating system refuses"
    return f"{named}: {tried}: {why}{end}" if named else f"{tried}: {why}{end}"


def system_error(number: int, path: object = None) -> OSError:
    """Return the error of a call that names a number (errno) only: it names the file as well."""
    named = () if path is None else (str(path),)
    return OSError(number, os.strerror(number), *named)


def reason_of(error: OSError) -> str:
    """Return the reason alone, for a line that names the rest: "Permission denied"."""
    return error.strerror or str(error)


def _remedy_of(error: OSError, what: object, remedy: str = "") -> str:
    """Return what to do: against the error itself, and `remedy`."""
    number = error.errno or 0
    own = _REMEDIES.get(number, "")
    if "{drive}" in own:
        where = error.filename if error.filename is not None else what
        own = own.format(drive=_drive_of(where))
    if remedy and own and number in _OF_THE_DRIVE:
        return f"{own}, or {remedy}"
    return remedy or own


def _drive_of(path: object) -> str:
    """Return the kernel's name of the drive under a path; "the drive" where it has none."""
    try:
        there = Path(os.fsdecode(str(path)))
        while not there.exists() and there != there.parent:
            there = there.parent
        device = os.stat(there).st_dev if there.is_absolute() else 0
        return os.path.basename(
            os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
        )
    except (OSError, ValueError):  # no block device, or nothing that can be looked at
        return "the drive"


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


_MOST_IN_SHORT = 160


def in_short(error: BaseException) -> str:
    """Return an exception's text as one short line."""
    told = system_line(error) if isinstance(error, OSError) and error.errno else str(error)
    text = " ".join(told.split())[:_MOST_IN_SHORT]
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
