"""The extent reader against files whose bytes are known."""

import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlemu.errors import DatasetError
from dlemu.storage.extents import ExtentReader, File, Part, extent_reader, settle_direct
from dlemu.storage.files import open_sized

NUM_BYTES = 50_003
CONTENT = np.random.default_rng(5).bytes(NUM_BYTES)


@pytest.fixture(scope="module")
def file_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("storage") / "file"
    path.write_bytes(CONTENT)
    return path


Opened = Callable[..., tuple[ExtentReader, File]]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """What opens a file with a reader; both are closed after the test."""
    with ExitStack() as left:

        def open_file(path: Path, **how: Any) -> tuple[ExtentReader, File]:
            reader = extent_reader(**{"direct": False, "piece_bytes": 4096, **how})
            left.callback(reader.close)
            file = reader.open(str(path))
            left.callback(reader.close_file, file)
            return reader, file

        yield open_file


@pytest.fixture(params=[(False, 1), (False, 3), (True, 1), (True, 3)], ids=str)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Through the page cache or past it, one request at a time or several."""
    return dict(zip(("direct", "io_depth"), request.param, strict=True))


Calls = list[tuple[int, int, int, int]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Offset, bytes asked for, bytes that came, and flags of each read."""
    made: Calls = []
    preadv = os.preadv

    def spy(descriptor: int, into: list[memoryview], offset: int, flags: int = 0) -> int:
        got = preadv(descriptor, into, offset, flags)
        made.append((offset, sum(map(len, into)), got, flags))
        return got

    monkeypatch.setattr(os, "preadv", spy)
    return made


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    how=st.fixed_dictionaries(
        {
            "direct": st.booleans(),
            "io_depth": st.integers(1, 3),
            "piece_bytes": st.sampled_from([4096, 8192, 10_000, 1 << 20]),
        }
    ),
    ahead=st.booleans(),
    head=st.booleans(),
    start=st.integers(0, NUM_BYTES),
    # Runs that follow one another, each of parts that are kept (True) or dropped.
    runs=st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 20_000)), max_size=5)),
)
def test_bytes_go_where_they_are_wanted(
    file_path: Path,
    opened: Opened,
    how: dict[str, Any],
    ahead: bool,
    head: bool,
    start: int,
    runs: list[list[tuple[bool, int]]],
) -> None:
    reader, file = opened(file_path, **how)
    if head:
        assert bytes(reader.head(file)) == CONTENT[:4096]
    at = start
    for run in runs:
        kept: list[tuple[int, bytearray]] = []
        parts: list[Part] = []
        begin = at
        for keep, length in run:
            length = min(length, NUM_BYTES - at)
            if keep:
                kept.append((at, bytearray(length)))
                parts.append(memoryview(kept[-1][1]))
            else:
                parts.append(length)
            at += length
        seen = bytearray()
        reader.read(file, begin, parts, ahead=ahead, check=seen.extend)
        assert seen == CONTENT[begin:at], "all bytes were shown, in order"
        for place, data in kept:
            assert data == CONTENT[place : place + len(data)]


def test_a_short_file_is_named(opened: Opened, file_path: Path) -> None:
    reader, file = opened(file_path)
    with pytest.raises(DatasetError, match=rf"{file_path} holds 50003 bytes, at least 50004"):
        reader.read(file, 50_000, [4])


def test_a_file_that_is_cut_while_it_is_read_is_named(
    opened: Opened, tmp_path: Path, way: dict[str, Any]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    reader, file = opened(path, **way)
    os.truncate(path, 20_000)
    with pytest.raises(DatasetError, match="ends at byte 20000, but held 50003"):
        reader.read(file, 0, [NUM_BYTES])


@pytest.mark.parametrize("num_bytes", [4, 5, 6, None])
def test_an_open_file_that_was_changed_replaced_or_lost_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int | None
) -> None:
    """None: a network file system has lost it."""
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"12345")
    reader = extent_reader(direct=False, piece_bytes=4096)
    descriptor = reader.keep_open(str(path)).descriptor
    assert reader.keep_open(str(path)).num_bytes == 5
    if num_bytes is None:
        lost = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        monkeypatch.setattr(os, "fstat", Mock(side_effect=lost))
    elif num_bytes == 5:
        other.write_bytes(b"54321")
        other.rename(path)
    else:
        os.truncate(path, num_bytes)
    with pytest.raises(DatasetError, match="was replaced or changed while it was being read"):
        reader.keep_open(str(path))
    monkeypatch.undo()
    assert not Path(f"/proc/self/fd/{descriptor}").exists()


