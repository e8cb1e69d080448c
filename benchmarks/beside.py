"""What reading and writing cost, and how fast they are, beside fio, DLIO and obstore.

    python -m benchmarks.beside [parts=read,workers,…] [rounds=5]
        [cases=WORD,...] [folder=build/beside] [seconds=1] [json=FILE]

All sides move the same bytes in turn, round after round; the first is the base. `cases` takes those
whose names hold one of the words. Starts of programs are left out: Python's and fio's own, and of
DLIO (if `make peers` has set it up) by the difference of two runs.

read: three epochs of a dataset from the page cache, from disk with O_DIRECT, and from tmpfs, by
PyTorch's DataLoader, which drops the bytes or hands over batches, and by threads. fio has psync,
1 MiB, and as many jobs as there are workers.

generate: a dataset by 2 ranks; fio writes with libaio, 1 MiB, O_DIRECT, 2 jobs of 4 in flight.

checkpoint: four files of 128 MiB by four threads, as fio (psync, 1 MiB). fio makes no bytes: a
side that makes none either shows what the making takes.

paths: blocks of `dlemu paths`; fio has psync, which is what its workers do: one blocking call at a
time. `folder=DRIVE,DRIVE` reads from several at the same time. On tmpfs, where no drive hides it,
the table shows the price of Python alone.

workers: npy files of one sample in memory, by a plain DataLoader (the base), and by dlemu's with
reader.cost=dataloader, whose workers return or keep memory, as glibc has a plain one do by chance
(reader.worker_memory), and lean; all batches are copied, as a thread does that pins them.

objects: a dataset from a server of ranges, which is no S3 server (tests/lab/object_server.py). So a
rate says what this host's client side can do, and nothing about any storage. The base is a plain
loop of obstore, which asks for the same ranges with as many threads, and drops the bytes.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.fidelity_real import Files
from benchmarks.harness import Asked, Lines, Rate, Wanted, compare, rate_apart, scratch, timed
from dlemu.checkpoint.files import Reader, Writer
from dlemu.config.model import Workload, load_workload
from dlemu.datagen.assemble import Content
from dlemu.datagen.write import generate
from dlemu.dataset.layout import Dataset, layout_of
from dlemu.dataset.plan import make_plan
from dlemu.loaders import open_loader
from dlemu.ranks.mpi import make_world
from dlemu.ranks.world import Alone
from dlemu.storage.extents import extent_reader
from dlemu.storage.objects import RANGE_BYTES, WHOLE_BYTES
from dlemu.storage.pagecache import drop
from dlemu.storage.s3.store import store_of
from dlemu.tools.paths.blocks import CellJob, CellSpec, DataPath, Pattern, perform
from dlemu.tools.paths.cells import write_random_file
from dlemu.units import counted
from tests.lab.object_server import RangeServer
from tests.lab.peer import is_there, run_dlio

Sides = dict[str, Callable[[], Rate]]

DATASETS: dict[str, tuple[str, dict[str, object]]] = {
    "unet3d": ("unet3d_h100", {"dataset.num_files_train": 14}),
    "resnet50": ("resnet50_h100", {"dataset.num_files_train": 16}),
    "cosmoflow": ("cosmoflow_h100", {"dataset.num_files_train": 800}),
    "hdf5": ("cosmoflow_h100", {"dataset.num_files_train": 800, "dataset.format": "hdf5"}),
}
"""Workload and keys: 2 to 2.3 GB each, so that the first and last steps weigh little."""
EPOCHS = 3
"""Epochs of a reading; one before it starts the workers and is left out."""
READ_GOALS = {
    "page cache": {"unet3d": 1.4, "resnet50": 1.6, "cosmoflow": 2.0, "hdf5": 2.0},
    "O_DIRECT": {"unet3d": 1.5, "resnet50": 3.0, "cosmoflow": 3.0, "hdf5": 3.0},
}
"""CPU time of PyTorch's loader, times fio's."""
NUM_RANKS = 2
DLIO_FILES = {"unet3d": 16, "resnet50": 16, "cosmoflow": 200, "hdf5": 16}
"""That it generates: as many as take much longer than Python's start, which varies. For each hdf5
file it makes 2 GB of random numbers, whatever the file's size (its `generation_buffer_size`)."""
FILES, FILE_BYTES, PIECE = 4, 128 << 20, 1 << 20
"""Of a checkpoint."""
BLOCK_FILE_BYTES = 256 << 20
CELLS: tuple[tuple[DataPath, Pattern, int, int], ...] = (
    ("host_direct", "random_read", 4 << 10, 1),
    ("host_direct", "random_read", 4 << 10, 4),
    ("host_direct", "seq_read", 64 << 10, 4),
    ("host_direct", "random_read", 128 << 10, 4),
    ("host_direct", "seq_read", 1 << 20, 4),
    ("host_direct", "seq_read", 4 << 20, 4),
    ("host_direct", "seq_write", 1 << 20, 4),
    ("host_buffered", "random_read", 4 << 10, 4),
    ("host_buffered", "seq_read", 64 << 10, 1),
    ("host_buffered", "seq_read", 1 << 20, 1),
)
FIO_NAMES = {"seq_read": "read", "random_read": "randread", "seq_write": "write"}
PAUSE = 0.5
"""Seconds before each measurement of blocks: rented drives save up credit while idle."""
SAMPLES = {"30 kB": (30_000, 400), "150 kB": (150_528, 400), "4 MB": (4_000_000, 16)}
SAMPLES["140 MB"] = (140_000_000, 1)
"""Bytes of a sample, and batch, of jobs with few or many workers."""
NUM_WORKERS = (1, 4, 8, 16)
LEAST_BYTES, LEAST_BATCHES = 1 << 30, 4
"""Of an epoch of such a job: bytes, and batches of each worker."""
JPEG = {"dataset.num_files_train": 4000, "dataset.num_samples_per_file": 1}
OBJECTS = {name: DATASETS[name] for name in ("unet3d", "resnet50", "cosmoflow")}
OBJECTS["jpeg"] = ("resnet50_h100", JPEG | {"dataset.format": "jpeg"})
WORKERS, IN_FLIGHT = 2, 4
"""Of an accelerator that reads objects, and requests of each worker."""


