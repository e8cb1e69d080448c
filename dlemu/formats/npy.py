"""NumPy's .npy: a text header, then one array; several samples lie along its last axis."""

import ast
import io
import math
import os
import re
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

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
    Sink,
    damaged,
)
from dlemu.storage.counted import CountedFile
from dlemu.units import PAGE_BYTES

_Returned = TypeVar("_Returned")

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  # np.load has the same limit
_MOST_AXES = 64  # of NumPy 2
# The header that np.save writes for numbers. Others go through Python's parser, which takes several
# times as long.
_SIDE = rb"(?:0|[1-9]\d{0,17})"
_PLAIN = re.compile(
    rb"\{'descr': '([<>|=]?[biufc]\d{1,2})', 'fortran_order': False, "
    rb"'shape': \((" + _SIDE + rb",|" + _SIDE + rb"(?:, " + _SIDE + rb")+)\), \} *\n"
)
_NUMBER = re.compile(r"[<>|=]?[biufc]\d{1,2}")


class Array(NamedTuple):
    """The array that a header describes."""

    start: int
    """Bytes of the header; the array begins behind it."""
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def header(shape: tuple[int, ...], dtype: np.dtype[np.generic], num_bytes: int = 0) -> bytes:
    """Return the header as np.save writes it, padded with spaces to at least `num_bytes` bytes."""
    text = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(text, described | {"shape": shape})
    plain = text.getvalue()
    if num_bytes <= len(plain):
        return plain
    padding = b" " * (num_bytes - len(plain))
    length = (num_bytes - 10).to_bytes(2, "little")
    return plain[:8] + length + plain[10:-1] + padding + b"\n"


def parse_header(data: bytes) -> Array:
    """Return the array that the header at the start of `data` describes, or raise DatasetError."""
    if len(data) < 12 or not data.startswith(_MAGIC):
        raise DatasetError(f"no .npy header: it begins with {data[:6]!r}")
    major = data[6]
    if major not in (1, 2, 3):
        raise DatasetError(f".npy version must be 1, 2 or 3, got {major}")
    text_start = 10 if major == 1 else 12
    start = text_start + int.from_bytes(data[8:text_start], "little")
    if start > min(len(data), _LONGEST_HEADER):
        raise DatasetError(
            f"the .npy header says it has {start} bytes: it was cut or damaged", remedy=VERIFY
        )
    try:
        described = _described(data[text_start:start])
        descr, order = described["descr"], described["fortran_order"]
        shape = described["shape"]
        sides = [n for n in shape if type(n) is int and 0 <= n < 2**63]
        dtype = np.dtype(descr if _NUMBER.fullmatch(str(descr)) else "V1")
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise DatasetError("the .npy header is damaged", remedy=VERIFY) from None
    if not isinstance(shape, tuple) or len(sides) != len(shape) or len(shape) > _MOST_AXES:
        raise DatasetError("the .npy header is damaged: it has no shape", remedy=VERIFY)
    if dtype.kind not in "biufc":
        raise DatasetError(
            f"elements of type {str(descr)[:80]} cannot be read in place", remedy="use numbers"
        )
    if not dtype.isnative:
        raise DatasetError(
            f"element type {descr} has a foreign byte order", remedy="save it as native"
        )
    if order is not False:
        raise DatasetError("fortran_order must be False", remedy="save the array in C order")
    return Array(start, shape, dtype)


def _described(text: bytes) -> dict[str, Any]:
    plain = _PLAIN.fullmatch(text)
    if plain is None:
        literal = text.decode("latin1").strip()
        return _despite_other_threads(lambda: ast.literal_eval(literal))
    sides = tuple(int(side) for side in plain[2].split(b",") if side)
    return {"descr": plain[1].decode(), "fortran_order": False, "shape": sides}


def _despite_other_threads(parse: Callable[[], _Returned]) -> _Returned:
    """Return what `parse` returns; call it again if Python's parser fails.

    The .npy header is a Python literal, and Python's parser may raise SystemError when two threads
    use it (CPython issue 106905; seen in 3.11).
    """
    for _ in range(100):
        try:
            return parse()
        except SystemError:
            time.sleep(0.001)
    return parse()


def array_within(read: Read, start: int, end: int) -> Array:
    """Return the array of the .npy that is in a file from offset `start` to `end`."""
    data = read(start, min(PAGE_BYTES, end - start))
    if data.startswith(_MAGIC) and len(data) == PAGE_BYTES:
        data += read(start + PAGE_BYTES, min(_LONGEST_HEADER, end - start) - PAGE_BYTES)
    return parse_header(data)


