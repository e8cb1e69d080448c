"""What reading objects costs, beside a plain loop of obstore: python -m benchmarks.objects.

A server of ranges, which is no S3 server (tests/lab/object_server.py), gives the same objects to
both in turn, A B A B, each in a process of its own with as many requests in flight. So a rate says
what this host's client side can do, and nothing about any storage. The plain loop asks for the
plan's ranges in threads and drops the bytes: that is the limit. A ratio is of one round. The
server's own count of requests must be the plan's to the unit, without LIST and HEAD.

    python -m benchmarks.objects [folder=build/objects] [rounds=5]
"""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import (
    Asked,
    Rate,
    cpu_of_self,
    describe_machine,
    markdown,
    output_of,
    spread,
)
from dlemu.config.model import Workload, load_workload
from dlemu.datagen import generate
from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import make_plan
from dlemu.formats import format_of
from dlemu.loaders import open_loader
from dlemu.ranks.world import Alone
from dlemu.storage.s3.location import ObjectPath
from dlemu.storage.s3.objects import RANGE_BYTES, WHOLE_BYTES
from dlemu.storage.s3.store import store_of

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


class Server:
    """A process that serves a folder as a bucket."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.lab.object_server", str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.url = self._read()

    def seen(self) -> tuple[dict[str, int], int]:
        """Return the requests since the last call by method, and how many asked for a range."""
        self._write("seen")
        methods, _, ranges = self._read().rpartition(" ")
        return dict(eval(methods, {"__builtins__": {}})), int(ranges)

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()


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
    left, total = iter(requests), [0]

    def work() -> None:
        done = 0
        for path, start, stop in left:  # one step of an iterator is atomic under the GIL
            options = {} if stop is None else {"options": {"range": (start, stop)}}
            done += len(library.get(client, path.key, **options).bytes())
        total[0] += done

    threads = [threading.Thread(target=work) for _ in range(WORKERS * IN_FLIGHT)]
    begin, before = time.perf_counter(), cpu_of_self()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Rate(total[0], time.perf_counter() - begin, cpu_of_self() - before)


def ours(workload: Workload, *, keep: int) -> Rate:
    """Read an epoch with the loader."""
    dataset = Dataset(workload, Dataset.of(workload).layout, access=workload.access)
    loader = open_loader(dataset, accelerators=range(1), keep=keep)
    plan = make_plan(workload, dataset.layout, num_accelerators=1, epoch=0)
    begin, before = time.perf_counter(), cpu_of_self()
    num_bytes = sum(batch.num_bytes for step in loader.epoch(0, plan) for batch in step)
    rate = Rate(num_bytes, time.perf_counter() - begin, cpu_of_self() - before)
    assert loader.gets().received_bytes == num_bytes
    loader.close()
    return rate


def apart(way: str, shape: str, url: str) -> Rate:
    """Read in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.objects", "--here", way, shape, url]
    return Rate(*map(float, output_of(command).split()))


def here(way: str, shape: str, url: str) -> None:
    """Read in this process, and print the rate."""
    workload = job(shape, f"s3://bucket/{name_of(shape)}", url)
    rate = plain(workload) if way == WAYS[0] else ours(workload, keep=int(way == WAYS[2]))
    print(rate.num_bytes, rate.seconds, rate.cpu_seconds)


def beside(server: Server, rounds: int) -> Iterator[list[str]]:
    """Yield the rows of the first table."""
    for shape in SHAPES:
        workload = job(shape, f"s3://bucket/{name_of(shape)}", server.url)
        requests = len(planned(workload, Dataset.of(workload)))
        apart(WAYS[0], shape, server.url)
        server.seen()
        found: dict[str, list[Rate]] = {way: [] for way in WAYS}
        told = set()
        for _ in range(rounds):
            for way in WAYS:
                found[way].append(apart(way, shape, server.url))
                methods, _ = server.seen()
                told.add(str(methods))
        assert told == {str({"GET": requests})}, (shape, told, requests)
        limit = found[WAYS[0]]
        for way in WAYS:
            pairs = list(zip(found[way], limit, strict=True))
            yield [
                shape,
                way,
                f"{requests:,}",
                spread([rate.speed for rate in found[way]]),
                spread([rate.cost for rate in found[way]]),
                spread([mine.cost / other.cost for mine, other in pairs]),
                spread([mine.speed / other.speed for mine, other in pairs]),
            ]


def main(words: list[str]) -> None:
    asked = Asked(words, "folder", "rounds")
    folder, rounds = Path(asked.value("folder", "build/objects")), asked.value("rounds", 5)
    print(describe_machine())
    for shape in SHAPES:
        generate(job(shape, str(folder / name_of(shape))), world=Alone())
    server = Server(folder)
    try:
        head = ["objects", "reader", "GETs", "GB/s", "CPU-s/GB", "CPU / plain", "rate / plain"]
        print("\nFrom a range server on this host, which is no S3 server:\n")
        print(markdown(head, beside(server, rounds)))
        print("\nThe server saw the plan's requests to the unit, no LIST and no HEAD.")
    finally:
        server.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        here(*sys.argv[2:])
    else:
        main(sys.argv[1:])