def run_fio(*words: str, way: str = "read") -> Rate:
    """Run fio; return what all its jobs together moved. `way` is read or write."""
    command = ["fio", "--output-format=json", *words]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    jobs = json.loads(out[out.index("{") :])["jobs"]
    flushes = "--end_fsync=1" in words  # which only the time of the whole job has
    seconds = (job["job_runtime"] if flushes else job[way]["runtime"] for job in jobs)
    cpu = (job["job_runtime"] * (job["usr_cpu"] + job["sys_cpu"]) / 100 for job in jobs)
    num_bytes = sum(job[way]["io_bytes"] for job in jobs)
    return Rate(num_bytes, max(seconds) / 1e3, sum(cpu) / 1e3)


def dlio_rate(move: Callable[[int], float], few: int, many: int) -> Rate:
    """Return what DLIO took for many beyond few: both start alike."""

    def cpu() -> float:
        return sum(getrusage(RUSAGE_CHILDREN)[:2])

    small, large = (timed(partial(move, number), cpu) for number in (few, many))
    return Rate(*(own - other for own, other in zip(large, small, strict=True)))


def job(
    name: str, data: Path | str, loader: str = "threads", direct: bool = False, url: str = ""
) -> Workload:
    """Return the workload of a dataset; one in a bucket has the server's URL."""
    base, keys = (OBJECTS | DATASETS)[name]
    reader: dict[str, object] = {
        "dataset.data_folder": str(data),
        "reader.data_loader": loader.partition(" ")[0],
        "reader.hand_over": "batch" if loader.endswith("batch") else "none",
        "reader.odirect": direct,
    }
    if url:
        reader |= {"storage.endpoint_url": url, "reader.gets_in_flight": IN_FLIGHT}
        reader["reader.read_threads"] = WORKERS
    return load_workload(base, keys | reader)


