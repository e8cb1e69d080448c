"""Damaged files: `locate` finds places inside the file or raises DatasetError, and nothing else.

Bounded in what it reads, too, which bounds its time and memory.
"""

import functools
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.errors import DatasetError
from dlemu.formats import FORMATS
from dlemu.units import PAGE_BYTES
from dlemu.workload.model import FormatName
from tests.formats.contract import content, file_samples, write_file

SIZES = ([5000], [100] * 3)
EXTREMES = (0, 1, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def sound_files(folder: Path, name: FormatName) -> list[tuple[bytes, int]]:
    """Return files of ours and of libraries, with the number of samples in each."""
    path, files = folder / f"a.{name}", []
    for sizes in SIZES:
        write_file(path, FORMATS[name], file_samples(sizes))
        files.append((path.read_bytes(), len(sizes)))
    x = np.frombuffer(content(1, 60), np.uint8).reshape(5, 4, 3)
    match name:
        case "npy":
            np.save(path, x)
        case "npz":
            np.savez(path, y=np.zeros(3, np.int64), x=x)
        case "hdf5":
            with h5py.File(path, "w", libver="latest") as file:
                file["records_0"], file["labels"] = x.swapaxes(0, 2), np.zeros(3, np.int64)
        case "tfrecord":
            import tfrecord  # which imports torch: the fuzzer's processes do without

            writer = tfrecord.TFRecordWriter(str(path))
            for _ in range(3):
                writer.write({"size": (20, "int"), "b": (b"b", "byte"), "image": (b"i", "byte")})
            writer.close()
    files.append((path.read_bytes(), 3))
    return files


def check(name: FormatName, data: bytes, num_samples: int) -> None:
    """Locate the samples of what may be damaged."""
    num_read = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal num_read
        assert offset >= 0 and length >= 0
        part = data[offset : offset + length]
        num_read += len(part)
        return part

    try:
        FORMATS[name].check_head(data[:PAGE_BYTES], len(data))
    except DatasetError as error:
        assert "\n" not in str(error)
    try:
        places = FORMATS[name].locate(read, len(data), num_samples=num_samples)
    except DatasetError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 400
    else:
        assert len(places.offsets) == len(places.lengths) == num_samples
        for offset, length in zip(places.offsets.tolist(), places.lengths.tolist(), strict=True):
            assert 0 <= offset <= offset + length * places.interleaved <= len(data)
    assert num_read < 2 * len(data) + 4_500_000, "fields are bounded, and so are reads"


def damaged(data: bytes, randomly: random.Random) -> bytes:
    """Return the file with a few changes of one kind or another."""
    mutable = bytearray(data)
    for _ in range(randomly.randint(1, 3)):
        # Most of what a format reads stands near the start, or the end.
        near = min(len(mutable), randomly.choice((64, 512, 2500, 10**9)))
        at = randomly.randrange(near) if near else 0
        if randomly.random() < 0.3:
            at = max(0, len(mutable) - 1 - at)
        match randomly.randrange(5):
            case 0:
                mutable = mutable[:at]
            case 1 if mutable:
                mutable[at] ^= 1 << randomly.randrange(8)
            case 2:
                width = randomly.choice((1, 2, 4, 8))
                value = randomly.choice((*EXTREMES, len(mutable), randomly.getrandbits(64)))
                mutable[at : at + width] = (value % 256**width).to_bytes(width, "little")
            case 3:
                source = randomly.randrange(len(mutable) + 1)
                mutable[at : at + 40] = mutable[source : source + 40]
            case _:
                mutable[at:at] = randomly.randbytes(randomly.choice((1, 8, 4096)))
    return bytes(mutable)


@functools.cache
def files_of(name: FormatName) -> list[tuple[bytes, int]]:
    with tempfile.TemporaryDirectory() as folder:
        return sound_files(Path(folder), name)


@pytest.mark.parametrize("name", ["npy", "npz", "tfrecord"])
@settings(max_examples=250)
@given(seed=st.integers(0, 2**32))
def test_damaged_files(name: FormatName, seed: int) -> None:
    randomly = random.Random(seed)
    data, num_samples = randomly.choice(files_of(name))
    check(name, damaged(data, randomly), num_samples)


@pytest.mark.parametrize("name", ["npy", "npz", "tfrecord"])
@settings(max_examples=100)
@given(data=st.binary(max_size=300), num_samples=st.integers(1, 4))
def test_files_of_anything(name: FormatName, data: bytes, num_samples: int) -> None:
    check(name, data, num_samples)
    start = {"npy": b"\x93NUMPY\1\0", "npz": b"PK\3\4", "tfrecord": b""}[name]
    check(name, start + data, num_samples)


@settings(max_examples=150)
@given(
    text=st.one_of(
        st.text(max_size=60),
        st.from_regex(
            r"\{'descr': '[<>|=]?[a-zA-Z]\d{0,3}', 'fortran_order': (True|False|0), "
            r"'shape': \((-?\d{1,30}, ?){0,70}\)\}",
            fullmatch=True,
        ),
        st.sampled_from(["(" * 9000, "[" * 5000 + "]" * 5000, "{" * 99, "-" * 9000 + "1"]),
    )
)
def test_npy_headers_of_anything(text: str) -> None:
    encoded = text.encode("latin1", errors="ignore")
    header = b"\x93NUMPY\1\0" + len(encoded).to_bytes(2, "little") + encoded
    check("npy", header + bytes(100), 1)
    check("npy", header + bytes(100), 3)


def test_damaged_hdf5_files(tmp_path: Path) -> None:
    """In a process of its own: if the library crashed, that would be the end of it."""
    child = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.formats.test_fuzz", "0", "1000"],
        cwd=Path(__file__).parents[2],
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr[-2000:]


def main(seed: int, num_files: int) -> None:
    """Damage HDF5 files and locate their samples."""
    randomly = random.Random(seed)
    files = files_of("hdf5")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(num_files):
        data, num_samples = randomly.choice(files)
        check("hdf5", damaged(data, randomly), num_samples)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000, f"{grown} KiB"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
