"""File formats by name: where samples lie in a file, and what stands around them.

A format neither reads nor writes files itself: it is described once, and `loaders` and `datagen`
use it for every way of reading and writing. docs/formats.md has the layouts, CONTRIBUTING.md says
how to add one.
"""

from typing import Any

from dlemu.formats.format import Crc, FileSamples, Format, Places, Read, Sink, crc32c
from dlemu.plugins import Registry

FORMATS: Registry[Format] = Registry(
    "dlemu.formats",
    Format,  # type: ignore[type-abstract]
    "FORMAT",
    "python -m dlemu.contract says what it lacks",
    npz="dlemu.formats.npz",
    npy="dlemu.formats.npy",
    hdf5="dlemu.formats.hdf5",
    tfrecord="dlemu.formats.tfrecord",
    jpeg="dlemu.formats.raw:JPEG",
    png="dlemu.formats.raw:PNG",
    bin="dlemu.formats.raw",
    raw="dlemu.formats.raw",
    indexed_binary="dlemu.formats.raw:INDEXED",
    mmap_indexed_binary="dlemu.formats.raw:INDEXED",
    parquet="dlemu.formats.parquet",
    webdataset="dlemu.formats.webdataset",
    csv="dlemu.formats.csv",
    mds="dlemu.formats.mds",
)


def format_of(layout: Any) -> Format:
    """Return the format of a dataset's files."""
    return FORMATS[layout.format].of(layout)


__all__ = [
    "FORMATS",
    "Crc",
    "FileSamples",
    "Format",
    "Places",
    "Read",
    "Sink",
    "crc32c",
    "format_of",
]
