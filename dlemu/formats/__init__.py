"""File formats by name: where samples lie in a file, and what stands around them.

A format neither reads nor writes files itself: it is described once, and `loaders` and `datagen`
use it for every way of reading and writing. docs/formats.md has the layouts, CONTRIBUTING.md says
how to add one.
"""

from typing import Protocol

from dlemu.formats import hdf5, npy, npz, raw, tfrecord
from dlemu.formats.format import Crc, FileSamples, Format, Places, Read, Sink, crc32c
from dlemu.formats.parquet import Parquet
from dlemu.workload.sections import BARE, ColumnSection, FormatName

FORMATS: dict[FormatName, Format] = {
    "npz": npz,
    "npy": npy,
    "hdf5": hdf5,
    "tfrecord": tfrecord,
    **dict.fromkeys(BARE, raw),
}
"""Formats whose files need no more than the samples' sizes. parquet is made by `format_of`."""


class Described(Protocol):
    """What a format depends on: a dataset's layout."""

    @property
    def format(self) -> FormatName: ...
    @property
    def columns(self) -> tuple[ColumnSection, ...]: ...
    @property
    def row_group_size(self) -> int: ...


def format_of(layout: Described) -> Format:
    """Return the format of a dataset's files."""
    if layout.format == "parquet":
        return Parquet(layout.columns, layout.row_group_size)
    return FORMATS[layout.format]


__all__ = [
    "FORMATS",
    "Crc",
    "Described",
    "FileSamples",
    "Format",
    "Parquet",
    "Places",
    "Read",
    "Sink",
    "crc32c",
    "format_of",
]