def read_epochs(name: str, data: str, loader: str, direct: bool, url: str = "") -> Rate:
    """Read EPOCHS epochs in this process and its workers; their start is left out."""
    return loader_epochs(job(name, data, loader, direct, url))


def loader_epochs(workload: Workload) -> Rate:
    """Read EPOCHS epochs of a workload; the start of its workers is left out."""
    dataset = Dataset(workload, layout_of(workload), access=workload.access)
    keep = int(workload.reader.hands_over)
    with closing(open_loader(dataset, accelerators=range(1), keep=keep)) as opened:

        def read(epoch: int) -> float:
            plan = make_plan(workload, dataset.layout, num_accelerators=1, epoch=epoch)
            return sum(batch.num_bytes for step in opened.epoch(epoch, plan) for batch in step)

        read(0)
        pids = opened.pids()
        rates = [timed(partial(read, 1 + epoch), lambda: cpu_of(pids)) for epoch in range(EPOCHS)]
    return Rate(*map(sum, zip(*rates, strict=True)))


def cpu_of(pids: list[int]) -> float:
    """Return the CPU seconds of this process and others, to the nanosecond.

    What a process's own counters say is rounded to ticks of 10 ms, a few per cent of a run.
    """
    nanoseconds = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return time.process_time() + nanoseconds / 1e9


def fio_reads(name: str, data: Path, direct: bool) -> Rate:
    """Have fio read the same files, with as many jobs as there are workers."""
    words = ["--bs=1M", "--rw=read", "--ioengine=psync", f"--direct={int(direct)}"]
    words += ["--invalidate=0", f"--loops={EPOCHS}", "--file_service_type=sequential"]
    for number in range(job(name, data).reader.read_threads):
        words += [f"--name=job{number}", f"--opendir={data / 'jobs' / str(number)}"]
    return run_fio(*words)


def dlio_reads(name: str, data: Path) -> Rate:
    """Have DLIO read a dataset of its own."""
    size = sum(file.stat().st_size for file in (data / "train").iterdir())

    def read(epochs: int) -> float:
        run_dlio(dlio_keys(name, data) | {"train.epochs": epochs}, generate=False)
        return epochs * size

    return dlio_rate(read, 1, 1 + EPOCHS)


def dlio_keys(name: str, data: Path) -> dict[str, object]:
    """Return DLIO's overrides for a dataset, without any computing."""
    base, keys = DATASETS[name]
    own = {"workload": base, "dataset.data_folder": str(data), "train.computation_time": 0.0}
    return keys | own


