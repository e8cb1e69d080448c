"""The contract of the formats, each against a library of its own; and what only one of them has."""

import io
import math
import os
import re
import struct
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import google_crc32c
import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from dlemu.contract import content, faults, file_samples, files_of, locate, taken, write_file
from dlemu.errors import DatasetError
from dlemu.formats import FORMATS, raw
from dlemu.formats import tfrecord as ours
from dlemu.formats.csv import TEXT_BYTES
from dlemu.formats.hdf5 import ChunkedHdf5
from dlemu.storage.counted import CountedFile
from dlemu.units import PAGE_BYTES
from tests.lab.dataset import generated, write_tfrecord
from tests.loaders.contract import Case, check_epoch

NAMES = [*{format: name for name, format in FORMATS.items() if not format.in_columns}.values()]
"""A name of each format: bare samples have several."""


def samples_last(array: NDArray[np.generic], num_samples: int) -> list[bytes]:
    assert array.shape[-1] == num_samples and array.ndim >= 2
    return [array[..., index].tobytes() for index in range(num_samples)]


def read_npz(path: Path, num_samples: int) -> list[bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert [entry.compress_type for entry in archive.infolist()] == [0, 0]
    with np.load(path) as arrays:
        assert set(arrays) == {"x", "y"}
        assert arrays["y"].dtype == np.int64
        assert arrays["y"].tolist() == [0] * num_samples
        return samples_last(arrays["x"], num_samples)


def read_hdf5(path: Path, num_samples: int) -> list[bytes]:
    with h5py.File(path) as file:
        records = file["records_0"]
        assert file["labels"].dtype == np.int64
        assert file["labels"][:].tolist() == [0] * num_samples
        assert records.id.get_offset() == PAGE_BYTES
        assert records.chunks is None and records.shape[0] == num_samples
        assert file["records"] == records, "DLIO's older name, a link and no copy"
        return [records[index].tobytes() for index in range(num_samples)]


def read_tfrecord(path: Path, num_samples: int) -> list[bytes]:
    assert len(records_of(path.read_bytes())) == num_samples
    from tfrecord.reader import tfrecord_loader  # which imports torch

    parsed = list(tfrecord_loader(str(path), None, {"image": "byte", "size": "int"}))
    images = [bytes(record["image"]) for record in parsed]
    assert [record["size"].tolist() for record in parsed] == [[len(i)] for i in images]
    return images


def read_webdataset(path: Path, num_samples: int) -> list[bytes]:
    from webdataset import WebDataset  # which imports torch

    found = list(WebDataset(str(path), shardshuffle=False))
    assert [sample["cls"] for sample in found] == [b"0"] * num_samples
    return [sample["bin"] for sample in found]


def read_csv(path: Path, num_samples: int) -> list[bytes]:
    lines = path.read_text().split("\n")
    assert lines.pop() == "" and len(lines) == num_samples
    numbers = [bytes(int(number) for number in line.split(",") if line) for line in lines]
    return [
        FORMATS["csv"].stored(each, len(line) + 1)
        for each, line in zip(numbers, lines, strict=True)
    ]


def refused(name: str, path: Path, num_samples: int, problem: str) -> None:
    """Check that a file in which so many samples are sought is refused for this."""
    with pytest.raises(DatasetError, match=problem):
        locate(FORMATS[name], path, num_samples)


READ_BACK: dict[str, Callable[[Path, int], list[bytes]]] = {
    "npy": lambda path, num_samples: samples_last(np.load(path), num_samples),
    "npz": read_npz,
    "hdf5": read_hdf5,
    "tfrecord": read_tfrecord,
    "webdataset": read_webdataset,
    "csv": read_csv,
}
"""The samples' bytes as a library that is not ours gives them, its checksums compared."""


@pytest.mark.parametrize("name", READ_BACK)
def test_a_library_reads_what_the_content_says(tmp_path: Path, name: str) -> None:
    for file in files_of(FORMATS[name]):
        path = tmp_path / f"a.{FORMATS[name].suffix or name}"
        write_file(path, FORMATS[name], file)
        wanted = [FORMATS[name].stored(content(sample, size), size) for sample, size in file]
        assert READ_BACK[name](path, len(wanted)) == wanted, file


@pytest.mark.parametrize("name", NAMES)
def test_each_format_keeps_the_contract(tmp_path: Path, name: str) -> None:
    assert list(faults(FORMATS[name], tmp_path)) == []


@pytest.mark.parametrize(
    ("chunks", "compression"),
    [
        (None, "none"),
        ((), "none"),
        ((), "gzip"),
        ((1, 3, 7, 2), "gzip"),
        ((2, 999, 999, 2), "none"),
    ],
)
@pytest.mark.parametrize("num_parts", [1, 2, 30])
def test_hdf5_in_parts_is_what_h5py_reads(
    tmp_path: Path, num_parts: int, chunks: tuple[int, ...] | None, compression: str
) -> None:
    """As DLIO writes it: so many datasets, their first axis the samples', and a known size."""
    format = ChunkedHdf5((60, 20, 2), 4, num_parts, chunks, compression)
    for count in (1, 3):
        path, file = tmp_path / "a.hdf5", file_samples([9600] * count, dtype="f4", dims=(60, 20, 2))
        num_bytes, _ = write_file(path, format, file)
        assert [num_bytes] == format.file_bytes(file.sizes[None]).tolist() == [path.stat().st_size]
        with h5py.File(path) as found:
            parts = [found[f"records_{number}"] for number in range(num_parts)]
            rows = [b"".join(part[row].tobytes() for part in parts) for row in range(count)]
            assert rows == [content(sample, 9600) for sample in range(count)]
            assert parts[0].shape == (count, 60 // num_parts, 20, 2)
            assert parts[0].compression == (None if compression == "none" else "gzip")
            assert bool(parts[0].chunks) == (chunks is not None)
            assert num_parts > 1 or found["records"] == parts[0], "DLIO's older name"
        parsed = format.parse(CountedFile(str(path)), count)
        assert [bytes(parsed.sample(row)) for row in range(count)] == rows
        assert locate(format, path, count).lengths.tolist() == [9600] * count
        with pytest.raises(DatasetError, match="it was cut"):
            format.check_head(path.read_bytes()[:PAGE_BYTES], 5000)


def test_the_bounds_of_hdf5_in_parts_hold_where_headers_are_most_of_a_file(tmp_path: Path) -> None:
    for dims, num_parts, chunks in (((2000,), 1000, (1, 1)), ((3000, 2), 1, (1, 1, 1))):
        format = ChunkedHdf5(dims, 1, num_parts, chunks, "gzip")
        file = file_samples([math.prod(dims)] * 2, dims=dims)
        num_bytes, _ = write_file(tmp_path / "a.hdf5", format, file)
        used = len((tmp_path / "a.hdf5").read_bytes().rstrip(b"\0"))
        assert num_bytes / 8 < used < num_bytes


def test_a_job_reads_hdf5_in_parts_by_the_library(tmp_path: Path) -> None:
    """No key is needed for it; the time is that of decoding, the bytes are the file's."""
    parts = {"record_dims": (40, 30), "num_dset_per_record": 4, "compression": "gzip"}
    keys = {"reader.data_loader": "threads", "reader.hand_over": "batch"}
    case = Case(generated(tmp_path, keys, num_samples_per_file=6, format="hdf5", **parts))
    with closing(case.open()) as loader:
        batches = [batch for [batch] in check_epoch(case, loader, 0)]
    assert sum(batch.num_bytes for batch in batches) >= 36 * case.layout.mean_bytes
    assert sum(batch.decode_seconds for batch in batches) > 0


def test_bare_samples_have_no_head_and_must_be_of_one_size(tmp_path: Path) -> None:
    path = tmp_path / "a.raw"
    path.write_bytes(b"")
    refused("raw", path, 1, "0 bytes are not 1 samples")
    write_file(path, FORMATS["raw"], file_samples([64] * 6))
    for count in (5, 7):
        refused("raw", path, count, "samples of one size")
    # It cannot be seen whether one was cut. Loaders compare the size that the plan knows.
    FORMATS["raw"].check_head(bytes(PAGE_BYTES), 1)


def records_of(data: bytes) -> list[bytes]:
    """Return a TFRecord file's records, read by the description in facts and nothing of dlemu's."""
    records, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        record = data[at + 12 : at + 12 + length]
        for checked, crc_at in ((data[at : at + 8], at + 8), (record, at + 12 + length)):
            crc = google_crc32c.value(checked)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
            assert struct.unpack_from("<I", data, crc_at) == (masked,)
        records.append(record)
        at += 16 + length
    return records


def test_the_crc_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    """Also where the head, which has a checksum of what follows, is made last."""
    for name in NAMES:
        for sizes in ([1], [3_000_000], [300_000] * 4, [70_000] * 20):
            path = tmp_path / f"a.{name}"
            _, crc = write_file(path, FORMATS[name], file_samples(sizes))
            assert crc == google_crc32c.value(path.read_bytes()), (name, sizes)


def test_an_index_has_a_line_for_each_record(tmp_path: Path) -> None:
    sizes = np.array([10, 127, 128, 5000, 99_999, 3, 200_000])
    path = tmp_path / "a.tfrecord"
    write_file(path, ours.FORMAT, file_samples(sizes.tolist()))

    [index] = ours.FORMAT.indexes(sizes)
    lines = [tuple(map(int, line.split())) for line in index.decode().splitlines()]

    data = path.read_bytes()
    assert [data[at + 12 : at + length - 4] for at, length in lines] == records_of(data)
    assert ours.read_index(index, file_bytes=len(data), num_samples=7) == lines
    assert sum(length for _, length in lines) == len(data)


class NoSeek(io.BytesIO):
    """A pipe."""

    def tell(self) -> int:
        raise OSError


# --- files of others: NumPy, zipfile, h5py and tfrecord ------------------------------------------


def test_an_npz_of_numpy(tmp_path: Path) -> None:
    path, x = tmp_path / "a.npz", np.frombuffer(content(1, 60), np.uint8).reshape(5, 4, 3)
    np.savez(path, x=x, y=np.zeros(3, np.int64))
    places = locate(FORMATS["npz"], path, 3)
    assert places.offsets.tolist() == [183] * 3, "where np.savez puts it"
    assert (places.lengths.tolist(), places.interleaved) == ([20] * 3, 3)
    FORMATS["npz"].check_head(path.read_bytes()[:PAGE_BYTES], path.stat().st_size)


@pytest.mark.parametrize("order", ["y first", "streamed", "comment", "large header"])
def test_an_npz_that_only_the_directory_tells(tmp_path: Path, order: str) -> None:
    path, array = tmp_path / "a.npz", np.frombuffer(content(1, 600), np.uint8)
    if order == "y first":
        np.savez(path, y=np.zeros(1), x=array)
    elif order == "streamed":  # sizes behind the data, as a writer to a pipe must
        pipe = NoSeek()
        with zipfile.ZipFile(pipe, "w") as archive, archive.open("x.npy", "w") as member:
            np.save(member, array)
        path.write_bytes(pipe.getvalue())
    elif order == "comment":
        np.savez(path, y=np.zeros(1), x=array)
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = b"c" * 60_000
    else:
        header = b"\x93NUMPY\1\0" + (9000).to_bytes(2, "little")
        text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (600,), }"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", header + text.ljust(9000) + array.tobytes())

    assert taken(path.read_bytes(), locate(FORMATS["npz"], path, 1)) == [array.tobytes()]


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.asfortranarray(np.zeros((4, 5), np.uint8)), "fortran_order"),
        (np.zeros(4, ">f8"), "byte order"),
        (np.array([{}, []], dtype=object), "numbers"),
        (np.zeros(3, [("a", "u1")]), "numbers"),
    ],
)
@pytest.mark.parametrize("name", ["npy", "npz"])
def test_arrays_that_cannot_be_read_in_place(
    tmp_path: Path, name: str, array: NDArray[np.generic], problem: str
) -> None:
    path = tmp_path / f"a.{name}"
    if name == "npy":
        np.save(path, array)
    else:
        np.savez(path, x=array)
    refused(name, path, 1, problem)


