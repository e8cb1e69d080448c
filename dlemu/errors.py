"""What a user is shown in one line: the cause, the value, the bound, the remedy."""


class DlemuError(Exception):
    """Something that users can mend; `str(error)` is the whole line that the terminal shows."""


class WorkloadError(DlemuError):
    """A workload asks for what cannot be: an unknown key, a value out of its bounds."""


class DatasetError(DlemuError):
    """A file of the dataset is missing, damaged, or not what the workload says."""


class RunError(DlemuError):
    """A run could not go on: a worker or rank died, a read stalled, the disk is full."""


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
"""What Python raises where a file holds something else than its reader expects."""


def in_short(error: BaseException) -> str:
    """Return what an exception says, in a line that is not long."""
    text = " ".join(str(error).split())
    return (
        f"{type(error).__name__} {text[:120]}"
        if isinstance(error, KeyError)
        else (text[:120] or type(error).__name__)
    )