def job_of_workers(case: str, data: str, workers: int, cost: str) -> Workload:
    """Return the workload of npy files that so many workers read.

    `cost`: "lean", or what workers of a plain DataLoader's cost do with memory.
    """
    num_bytes, batch = SAMPLES[case]
    lean = cost == "lean"
    batches = max(LEAST_BATCHES * workers, LEAST_BYTES // (num_bytes * batch))
    keys: dict[str, object] = {
        "dataset.data_folder": data,
        "dataset.format": "npy",
        "dataset.num_files_train": batches * batch,
        "dataset.num_samples_per_file": 1,
        "dataset.record_length_bytes": num_bytes,
        "dataset.record_length_bytes_stdev": 0,
        "dataset.record_length_bytes_resize": None,
        "reader.batch_size": batch,
        "reader.read_threads": workers,
        "reader.prefetch_size": 2 * workers,
        "reader.hand_over": "batch",
        "reader.cost": "lean" if lean else "dataloader",
        "reader.worker_memory": "returned" if lean else cost,
        "reader.data_loader": "pytorch",
    }
    return load_workload("resnet50_h100", keys)


def plain_epochs(case: str, data: str, workers: int) -> Rate:
    """Read EPOCHS epochs by a plain DataLoader, which was started before.

    On a GPU's host it is that of a job: its process holds CUDA, and torch's thread pins batches.
    """
    import torch
    from torch.utils.data import DataLoader

    num_bytes, batch = SAMPLES[case]
    pins = torch.cuda.is_available()
    if pins:
        torch.zeros(1, device="cuda")
    loader: Any = DataLoader(
        Files(Path(data), "npy", num_bytes),  # type: ignore[arg-type]
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        prefetch_factor=2,
        persistent_workers=True,
        multiprocessing_context="fork",
        pin_memory=pins,
    )
    pinned = np.zeros((batch, num_bytes), np.uint8)

    def read() -> float:
        total = 0
        for made in loader:
            if not pins:
                np.copyto(pinned, made.numpy())
            total += made.nbytes
        return total

    read()
    pids = [worker.pid for worker in loader._iterator._workers]
    return timed(lambda: sum(read() for _ in range(EPOCHS)), lambda: cpu_of(pids))


def workers_epochs(case: str, data: str, workers: int, cost: str) -> Rate:
    """Read EPOCHS epochs by dlemu's workers."""
    return loader_epochs(job_of_workers(case, data, workers, cost))


def by_workers(case: str, workers: int, asked: Asked) -> Lines:
    """Compare dlemu's workers with those of a plain DataLoader, files in memory."""
    with scratch() as data:
        generate(job_of_workers(case, str(data), workers, "lean"), world=Alone())
        sides: Sides = {"plain": partial(rate_apart, plain_epochs, case, str(data), workers)}
        for cost in ("returned", "kept", "lean"):
            sides[cost] = partial(rate_apart, workers_epochs, case, str(data), workers, cost)
        title = f"{case}, {counted(workers, 'worker')}"
        yield from compare(title, sides, asked.value("rounds", 5))


def prepare(name: str, data: Path, way: str) -> None:
    """Write a dataset, and DLIO's if it is there; fill the page cache or empty it."""
    workload = job(name, data)
    generate(workload, world=Alone())
    # fio takes no long list of files: each of its jobs gets a folder of links.
    for number, path in enumerate(sorted((data / "train").iterdir())):
        folder = data / "jobs" / str(number % workload.reader.read_threads)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).hardlink_to(path)
    if way == "page cache" and name != "hdf5" and is_there():
        run_dlio(dlio_keys(name, data / "dlio"), generate=True)
    os.sync()
    files = [path for path in data.rglob("*") if path.is_file()]
    if way == "O_DIRECT":
        drop(files)
    for path in files if way == "page cache" else ():
        path.read_bytes()


def reading(name: str, way: str, asked: Asked, folder: Path) -> Lines:
    """Compare the readers of a dataset."""
    direct = way == "O_DIRECT"
    with scratch(Path("/dev/shm") if way == "tmpfs" else folder) as data:
        prepare(name, data, way)
        sides: Sides = {"fio": partial(fio_reads, name, data, direct)}
        for loader in ("pytorch", "pytorch batch", "threads"):
            sides[loader] = partial(rate_apart, read_epochs, name, str(data), loader, direct)
        if (data / "dlio").exists():
            sides["DLIO"] = partial(dlio_reads, name, data / "dlio")
        wanted = {
            "threads": [Wanted("speed", "speed", "fio", least=0.9)] * (way == "tmpfs"),
            "DLIO": [Wanted("CPU, × pytorch", "cost", "pytorch", least=5)],
        }
        if way != "tmpfs":
            wanted["pytorch"] = [Wanted("CPU", "cost", "fio", most=READ_GOALS[way][name])]
            wanted["pytorch"] += [Wanted("speed", "speed", "fio", least=0.95)] * direct
        yield from compare(f"{name}, {way}", sides, asked.value("rounds", 5), wanted)


def generate_as_rank(name: str, data: str) -> Rate | None:
    """Generate, as one rank of several; return on the first what all took."""
    with make_world() as world:
        world.barrier()
        written = partial(generate, job(name, Path(data)), world=world)
        own = timed(lambda: written().num_bytes)
        costs = world.gather(own.cpu_seconds)
    return None if costs is None else own._replace(cpu_seconds=sum(costs))


