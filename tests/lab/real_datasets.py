"""Datasets as they lie on disks of others, made small: names, ends, indexes and uneven shards.

`python -m tests.lab.real_datasets FOLDER` makes them all, each in a folder of its name.
"""

import io
import json
import struct
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from tests.lab.dataset import write_tfrecord

Keys = dict[str, object]
"""Keys of the section `dataset` with which a layout is read."""
_RANDOM = np.random.default_rng(60)


def _image(num_bytes: int = 3000) -> bytes:
    """Return bytes that stand for an image: sizes differ, as those of photographs."""
    return _RANDOM.bytes(int(num_bytes * _RANDOM.uniform(0.85, 1.15)))


def imagenet(folder: Path) -> Keys:
    """Classes are folders; names end in `.JPEG`, and numbers have gaps."""
    for synset in ("n01440764", "n01443537", "n02102040"):
        below = folder / "train" / synset
        below.mkdir(parents=True)
        for number in (26, 10026, 10027, 9, 1009, 777):
            (below / f"{synset}_{number}.JPEG").write_bytes(_image())
    (folder / "val").mkdir()
    (folder / "val" / "ILSVRC2012_val_00000001.JPEG").write_bytes(_image())
    return {"format": "jpeg", "num_files_train": 18}


def cats_and_dogs(folder: Path) -> Keys:
    """Two classes count from 0, each in a folder of its own."""
    for kind in ("cat", "dog"):
        below = folder / "train" / kind
        below.mkdir(parents=True)
        for number in range(8):
            (below / f"{kind}.{number}.jpg").write_bytes(_image())
    return {"format": "jpeg", "num_files_train": 16}


def coco(folder: Path) -> Keys:
    """No `train/`, but `train2017/`; some names are hashes, and end in any character."""
    for tree, names in {
        "train2017": [f"{number * 7919:012}.jpg" for number in range(9)]
        + [f"{number * 2654435761 % 2**32:08x}.jpg" for number in range(9)],
        "val2017": ["000000000139.jpg", "000000000285.jpg"],
    }.items():
        (folder / tree).mkdir(parents=True)
        for name in names:
            (folder / tree / name).write_bytes(_image())
    (folder / "annotations").mkdir()
    (folder / "annotations" / "instances_train2017.json").write_text("{}")
    return {"format": "jpeg", "num_files_train": 18}


def kits19(folder: Path) -> Keys:
    """Preprocessed volumes of MLPerf's U-Net3D: an image and its labels are two files."""
    (folder / "train").mkdir(parents=True)
    for case in range(10):
        side = int(_RANDOM.integers(10, 13))
        np.save(folder / "train" / f"case_{case:05}_x.npy", np.zeros((1, side, 12, 12), np.float32))
        np.save(folder / "train" / f"case_{case:05}_y.npy", np.zeros((1, side, 12, 12), np.uint8))
    return {"format": "npy", "num_files_train": 10, "record_length_bytes": 6300}


def imagenet_tfrecords(folder: Path) -> Keys:
    """Shards without an end; the last one is shorter. A README lies beside them."""
    (folder / "train").mkdir(parents=True)
    for shard, samples in enumerate((7, 7, 7, 3)):
        records = ({"image": (_image(), "byte"), "label": (1, "int")} for _ in range(samples))
        write_tfrecord(folder / "train" / f"train-{shard:05}-of-00004", records)
    (folder / "train" / "README").write_text("shards of ImageNet")
    return {"format": "tfrecord", "num_files_train": 4}


