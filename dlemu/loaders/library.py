"""Samples through np.load, h5py and a TFRecord parser with CRC: what frameworks pay for decoding.

The libraries read through an ordinary Python file, as in a training job; it counts its bytes.
"""

from collections.abc import Iterator
from functools import partial
from itertools import repeat

from dlemu.formats import format_of
from dlemu.formats.format import Parsed
from dlemu.loaders.cache.reader import TierReader
from dlemu.loaders.source import Note, Rows, Source, Task, TaskReader
from dlemu.loaders.steps import READING
from dlemu.storage.counted import CountedFile, ReadCounts
from dlemu.storage.regular import open_regular


class LibraryReader(TaskReader):
    """Reads samples through the format's library, file by file."""

    def __init__(
        self, source: Source, rows: Rows, note: Note, tier: TierReader | None = None
    ) -> None:
        super().__init__(source, rows, note, ReadCounts(), tier)
        self._visit, self._taken = -1, 0
        self._parse = format_of(source.layout).parse
        self._opened: tuple[CountedFile, Parsed] | None = None
        self._read_before = 0  # bytes, when the file was opened

    def read(self, task: Task) -> Iterator[int]:
        visits = repeat(-1) if task.visits is None else task.visits.tolist()
        for sample, visit in zip(task.fetch.tolist(), visits, strict=False):
            self._read_sample(sample, visit)
            yield 1

    def _read_sample(self, sample: int, visit: int) -> None:
        number, place = divmod(sample, self._layout.samples_per_file)
        path = self._source.path(number)
        self._note(READING, number)
        with self._decoding():
            if self._opened is None or self._opened[0].path != path or self._visit != visit:
                self.close()
                self._visit, self._taken, self._read_before = visit, 0, self._counts.bytes_read
                opener = partial(self._open, number, visit)
                file = CountedFile(path, counts=self._counts, opener=opener)
                self._opened = file, self._parse(file, self._layout.samples_per_file)
            file, parsed = self._opened
            data = parsed.sample(place)
        self._taken += 1
        if self._rows.slots is not None:
            self._rows.copy(path, sample, data)
        # Through a cache a file is closed when its visit ends: others may wait to remove it.
        ends = self._tier is not None and self._taken == self._tier.num_samples(visit)
        if ends or self._layout.samples_per_file == 1:
            self.close()

    def _open(self, number: int, visit: int, path: str) -> int:
        if self._tier is None:
            return open_regular(path)
        return self._tier.open(visit, number, path)[0]

    def close(self) -> None:
        if self._opened is not None:
            file, parsed = self._opened
            if self._tier is not None:
                num_bytes = self._counts.bytes_read - self._read_before
                self._tier.close(self._visit, file.fileno(), self._taken, num_bytes)
            parsed.close()
            self._opened = None

    start_epoch = close
