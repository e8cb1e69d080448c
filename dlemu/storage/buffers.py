"""Page-aligned memory to read into, as O_DIRECT needs it, in huge pages where there are any."""

import mmap
import os
import threading
from contextlib import suppress

import numpy as np

from dlemu.units import round_up


def aligned_buffer(num_bytes: int) -> memoryview:
    """Return zeroed memory that begins at a page, if possible in huge pages.

    It is private to this process: a forked child gets a copy.
    """
    return _huge_pages.cut(num_bytes)


class _HugePages:
    """Memory in huge pages, from which buffers are cut one after the other.

    The kernel describes a buffer to the drive as runs of neighbouring pages: for 1 MiB that is 256
    pages of 4 KiB, or one huge page. Each run costs CPU time, and on a virtual drive much more.
    """

    _PAGE = 2 << 20

    def __init__(self) -> None:
        self.forget()
        # A forked child maps its own: shared with the parent, it would be copied in 4 KiB pages.
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Cut the next buffer from new memory."""
        self._lock = threading.Lock()
        self._left = memoryview(b"")

    def cut(self, num_bytes: int) -> memoryview:
        """Return zeroed memory that begins at a page."""
        taken = round_up(num_bytes)
        with self._lock:
            if taken > len(self._left):
                self._left = self._map(round_up(taken, self._PAGE))
            cut, self._left = self._left[:num_bytes], self._left[taken:]
        return cut

    def _map(self, num_bytes: int) -> memoryview:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, num_bytes + self._PAGE, flags=flags)
        with suppress(OSError):  # this kernel has no huge pages; pages of 4 KiB work, too
            memory.madvise(mmap.MADV_HUGEPAGE)
        whole = memoryview(memory)
        start = -np.frombuffer(whole, np.uint8).ctypes.data % self._PAGE
        return whole[start : start + num_bytes]


_huge_pages = _HugePages()