def locate_within(read: Read, start: int, end: int, *, num_samples: int) -> Places:
    """Return where samples lie in the .npy that is in a file from offset `start` to `end`.

    They lie along its last axis, as DLIO writes them, or along its first one, each in one piece.
    """
    array = array_within(read, start, end)
    if array.start + array.num_bytes != end - start:
        raise DatasetError(
            f"shape {array.shape} of {array.dtype} is {array.num_bytes} bytes, but "
            f"{end - start - array.start} are there: the file was cut or damaged",
            remedy=VERIFY,
        )
    if num_samples > 1 and array.shape[-1:] != (num_samples,):
        if array.shape[:1] != (num_samples,):
            raise DatasetError(
                f"the array's last axis must be {num_samples} samples, or its first one, got "
                f"shape {array.shape}",
                remedy=HOW_MANY,
            )
        each = np.full(num_samples, array.num_bytes // num_samples, np.int64)
        return Places.in_turn(each, start + array.start)
    return _places(start + array.start, array.num_bytes, num_samples, array.dtype.itemsize)


class ArrayFile(Parsed):
    """A file that is one array; of several samples, the last axis."""

    _axis: tuple[Any, ...] = (...,)
    """Index of the axes before that of the samples."""

    def __init__(self, file: CountedFile, num_samples: int) -> None:
        self._counted, self._num_samples = file, num_samples
        self._file = io.BufferedReader(file)
        counts, begin = file.counts, perf_counter()
        bytes_before, seconds_before = counts.bytes_read, counts.read_seconds
        try:
            self._array: Any = _despite_other_threads(self._load)
            if not self._is_zip:
                # np.load reads .npy through the descriptor, uncounted, and decodes nothing.
                counts.bytes_read = bytes_before + os.lseek(file.fileno(), 0, os.SEEK_CUR)
                counts.read_seconds = seconds_before + perf_counter() - begin
        except Exception as error:  # libraries raise many types for damaged files
            raise damaged(file, error) from None

    def sample(self, place: int) -> NDArray[np.uint8]:
        return self._taken(self._array, place)

    def _taken(self, whole: Any, place: int) -> NDArray[np.uint8]:
        try:
            axis = self._axis
            if axis and self._num_samples not in (1, whole.shape[-1]):
                axis = ()  # another tool's
            array = whole[(*axis, place) if self._num_samples > 1 else ...]
            return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        except Exception as error:  # libraries raise many types for damaged files
            raise damaged(self._counted, error) from None

    def _load(self) -> Any:
        self._file.seek(0)
        loaded = np.load(self._file)
        self._is_zip = isinstance(loaded, np.lib.npyio.NpzFile)
        if not self._is_zip:
            return loaded
        names = loaded.files
        sizes = {each.filename: each.file_size for each in loaded.zip.infolist()}
        largest = max(names, key=lambda name: sizes.get(f"{name}.npy", 0), default="x")
        return loaded["x" if "x" in names else largest]  # a member's header is parsed here


class Npy(Format):
    """One array behind a header of a page."""

    head_bytes = PAGE_BYTES
    by_dali = True

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        return locate_within(read, 0, file_bytes, num_samples=num_samples)

    def arrays(self, read: Read, file_bytes: int) -> Arrays:
        array = array_within(read, 0, file_bytes)
        return Arrays(array.shape, array.num_bytes)

    def places(self, sizes: NDArray[np.int64], *, element_bytes: int = 1) -> Places:
        return _places(PAGE_BYTES, int(sizes.sum()), len(sizes), element_bytes)

    def check_head(self, head: bytes, file_bytes: int) -> None:
        array = parse_header(head)
        if array.start + array.num_bytes != file_bytes:
            raise DatasetError(
                f"the header says {array.start + array.num_bytes} bytes, the file has {file_bytes}"
            )

    def write(self, sink: Sink, file: FileSamples) -> None:
        sink.write(header(array_shape(file), file.dtype, PAGE_BYTES))
        if len(file.samples) == 1:
            sink.payload(int(file.samples[0]), int(file.sizes[0]))
        else:
            sink.interleaved(file)

    def parse(self, file: CountedFile, num_samples: int) -> Parsed:
        return ArrayFile(file, num_samples)


def array_shape(file: FileSamples) -> tuple[int, ...]:
    """Return the shape of the one array that holds all samples: the sample axis is the last."""
    return (*file.sample_shape, len(file.samples))


def _places(start: int, num_bytes: int, num_samples: int, element_bytes: int) -> Places:
    return Places(
        offsets=np.full(num_samples, start, np.int64),
        lengths=np.full(num_samples, num_bytes // num_samples, np.int64),
        interleaved=num_samples,
        element_bytes=element_bytes,
    )


FORMAT = Npy()
