"""A file format of one's own: the samples follow one another behind a page with their number.

Its contract is checked, and a dataset of it is written, by:

    cd examples
    python -m dlemu.contract my_format:FORMAT
    dlemu datagen workload=unet3d_h100 dataset.format=my_format:FORMAT dataset.data_folder=/mnt/x
"""

import numpy as np

from dlemu.errors import DatasetError
from dlemu.formats import FileSamples, Format, Places, Read, Sink

MAGIC = b"COUNTED1"


class Counted(Format):
    suffix = "counted"
    head_bytes = 4096  # so that O_DIRECT reads the samples without a copy
    why_equal = "its header has one size"

    def write(self, sink: Sink, file: FileSamples) -> None:
        numbers = np.array([len(file.samples), file.sizes[0]], "<u8")
        sink.write((MAGIC + numbers.tobytes()).ljust(self.head_bytes, b"\0"))
        for sample, size in file:
            sink.payload(sample, size)

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        count, size = self._numbers(read(0, self.head_bytes), file_bytes)
        if count != num_samples:
            raise DatasetError(f"it has {count} samples, {num_samples} are asked for")
        return self.places(np.full(count, size))

    def check_head(self, head: bytes, file_bytes: int) -> None:
        self._numbers(head, file_bytes)

    def _numbers(self, head: bytes, file_bytes: int) -> tuple[int, int]:
        count, size = (int.from_bytes(head[at : at + 8], "little") for at in (8, 16))
        if head[:8] != MAGIC or self.head_bytes + count * size != file_bytes:
            raise DatasetError(f"no file of {MAGIC.decode()}, or it was cut")
        return count, size


FORMAT = Counted()