def test_a_file_is_closed_before_another_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader never has more files open than it may keep; those that it keeps are the last."""
    paths = [tmp_path / str(number) for number in range(4)]
    for path in paths:
        path.write_bytes(b"x")
    opened = []

    def counted(path: str, *, direct: bool) -> tuple[int, int]:
        opened.append(len(os.listdir("/proc/self/fd")))
        return open_sized(path, direct=direct)

    monkeypatch.setattr("dlemu.storage.extents.open_sized", counted)
    reader = extent_reader(direct=False, piece_bytes=4096, max_open=2)
    for path in paths:
        file = reader.keep_open(str(path))
        assert reader.keep_open(str(path)) is file
    assert [number - opened[0] for number in opened] == [0, 1, 1, 1]
    kept = reader.keep_open(str(paths[3]))
    reader.keep_open(str(paths[1]))
    assert reader.keep_open(str(paths[3])) is kept, "the one that was not used for longest goes"
    reader.close()
    assert not Path(f"/proc/self/fd/{file.descriptor}").exists()


def test_a_drives_error_is_named(
    opened: Opened, file_path: Path, monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]
) -> None:
    reader, file = opened(file_path, **way)
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    monkeypatch.setattr(os, "preadv", Mock(side_effect=error))
    line = rf"^{file_path} cannot be read at byte 8192 \(Input/output error\); look for "
    with pytest.raises(DatasetError, match=line):
        reader.read(file, 8192, [100])
    for count in (1, 2):
        with pytest.raises(DatasetError, match=line):
            reader.read_each(file, [8192] * count, [100] * count)
    monkeypatch.undo()


def test_a_check_is_no_part_of_reading_and_copying(
    opened: Opened, file_path: Path, monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]
) -> None:
    """By a clock that stands still but in the check."""
    now = 0.0

    def check(data: memoryview) -> None:
        nonlocal now
        now += len(data)

    monkeypatch.setattr("dlemu.storage.extents.perf_counter", lambda: now)
    reader, file = opened(file_path, piece_bytes=8192, **way)
    reader.read(file, 100, [NUM_BYTES - 100], check=check)
    assert (reader.read_seconds, reader.copy_seconds) == (0, 0)
    assert reader.check_seconds == NUM_BYTES - 100


def test_a_direct_read_that_ends_between_two_pages_is_not_gone_on_with(
    opened: Opened, file_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a file's end does that, and from there no O_DIRECT read can begin."""
    reader, file = opened(file_path, direct=True, piece_bytes=16384)
    cut = Mock(side_effect=[4096, 904])
    monkeypatch.setattr(os, "preadv", cut)
    with pytest.raises(DatasetError, match="ends at byte 5000, but held 50003"):
        reader.read(file, 0, [16384])
    offsets = [given.args[2] for given in cut.call_args_list]
    assert offsets == [0, 4096], "a whole page that came is gone on from"