@pytest.mark.parametrize("shape", [(60,), (20, 3)])
def test_an_npy_with_bytes_behind_its_array(tmp_path: Path, shape: tuple[int]) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(shape, np.uint8))
    with path.open("ab") as file:
        file.write(b"more")
    refused("npy", path, shape[-1], "is 60 bytes, but 64 are there")


@pytest.mark.parametrize("sides", ["-60, -1", "60.0,", f"{2**63},"])
def test_an_npy_with_sides_that_none_can_have(tmp_path: Path, sides: str) -> None:
    path = tmp_path / "a.npy"
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({sides}), }}".ljust(118).encode()
    path.write_bytes(b"\x93NUMPY\1\0" + (118).to_bytes(2, "little") + text + bytes(60))
    refused("npy", path, 1, "damaged: it has no shape")


def test_an_npz_compressed_encrypted_or_without_x(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros(100))
    refused("npz", path, 1, r"compressed.*np\.savez")
    np.savez(path, small=np.zeros(3), z=np.zeros(100))
    (place,) = locate(FORMATS["npz"], path, 1).lengths
    assert place == 800, "the largest, where none is x"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no array")
    refused("npz", path, 1, "under the name x")
    np.savez(path, x=np.zeros(100))
    data = bytearray(path.read_bytes())
    data[6] |= 1
    path.write_bytes(data)
    refused("npz", path, 1, "encrypted")


