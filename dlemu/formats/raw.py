"""Files whose bytes are the samples: images, records of one size, and records with an index.

Without an index the samples of a file have one size. DLIO's indexed_binary has two more files
beside each: the offset and the size of each sample, both uint64 little-endian. Nothing in such a
file identifies it, so only its size is checked.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import VERIFY, DatasetError
from dlemu.formats.format import HOW_MANY, FileSamples, Format, Places, Read, Sink, Way
from dlemu.storage.files import read_regular

_U64 = np.dtype("<u8")


class Bare(Format):
    """Files of samples that follow one another, and of nothing else."""

    ways: tuple[Way, ...] = ("stream", "random")
    why_equal = "nothing tells where a sample begins"

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        if file_bytes == 0 or file_bytes % num_samples:
            raise DatasetError(
                f"{file_bytes} bytes are not {num_samples} samples of one size", remedy=HOW_MANY
            )
        return self.places(np.full(num_samples, file_bytes // num_samples, np.int64))

    def write(self, sink: Sink, file: FileSamples) -> None:
        for sample, size in file:
            sink.payload(sample, size)


class Picture(Bare):
    """Such files, each usually one image."""

    by_dali = True
    is_picture = True


class Jpeg(Picture):
    """The same, with the names that cameras give."""

    other_suffixes = ("jpg", "jpe")


class Indexed(Bare):
    """Such files, each with two indexes beside it: samples may have any size and any place."""

    why_equal = ""

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        indexes = []
        for each in self.index_paths(path):
            try:
                indexes.append(read_regular(Path(each)))
            except OSError as error:
                raise DatasetError.of_system(
                    error, f"its index {Path(each).name}", "cannot be read", VERIFY
                ) from None
        return locate_by(indexes, file_bytes, num_samples=num_samples)

    def count(self, read: Read, file_bytes: int, *, path: str = "") -> int | None:
        try:
            return os.stat(self.index_paths(path)[1]).st_size // _U64.itemsize
        except OSError:  # `locate` names it
            return None

    def index_paths(self, path: str) -> tuple[str, ...]:
        return f"{path}.off.idx", f"{path}.sz.idx"

    def indexes(self, sizes: NDArray[np.int64]) -> tuple[bytes, ...]:
        found = self.places(sizes)
        return found.offsets.astype(_U64).tobytes(), found.lengths.astype(_U64).tobytes()

    def index_bytes(self, sizes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return [np.full(len(sizes), _U64.itemsize * sizes.shape[1])] * 2


def locate_by(indexes: Sequence[bytes], file_bytes: int, *, num_samples: int) -> Places:
    """Return where the samples lie by the two index files, in any order and with any gaps.

    DLIO 3.0 begins to count offsets anew for each buffer that it wrote (generation_buffer_size).
    Then the offsets are those of the sizes, which it wrote right.

    Raises:
        DatasetError: the index is not that of such a file. The caller adds the path.
    """
    for data, name in zip(indexes, ("offsets", "sizes"), strict=True):
        if len(data) != num_samples * _U64.itemsize:
            raise DatasetError(
                f"its index has {len(data) / _U64.itemsize:g} {name}, "
                f"dataset.num_samples_per_file asks for {num_samples}"
            )
    offsets, lengths = (np.frombuffer(data, _U64) for data in indexes)
    wrong = (lengths == 0) | (offsets > file_bytes) | (lengths > file_bytes)
    wrong |= np.where(wrong, 0, offsets + lengths) > file_bytes
    if wrong.any():
        sample = int(np.argmax(wrong))
        raise DatasetError(
            f"its index points past its end: sample {sample} has {int(lengths[sample])} bytes at "
            f"{int(offsets[sample])}, the file {file_bytes}"
        )
    if num_samples > 1 and (np.diff(offsets.astype(np.int64)) < 0).any():
        in_order = Places.in_turn(lengths.astype(np.int64))
        if int(lengths.sum()) == file_bytes:
            return in_order
    return Places(offsets.astype(np.int64), lengths.astype(np.int64))


FORMAT, JPEG, PNG, INDEXED = Bare(), Jpeg(), Picture(), Indexed()
