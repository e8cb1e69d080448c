"""What reading objects costs, beside a plain loop of obstore: python -m benchmarks.objects.

A server of ranges, which is no S3 server (tests/lab/object_server.py), gives the same objects to
all in turn, A B A B, each in a process of its own with as many requests in flight. So a rate says
what this host's client side can do, and nothing about any storage. The plain loop asks for the
same ranges in threads and drops the bytes: that is the limit, and the base. The server's own count
of requests must be the same for all, without LIST and HEAD.

    python -m benchmarks.objects [folder=build/objects] [rounds=5] [json=FILE]
"""

import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks.harness import HEADER, Asked, Rate, apart, compare, cpu_of_self, timed
from dlemu.config.model import Workload, load_workload
from dlemu.datagen import generate
from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import make_plan
from dlemu.loaders import open_loader
from dlemu.ranks.world import Alone
from dlemu.storage.s3.objects import RANGE_BYTES, WHOLE_BYTES
from dlemu.storage.s3.store import store_of
from tests.lab.object_server import RangeServer

SHAPES: dict[str, tuple[str, dict[str, object]]] = {
    "unet3d npz, 8 MiB ranges": (
        "unet3d_h100",
        {"dataset.num_files_train": 7, "reader.batch_size": 1},
    ),
    "resnet50 tfrecord, 8 MiB ranges": (
        "resnet50_h100",
        {"dataset.num_files_train": 8, "reader.batch_size": 417},  # four whole files of each worker
    ),
    "cosmoflow tfrecord, whole": ("cosmoflow_h100", {"dataset.num_files_train": 320}),
    "jpeg of 115 kB, whole": (
        "resnet50_h100",
        {
            "dataset.num_files_train": 4000,
            "dataset.num_samples_per_file": 1,
            "dataset.format": "jpeg",
            "reader.batch_size": 100,
        },
    ),
}
WORKERS, IN_FLIGHT = 2, 4
"""Of one accelerator, and of each worker."""
WAYS = ("plain loop", "dlemu, dropped", "dlemu, handed over")


def job(shape: str, place: str, url: str = "") -> Workload:
    """Return the workload that reads a dataset."""
    base, keys = SHAPES[shape]
    more: dict[str, object] = {"reader.data_loader": "threads", "reader.read_threads": WORKERS}
    more |= {"reader.gets_in_flight": IN_FLIGHT, "dataset.data_folder": place}
    return load_workload(base, keys | more | ({"storage.endpoint_url": url} if url else {}))


def plain(workload: Workload, files: Path) -> Rate:
    """Get all objects with obstore alone, in the ranges that dlemu takes, and drop them."""
    access = workload.access
    assert access is not None
    layout = Dataset.of(workload).layout
    requests: list[tuple[str, dict[str, object]]] = []
    for number in range(layout.num_files):
        path = layout.path(number)
        key, size = f"{files.name}/{path}", (files / path).stat().st_size
        starts = range(0, size, RANGE_BYTES) if size > WHOLE_BYTES else ()
        pieces = [{"range": (start, min(start + RANGE_BYTES, size))} for start in starts]
        requests += [(key, {"options": piece}) for piece in pieces] or [(key, {})]
    store = store_of(access, 0, "bucket")
    library, client = store._library, store._store
    left, sizes = iter(requests), []

    def work() -> None:
        for key, options in left:  # one step of an iterator is atomic under the GIL
            sizes.append(len(library.get(client, key, **options).bytes()))

    def read() -> float:
        threads = [threading.Thread(target=work) for _ in range(WORKERS * IN_FLIGHT)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(sizes)

    return timed(read, cpu_of_self)


def ours(workload: Workload, *, keep: int) -> Rate:
    """Read an epoch with the loader."""
    dataset = Dataset(workload, Dataset.of(workload).layout, access=workload.access)
    plan = make_plan(workload, dataset.layout, num_accelerators=1, epoch=0)
    with closing(open_loader(dataset, accelerators=range(1), keep=keep)) as loader:
        steps = loader.epoch(0, plan)
        return timed(lambda: sum(each.num_bytes for step in steps for each in step), cpu_of_self)


def read_here(way: str, shape: str, url: str, files: str) -> Rate:
    """Read in this process."""
    workload = job(shape, f"s3://bucket/{Path(files).name}", url)
    return plain(workload, Path(files)) if way == WAYS[0] else ours(workload, keep=way == WAYS[2])


def rows_of(shape: str, server: RangeServer, files: Path, rounds: int) -> list[list[str]]:
    """Return the rows of a dataset: each reader in turn, round after round."""
    counts = []

    def read(way: str) -> Rate:
        server.seen.clear()
        rate = Rate(*apart(read_here, way, shape, server.url, str(files)))
        counts.append(dict(server.seen.methods))
        assert counts[-1] == counts[0] == {"GET": counts[0].get("GET")}, (shape, way, counts)
        return rate

    read(WAYS[0])
    title = f"{shape}, {counts[0]['GET']:,} GETs"
    return [*compare(title, {way: partial(read, way) for way in WAYS}, rounds)]


def main(words: list[str]) -> None:
    """Read all shapes, and print the table."""
    asked = Asked(words, "folder", "rounds")
    folder, rows = Path(asked.value("folder", "build/objects")), []
    with RangeServer(folder) as server:
        for number, shape in enumerate(SHAPES):
            files = folder / str(number)
            generate(job(shape, str(files)), world=Alone())
            rows += rows_of(shape, server, files, asked.value("rounds", 5))
    asked.show(HEADER, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
