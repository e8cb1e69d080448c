"""What a file format must do, tried on files of every kind.

    python -m dlemu.contract mypackage.mymodule

Each line that it prints is a promise of `dlemu.formats.Format` that is not kept; the exit status is
then 1. The formats of the house are held to the same.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from dlemu.datagen.assemble import Assembly, piece_buffer
from dlemu.datagen.content import Content
from dlemu.errors import DatasetError, in_short
from dlemu.formats import FORMATS, FileSamples, Format, Places
from dlemu.formats.format import Checksum
from dlemu.storage.counted import CountedFile
from dlemu.terminal import say
from dlemu.units import PAGE_BYTES

_SEED = 11
_SINGLE = (1, 2, 100, 127, 128, 4095, 4096, 16_383, 114_660, 150_528, 1_048_577, 2_828_486)
_EQUAL = (1, 24, 4096, 10_007)
_DIFFERENT = (5, 70_000, 127, 1, 16_500)
_CUT = 50_000


def file_samples(
    sizes: Sequence[int], *, first: int = 0, dtype: str = "uint8", dims: tuple[int, ...] = ()
) -> FileSamples:
    """Return samples of these sizes, numbered from `first` on."""
    numbers = np.arange(first, first + len(sizes))
    return FileSamples(numbers, np.array(sizes, np.int64), np.dtype(dtype), dims)


def files_of(format: Format) -> list[FileSamples]:
    """Return the content of files of every kind that a format has."""
    files = [file_samples([size], first=size) for size in _SINGLE]
    files += [file_samples([size] * count) for size in _EQUAL for count in (2, 40)]
    files.append(file_samples([24] * 1251))
    files.append(file_samples([24], dtype="float32", dims=(3, 2)))
    files.append(file_samples([24] * 5, dtype="float32", dims=(3, 2)))
    files.append(file_samples([4096 * 8] * 2, dtype="int64"))
    files.append(file_samples([30] * 2, dtype="int16", dims=(3, 5, 1)))
    return files + ([] if format.why_equal else [file_samples(_DIFFERENT)])


def write_file(path: Path, format: Format, file: FileSamples) -> tuple[int, int]:
    """Write a file, and its indexes, as datagen does; return its bytes and CRC-32C."""
    with open(path, "wb", buffering=0) as target:

        def put(piece: NDArray[np.uint8], offset: int) -> None:
            target.seek(offset)
            target.write(piece.data)

        assembly = Assembly(_content(), piece_buffer(), put)
        format.write(assembly, file)
        written = assembly.finish()
    for index, data in zip(format.index_paths(str(path)), format.indexes(file.sizes), strict=True):
        if index.startswith(str(path)):  # others lie in a tree of their own
            Path(index).write_bytes(data)
    return written


@cache
def _content() -> Content:
    return Content(_SEED)


def content(sample: int, num_bytes: int) -> bytes:
    """Return what a sample holds."""
    out = np.empty(num_bytes, np.uint8)
    _content().fill(out, sample)
    return out.tobytes()


def locate(format: Format, path: Path, num_samples: int) -> Places:
    """Return where a file's samples lie, by its own headers."""
    with open(path, "rb", buffering=0) as file:
        number = file.fileno()
        return format.locate(
            lambda offset, length: os.pread(number, length, offset),
            os.fstat(number).st_size,
            num_samples=num_samples,
            path=str(path),
        )


def taken(data: bytes, places: Places) -> list[bytes]:
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


def faults(format: Format, folder: Path) -> Iterator[str]:
    """Yield what is wrong with a format, one line each; files are written into `folder`."""
    path, broken = folder / f"file.{format.suffix}", set[str]()
    if format.in_columns:
        yield "a format in columns is not tried: its rows lie in no one place"
        return
    for file in files_of(format):
        try:
            case = _Case(format, path, file)
        except Exception as error:  # whatever a user's module raises
            yield f"`write` and `indexes` make a file: {type(error).__name__}: {in_short(error)}"
            return
        for promise in _PROMISES.keys() - broken:
            if why := _why_not(partial(_PROMISES[promise], case)):
                broken.add(promise)
                of = f"{len(file.samples)} samples of {int(file.sizes[0])} bytes"
                yield f"{promise}: not for a file of {of}{why}"
    yield from _refusals(format, path)


def _why_not(holds: Callable[[], bool]) -> str:
    """Return "" if something holds, else a text that ends a line."""
    try:
        return "" if holds() else " and more"
    except Exception as error:  # whatever a user's module raises
        return f" ({type(error).__name__}: {in_short(error)})"


