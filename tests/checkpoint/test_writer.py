"""Files of a checkpoint are written whole or not at all, with bytes that no other file has."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlemu.checkpoint.files import Reader, Writer
from dlemu.datagen.assemble import Content
from dlemu.errors import RunError
from dlemu.storage.extents import extent_reader
from dlemu.storage.owned import direct as takes_direct
from tests.lab.waiting import LONG

PIECE = 64 << 10
SIZES = [1, 4095, 4096, PIECE, PIECE + 1, 5 * PIECE + 4097]


@pytest.fixture
def content() -> Content:
    return Content(7)


def reading(content: Content | None, io_depth: int = 1, *, direct: bool = False) -> Reader:
    return Reader(extent_reader(direct=direct, piece_bytes=PIECE, io_depth=io_depth), content)


def expected(content: Content, sample: int, num_bytes: int) -> bytes:
    out = np.empty(num_bytes, np.uint8)
    content.fill(out, sample)
    return out.tobytes()


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("io_depth", [1, 3])
def test_files_hold_their_bytes_and_are_read_back(
    tmp_path: Path, content: Content, *, io_depth: int, direct: bool
) -> None:
    if direct and not takes_direct(tmp_path):
        pytest.skip("this file system has no O_DIRECT")
    files = [(f"{number}.pt", size, number) for number, size in enumerate(SIZES)]
    with Writer(content, piece_bytes=PIECE, io_depth=io_depth, direct=direct) as writer:
        writer.prepare([(sample, size) for _, size, sample in files])
        times = writer.work(tmp_path, files)
        assert writer.bytes_done == times.num_bytes == sum(SIZES)
    assert sorted(os.listdir(tmp_path)) == [name for name, _, _ in files]
    for name, size, sample in files:
        assert (tmp_path / name).read_bytes() == expected(content, sample, size)
    parts = (times.open, times.write, times.fsync, times.close, times.generation)
    assert min(parts) > 0 and times.waited >= 0
    with reading(content, io_depth, direct=direct) as reader:
        for name, size, sample in files:
            read = reader.read(tmp_path / name, size, sample=sample)
            assert (read.num_bytes, read.compare > 0) == (size, True)


def test_waiting_for_bytes_is_no_writing(
    tmp_path: Path, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [7.0]
    monkeypatch.setattr("dlemu.checkpoint.files.time.perf_counter", lambda: now[0])

    def write(writer: Writer, file: int, num_bytes: int) -> float:
        now[0] += 5.0
        return 3.0

    monkeypatch.setattr(Writer, "_write_pieces", write)
    with Writer(content, piece_bytes=PIECE, io_depth=1, direct=False) as writer:
        times = writer.write(tmp_path / "a.pt", 4096, sample=1)
    assert (times.open, times.write, times.waited) == (0.0, 2.0, 3.0)


@pytest.mark.parametrize("io_depth", [1, 3])
def test_a_full_drive_leaves_nothing_of_the_file(
    tmp_path: Path, content: Content, monkeypatch: pytest.MonkeyPatch, io_depth: int
) -> None:
    left = iter([os.pwrite] * 2)

    def pwrite(*arguments: Any) -> int:
        for write in left:
            return write(*arguments)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)
    (tmp_path / "kept.pt").write_bytes(b"old")
    before = {*threading.enumerate()}
    with (
        pytest.raises(OSError, match="No space left"),
        Writer(content, piece_bytes=PIECE, io_depth=io_depth) as writer,
    ):
        writer.write(tmp_path / "kept.pt", 100 * PIECE, sample=0)
    assert os.listdir(tmp_path) == ["kept.pt"]
    assert (tmp_path / "kept.pt").read_bytes() == b"old"
    assert {*threading.enumerate()} <= before


def test_files_that_were_prepared_need_not_be_written(content: Content) -> None:
    writer = Writer(content, piece_bytes=PIECE)
    writer.__enter__()
    writer.prepare([(sample, 10 * PIECE) for sample in range(9)])
    end = threading.Thread(target=writer.__exit__, daemon=True)
    end.start()
    end.join(LONG)
    assert not end.is_alive(), "it waits for a thread that waits for a buffer"


def test_fsync_is_asked_for_file_and_folder(
    tmp_path: Path, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def fsync(number: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{number}"))

    monkeypatch.setattr(os, "fsync", fsync)
    for on in (True, False):
        with Writer(content, piece_bytes=PIECE, fsync=on) as writer:
            writer.work(tmp_path, [("a", 10, 0), ("b", 10, 1)])
    folder = str(tmp_path)
    assert synced == [f"{folder}/a.partial", f"{folder}/b.partial", folder]


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        ("missing", "a.pt is missing; write the checkpoints again"),
        ("short", "a.pt holds 199,999 bytes, 200,000 were written; write the checkpoints again"),
        ("flipped", "a.pt is damaged at byte 150,001; write the checkpoints again"),
        ("fifo", "a.pt is a FIFO, not a file; write the checkpoints again"),
    ],
)
@pytest.mark.parametrize("io_depth", [1, 2])
def test_damage_is_named(
    tmp_path: Path, content: Content, damage: str, line: str, io_depth: int
) -> None:
    path = tmp_path / "a.pt"
    data = bytearray(expected(content, 5, 200_000))
    if damage == "flipped":
        data[150_001] ^= 1
    if damage == "fifo":
        os.mkfifo(path)
    elif damage != "missing":
        path.write_bytes(data[:-1] if damage == "short" else data)
    with reading(content, io_depth) as reader, pytest.raises(RunError) as refused:
        reader.read(path, 200_000, sample=5)
    assert str(refused.value) == f"{tmp_path}/{line}"


def test_a_drive_that_cannot_read_is_named(
    tmp_path: Path, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preadv(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "a").write_bytes(bytes(PIECE))
    monkeypatch.setattr(os, "preadv", preadv)
    with (
        reading(None) as reader,
        pytest.raises(RunError, match=r"/a cannot be read at byte 0 \(Input/output error\); write"),
    ):
        reader.read(tmp_path / "a", PIECE)
