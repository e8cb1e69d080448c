"""The words of datasets: what was written, what is wrong with a file, how large they must be."""

from collections.abc import Callable, Mapping
from typing import Any

from dlemu.units import counted, format_bytes


def _written(f: Any) -> str:
    samples = "1 sample" if f.samples_per_file == 1 else f"{f.samples_per_file} samples"
    now = {0: "complete already, nothing was written", f.files: "all written now"}.get(
        f.files_written, f"{f.files_written:,} written now, the others were there"
    )
    return (
        f"{counted(f.files, f'{f.format} file')} of {samples}, {format_bytes(f.bytes)}, "
        f"seed {f.seed}; {now}"
    )


def _hosts_memory(f: Any) -> str:
    if f.is_given:
        return f"{f.hosts} x {format_bytes(f.bytes_each)} (host_memory, as given)"
    if f.bytes_each is not None:
        return f"{f.hosts} x {format_bytes(f.bytes_each)} ({f.source})"
    return f"{format_bytes(f.bytes)} ({f.source or f'of {f.hosts} hosts'})"


DATASETS: Mapping[str, Callable[[Any], str]] = {
    "dataset_written": _written,
    # what is wrong with a file
    "file_cut": lambda f: f"has {f.bytes} bytes, should have {f.wanted}",
    "file_differs": lambda f: (
        f"differs from what was written{'' if f.byte is None else f' at byte {f.byte}'}"
    ),
    "file_ignored": lambda f: "does not belong to the dataset; nothing reads it",
    "file_missing": lambda f: "is missing",
    "file_partial": lambda f: "is left of an interrupted writing; dlemu datagen removes it",
    "file_replaced": lambda f: "is no file",
    "file_stray": lambda f: "does not belong to the dataset; move it elsewhere",
    "file_unreadable": lambda f: f"cannot be read ({f.error})",
    "other_checksum": lambda f: "is as generated, but the manifest has another checksum for it",
    # how large a dataset must be
    "hosts_memory": _hosts_memory,
}
