"""Objects hold what files hold, and a server sees no other requests than the plan's."""

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from dlemu.errors import DatasetError, RunError
from dlemu.loaders import Batch
from dlemu.storage.counted import GetCounts
from dlemu.storage.extents import ReadFile
from dlemu.storage.objects import ObjectReader
from dlemu.storage.place import path_of
from dlemu.storage.s3 import Access
from dlemu.storage.s3.bucket import Bucket
from dlemu.storage.s3.store import Store, store_of
from dlemu.units import ceil_div
from tests.lab.object_server import RangeServer
from tests.lab.waiting import LONG, until
from tests.loaders.contract import DATASETS, Case, check_epoch, make_case, read_all


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="module")
def _started(folder: Path) -> Iterator[RangeServer]:
    with RangeServer(folder) as server:
        yield server


@pytest.fixture
def server(_started: RangeServer) -> RangeServer:
    _started.seen.clear()
    _started.faults.__init__()  # type: ignore[misc]
    return _started


def in_bucket(folder: Path, server: RangeServer, dataset: str, **keys: object) -> Case:
    """Return a case whose files are objects."""
    name = dataset.replace(" ", "_")
    case = make_case(folder / name, dataset, {"reader.data_loader": "threads"} | keys)
    place = {"dataset.data_folder": f"s3://bucket/{name}", "storage.endpoint_url": server.url}
    return Case(case.workload.with_keys(place), 2)


def read(case: Case) -> tuple[list[list[Batch]], GetCounts]:
    """Read an epoch, in which every byte must be right; return its steps and requests."""
    with closing(case.open()) as opened:
        steps = check_epoch(case, opened, 0)
        return steps, opened.gets()


RANGED = ["npz", "jpeg", "tfrecord of 13", "raw of 13", "hdf5 of 5"]
# The workers of pytorch are spawned: a store does not survive a fork. Each imports torch.
SPAWNED: dict[str, object] = {"reader.read_threads": 1, "reader.multiprocessing_context": "spawn"}


@pytest.mark.parametrize(
    ("dataset", "loader", "keys"),
    [(name, "threads", {}) for name in DATASETS if "parquet" not in name]
    + [(name, "tensorflow", {}) for name in ("npz", "tfrecord of 13")]
    + [(name, "threads", {"reader.range_bytes": 8192}) for name in RANGED]
    + [
        (name, "threads", {"reader.range_bytes": 8192, "reader.gets_in_flight": 3})
        for name in RANGED
    ]
    + [("npz", "pytorch", SPAWNED)],
)
def test_every_byte_is_that_of_the_generator(
    folder: Path, server: RangeServer, dataset: str, loader: str, keys: dict[str, object]
) -> None:
    """Each object is got whole and once, or in as many ranges as the plan says."""
    keys = {"reader.data_loader": loader, "reader.read_threads": 2} | keys
    case = in_bucket(folder, server, dataset, **keys)
    steps, counts = read(case)
    assert server.seen.methods == {"GET": counts.gets}
    assert counts.received_bytes >= counts.needed_bytes > 0
    assert counts.retries == 0
    if case.layout.samples_per_file > 1:
        return
    samples = np.concatenate([batch.samples for step in steps for batch in step])
    if "reader.range_bytes" in keys:
        sizes = case.layout.sizes(samples) + (4096 if dataset == "npz" else 0)
        assert counts.gets == sum(ceil_div(size, 8192) for size in sizes.tolist())
        assert counts.received_bytes == counts.needed_bytes
    else:
        assert counts.gets == len(samples)
        assert (set(server.seen.keys.values()), server.seen.ranges) == ({1}, 0)


def test_samples_at_random_and_columns_are_ranges_of_their_own(
    folder: Path, server: RangeServer
) -> None:
    case = in_bucket(folder, server, "raw of 13", **{"reader.access": "random"})
    steps, counts = read(case)
    assert server.seen.methods == {"GET": 6 * len(steps)}  # a sample each: 2 batches of 3
    assert counts.received_bytes == counts.needed_bytes
    server.seen.clear()
    case = in_bucket(folder, server, "parquet of 13")
    with closing(case.open(keep=0)) as opened:
        num_bytes = sum(batch.num_bytes for step in opened.epoch(0, case.plan(0)) for batch in step)
        counts = opened.gets()
    assert num_bytes == counts.received_bytes == counts.needed_bytes
    assert server.seen.methods == {"GET": server.seen.ranges} == {"GET": counts.gets}