def fio_generates(num_bytes: float, data: str) -> Rate:
    """Have fio write as much, and sync it."""
    Path(data).mkdir()
    words = ["--name=write", "--rw=write", "--bs=1M", "--direct=1", "--end_fsync=1"]
    words += ["--ioengine=libaio", "--iodepth=4", f"--numjobs={NUM_RANKS}"]
    words += [f"--size={int(num_bytes / NUM_RANKS)}", f"--directory={data}"]
    # Written into space that is not allocated before, as every generator does.
    return run_fio(*words, "--fallocate=none", "--refill_buffers=0", way="write")


def dlio_generates(name: str, data: str) -> Rate:
    """Have DLIO generate some of the files."""

    def write(num_files: int) -> float:
        folder = Path(data, str(num_files))
        own: dict[str, object] = {"dataset.num_files_train": num_files}
        run_dlio(dlio_keys(name, folder) | own, ranks=NUM_RANKS, generate=True)
        return sum(path.stat().st_size for path in (folder / "train").iterdir())

    return dlio_rate(write, NUM_RANKS, DLIO_FILES[name])


def generating(name: str, asked: Asked, folder: Path) -> Lines:
    """Compare the writers of a dataset."""
    with scratch(folder) as data:
        count = itertools.count()

        def written(write: Callable[..., Rate], *given: object, **more: int) -> Rate:
            place = data / str(next(count))
            rate = write(*given, str(place), **more)
            # The space is given back, but no file: ext4 searches long for an inode where many
            # were freed a minute ago, and that would be taken for the next writer's cost.
            for path in (path for path in place.rglob("*") if path.is_file()):
                os.truncate(path, 0)
            os.sync()
            return rate

        ours = partial(written, rate_apart, generate_as_rank, name, ranks=NUM_RANKS)
        sides: Sides = {"fio": partial(written, fio_generates, ours().num_bytes), "dlemu": ours}
        if is_there():
            sides["DLIO"] = partial(written, dlio_generates, name)
        wanted = {
            "dlemu": [
                Wanted("CPU-s/GB", "cost", most=0.6),
                Wanted("speed", "speed", "fio", least=0.9),
            ],
            "DLIO": [Wanted("CPU, × dlemu", "cost", "dlemu", least=10)],
        }
        yield from compare(f"generate {name}", sides, asked.value("rounds", 5), wanted)


class Unmade(Content):
    """Leaves the buffers as they are."""

    def fill(self, out: NDArray[np.uint8], sample: int, offset: int = 0) -> None:
        pass


def in_threads(works: Sequence[Callable[[], object]]) -> Rate:
    """Do the works on the files of a checkpoint at once, a thread each."""
    with ThreadPoolExecutor(FILES) as pool:

        def all_files() -> float:
            list(pool.map(lambda work: work(), works))
            return FILES * FILE_BYTES

        return timed(all_files)


def write_ours(
    files: list[Path], direct: bool, samples: Iterator[int], make: type[Content]
) -> Rate:
    """Write a checkpoint's files anew, each with other bytes than ever before."""
    content = make(1)
    with contextlib.ExitStack() as stack:
        works = []
        for path in files:
            path.unlink(missing_ok=True)
            writer = stack.enter_context(Writer(content, piece_bytes=PIECE, direct=direct))
            works.append(partial(writer.write, path, FILE_BYTES, sample=next(samples)))
        return in_threads(works)


def read_ours(files: list[Path], direct: bool) -> Rate:
    """Read a checkpoint's files, which no cache holds."""
    drop(files)
    with contextlib.ExitStack() as stack:
        works = []
        for path in files:
            reader = Reader(extent_reader(direct=direct, piece_bytes=PIECE))
            works.append(partial(stack.enter_context(reader).read, path, FILE_BYTES))
        return in_threads(works)


