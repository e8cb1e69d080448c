"""HDF5: samples along the first axis of one contiguous dataset, `records_0`, and `labels`.

`records` is a hard link to the same dataset: some releases of DLIO read one name, some the other.
Where a sample is cut into several datasets, or where these are chunked, only h5py finds it.
"""

import functools
import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import VERIFY, DatasetError
from dlemu.formats.format import (
    HOW_MANY,
    Arrays,
    FileSamples,
    Format,
    Parsed,
    Places,
    Read,
    ReadOnly,
    Sink,
    damaged,
)
from dlemu.formats.npy import ArrayFile
from dlemu.storage.counted import CountedFile
from dlemu.units import PAGE_BYTES, ceil_div, round_up

_MAGIC = b"\x89HDF\r\n\x1a\n"
_RECORDS = (b"records_0", b"records")  # the second is DLIO's older name
# Offset of the end-of-file address, by the superblock's version (HDF5 specification 3.0, II.A).
_END_AT = {0: 40, 1: 44, 2: 28, 3: 28}
_LEAST_BYTES = 48  # of a superblock
# More than HDF5 takes of a dataset's header and its entry in the group, and of a chunk's entry in
# the index.
_HEADER_BYTES, _ENTRY_BYTES = 1024, 32
_MOST_DEFLATED = 1032
"""Bytes that one compressed byte can stand for (zlib's technical details)."""
_SIDE = 0x5EEDF00D  # placeholder in a template for the first side of a sample


