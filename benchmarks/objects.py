"""What reading objects costs, beside a plain loop of obstore: python -m benchmarks.objects.

A server of ranges, which is no S3 server (tests/lab/object_server.py), gives the same objects to
both in turn, A B A B, each in a process of its own with as many requests in flight. So a rate says
what this host's client side can do, and nothing about any storage. The plain loop asks for the
plan's ranges in threads and drops the bytes: that is the limit. A ratio is of one round. The
server's own count of requests must be the plan's to the unit, without LIST and HEAD.

    python -m benchmarks.objects [folder=build/objects] [rounds=5]
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks.harness import (
    Asked,
    Rate,
    apart,
    beside,
    cpu_of_self,
    describe_machine,
    in_turn,
    markdown,
    timed,
)
from dlemu.config.model import Workload, load_workload
from dlemu.datagen import generate
from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import make_plan
from dlemu.formats import format_of
from dlemu.loaders import open_loader
from dlemu.ranks.world import Alone
from dlemu.storage.s3 import ObjectPath
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


def name_of(shape: str) -> str:
    """Return the folder of a shape's files."""
    return shape.partition(",")[0].replace(" ", "_")


def planned(workload: Workload, dataset: Dataset) -> list[tuple[ObjectPath, int, int | None]]:
    """Return key, start and stop of the requests of an epoch; stop is None for whole objects."""
    layout, form = dataset.layout, format_of(dataset.layout)
    plan = make_plan(workload, layout, num_accelerators=1, epoch=0)
    files: dict[int, int] = {}
    for step in range(plan.num_steps):
        for sample in plan.fetch(step, 0).tolist():
            file, place = divmod(sample, layout.samples_per_file)
            files[file] = max(files.get(file, 0), place + 1)
    requests: list[tuple[ObjectPath, int, int | None]] = []
    for file, most in files.items():
        path, sizes = dataset.folder / layout.path(file), layout.sizes(layout.samples_of(file))
        assert isinstance(path, ObjectPath)
        places = form.places(sizes, element_bytes=layout.element_bytes)
        num_bytes = int(form.file_bytes(sizes[None])[0])
        if num_bytes <= WHOLE_BYTES:
            requests.append((path, 0, None))
            continue
        one = layout.samples_per_file == 1
        end = int(places.offsets[most - 1] + places.lengths[most - 1])
        if not one and most == layout.samples_per_file:
            end = num_bytes
        for start in range(0, end, RANGE_BYTES):
            stop = min(start + RANGE_BYTES, end if one else num_bytes)
            requests.append((path, start, stop))
    return requests


def plain(workload: Workload) -> Rate:
    """Read an epoch's ranges with obstore alone, and drop them."""
    access = workload.access
    assert access is not None
    dataset = Dataset.of(workload)
    requests = planned(workload, dataset)
    store = store_of(access, 0, requests[0][0].bucket)
    library, client = store._library, store._store
    left, sizes = iter(requests), []

    def work() -> None:
        for path, start, stop in left:  # one step of an iterator is atomic under the GIL
            options = {} if stop is None else {"options": {"range": (start, stop)}}
            sizes.append(len(library.get(client, path.key, **options).bytes()))

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
        rate = timed(lambda: sum(each.num_bytes for step in steps for each in step), cpu_of_self)
        assert loader.gets().received_bytes == rate.num_bytes
    return rate


def read_here(way: str, shape: str, url: str) -> Rate:
    """Read in this process."""
    workload = job(shape, f"s3://bucket/{name_of(shape)}", url)
    return plain(workload) if way == WAYS[0] else ours(workload, keep=int(way == WAYS[2]))


def rows_of(shape: str, server: RangeServer, rounds: int) -> Iterator[list[str]]:
    """Yield the rows of a dataset: each reader in turn, round after round."""
    workload = job(shape, f"s3://bucket/{name_of(shape)}", server.url)
    requests = len(planned(workload, Dataset.of(workload)))

    def read(way: str) -> Rate:
        server.seen.clear()
        rate = Rate(*apart(read_here, way, shape, server.url))
        assert server.seen.methods == {"GET": requests}, (shape, way, server.seen, requests)
        return rate

    read(WAYS[0])
    found = in_turn({way: partial(read, way) for way in WAYS}, rounds)
    for way, own in found.items():
        yield [shape, way, f"{requests:,}", *beside(own, found[WAYS[0]])]


def main(words: list[str]) -> None:
    asked = Asked(words, "folder", "rounds")
    folder, rounds = Path(asked.value("folder", "build/objects")), asked.value("rounds", 5)
    print(describe_machine())
    for shape in SHAPES:
        generate(job(shape, str(folder / name_of(shape))), world=Alone())
    with RangeServer(folder) as server:
        rows = [row for shape in SHAPES for row in rows_of(shape, server, rounds)]
    print("\nFrom a range server on this host, which is no S3 server:\n")
    head = ["objects", "reader", "GETs", "CPU-s/GB", "× plain", "GB/s", "× plain"]
    print(markdown(head, rows))
    print("\nThe server saw the plan's requests to the unit, no LIST and no HEAD.")


if __name__ == "__main__":
    main(sys.argv[1:])
