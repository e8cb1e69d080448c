"""The words of notes: what is not sure about the counters of a run, and how it was started."""

from collections.abc import Callable, Mapping
from typing import Any


def _resident(share: float | None) -> str:
    """Return the share of pages in memory, for the end of a note; "" where it is not told."""
    return "" if share is None else f"; {100 * share:.0f}% of the pages were in memory before"


def _name(f: Any) -> str:
    return f.file_system or "an unknown file system"


NOTES: Mapping[str, Callable[[Any], str]] = {
    "bound_to_cpus": lambda f: (
        f"rank {f.rank} and its workers are bound to {f.usable_cpus} of {f.cpus} CPUs; mpirun "
        "--bind-to none gives them all"
    ),
    "compute_between_batches": lambda f: (
        "compute is all between two batches, stacking and copying included; put "
        "`with meter.computing():` around the model to tell them apart"
    ),
    "compute_by_the_host": lambda f: (
        "compute is the host's view: what a GPU does after the launch is missed, and counted where "
        'the loop waits for it; with a GPU, meter.epoch(..., device="cuda")'
    ),
    "counters_contradict": lambda f: (
        f"the drives' counters say that {100 * f.share:.0f}% of the first epoch came from memory, "
        f"but {100 * f.resident_share:.0f}% of the pages were in memory before: something else "
        "reads these drives, or memory was short"
    ),
    "data_in_memory": lambda f: (
        f"the data folder lies in memory ({f.file_system}): no storage was read"
        f"{_resident(f.resident_share)}"
    ),
    "files_left": lambda f: (
        f"files are left in {f.folder}; the same command uses or removes them"
        f"{f', or {f.command}' if f.command else ''}"
    ),
    "left_of_stopped": lambda f: (
        f"{f.folder} is left of a command that was stopped, and is removed"
    ),
    "no_odirect": lambda f: (
        f"reader.odirect=auto: {f.folder} does not take O_DIRECT, reads went through the page cache"
    ),
    "sample_bytes_unknown": lambda f: (
        "how many bytes came from memory is not known: a batch tells its bytes in memory; "
        "Meter(sample_bytes=) gives those of a sample in the files"
    ),
    "storage_by_process_count": lambda f: (
        f"no drive is seen under the data folder ({_name(f)}): what storage delivered is the "
        "processes' own count (read_bytes), which sees no cache but the page cache"
    ),
    "storage_unknown": lambda f: (
        f"no drive is seen under the data folder ({_name(f)}), and the processes' own count "
        "(read_bytes) does not tell: how many bytes came from memory is not known"
        f"{_resident(f.resident_share)}"
    ),
}
