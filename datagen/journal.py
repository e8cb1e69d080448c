"""Journals of an unfinished dataset: which files are written, and their checksums.

A journal is a sequence of entries of 16 bytes, little-endian: int64 file number, uint32 CRC-32C of
the file, uint32 check over both. A killed writer may leave half an entry, which `check` reveals.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Samples
from dlemu.storage.regular import read_regular

_ENTRY = np.dtype([("file", "<i8"), ("crc32c", "<u4"), ("check", "<u4")])


def to_entries(files: Samples, crcs: NDArray[np.uint32]) -> bytes:
    """Return the entries of files, int64 (files,), with their checksums, uint32 (files,)."""
    entries = np.zeros(len(files), _ENTRY)
    entries["file"], entries["crc32c"] = files, crcs
    entries["check"] = _check(entries)
    return entries.tobytes()


def read_journals(folder: Path, num_files: int) -> tuple[NDArray[np.bool_], NDArray[np.uint32]]:
    """Return which files are in the folder's journals, and their checksums; both (num_files,)."""
    known, crcs = np.zeros(num_files, np.bool_), np.zeros(num_files, np.uint32)
    for path in folder.glob("*.journal"):
        data = read_regular(path)
        entries = np.frombuffer(data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY)
        file = entries["file"]
        entries = entries[(entries["check"] == _check(entries)) & (file >= 0) & (file < num_files)]
        known[entries["file"]] = True
        crcs[entries["file"]] = entries["crc32c"]
    return known, crcs


def _check(entries: NDArray[np.void]) -> NDArray[np.uint32]:
    """Return 32 bits that depend on the file number and on the checksum of each entry."""
    mixed = entries["file"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ entries["crc32c"]
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    check: NDArray[np.uint32] = (mixed >> np.uint64(32)).astype(np.uint32)
    return check
