"""File formats by name: where samples lie in a file, and what stands around them.

A format neither reads nor writes files itself: it is described once, and `loaders` and `datagen`
use it for every way of reading and writing. docs/formats.md has the layouts.

To add a format:

1. Write a module here with the attribute and the functions of `format.Format`.
2. Name it in `FORMATS`, and in `workload.sections.FormatName`. If samples of its larger files can
   be read alone, say so in `dataset.layout.Layout.streamed` too.
3. Give `loaders.library.PARSERS` a parser that reads it with its own library, and, if its files
   have checksums, `loaders.checksums.CHECKSUMS` one that checks them.
4. Subclass `FormatContract` of tests/formats/contract.py in tests/formats/test_formats.py, and add
   a data set to `DATASETS` of tests/loaders/contract.py: then all loaders are checked with it.
"""

from dlemu.formats import hdf5, npy, npz, tfrecord
from dlemu.formats.format import Crc, FileSamples, Format, Places, Read, Sink
from dlemu.workload.model import FormatName

FORMATS: dict[FormatName, Format] = {"npz": npz, "npy": npy, "hdf5": hdf5, "tfrecord": tfrecord}

__all__ = ["FORMATS", "Crc", "FileSamples", "Format", "Places", "Read", "Sink"]