def test_o_direct_where_it_works(file_path: Path) -> None:
    assert settle_direct(file_path, False) is False
    assert settle_direct(file_path, True) is True
    assert settle_direct(file_path, "auto") is True
    with pytest.raises(DatasetError, match="is missing"):
        settle_direct(file_path.parent / "none", "auto")


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(),
    reason="this kernel gives no huge pages: /sys/kernel/mm/transparent_hugepage/enabled",
)
def test_buffers_of_a_process_and_of_its_children_are_huge_pages() -> None:
    code = """
import os, re
from dlemu.storage.files import aligned_buffer
def huge():
    return int(re.search(r"AnonHugePages: +(\\d+) kB", open("/proc/self/smaps_rollup").read())[1])
buffers = [aligned_buffer(1 << 20) for _ in range(3)]
for buffer in buffers: buffer[:] = bytes(1 << 20)
print(huge(), flush=True)
if os.fork() == 0:
    before = huge()
    own = aligned_buffer(1 << 20)  # not what is left of the parent's
    own[:] = bytes(1 << 20)
    print(huge() - before, flush=True)
    os._exit(0)
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [int(line) for line in done.stdout.split()] == [4096, 2048]


@pytest.mark.parametrize("hole", [False, True])
def test_what_is_in_the_page_cache_takes_few_calls(
    opened: Opened, tmp_path: Path, calls: Calls, hole: bool
) -> None:
    path, piece = tmp_path / "file", 1 << 18
    content = np.random.default_rng(1).bytes(20 << 20)
    path.write_bytes(content)
    with path.open("rb") as written:
        os.fsync(written.fileno())
        if hole:
            os.posix_fadvise(written.fileno(), 9 << 20, 0, os.POSIX_FADV_DONTNEED)
        # Others may have the kernel drop its caches meanwhile: pages that are mapped stay.
        mapped = mmap.mmap(written.fileno(), 9 << 20 if hole else 0, prot=mmap.PROT_READ)
        assert len(mapped[:: mmap.PAGESIZE]) > 2000
        try:
            os.preadv(written.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
            calls.clear()
        except OSError as error:
            pytest.skip(f"this file system does not tell what is in memory ({error.strerror})")
    kept = bytearray(3 << 20)
    reader, file = opened(path, piece_bytes=piece)
    # Many small parts, more than one call takes, and large ones; kept ones on both sides.
    parts: list[Part] = [memoryview(kept)[: 1 << 20], *[3] * 5000, (11 << 20) - 15_000]
    parts += [memoryview(kept)[1 << 20 :], 6 << 20]
    reader.read(file, 0, parts)

    assert bytes(kept) == content[: 1 << 20] + content[12 << 20 : 14 << 20]
    assert reader.bytes_read == sum(got for _, _, got, _ in calls) == len(content)
    assert [offset for offset, _, _, _ in calls[1:]] == [at + got for at, _, got, _ in calls[:-1]]
    assert any(got > piece for _, _, got, _ in calls)
    small = [call for call in calls if call[1] <= piece]
    if hole:
        # From the first byte that must come from storage, it is asked in pieces.
        first = next(number for number, call in enumerate(calls) if call[2] < call[1])
        assert calls[first][3] == os.RWF_NOWAIT and calls[first][0] + calls[first][2] >= 9 << 20
        assert {call[1] for call in calls[first + 1 : -1]} == {piece}
    else:
        assert all(call[3] == os.RWF_NOWAIT for call in calls) and len(calls) < 12, small
    mapped.close()


def test_a_file_system_that_cannot_tell_what_is_cached_is_read_in_pieces(
    opened: Opened, file_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv, flags_seen = os.preadv, list[int]()

    def refuse(descriptor: int, into: list[memoryview], offset: int, flags: int = 0) -> int:
        flags_seen.append(flags)
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return preadv(descriptor, into, offset)

    monkeypatch.setattr(os, "preadv", refuse)
    reader, file = opened(file_path, piece_bytes=10_000)
    for _ in range(2):
        kept = bytearray(NUM_BYTES)
        reader.read(file, 0, [memoryview(kept)])
        assert kept == CONTENT
    assert flags_seen == [os.RWF_NOWAIT] + [0] * 12  # asked once, and not again


def test_calls_and_bytes_are_counted(
    opened: Opened, file_path: Path, calls: Calls, way: dict[str, Any]
) -> None:
    """Extents of a piece, across its end, and of several pieces; pages and pieces of 4096 bytes."""
    extents = [(4096, 4096), (100, 4096), (9000, 5000), (0, 16_384)]
    wanted = [1, 1, 2, 4]
    if way["direct"]:
        extents[3], wanted = (4000, 16_384), [1, 2, 2, 5]
    reader, file = opened(file_path, **way)
    for (offset, length), number in zip(extents, wanted, strict=True):
        reader.num_reads, before = 0, len(calls)
        reader.read_each(file, [offset], [length])
        assert reader.num_reads == number == len(calls) - before
    reader.read_each(file, [0, 5000], [100, 100])
    reader.head(file)
    reader.read(file, 0, [NUM_BYTES])
    assert reader.num_reads == len(calls) - sum(wanted[:3])
    assert reader.bytes_read == sum(got for _, _, got, _ in calls)


def test_the_call_that_reads_an_extent_drops_what_is_not_kept_of_it(
    opened: Opened, file_path: Path, way: dict[str, Any]
) -> None:
    """The last extent is longer than a piece, and is cut in its second one."""
    offsets, lengths = [100, 9000, 4096, 20_000], [3000, 50, 4096, 10_000]
    kept = [bytearray(num) for num in (1000, 50, 0, 9000)]
    reader, file = opened(file_path, piece_bytes=8192, **way)
    reader.read_each(file, offsets, lengths, [memoryview(each) for each in kept])
    for offset, data in zip(offsets, kept, strict=True):
        assert data == CONTENT[offset : offset + len(data)]
    assert reader.num_reads == 5
    if not way["direct"]:
        assert reader.bytes_read == sum(lengths)