def test_an_hdf5_of_h5py(tmp_path: Path) -> None:
    path, array = tmp_path / "a.hdf5", np.frombuffer(content(1, 60), np.uint8).reshape(3, 5, 4)
    with h5py.File(path, "w", libver="latest", userblock_size=512) as file:
        file["records_0"], file["labels"] = array, np.zeros(3, np.int64)
    found = taken(path.read_bytes(), locate(FORMATS["hdf5"], path, 3))
    assert found == [row.tobytes() for row in array]


@pytest.mark.parametrize("options", [{"chunks": (1, 5)}, {"compression": "gzip"}, {"dtype": ">i4"}])
def test_an_hdf5_that_cannot_be_read_in_place(tmp_path: Path, options: dict[str, object]) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("records_0", data=np.zeros((3, 5)), **options)
    refused("hdf5", path, 3, r"enable_chunking=true|native")
    with h5py.File(path, "w") as file:
        file["other"] = "text"
    refused("hdf5", path, 3, r"records_0, but .*other")


def test_a_csv_of_pandas(tmp_path: Path) -> None:
    """Numbers have as many digits as they need, so lines differ."""
    path, rows = tmp_path / "a.csv", [content(sample, 50) for sample in range(3)]
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    places, parsed = locate(FORMATS["csv"], path, 3), CountedFile(str(path))
    lines = [data.decode() for data in taken(path.read_bytes(), places)]
    assert [bytes(map(int, line.split(","))) for line in lines] == rows
    assert [bytes(FORMATS["csv"].parse(parsed, 3).sample(2))] == rows[2:]
    assert abs(path.stat().st_size - 150 * TEXT_BYTES) < 30
    path.write_text("1,2.5\n")
    assert bytes(FORMATS["csv"].parse(CountedFile(str(path)), 1).sample(0)) == b"1,2.5"
    path.write_bytes(b"1,\0\n")
    with pytest.raises(DatasetError, match="is damaged"):
        FORMATS["csv"].parse(CountedFile(str(path)), 1).sample(0)
    for text, count in (("1\n2", 1), ("1\n2\n", 3), ("", 1)):
        path.write_text(text)
        refused("csv", path, count, f"asks for {count}, or it was cut")


