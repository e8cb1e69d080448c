"""CSV as DLIO writes it: a line of numbers for each sample, 0 to 255, without a header.

A payload is the text of a line. pandas, and so DLIO, writes as many digits as a number needs, 3.57
bytes a number with its comma. Here each has three digits, so that the place of each line is known;
there are so many fewer numbers that lines have the bytes of DLIO's (`TEXT_BYTES`).
"""

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
_TEXT = np.frombuffer(b"".join(b"%03d," % value for value in range(256)), "S4")


class Csv(Bare):
    """Lines that follow one another; zeros in front fill those of other sizes."""

    ways = ("stream",)
    why_equal = ""

    def stored(self, content: bytes, num_bytes: int) -> bytes:
        text = _TEXT[np.frombuffer(content, np.uint8)[: num_bytes // NUMBER_BYTES]].tobytes()
        return text.rjust(num_bytes, b"0")[:-1] + b"\n"

    def write(self, sink: Sink, file: FileSamples) -> None:
        for sample, size in file:
            content = sink.content(sample, size // NUMBER_BYTES)
            sink.write(self.stored(content.tobytes(), size))

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        found = [
            at + np.flatnonzero(np.frombuffer(read(at, _PIECE), np.uint8) == ord("\n"))
            for at in range(0, file_bytes, _PIECE)
        ]
        ends = 1 + np.concatenate([*found, []]).astype(np.int64)
        if len(ends) != num_samples or ends[-1] != file_bytes:
            raise DatasetError(
                f"it has {len(ends)} lines, dataset.num_samples_per_file asks for {num_samples}; "
                "or it was cut"
            )
        return self.places(np.diff(ends, prepend=0))

    def parse(self, file: CountedFile, num_samples: int) -> Parsed:
        return _Lines(file, num_samples)


class _Lines(Parsed):
    """A file that is read whole, as pandas reads it; a line becomes numbers when it is wanted."""

    def __init__(self, file: CountedFile, num_samples: int) -> None:
        super().__init__(file, num_samples)
        self._lines = file.read().splitlines()

    def sample(self, place: int) -> NDArray[np.uint8]:
        try:
            return np.fromstring(self._lines[place], np.uint8, sep=",")
        except (IndexError, ValueError) as error:
            raise damaged(self._file, error) from None


FORMAT = Csv()
