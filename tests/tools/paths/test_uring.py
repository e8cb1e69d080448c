"""The ring reads what lies in the file, and says why it cannot be used."""

import ctypes
import errno
import os
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from dlemu.errors import RunError
from dlemu.storage.files import aligned_buffer
from dlemu.tools.paths import uring
from dlemu.tools.paths.uring import Ring

BLOCK = 4096
needs_ring = pytest.mark.skipif(uring.problem() is not None, reason=str(uring.problem()))


@pytest.fixture
def content(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    """An open file of 32 blocks, and its bytes."""
    data = np.random.default_rng(1).bytes(32 * BLOCK)
    (tmp_path / "file").write_bytes(data)
    file = os.open(tmp_path / "file", os.O_RDWR)
    yield file, data
    os.close(file)


def ring_and_memory(file: int, depth: int, *, writes: bool = False) -> tuple[Ring, memoryview]:
    memory = aligned_buffer(depth * BLOCK)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    return Ring(file, depth=depth, size=BLOCK, address=address, writes=writes), memory


@needs_ring
@pytest.mark.parametrize("depth", [1, 4, 13])
def test_each_place_holds_the_block_that_was_asked_for(
    depth: int, content: tuple[int, bytes]
) -> None:
    file, data = content
    ring, memory = ring_and_memory(file, depth)
    asked: list[int] = []
    blocks = cycle(range(32))

    def next_offset() -> int:
        asked.append(next(blocks) * BLOCK)
        return asked[-1]

    latencies: list[int] = []
    ring.run(next_offset, time.perf_counter_ns() + 20_000_000, latencies.extend)
    ring.close()

    read = len(asked) - depth  # each place knows its next offset
    assert len(latencies) == read >= depth, "all that was asked for is waited for and counted"
    held = [bytes(memory[place * BLOCK :][:BLOCK]) for place in range(depth)]
    known = {data[offset : offset + BLOCK] for offset in asked}
    assert set(held) <= known
    assert len(asked) > 2**4, "the ring has wrapped around"


@needs_ring
def test_a_place_writes_where_it_was_told(content: tuple[int, bytes]) -> None:
    file, data = content
    ring, memory = ring_and_memory(file, 2, writes=True)
    memory[:] = b"x" * len(memory)
    ring.run(iter([0, 5 * BLOCK]).__next__, 0, len)
    ring.close()

    now = os.pread(file, 32 * BLOCK, 0)
    changed = [i for i in range(32) if now[i * BLOCK :][:BLOCK] != data[i * BLOCK :][:BLOCK]]
    assert changed == [0, 5] and now[:BLOCK] == b"x" * BLOCK


@needs_ring
def test_a_short_or_failed_transfer_is_an_error(content: tuple[int, bytes]) -> None:
    file, _ = content
    ring, _memory = ring_and_memory(file, 1)
    with pytest.raises(RunError, match="short transfer of 100 bytes"):
        ring.run(lambda: 32 * BLOCK - 100, 0, len)
    ring.close()
    ring, _memory = ring_and_memory(1 << 20, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        ring.run(lambda: 0, 0, len)
    ring.close()


@pytest.mark.parametrize(
    ("number", "setting", "told"),
    [
        (errno.EPERM, "2\n", r"kernel.io_uring_disabled is 2; root may set it to 0$"),
        (errno.EPERM, "0\n", "seccomp forbids it"),
        (errno.ENOSYS, "0\n", "the kernel has none"),
        (errno.ENOMEM, "0\n", r"ulimit -l.*smaller queue_depths"),
    ],
)
def test_a_host_without_io_uring_is_told_why_in_a_line(
    number: int, setting: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disabled = tmp_path / "kernel.io_uring_disabled"
    disabled.write_text(setting)

    def refuse(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(uring, "_call", refuse)
    monkeypatch.setattr(uring, "_DISABLED", disabled)
    problem = uring.problem()
    assert problem is not None and "\n" not in problem
    with pytest.raises(RunError, match=told):
        raise RunError(problem)