def test_a_tfrecord_of_any_order(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    extra: dict[str, object] = {"size": (5000, "int"), "a": (b"x" * 9000, "byte")}
    extra["z"] = ([0.5] * 9, "float")
    images = [content(sample, 5000 + sample) for sample in range(4)]
    each: list[dict[str, object]] = [{"image": (image, "byte")} for image in images]
    write_tfrecord(path, (one | extra if n % 2 else extra | one for n, one in enumerate(each)))
    assert taken(path.read_bytes(), locate(FORMATS["tfrecord"], path, 4)) == images
    write_tfrecord(path, [{"label": (1, "int")}])
    refused("tfrecord", path, 1, r"0 at byte 0: it has no feature image, .*label")


def test_a_webdataset_of_the_library(tmp_path: Path) -> None:
    """Of several members the largest is the payload, wherever it stands."""
    from webdataset import TarWriter

    path = tmp_path / "a.tar"
    images = [content(sample, 5000 + sample) for sample in range(4)]
    with TarWriter(str(path)) as writer:
        for sample, image in enumerate(images):
            key = f"folder/{sample}"
            writer.write({"__key__": key, "cls": 7, "jpg": image, "json": {"of": sample}})
    assert taken(path.read_bytes(), locate(FORMATS["webdataset"], path, 4)) == images
    with closing(FORMATS["webdataset"].parse(CountedFile(str(path)), 4)) as parsed:
        assert [bytes(parsed.sample(sample)) for sample in range(4)] == images


def test_a_tfrecord_that_lacks_its_last_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    num_bytes, _ = write_file(path, FORMATS["tfrecord"], file_samples([5000] * 3))
    os.truncate(path, num_bytes - 1)
    refused("tfrecord", path, 3, r"record 2 at byte \d+: the record has .*it was cut")


INDEX = b"0 116\n116 200\n316 66\n"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (INDEX[:-7], "it has 2 lines, dataset.num_samples_per_file asks for 3"),
        (INDEX.replace(b"66", b"67"), "67 bytes at 316 are no record of a file of 382 bytes"),
        (INDEX.replace(b"316", b"315"), "whose last one ended at 316"),
        (INDEX.replace(b"66", b"15"), "15 bytes at 316 are no record"),
        (INDEX.replace(b"66", b"-66"), "a line must be `offset framed_length`"),
        (INDEX.replace(b"66", b"9" * 5000), "a line must be `offset framed_length`"),
    ],
)
def test_an_index_that_does_not_fit_its_file_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(DatasetError, match=re.escape(words)):
        ours.read_index(data, file_bytes=382, num_samples=3)