def fio_checkpoint(files: list[Path], direct: bool, way: str) -> Rate:
    """Have fio write the files of a checkpoint anew, or read them."""
    if way == "write":
        for path in files:
            path.unlink(missing_ok=True)
    else:
        drop(files)
    return run_fio(
        *("--name=file", "--ioengine=psync", "--thread", f"--rw={way}", f"--bs={PIECE}"),
        *(f"--size={FILE_BYTES}", f"--numjobs={FILES}", f"--directory={files[0].parent}"),
        *("--filename_format=file.$jobnum", "--fallocate=none", f"--direct={int(direct)}"),
        *("--invalidate=0", f"--end_fsync={int(way == 'write')}"),
        way=way,
    )


def checkpoints(way: str, place: str, asked: Asked, folder: Path) -> Lines:
    """Compare how checkpoints are written, or read."""
    direct, samples = place == "O_DIRECT", itertools.count()
    with scratch(folder) as data:
        files = [data / f"file.{number}" for number in range(FILES)]
        sides: Sides = {"fio": partial(fio_checkpoint, files, direct, way)}
        if way == "write":
            sides["dlemu"] = partial(write_ours, files, direct, samples, Content)
            sides["dlemu, bytes not made"] = partial(write_ours, files, direct, samples, Unmade)
            wanted = {"dlemu, bytes not made": [Wanted("CPU", "cost", "fio", most=1.3)]}
            wanted["dlemu"] = [Wanted("speed", "speed", "fio", least=0.95)]
        else:
            write_ours(files, direct, samples, Content)
            sides["dlemu"] = partial(read_ours, files, direct)
            wanted = {"dlemu": [Wanted("CPU", "cost", "fio", most=1.2)]}
        yield from compare(f"checkpoint {way}, {place}", sides, asked.value("rounds", 5), wanted)


def paths_ours(works: Sequence[CellJob]) -> Rate:
    """Read or write blocks as `dlemu paths` does, in all folders together."""
    done = perform(works)
    num_bytes = works[0].spec.io_size * sum(each.latencies.num for each in done)
    cpu = sum(each.user_seconds + each.system_seconds for each in done)
    return Rate(num_bytes, max(each.seconds for each in done), cpu)


def fio_paths(works: Sequence[CellJob]) -> Rate:
    """Have fio do the same on the same files."""
    work, spec = works[0], works[0].spec
    words = [f"--rw={FIO_NAMES[spec.pattern]}", f"--bs={spec.io_size}", "--ioengine=psync"]
    words += [f"--size={work.file_bytes}", f"--numjobs={len(work.files)}", "--fallocate=none"]
    words += [f"--direct={int('direct' in spec.path)}", "--invalidate=1"]
    words += ["--time_based", f"--runtime={spec.seconds}"]
    words.append("--filename_format=dlemu_paths.$jobnum")
    for number, each in enumerate(works):
        words += [f"--name=paths{number}", f"--directory={Path(each.files[0]).parent}"]
    return run_fio(*words, way="write" if work.writes else "read")


def blocks(cell: tuple[DataPath, Pattern, int, int], asked: Asked, folders: list[Path]) -> Lines:
    """Compare reading or writing blocks, in all folders at the same time."""
    path, pattern, io_size, workers = cell
    with contextlib.ExitStack() as stack:
        drives = [stack.enter_context(scratch(folder)) for folder in folders]
        files = [[f"{drive}/dlemu_paths.{number}" for number in range(workers)] for drive in drives]
        for seed, file in enumerate(itertools.chain.from_iterable(files)):
            write_random_file(file, seed, BLOCK_FILE_BYTES)
        spec = CellSpec(
            target="",
            path=path,
            pattern=pattern,
            io_size=io_size,
            workers=workers,
            seconds=asked.value("seconds", 1.0),
        )
        works = [CellJob(spec=spec, files=tuple(own), file_bytes=BLOCK_FILE_BYTES) for own in files]
        sides: Sides = {"fio": partial(fio_paths, works), "dlemu": partial(paths_ours, works)}
        least = 0.85 if io_size < 64 << 10 else 0.95
        wanted = {"dlemu": [Wanted("speed", "speed", "fio", least=least)]}
        title, rounds = _title(cell), asked.value("rounds", 5)
        yield from compare(title, sides, rounds, wanted, pause=PAUSE)


