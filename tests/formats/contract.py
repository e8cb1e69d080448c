"""Files of a format as the generator writes them, and where their samples lie."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.datagen.assemble import Assembly, piece_buffer
from dlemu.datagen.content import Content
from dlemu.formats import FileSamples, Format, Places

SEED = 11


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