def test_a_library_takes_no_memory_for_a_number_in_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("records_0", (1 << 34,), np.uint8, chunks=(4096,))
    with pytest.raises(DatasetError, match="records_0 has 17179869184 bytes by its header"):
        FORMATS["hdf5"].parse(CountedFile(str(path)), 1)


# --- bare samples and their indexes: DLIO's indexed_binary ----------------------------------------


def u64(*values: int) -> bytes:
    return np.array(values, "<u8").tobytes()


def test_indexes_may_leave_gaps_and_offsets_that_begin_anew_are_those_of_the_sizes() -> None:
    """DLIO 3.0 counts from zero for each buffer of generation_buffer_size that it wrote."""
    places = raw.locate_by([u64(0, 100), u64(10, 20)], 200, num_samples=2)
    assert places.offsets.tolist() == [0, 100]
    places = raw.locate_by([u64(0, 10, 0, 10), u64(10, 10, 10, 10)], 40, num_samples=4)
    assert places.offsets.tolist() == [0, 10, 20, 30]


@pytest.mark.parametrize(
    ("offsets", "sizes", "problem"),
    [
        (u64(0, 10), u64(10), "its index has 1 sizes, dataset.num_samples_per_file asks for 2"),
        (u64(0, 10)[:-3], u64(10, 10), "its index has 1.625 offsets"),
        (u64(0, 11), u64(10, 10), "points past its end: sample 1 has 10 bytes at 11, the file"),
        (u64(0, 2**64 - 1), u64(10, 10), "points past its end: sample 1"),
        (u64(0, 10), u64(10, 0), "sample 1 has 0 bytes"),
    ],
)
def test_a_wrong_index_is_refused(offsets: bytes, sizes: bytes, problem: str) -> None:
    with pytest.raises(DatasetError, match=problem):
        raw.locate_by([offsets, sizes], 20, num_samples=2)