@dataclass
class _Case:
    """A file that a format has written."""

    format: Format
    path: Path
    file: FileSamples

    def __post_init__(self) -> None:
        self.num_bytes, _ = write_file(self.path, self.format, self.file)
        self.data = self.path.read_bytes()
        numbered = zip(self.file.samples.tolist(), self.file.sizes.tolist(), strict=True)
        self.content = [
            self.format.stored(content(sample, size), size) for sample, size in numbered
        ]

    @property
    def known(self) -> Places:
        """The places as they are known without the file."""
        return self.format.places(self.file.sizes, element_bytes=self.file.dtype.itemsize)


def _is_found(case: _Case) -> bool:
    found, known = locate(case.format, case.path, len(case.content)), case.known
    if known.interleaved > 1 and known.element_bytes != found.element_bytes:
        return False
    lengths = found.lengths.tolist(), known.lengths.tolist()
    offsets = found.offsets.tolist(), known.offsets.tolist()
    return offsets[0] == offsets[1] and lengths == (case.file.sizes.tolist(),) * 2


def _has_a_head(case: _Case) -> bool:
    case.format.check_head(case.data[:PAGE_BYTES], len(case.data))
    return True


def _starts(case: _Case) -> bool:
    starts = case.format.starts(case.file.sizes).tolist()
    return len(case.content) > 1 or starts == case.known.offsets.tolist()


def _is_parsed(case: _Case) -> bool:
    parsed = case.format.parse(CountedFile(str(case.path)), len(case.content))
    found = [
        case.format.stored(bytes(parsed.sample(place)), size)
        for place, size in enumerate(case.file.sizes.tolist())
    ]
    parsed.close()
    return found == case.content


def _is_summed(case: _Case) -> bool:
    fields, again = case.format.checksum(), case.format.checksum()
    if fields is None or again is None:
        return fields is again
    Checksum("", fields)(memoryview(case.data))
    wrong = bytearray(case.data)
    wrong[int(case.known.offsets[-1])] ^= 1
    return _refused(lambda: Checksum("", again)(memoryview(wrong)))


def _has_indexes(case: _Case) -> bool:
    written = case.format.indexes(case.file.sizes)
    counted = case.format.index_bytes(case.file.sizes[None])
    return [len(data) for data in written] == [int(each[0]) for each in counted]


_PROMISES: dict[str, Callable[[_Case], bool]] = {
    "`file_bytes` is what `write` writes": lambda case: (
        len(case.data) == case.num_bytes == case.format.file_bytes(case.file.sizes[None])[0]
    ),
    "`places` has the samples' bytes": lambda case: taken(case.data, case.known) == case.content,
    "`locate` finds what `places` knows": _is_found,
    "`starts` is the first place": _starts,
    "`parse` gives the samples' bytes": _is_parsed,
    "`checksum` takes what `write` writes, and no other byte": _is_summed,
    "`index_bytes` is what `indexes` returns": _has_indexes,
    "`check_head` takes what `write` writes": _has_a_head,
}


def _refusals(format: Format, path: Path) -> Iterator[str]:
    """Yield what a format takes though it is damaged.

    Files without headers cannot tell: loaders compare their size with the plan's.
    """
    if type(format).check_head is Format.check_head:
        return
    for sizes in ([_CUT], [_CUT * 2 // 5] * 3):
        num_bytes, _ = write_file(path, format, file_samples(sizes))
        data = path.read_bytes()
        for left in (0, 3, 11, 100, num_bytes // 2, _CUT - 6000):
            path.write_bytes(data[:left])
            if not _refused(partial(locate, format, path, len(sizes))):
                yield f"`locate` refuses a file that was cut: not at byte {left} of {num_bytes}."
    num_bytes, _ = write_file(path, format, file_samples([_CUT]))
    head = path.read_bytes()[:PAGE_BYTES]
    for left in (PAGE_BYTES, num_bytes // 2):
        if not _refused(partial(format.check_head, head, left)):
            yield f"`check_head` refuses a file that was cut: not at byte {left} of {num_bytes}."
    if not _refused(partial(format.check_head, bytes(PAGE_BYTES), num_bytes)):
        yield "`check_head` refuses a page of zeros: it does not."
    write_file(path, format, file_samples([64] * 6))
    for count in (2, 5, 7):
        if not _refused(partial(locate, format, path, count)):
            yield f"`locate` refuses another number of samples: not {count} of 6."


def _refused(call: Callable[[], object]) -> bool:
    """Return whether a call raises what users see as one line."""
    try:
        call()
    except DatasetError:
        return True
    except Exception:  # whatever a user's module raises
        return False
    return False


def main(names: Sequence[str]) -> int:
    """Print what is wrong with each format; return the exit status."""
    found = []
    for name in names:
        try:
            with TemporaryDirectory() as folder:
                found += [f"{name}: {fault}" for fault in faults(FORMATS[name], Path(folder))]
        except ValueError as error:
            why = str(error).removeprefix(f"={name} ").partition("; python -m")[0]
            found.append(f"{name}: {why}")
    say("\n".join(found or [f"{name}: sound" for name in names]))
    return 1 if found or not names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
