"""The words of `python -m dlemu.contract`: which promises a part does not keep."""

from collections.abc import Callable, Mapping
from typing import Any

PROMISES = {
    # formats
    "file_bytes": "`file_bytes` is what `write` writes",
    "places": "`places` has the samples' bytes",
    "locate": "`locate` finds what `places` knows",
    "starts": "`starts` is the first place",
    "parse": "`parse` gives the samples' bytes",
    "checksum": "`checksum` takes what `write` writes, and no other byte",
    "index_bytes": "`index_bytes` is what `indexes` returns",
    "check_head": "`check_head` takes what `write` writes",
    # loaders
    "epoch": "`epoch` yields the plan's batches in its order, each sample once",
    "batch": "a batch has its samples' bytes",
    "num_bytes": "`num_bytes` counts what is read, also where keep=0 drops it",
    "closed_early": "`epoch` may be closed early, and the next one begun",
    "close": "`close` ends all threads and processes, and may be called again",
    "check": "`check` and `lacks` find nothing wrong on a host where it reads",
    "descriptors": "`descriptors` are at least what an accelerator opens",
    "reads": "`reads` is true only where it reads by requests, too",
    "cut_file": "a file that was cut is refused",
    # places
    "put_and_open": "`put` writes a file, and `open` reads it from any offset",
    "put_again": "`put` replaces a file",
    "put_whole": "`put` writes a file whole or not at all",
    "list": "`list` yields the files of a folder and below it, each with its bytes",
    "delete": "`delete` removes files, which may be missing",
    "open_missing": "`open` raises FileNotFoundError where there is no file",
    "reader": "`reader` reads the files' bytes, and counts its requests",
    "writing_and_reading": "`writing` and `reading` write and read a file at any offset",
    "probe": "`probe` finds a rate",
    "pickle": "a place can be pickled",
    "kind": "a place without paths has a `kind`",
}
"""Each promise by its name."""


_WORK = {"admits": "plan an epoch", "write": "make a file"}
"""What methods do that must raise nothing, by the first of them."""


def _broken(f: Any) -> str:
    of = {
        "file": f"for a file of {f.samples} samples of {f.sample_bytes} bytes",
        "dataset": f"of {f.format} files",
        "place": "in this place",
    }[f.tried]
    return f"{PROMISES[f.promise]}: not {of}{f' ({f.error})' if f.error else ''}"


CONTRACT: Mapping[str, Callable[[Any], str]] = {
    "columns_not_tried": lambda f: "a format in columns is not tried: its rows lie in no one place",
    "cut_file_taken": lambda f: (
        f"`{f.method}` refuses a file that was cut: not at byte {f.byte} of {f.bytes}."
    ),
    "other_number_taken": lambda f: (
        f"`locate` refuses another number of samples: not {f.samples} of {f.stored}."
    ),
    "part_is_sound": lambda f: "sound",
    "part_raises": lambda f: (
        f"{' and '.join(f'`{each}`' for each in f.methods)} {_WORK[f.methods[0]]}: {f.error}"
    ),
    "promise_broken": _broken,
    "zeros_taken": lambda f: "`check_head` refuses a page of zeros: it does not.",
}
