"""Samples through np.load, h5py and a TFRecord parser with CRC: what frameworks pay for decoding.

The libraries read through an ordinary Python file, as in a training job; it counts its bytes.
"""

from collections.abc import Iterator
from functools import partial
from itertools import repeat
from time import perf_counter

from dlemu.formats import format_of
from dlemu.formats.format import Parsed
from dlemu.loaders.cache.reader import TierReader
from dlemu.loaders.source import Cost, Rows, Source, Task
from dlemu.loaders.steps import READING, Note
from dlemu.storage.counted import CountedFile, ReadCounts
from dlemu.storage.regular import open_regular


class LibraryReader:
    """Reads samples through the format's library, file by file."""

    def __init__(
        self, source: Source, rows: Rows, note: Note, tier: TierReader | None = None
    ) -> None:
        """`tier` opens the files if there is a cache."""
        self._tier, self._visit, self._taken = tier, -1, 0
        self._source, self._layout = source, source.layout
        self._rows, self._note = rows, note
        self._parse = format_of(source.layout).parse
        self._opened: tuple[CountedFile, Parsed] | None = None
        self._counts = ReadCounts()
        self._read_before = 0  # bytes, when the file was opened
        self._seconds = 0.0  # in the library, reads included

    def read(self, task: Task) -> Iterator[int]:
        """Read what a batch needs; after each sample yield 1."""
        visits = repeat(-1) if task.visits is None else task.visits.tolist()
        for sample, visit in zip(task.fetch.tolist(), visits, strict=False):
            self._read_sample(sample, visit)
            yield 1

    def so_far(self) -> Cost:
        """Return what all batches so far have cost."""
        counts = self._counts
        reading = counts.read_seconds + (0.0 if self._tier is None else self._tier.seconds)
        decoding = self._seconds - reading
        return Cost(counts.bytes_read, counts.num_reads, reading, decoding, self._rows.seconds)

    def _read_sample(self, sample: int, visit: int) -> None:
        number, place = divmod(sample, self._layout.samples_per_file)
        path = self._source.path(number)
        self._note(READING, number)
        begin = perf_counter()
        if self._opened is None or self._opened[0].path != path or self._visit != visit:
            self.close()
            self._visit, self._taken, self._read_before = visit, 0, self._counts.bytes_read
            opener = partial(self._open, number, visit)
            file = CountedFile(path, counts=self._counts, opener=opener)
            self._opened = file, self._parse(file, self._layout.samples_per_file)
        file, parsed = self._opened
        data = parsed.sample(place)
        self._taken += 1
        self._seconds += perf_counter() - begin
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
        """Close the file."""
        if self._opened is not None:
            file, parsed = self._opened
            if self._tier is not None:
                num_bytes = self._counts.bytes_read - self._read_before
                self._tier.close(self._visit, file.fileno(), self._taken, num_bytes)
            parsed.close()
            self._opened = None

    start_epoch = close  # an earlier epoch may have ended within a file
