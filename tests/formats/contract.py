"""What every file format must keep to. `tests/formats/test_formats.py` runs it for each."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dlemu.datagen.assemble import Assembly, piece_buffer
from dlemu.datagen.content import Content
from dlemu.errors import DatasetError
from dlemu.formats import FORMATS, FileSamples, Format, Places
from dlemu.units import PAGE_BYTES
from dlemu.workload.model import FormatName

SEED = 11
SINGLE_SIZES = (1, 2, 100, 127, 128, 4095, 4096, 16_383, 114_660, 150_528, 1_048_577, 2_828_486)
EQUAL_SIZES = (1, 24, 4096, 10_007)


def file_samples(
    sizes: Sequence[int], *, first: int = 0, dtype: str = "uint8", dims: tuple[int, ...] = ()
) -> FileSamples:
    numbers = np.arange(first, first + len(sizes))
    return FileSamples(numbers, np.array(sizes, np.int64), np.dtype(dtype), dims)


def write_file(path: Path, format: Format, file: FileSamples) -> tuple[int, int]:
    """Write a file as the generator does; return its bytes and CRC-32C."""
    with open(path, "wb", buffering=0) as target:

        def put(piece: NDArray[np.uint8], offset: int) -> None:
            os.pwrite(target.fileno(), piece.data, offset)

        assembly = Assembly(Content(SEED), piece_buffer(), put)
        format.write(assembly, file)
        return assembly.finish()


def content(sample: int, num_bytes: int) -> bytes:
    out = np.empty(num_bytes, np.uint8)
    Content(SEED).fill(out, sample)
    return out.tobytes()


def locate(format: Format, path: Path, num_samples: int) -> Places:
    with open(path, "rb", buffering=0) as file:
        number = file.fileno()
        return format.locate(
            lambda offset, length: os.pread(number, length, offset),
            os.fstat(number).st_size,
            num_samples=num_samples,
        )


def take(data: bytes, places: Places) -> list[bytes]:
    """Return the samples' bytes by their places."""
    parts = [
        data[offset : offset + length * places.interleaved]
        for offset, length in zip(places.offsets.tolist(), places.lengths.tolist(), strict=True)
    ]
    if places.interleaved == 1:
        return parts
    return [
        np.frombuffer(part, f"V{places.element_bytes}")[index :: places.interleaved].tobytes()
        for index, part in enumerate(parts)
    ]


class FormatContract(ABC):
    """Subclasses name the format, and read it with a library that is not ours."""

    name: FormatName

    @abstractmethod
    def read_back(self, path: Path, num_samples: int) -> list[bytes]:
        """Return the samples' bytes as the library gives them, its checksums compared."""

    @property
    def format(self) -> Format:
        return FORMATS[self.name]

    def files(self) -> list[FileSamples]:
        """Return files of every kind that this format has."""
        single = [file_samples([size], first=size) for size in SINGLE_SIZES]
        many = [file_samples([size] * count) for size in EQUAL_SIZES for count in (2, 40)]
        many.append(file_samples([24] * 1251))
        floats = [
            file_samples([24], dtype="float32", dims=(3, 2)),
            file_samples([24] * 5, dtype="float32", dims=(3, 2)),
            file_samples([4096 * 8] * 2, dtype="int64"),
            file_samples([30] * 2, dtype="int16", dims=(3, 5, 1)),
        ]
        return single + many + floats

    def test_a_library_reads_what_the_content_says(self, tmp_path: Path) -> None:
        for file in self.files():
            path = tmp_path / f"a.{self.name}"
            write_file(path, self.format, file)
            wanted = [
                content(sample, size)
                for sample, size in zip(file.samples.tolist(), file.sizes.tolist(), strict=True)
            ]
            assert self.read_back(path, len(wanted)) == wanted, file

    def test_places_are_known_without_the_file_and_found_in_it(self, tmp_path: Path) -> None:
        for file in self.files():
            path = tmp_path / f"a.{self.name}"
            num_bytes, _ = write_file(path, self.format, file)
            count = len(file.samples)

            known = self.format.places(file.sizes, element_bytes=file.dtype.itemsize)
            found = locate(self.format, path, count)

            assert num_bytes == path.stat().st_size == self.format.file_bytes(file.sizes[None])[0]
            assert known.offsets.tolist() == found.offsets.tolist(), file
            if count == 1:
                assert self.format.starts(file.sizes).tolist() == known.offsets.tolist()
            assert known.lengths.tolist() == found.lengths.tolist() == file.sizes.tolist()
            assert known.interleaved == found.interleaved
            data = path.read_bytes()
            assert take(data, known) == self.read_back(path, count)
            self.format.check_head(data[:PAGE_BYTES], len(data))
            if known.interleaved > 1:
                assert known.element_bytes == found.element_bytes == file.dtype.itemsize

    def test_a_cut_file_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / f"a.{self.name}"
        for sizes in ([50_000], [20_000] * 3):
            num_bytes, _ = write_file(path, self.format, file_samples(sizes))
            for left in (0, 3, 11, 100, num_bytes // 2, 44_000):
                os.truncate(path, left)
                with pytest.raises(DatasetError):
                    locate(self.format, path, len(sizes))
                write_file(path, self.format, file_samples(sizes))

    def test_the_head_alone_shows_that_a_single_sample_was_cut(self, tmp_path: Path) -> None:
        path = tmp_path / f"a.{self.name}"
        num_bytes, _ = write_file(path, self.format, file_samples([50_000]))
        head = path.read_bytes()[:PAGE_BYTES]
        for left in (PAGE_BYTES, num_bytes // 2):
            with pytest.raises(DatasetError):
                self.format.check_head(head, left)
        with pytest.raises(DatasetError):
            self.format.check_head(bytes(PAGE_BYTES), num_bytes)

    def test_a_wrong_number_of_samples_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / f"a.{self.name}"
        write_file(path, self.format, file_samples([64] * 6))
        for count in (2, 5, 7):
            with pytest.raises(DatasetError, match=r"samples|record"):
                locate(self.format, path, count)