class Hdf5(Format):
    """A header of a page, then the samples, each in one piece."""

    other_suffixes = ("h5", "hdf", "he5")
    head_bytes = PAGE_BYTES
    ways = ("random",)
    needs = "h5py"
    by_dali = True

    def of(self, layout: Any) -> Format:
        if layout.num_parts == 1 and layout.chunks is None:
            return self
        shape = layout.dims, layout.element_bytes, layout.num_parts
        return ChunkedHdf5(*shape, layout.chunks, layout.compression)

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        with _opened(read, file_bytes) as file:
            name = records_name(file)
            dataset = file[name].id
            start, num_bytes = dataset.get_offset(), dataset.get_storage_size()
            shape, dtype = dataset.shape, dataset.dtype
        if start is None:
            raise DatasetError(
                f"{name} is chunked, compressed or empty",
                remedy="dataset.enable_chunking=true reads it by h5py",
            )
        if dtype.kind not in "biufc" or not dtype.isnative:
            raise DatasetError(
                f"elements of type {dtype} cannot be read in place", remedy="use native numbers"
            )
        if start + num_bytes > file_bytes:
            raise DatasetError(
                f"{name} ends at byte {start + num_bytes}, the file at {file_bytes}: it was cut"
            )
        if num_samples > 1 and shape[:1] != (num_samples,):
            raise DatasetError(
                f"{name}'s first axis must be {num_samples} samples, got {shape}", remedy=HOW_MANY
            )
        return Places.in_turn(np.full(num_samples, num_bytes // num_samples), start)

    def arrays(self, read: Read, file_bytes: int) -> Arrays:
        return _arrays(read, file_bytes)

    def check_head(self, head: bytes, file_bytes: int) -> None:
        short = len(head) < _LEAST_BYTES
        if not head.startswith(_MAGIC) or short or head[8] not in _END_AT:
            raise DatasetError(f"no HDF5 file: it begins with {head[:8]!r}")
        at = _END_AT[head[8]]
        end = int.from_bytes(head[at : at + 8], "little")
        if end > file_bytes:
            raise DatasetError(
                f"its header says {end} bytes, the file has {file_bytes}: it was cut"
            )

    def write(self, sink: Sink, file: FileSamples) -> None:
        first, *rest = file.sample_shape
        head = _template(len(file.samples), tuple(rest), file.dtype)
        for unit in (1, int(file.sizes.sum()) // first):
            head = head.replace(_u64(_SIDE * unit), _u64(first * unit))
        at = _END_AT[head[8]]
        sink.write(head[:at] + _u64(PAGE_BYTES + int(file.sizes.sum())) + head[at + 8 :])
        for sample, size in file:
            sink.payload(sample, size)

    def parse(self, file: CountedFile, num_samples: int) -> Parsed:
        return _File(file, num_samples)


@dataclass(frozen=True)
class ChunkedHdf5(Format):
    """Files that h5py writes and reads: several datasets a record, chunks, gzip.

    Their bytes are those of the installed HDF5 library, and zeros up to the most that the chunks
    may take: `deflate` does not shorten random bytes, it adds up to a thousandth.
    """

    ways = ("random",)
    needs = "h5py"
    dims: tuple[int, ...]
    element_bytes: int
    num_parts: int
    """Datasets that a sample is cut into along its first axis."""
    chunks: tuple[int, ...] | None
    """Sides of a chunk, that of the samples included; (): h5py's own choice; None: contiguous."""
    compression: str
    """`gzip`, or `none`."""

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        with CountedFile(path) as file:
            parsed = _File(file, num_samples, self.num_parts)
            each = parsed.sample_bytes
            parsed.close()
        return self.places(np.full(num_samples, each, np.int64))

    def arrays(self, read: Read, file_bytes: int) -> Arrays:
        return _arrays(read, file_bytes)

    def check_head(self, head: bytes, file_bytes: int) -> None:
        FORMAT.check_head(head, file_bytes)

    def file_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([self._most(int(size), sizes.shape[1]) for size in sizes[:, 0]])

    def write(self, sink: Sink, file: FileSamples) -> None:
        import h5py

        sizes = file.sizes.tolist()
        data = np.stack([sink.content(sample, size) for sample, size in file])
        parts = data.view(file.dtype).reshape(len(data), self.num_parts, -1)
        shape = self._shape(sizes[0], len(sizes))
        image = io.BytesIO()
        # What 1.10 reads: DLIO's environment has an older HDF5 than the one that may be here.
        with h5py.File(image, "w", libver=("v110", "v110")) as written:
            for number in range(self.num_parts):
                written.create_dataset(
                    f"records_{number}",
                    data=parts[:, number].reshape(shape),
                    chunks=_chunks(shape, self.element_bytes, self.chunks),
                    compression=None if self.compression == "none" else self.compression,
                )
            if self.num_parts == 1:
                written["records"] = written["records_0"]
            written["labels"] = np.zeros(len(sizes), np.int64)
        sink.write(image.getvalue())
        sink.write(bytes(self._most(sizes[0], len(sizes)) - image.getbuffer().nbytes))

    def parse(self, file: CountedFile, num_samples: int) -> Parsed:
        return _File(file, num_samples, self.num_parts)

    def _shape(self, num_bytes: int, num_samples: int) -> tuple[int, ...]:
        """Return the shape of each dataset; DLIO leaves a first axis of 1 out."""
        first, *rest = self.dims or (num_bytes // self.element_bytes, 1)
        first //= self.num_parts
        return (num_samples, *([] if self.dims and first == 1 else [first]), *rest)

    def _most(self, num_bytes: int, num_samples: int) -> int:
        """Return the most bytes of a file: headers, labels, and each chunk with its entry."""
        shape = self._shape(num_bytes, num_samples)
        chunk = _chunks(shape, self.element_bytes, self.chunks) or shape
        stored = math.prod(chunk) * self.element_bytes
        if self.compression == "gzip":
            stored += stored // 1000 + 13  # HDF5 stores what `deflate` makes longer than that as is
        count = math.prod(map(ceil_div, shape, chunk))
        each = _HEADER_BYTES + count * (stored + _ENTRY_BYTES)
        return round_up(4 * PAGE_BYTES + 8 * num_samples + self.num_parts * each)


@functools.cache
def _chunks(
    shape: tuple[int, ...], element_bytes: int, wanted: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Return the sides of a chunk, at most those of the whole; None: contiguous."""
    if wanted is None or wanted:
        return wanted and tuple(map(min, wanted, shape))
    import h5py

    with h5py.File(io.BytesIO(), "w") as file:
        found: tuple[int, ...] = file.create_dataset(
            "x", shape, f"V{element_bytes}", chunks=True
        ).chunks
    return found


class _File(ArrayFile):
    """A file that h5py has opened; of several samples, the first axis."""

    _axis = ()

    def __init__(self, file: CountedFile, num_samples: int, num_parts: int = 1) -> None:
        import h5py

        self._counted, self._num_samples = file, num_samples
        try:
            self._file = h5py.File(file, "r")
            name = records_name(self._file)
            self._array = self._file[name]
            self._others = [self._file[f"records_{part}"] for part in range(1, num_parts)]
            num_bytes, file_bytes = int(self._array.nbytes), os.fstat(file.fileno()).st_size
        except Exception as error:  # libraries raise many types for damaged files
            raise damaged(file, error) from None
        self.sample_bytes = num_bytes * num_parts // num_samples
        """Bytes of each sample."""
        if num_samples > 1 and self._array.shape[:1] != (num_samples,):
            raise DatasetError(
                f"{file.path} has {name} of shape {self._array.shape}, its first axis must be "
                f"{num_samples} samples",
                remedy=HOW_MANY,
            )
        # A damaged header may ask for more memory than the host has.
        if num_bytes > _MOST_DEFLATED * file_bytes:
            raise DatasetError(
                f"{file.path} is damaged: {name} has {num_bytes} bytes by its header, the file "
                f"{file_bytes}",
                remedy=VERIFY,
            )

    def sample(self, place: int) -> NDArray[np.uint8]:
        parts = [self._taken(array, place) for array in (self._array, *self._others)]
        return np.concatenate(parts) if self._others else parts[0]

    def close(self) -> None:
        super().close()
        self._counted.close()


@contextmanager
def _opened(read: Read, file_bytes: int) -> Iterator[Any]:
    """Open a file by h5py.

    Raises:
        DatasetError: it is damaged.
    """
    import h5py

    try:
        with h5py.File(ReadOnly(read, file_bytes), "r") as file:
            yield file
    except DatasetError:
        raise
    # h5py and the HDF5 library raise many types for damaged files.
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise DatasetError(
            f"no sound HDF5 file: {' '.join(str(error).split())[:120]}", remedy=VERIFY
        ) from None


def _datasets(file: Any) -> dict[str, Any]:
    """Return the datasets of numbers in a file, in all groups, by their names."""
    import h5py

    found: dict[str, Any] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "biufc" and item.shape:
            found[name] = item

    file.visititems(note)
    return found


def records_name(file: Any) -> str:
    """Return the dataset with the samples: that of DLIO's name, else the largest of numbers."""
    import h5py

    for name in ("records_0", "records"):
        if name in file and isinstance(file[name], h5py.Dataset):  # in a damaged file a type, too
            return name
    found = _datasets(file)
    if not found:
        raise DatasetError(f"it has no dataset records_0, but {ascii(list(file))[:80]}")
    return max(found, key=lambda name: int(found[name].nbytes))


def _arrays(read: Read, file_bytes: int) -> Arrays:
    with _opened(read, file_bytes) as file:
        name = records_name(file)
        dataset = file[name]
        shape = tuple(dataset.shape)
        labels = [
            each.shape[0]
            for other, each in _datasets(file).items()
            if other != name and len(each.shape) < max(2, len(shape)) and each.shape[0] == shape[0]
        ]
        chunked = dataset.id.get_offset() is None
        return Arrays(shape, int(dataset.nbytes), max(labels, default=0), chunked)


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


@functools.cache
def _template(num_samples: int, rest: tuple[int, ...], dtype: np.dtype[np.generic]) -> bytes:
    """Return the bytes that HDF5 writes before the payload, with _SIDE as a sample's first side.

    The library itself writes them, into a sparse file. Its oldest layout has no checksums, so sizes
    can be filled in later. Labels are all the fill value, 0, and take no space: so the payload
    begins at the first page whatever the shape.
    """
    import h5py

    aligned = {"alignment_threshold": PAGE_BYTES, "alignment_interval": PAGE_BYTES}
    with (
        open(os.memfd_create("template"), "w+b", buffering=0) as sparse,
        h5py.File(sparse, "w", libver="earliest", **aligned) as file,
    ):
        file.create_dataset("labels", (num_samples,), np.int64)
        contiguous = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        contiguous.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        contiguous.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        contiguous.set_obj_track_times(False)
        dataset = h5py.h5d.create(
            file.id,
            _RECORDS[0],
            h5py.h5t.py_create(dtype, logical=True),
            h5py.h5s.create_simple((num_samples, _SIDE, *rest)),
            contiguous,
        )
        file.id.links.create_hard(_RECORDS[1], file.id, _RECORDS[0])
        assert dataset.get_offset() == PAGE_BYTES
        file.flush()
        return os.pread(sparse.fileno(), PAGE_BYTES, 0)


FORMAT = Hdf5()