def _title(cell: tuple[DataPath, Pattern, int, int]) -> str:
    path, pattern, io_size, workers = cell
    return f"{path} {pattern}, {io_size >> 10} KiB, {workers} workers"


def get_all(name: str, files: str, url: str) -> Rate:
    """Get all objects with obstore alone, in the ranges that dlemu takes, and drop them."""
    workload = job(name, "s3://bucket/data", url=url)
    requests: list[tuple[str, dict[str, object]]] = []
    for path in sorted(Path(files, "train").iterdir()):
        key, size = f"data/train/{path.name}", path.stat().st_size
        starts = range(0, size, RANGE_BYTES) if size > WHOLE_BYTES else ()
        ranges = [{"range": (start, min(start + RANGE_BYTES, size))} for start in starts]
        requests += [(key, {"options": each}) for each in ranges] or [(key, {})]
    assert workload.access is not None
    store = store_of(workload.access, 0, "bucket")
    library, client = store._library, store._store

    def work(part: list[tuple[str, dict[str, object]]]) -> int:
        return sum(len(library.get(client, key, **options).bytes()) for key, options in part)

    parts = [requests[number :: WORKERS * IN_FLIGHT] for number in range(WORKERS * IN_FLIGHT)]
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(work, parts))  # connects
        return timed(lambda: sum(sum(pool.map(work, parts)) for _ in range(EPOCHS)))


def objects(name: str, asked: Asked, folder: Path) -> Lines:
    """Compare the readers of objects; none asks for a list, or for the size of an object."""
    with scratch(folder) as above, RangeServer(above) as server:
        files, bucket = above / "data", "s3://bucket/data"
        generate(job(name, files), world=Alone())

        sides: Sides = {"plain loop": partial(rate_apart, get_all, name, str(files), server.url)}
        for side, loader in (("dropped", "threads"), ("handed over", "threads batch")):
            ours = partial(rate_apart, read_epochs, name, bucket, loader, False, server.url)
            sides[f"dlemu, {side}"] = ours
        yield from compare(f"objects {name}", sides, asked.value("rounds", 5))
        assert set(server.seen.methods) == {"GET"}, server.seen


def cases(asked: Asked, folders: list[Path]) -> dict[str, dict[str, Callable[[], Lines]]]:
    """Return how each case is compared, by part and name."""
    folder = folders[0]
    return {
        "read": {
            f"{name}, {way}": partial(reading, name, way, asked, folder)
            for way in ("page cache", "O_DIRECT", "tmpfs")
            for name in DATASETS
        },
        "generate": {name: partial(generating, name, asked, folder) for name in DATASETS},
        "checkpoint": {
            f"{way}, {place}": partial(checkpoints, way, place, asked, folder)
            for way in ("write", "read")
            for place in ("page cache", "O_DIRECT")
        },
        "workers": {
            f"{case}, {number}": partial(by_workers, case, number, asked)
            for case in SAMPLES
            for number in NUM_WORKERS
        },
        "paths": {_title(cell): partial(blocks, cell, asked, folders) for cell in CELLS},
        "objects": {name: partial(objects, name, asked, folder) for name in OBJECTS},
    }


def main(arguments: list[str]) -> None:
    """Compare the cases, and print the table."""
    asked = Asked(arguments, "parts", "rounds", "cases", "folder", "seconds")
    parts = cases(asked, [Path(each) for each in asked.names("folder", ["build/beside"])])
    chosen = [
        compared
        for part in asked.names("parts", parts)
        for name, compared in parts[part].items()
        if any(word in name for word in asked.names("cases", [""]))
    ]
    asked.show(line for compared in chosen for line in compared())


if __name__ == "__main__":
    main(sys.argv[1:])
