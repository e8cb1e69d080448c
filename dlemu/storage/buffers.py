"""Page-aligned memory to read into, as O_DIRECT needs it, in huge pages where there are any."""

import mmap
import os
import threading
from contextlib import suppress

import numpy as np

from dlemu.units import round_up


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
        """Return zeroed memory of this process alone; it begins at a page, huge if possible."""
        taken = round_up(num_bytes)
        with self._lock:
            if taken > len(self._left):
                size = round_up(taken, self._PAGE)
                memory = mmap.mmap(-1, size + self._PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                with suppress(OSError):  # this kernel has no huge pages; pages of 4 KiB work, too
                    memory.madvise(mmap.MADV_HUGEPAGE)
                start = -np.frombuffer(memory, np.uint8).ctypes.data % self._PAGE
                self._left = memoryview(memory)[start : start + size]
            cut, self._left = self._left[:num_bytes], self._left[taken:]
        return cut


aligned_buffer = _HugePages().cut
