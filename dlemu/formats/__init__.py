"""File formats by name: where samples lie in a file, and what stands around them.

Bytes are read and written elsewhere (`storage`, `datagen`), so that a format is described once and
serves every way of reading. docs/formats.md has the layouts.
"""

from dlemu.formats import hdf5, npy, npz, tfrecord
from dlemu.formats.format import Crc, FileSamples, Format, Places, Read, Sink
from dlemu.workload.model import FormatName

FORMATS: dict[FormatName, Format] = {"npz": npz, "npy": npy, "hdf5": hdf5, "tfrecord": tfrecord}

__all__ = ["FORMATS", "Crc", "FileSamples", "Format", "Places", "Read", "Sink"]
