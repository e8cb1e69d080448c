"""CSV as DLIO writes it: a line of numbers for each sample, 0 to 255, without a header.

A payload is the text of a line. pandas, and so DLIO, writes as many digits as a number needs, 3.57
bytes a number with its comma. Here each has three digits, so that the place of each line is known;
there are so many fewer numbers that lines have the bytes of DLIO's (`TEXT_BYTES`).
"""

import csv
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import DatasetError
from dlemu.formats.format import FileSamples, Parsed, Places, Read, Sink, damaged
from dlemu.formats.raw import Bare
from dlemu.storage.counted import CountedFile

TEXT_BYTES = (10 * 2 + 90 * 3 + 156 * 4) / 256
"""Mean bytes of a random byte that is written as a number, with the comma behind it."""
NUMBER_BYTES = 4
_PIECE = 1 << 20
_OF_BYTES = b"0123456789, "
_TEXT = np.frombuffer(b"".join(b"%03d," % value for value in range(256)), "S4")


class Csv(Bare):
    """Lines that follow one another; zeros in front fill those of other sizes."""

    ways = ("stream",)
    why_equal = ""
    counts_by_reading = True

    def stored(self, content: bytes, num_bytes: int) -> bytes:
        text = _TEXT[np.frombuffer(content, np.uint8)[: num_bytes // NUMBER_BYTES]].tobytes()
        return text.rjust(num_bytes, b"0")[:-1] + b"\n"

    def write(self, sink: Sink, file: FileSamples) -> None:
        for sample, size in file:
            content = sink.content(sample, size // NUMBER_BYTES)
            sink.write(self.stored(content.tobytes(), size))

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        start, ends = _rows(read, file_bytes)
        if len(ends) != num_samples:
            raise DatasetError(
                f"it has {len(ends)} lines, dataset.num_samples_per_file asks for {num_samples}, "
                "or it was cut"
            )
        return Places.in_turn(np.diff(ends, prepend=start), start)

    def count(self, read: Read, file_bytes: int, *, path: str = "") -> int:
        return len(_rows(read, file_bytes)[1])

    def parse(self, file: CountedFile, num_samples: int) -> Parsed:
        return _Lines(file, num_samples)


def _rows(read: Read, file_bytes: int) -> tuple[int, NDArray[np.int64]]:
    """Return where the first row begins, behind a header of names, and where each row ends.

    The last one may lack its newline. A newline within quotes counts as any other.
    """
    found = [
        at + np.flatnonzero(np.frombuffer(read(at, _PIECE), np.uint8) == ord("\n"))
        for at in range(0, file_bytes, _PIECE)
    ]
    ends = 1 + np.concatenate([*found, []]).astype(np.int64)
    if file_bytes and (not len(ends) or ends[-1] != file_bytes):
        ends = np.append(ends, file_bytes)
    if len(ends) and _is_header(read(0, min(int(ends[0]), _PIECE))):
        return int(ends[0]), ends[1:]
    return 0, ends


def _is_header(line: bytes) -> bool:
    """Return whether a line has names: no cell of it is a number."""
    for cell in line.strip().split(b","):
        with suppress(ValueError):
            float(cell.strip(b" '\""))
            return False
    return bool(line.strip())


class _Lines(Parsed):
    """A file that is read whole, as pandas reads it; a line becomes numbers when it is wanted."""

    def __init__(self, file: CountedFile, num_samples: int) -> None:
        super().__init__(file, num_samples)
        self._lines = file.read().splitlines()
        if len(self._lines) == num_samples + 1 and _is_header(self._lines[0]):
            del self._lines[0]

    def sample(self, place: int) -> NDArray[np.uint8]:
        try:
            line = self._lines[place]
            if line.strip(_OF_BYTES):  # another tool's: its text, when its cells are parsed
                text = line.decode()
                if not text.replace("\t", " ").isprintable():
                    raise ValueError("it has characters that no text has")
                return np.frombuffer(",".join(next(csv.reader([text]))).encode(), np.uint8)
            return np.fromstring(line, np.uint8, sep=",")
        except (IndexError, ValueError) as error:
            raise damaged(self._file, error) from None


FORMAT = Csv()