def laion(folder: Path) -> Keys:
    """Shards as img2dataset writes them: image, caption and description; three kinds of index."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard, samples in enumerate((8, 8, 5)):
        with tarfile.open(folder / f"{shard:05}.tar", "w") as tar:
            for number in range(samples):
                key = f"{shard:05}{number:04}"
                members = {"jpg": _image(), "txt": b"a photograph of it", "json": b"{}"}
                for end, data in members.items():
                    member = tarfile.TarInfo(f"{key}.{end}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        if shard == 0:
            stats = {"count": 10, "successes": samples, "failed_to_download": 2}
            (folder / f"{shard:05}_stats.json").write_text(json.dumps(stats))
        if shard == 1:
            (folder / f"{shard:05}.idx").write_text(f"v1.2 {samples}\n")
    return {"format": "webdataset", "num_files_train": 3}


def huggingface(folder: Path) -> Keys:
    """A cache of Hugging Face's hub: links to blobs, compressed columns, images as structs."""
    blobs, data = folder / "blobs", folder / "snapshots" / "0a1b2c" / "data"
    blobs.mkdir(parents=True)
    data.mkdir(parents=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for number, (split, rows) in enumerate([("train", 9), ("train", 9), ("train", 4), ("test", 5)]):
        images = [{"bytes": _image(), "path": f"{row}.jpg"} for row in range(rows)]
        table = pa.table({"image": pa.array(images, kind), "label": list(range(rows))})
        pq.write_table(table, blobs / f"{number:064x}", compression="snappy", row_group_size=5)
        name = f"{split}-{number if split == 'train' else 0:05}-of-00003.parquet"
        (data / name).symlink_to(f"../../../blobs/{number:064x}")
    return {"format": "parquet", "num_files_train": 3, "data_folder": str(data.parent)}


def mosaicml(folder: Path) -> Keys:
    """Raw MDS shards of two columns, as MosaicML's Streaming writes them, and their index."""
    below, shards = folder / "train", []
    below.mkdir(parents=True)
    config = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": 1 << 26,
        "column_names": ["image", "label"],
        "column_encodings": ["jpeg", "int"],
        "column_sizes": [None, 8],
    }
    described = json.dumps(config, sort_keys=True).encode()
    for shard, samples in enumerate((6, 6, 4)):
        records = []
        for number in range(samples):
            image = _image()
            records.append(struct.pack("<I", len(image)) + image + struct.pack("<q", number))
        ends = np.cumsum([0, *map(len, records)]) + 4 * (samples + 2) + len(described)
        head = np.array([samples, *ends], "<u4").tobytes()
        data = head + described + b"".join(records)
        (below / f"shard.{shard:05}.mds").write_bytes(data)
        raw = {"basename": f"shard.{shard:05}.mds", "bytes": len(data), "hashes": {}}
        shards.append(config | {"samples": samples, "raw_data": raw, "zip_data": None})
    (below / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return {"format": "mds", "num_files_train": 3}


def fashion_mnist(folder: Path) -> Keys:
    """Images and their labels in one archive, under names of their own; the last part is short."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, samples in enumerate((12, 12, 5)):
        images = np.zeros((samples, 28, 28), np.uint8)
        np.savez(folder / f"part-{part}.npz", images=images, labels=np.arange(samples))
    return {"format": "npz", "num_files_train": 3, "record_length_bytes": 800}


def cifar(folder: Path) -> Keys:
    """Batches of colour images without labels: the first of four axes is longer than channels."""
    (folder / "train").mkdir(parents=True)
    for part, samples in enumerate((9, 9, 6)):
        images = np.zeros((samples, 16, 16, 3), np.float32)
        np.save(folder / "train" / f"batch_{part}.npy", images)
    return {"format": "npy", "num_files_train": 3, "record_length_bytes": 3072}


def histology(folder: Path) -> Keys:
    """Compressed patches in HDF5 as PCam has them, and labels of one number each beside them."""
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    for part, samples in enumerate((10, 7)):
        with h5py.File(folder / f"patches_{part}.h5", "w") as file:
            patches = np.zeros((samples, 32, 32, 3), np.uint8)
            file.create_dataset("x", data=patches, chunks=(1, 32, 32, 3), compression="gzip")
            file["meta/labels"] = np.zeros((samples, 1), np.uint8)
    return {"format": "hdf5", "num_files_train": 2, "record_length_bytes": 3072}


def galaxies(folder: Path) -> Keys:
    """Contiguous datasets in groups, as astronomers write them."""
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    for part in range(2):
        with h5py.File(folder / f"galaxies_{part}.hdf", "w") as file:
            file["survey/images"] = np.zeros((8, 20, 20), np.float32)
            file["survey/redshift"] = np.zeros(8, np.float32)
    return {"format": "hdf5", "num_files_train": 2, "record_length_bytes": 1600}


def clicks(folder: Path) -> Keys:
    """Tables of text with a header of names; a last line without its newline."""
    (folder / "train").mkdir(parents=True)
    for part, rows in enumerate((20, 20, 11)):
        lines = [f"{row},{row / 7:.3f},page-{row}" for row in range(rows)]
        text = "\n".join(["user,seconds,page", *lines])
        (folder / "train" / f"day={part}.csv").write_text(text + "\n" * (part < 2))
    return {"format": "csv", "num_files_train": 3, "record_length_bytes": 4}


LAYOUTS: dict[str, Callable[[Path], Keys]] = {
    each.__name__: each
    for each in (
        imagenet,
        cats_and_dogs,
        coco,
        kits19,
        imagenet_tfrecords,
        laion,
        huggingface,
        mosaicml,
        fashion_mnist,
        cifar,
        histology,
        galaxies,
        clicks,
    )
}
"""Each makes a dataset in a new folder, and returns the keys that read it."""


def make(name: str, folder: Path) -> Keys:
    """Make a dataset; return its keys, with the size of its samples and the folder."""
    _RANDOM.bit_generator.state = np.random.default_rng(60).bit_generator.state  # each alike
    keys = LAYOUTS[name](folder)
    return {"data_folder": str(folder), "record_length_bytes": 3000} | keys


if __name__ == "__main__":
    for layout in LAYOUTS:
        print(layout, make(layout, Path(sys.argv[1]) / layout))