def test_endpoints_are_dealt_to_the_workers(folder: Path, server: RangeServer) -> None:
    """By worker and not by rank: one rank emulates many accelerators."""
    case = in_bucket(folder, server, "npy", **{"reader.read_threads": 1})
    with RangeServer(folder) as second:
        urls = {"storage.endpoint_url": (server.url, second.url)}
        read_all(Case(case.workload.with_keys(urls), 2))
        assert server.seen.methods == second.seen.methods != {}


def test_refusals_and_lost_connections_are_tried_again(folder: Path, server: RangeServer) -> None:
    case = in_bucket(folder, server, "npz")
    server.faults.refuse, server.faults.cut = 5, 3
    _, counts = read(case)
    assert (counts.retries, counts.slow_downs) == (8, 5)
    assert server.seen.methods == {"GET": counts.gets + counts.retries}


def test_no_more_requests_are_in_flight_than_asked_for(folder: Path, server: RangeServer) -> None:
    case = in_bucket(folder, server, "npz", **{"reader.gets_in_flight": 3, "reader.batch_size": 6})
    server.faults.hang = threading.Event()
    opened = case.open()
    steps = opened.epoch(0, case.plan(0))
    thread = threading.Thread(target=lambda: next(steps), daemon=True)
    thread.start()
    until(lambda: sum(server.seen.methods.values()) >= 6, "accelerators x workers x reader's")
    assert server.seen.methods == {"GET": 2 * 1 * 3}
    until(lambda: "reads train/img_" in opened.waiting_for(), "a worker that reads")
    assert opened.waiting_for().endswith(f" from {server.url}")
    server.faults.hang.set()
    thread.join(LONG)
    opened.close()


@pytest.fixture
def store(server: RangeServer) -> Store:
    return store_of(Access((server.url,), "us-east-1", retries=1), 0, "bucket")


def test_an_object_of_another_size_is_named(folder: Path, server: RangeServer) -> None:
    access = Access((server.url,), "us-east-1", retries=1)
    get = Bucket(path_of("s3://bucket"), access).getter()
    (folder / "short").write_bytes(bytes(100))
    for in_flight in (1, 2):
        reader = ObjectReader(get, range_bytes=None, in_flight=in_flight, whole=True)
        for told in (90, 110):
            reader.begin([ReadFile("s3://bucket/short", told, told)])
            with pytest.raises(DatasetError, match=f"s3://bucket/short: it holds 100 .* {told} "):
                reader.read(reader.open("s3://bucket/short"), 0, [told])
        reader.close()


def test_no_proxy_of_the_environment_is_used(
    server: RangeServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "x").write_bytes(b"abc")
    nobody = "http://127.0.0.1:9"
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, nobody)
    for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
        near = Access((url,), "us-east-1", get_seconds=5, retries=0)
        assert store_of(near, 0, "bucket").get_whole("x") == b"abc"

    far = Access((server.url,), "us-east-1", get_seconds=5, retries=0, proxy=nobody)
    assert far.servers == (f"{server.url} by the proxy {nobody}",)
    with pytest.raises(RunError, match=r"by the proxy http://127.0.0.1:9 does not answer"):
        store_of(far, 0, "bucket").get("x", 0, None)
    elsewhere = Access((nobody,), "us-east-1", get_seconds=5, retries=0)
    with pytest.raises(RunError, match=r"http_proxy of the environment is not used here; storage"):
        store_of(elsewhere, 0, "bucket").get("x", 0, None)
    server.seen.clear()
    through = Access(("http://nowhere.invalid",), "us-east-1", retries=0, proxy=server.url)
    with suppress(
        RunError, DatasetError
    ):  # the server takes the proxy's part, and forwards nothing
        store_of(through, 0, "bucket").get("x", 0, None)
    assert sum(server.seen.methods.values()) == 1, "the proxy got it"


def test_a_time_out_is_tried_again_and_told(server: RangeServer) -> None:
    server.faults.hang = threading.Event()
    access = Access((server.url,), "us-east-1", get_seconds=0.2, retries=1)
    with pytest.raises(RunError, match=r"does not answer \(time-out\), in each of 2 tries"):
        store_of(access, 0, "bucket").get("x", 0, None)
    server.faults.hang.set()
