"""All loaders beside each other on a host with a GPU, the same samples into host and GPU memory.

    python -m benchmarks.loaders_on_gpu FOLDER [seconds=220] [json=loaders_on_gpu.json]
                                        [size=1.0] [udev=false]

Writes the three workloads into FOLDER, unet3d as npz and as npy: 9 GB, scaled by `size`. Each
loader reads each of them in a process of its own: two steps to start its workers, an epoch as fast
as it can, and an epoch with the computation time that takes 80 % of what `os.preadv` gets from the
same files; both with a cold page cache. At last some steps are read with their bytes, which must be
the same for all loaders. Ends in time whatever happens: what fails is a row with its error, and
what is left after `seconds` is not begun. `udev=true` enters FOLDER's device into /run/udev first,
which cuFile asks and containers do not have (as root).
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import describe_machine, markdown
from benchmarks.read import cpu_of
from dlemu.clock import WallClock
from dlemu.datagen import generate
from dlemu.dataset.layout import Dataset, Layout, layout_of
from dlemu.dataset.plan import EpochPlan, make_plan
from dlemu.errors import DlemuError
from dlemu.gpu import cuda
from dlemu.gpu.availability import availability, find_library, library_version
from dlemu.loaders import Loader, open_loader
from dlemu.run.replay import new_steps, replay_epoch
from dlemu.storage.pagecache import drop
from dlemu.workload.model import Workload, load_workload
from dlemu.world.world import Alone

WORKERS = 8
DEMAND = 0.8
"""Share of the raw rate that the emulated accelerator asks for."""
ONE_SECONDS = 40.0
"""A loader that takes longer for a dataset hangs."""

DATASETS: dict[str, tuple[str, dict[str, object]]] = {
    "unet3d npz": ("unet3d_h100", {"dataset.num_files_train": 18, "reader.batch_size": 2}),
    "unet3d npy": (
        "unet3d_h100",
        {"dataset.num_files_train": 18, "reader.batch_size": 2, "dataset.format": "npy"},
    ),
    "resnet50": ("resnet50_h100", {"dataset.num_files_train": 14}),
    "cosmoflow": ("cosmoflow_h100", {"dataset.num_files_train": 700}),
}
"""Workload and keys: 2 to 2.6 GB each."""

_DALI: dict[str, object] = {"reader.data_loader": "dali"}
_GPU: dict[str, object] = {**_DALI, "dali.device": "gpu"}
LOADERS: dict[str, dict[str, object]] = {
    "preadv": {},
    "pytorch": {"reader.data_loader": "pytorch"},
    "threads": {"reader.data_loader": "threads"},
    "dali cpu": _DALI,
    "dali gpu": _GPU,
    "dali gpu, cuFile": {**_GPU, "reader.gds": "prefer"},
    "dali gpu, cuFile, GPU busy": {**_GPU, "reader.gds": "prefer", "train.compute": "gpu"},
    "dali cpu, page cache": {**_DALI, "reader.odirect": False},
    "dali gpu, page cache": {**_GPU, "reader.odirect": False},
}
"""Keys of each; `preadv` is no loader, but what the drive gives."""


def wanted(dataset: str, loader: str) -> bool:
    """Return whether a pair is of interest: DALI has its own buffered readers for some files."""
    if loader.endswith("page cache"):
        return dataset != "unet3d npz"
    return dataset == "unet3d npz" or not loader.endswith("GPU busy")


def job(dataset: str, folder: Path, size: float, keys: Mapping[str, object]) -> Workload:
    """Return the workload that reads a dataset; all read in pieces of 1 MiB."""
    name, own = DATASETS[dataset]
    base = load_workload(name).dataset
    resize = base.record_length_bytes_resize
    lengths = {
        "dataset.record_length_bytes": base.record_length_bytes * size,
        "dataset.record_length_bytes_stdev": base.record_length_bytes_stdev * size,
        "dataset.record_length_bytes_resize": resize and round(resize * size),
    }
    reads = {
        "reader.read_threads": WORKERS,
        "reader.odirect": True,
        "reader.transfer_size": 1 << 20,
    }
    place = {"dataset.data_folder": str(folder / dataset.replace(" ", "_"))}
    return load_workload(name, own | lengths | reads | place | dict(keys))


def files_of(workload: Workload) -> list[Path]:
    layout = layout_of(workload)
    return [workload.data_folder / layout.path(file) for file in range(layout.num_files)]


# --- one loader and dataset, in a process of its own ----------------------------------------------


def read_raw(workload: Workload) -> dict[str, Any]:
    """Read all files with O_DIRECT in WORKERS threads, and drop the bytes."""
    import mmap

    def read(path: Path) -> int:
        buffer, done = mmap.mmap(-1, 1 << 20), 0
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        while got := os.preadv(file, [buffer], done):
            done += got
            if done % 4096:
                break
        os.close(file)
        return done

    paths = files_of(workload)
    drop(paths)
    cpu, begin = cpu_of([]), time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as threads:
        num_bytes = sum(threads.map(read, paths))
    seconds = time.perf_counter() - begin
    return {
        "way": "os.preadv",
        "gb_per_second": num_bytes / seconds / 1e9,
        "cpu_seconds_per_gb": (cpu_of([]) - cpu) / num_bytes * 1e9,
        "path": "host",
    }


def read_all(loader: Loader, epoch: int, plan: EpochPlan) -> dict[str, Any]:
    """Read an epoch as fast as the loader can."""
    pids = loader.pids()
    num_bytes = num_samples = 0
    cpu, begin = cpu_of(pids), time.perf_counter()
    for [batch] in loader.epoch(epoch, plan):
        num_bytes += batch.num_bytes
        num_samples += len(batch.samples)
    seconds = time.perf_counter() - begin
    return {
        "samples_per_second": num_samples / seconds,
        "gb_per_second": num_bytes / seconds / 1e9,
        "cpu_seconds_per_gb": (cpu_of(pids) - cpu) / num_bytes * 1e9,
    }


def replay(workload: Workload, loader: Loader, epoch: int, plan: EpochPlan) -> float:
    """Return the AU (%) of an epoch with the workload's computation time."""
    clock = WallClock.calibrate()
    compute = None
    if workload.train.compute == "gpu":
        from dlemu.gpu.compute import gpu_compute

        compute = gpu_compute([0], clock)
    steps = replay_epoch(
        loader.epoch(epoch, plan),
        new_steps(epoch, np.full((plan.num_steps, 1), workload.train.computation_time.mean)),
        barrier=lambda: None,
        clock=clock,
        compute=compute,
    )[1:]
    seconds = steps["wait"].sum() + steps["compute"].sum() + steps["barrier"].sum()
    return float(100 * steps["computation_time"].sum() / seconds)


def digest(workload: Workload, layout: Layout) -> str:
    """Return what stands for the bytes of the first steps."""
    sums = hashlib.sha256()
    with_bytes = open_it(workload, layout, keep=True)
    try:
        for [batch] in with_bytes.epoch(3, plan_of(workload, layout, 3).first_steps(3)):
            sums.update(batch.samples.tobytes())
            for array in batch.arrays or ():
                sums.update(array.tobytes())
    finally:
        with_bytes.close()
    return sums.hexdigest()[:12]


def open_it(workload: Workload, layout: Layout, *, keep: bool) -> Loader:
    return open_loader(Dataset(workload, layout), accelerators=range(1), keep=keep)


def plan_of(workload: Workload, layout: Layout, epoch: int) -> EpochPlan:
    return make_plan(workload, layout, num_accelerators=1, epoch=epoch)


def measure(workload: Workload) -> dict[str, Any]:
    """Measure the loader that the workload names."""
    layout, paths = layout_of(workload), files_of(workload)
    loader = open_it(workload, layout, keep=False)
    try:
        for _ in loader.epoch(0, plan_of(workload, layout, 0).first_steps(2)):
            pass  # workers start, and CUDA and cuFile with them
        drop(paths)
        found = read_all(loader, 1, plan_of(workload, layout, 1))
        drop(paths)
        found["au_percentage"] = replay(workload, loader, 2, plan_of(workload, layout, 2))
        found["way"] = getattr(loader, "way", "own workers")
        found["notes"] = list(getattr(loader, "notes", ()))
        path_bytes = getattr(loader, "path_bytes", None)
        found["path"] = "host"
        if path_bytes is not None:
            told = path_bytes()
            found["path"] = told.mode
            found["path_bytes"] = asdict(told)
    finally:
        loader.close()
    try:
        found["digest"] = digest(workload, layout)
    except DlemuError as error:
        found["digest"] = f"failed: {error}"
    return found


def child(dataset: str, loader: str, folder: Path, size: float, seconds: float) -> None:
    """Print what was found as JSON, in the last line."""
    keys = LOADERS[loader] | {"train.computation_time": seconds}
    workload = job(dataset, folder, size, keys)
    found = read_raw(workload) if loader == "preadv" else measure(workload)
    print(json.dumps(found), flush=True)


# --- all of them ----------------------------------------------------------------------------------


def run_apart(words: list[str], timeout: float) -> dict[str, Any]:
    """Return what a process of its own printed, or its error."""
    command = [sys.executable, "-m", "benchmarks.loaders_on_gpu", "--one", *words]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its workers, too
        process.communicate()
        return {"error": f"not done within {timeout:.0f} s"}
    if process.returncode:
        told = [line for line in errors.splitlines() if line.strip()] or ["no word"]
        return {"error": f"{told[-1][:300]} (exit status {process.returncode})", "stderr": errors}
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def row_of(dataset: str, loader: str, found: Mapping[str, Any], same: str) -> list[str]:
    if "error" in found:
        return [dataset, loader, "", "", "", "", "", "", str(found["error"])]

    def number(key: str, form: str) -> str:
        return f"{found[key]:{form}}" if key in found else ""

    return [
        dataset,
        loader,
        str(found["way"]),
        number("samples_per_second", ".1f"),
        number("au_percentage", ".1f"),
        number("gb_per_second", ".2f"),
        number("cpu_seconds_per_gb", ".3f"),
        str(found["path"]),
        same,
    ]


HEADER = ["dataset", "loader", "read by", "samples/s", "AU %", "GB/s", "CPU-s/GB", "path", "bytes"]


def let_udev_know(folder: Path) -> None:
    """Enter the folder's device where cuFile looks for its file system."""
    number = os.stat(folder).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == device:
            entry = Path(f"/run/udev/data/b{device}")
            entry.parent.mkdir(parents=True, exist_ok=True)
            kind = f"E:ID_FS_TYPE={right.split()[0]}\n"
            entry.write_text(
                f"I:1000000\nE:ID_FS_USAGE=filesystem\n{kind}E:ID_FS_VERSION=1.0\nV:1\n"
            )
            return


def describe_gpu(folder: Path) -> dict[str, Any]:
    """Return what is known of the GPU, its driver and cuFile."""
    try:
        with cuda.Gpu() as gpu:
            name, serves = gpu.name, cuda.driver_version()
    except DlemuError as error:
        return {"gpu": str(error)}
    library = find_library()
    found = availability(folder)
    return {
        "gpu": f"{cuda.num_gpus()} x {name}, CUDA {serves[0]}.{serves[1]}",
        "cufile": library_version(library) if library else None,
        "cufile_usable": found.usable,
        "cufile_expected": found.mode,
        "cufile_reasons": list(map(str, found.reasons)),
    }


def main(words: list[str]) -> None:
    start = time.perf_counter()
    keys = {"seconds": "220", "json": "loaders_on_gpu.json", "size": "1.0", "udev": "false"}
    folder = Path(words[0])
    keys |= dict(word.split("=", 1) for word in words[1:])
    size, seconds = float(keys["size"]), float(keys["seconds"])
    folder.mkdir(parents=True, exist_ok=True)
    if keys["udev"] == "true":
        let_udev_know(folder)
    # In a process of its own: CUDA must not be open where others are started from.
    about = run_apart(["about", str(folder)], ONE_SECONDS)
    print(describe_machine(), json.dumps(about), sep="\n", flush=True)
    rows: list[list[str]] = []
    results: list[dict[str, Any]] = []
    for dataset in DATASETS:
        began = time.perf_counter()
        workload = job(dataset, folder, size, {})
        generate(workload, world=Alone())
        print(f"{dataset}: written in {time.perf_counter() - began:.1f} s", flush=True)
        step_seconds, first = 0.0, ""
        for loader in [name for name in LOADERS if wanted(dataset, name)]:
            left = seconds - (time.perf_counter() - start)
            if left < 2:
                found: dict[str, Any] = {"error": f"not begun: the {seconds:.0f} s are over"}
            else:
                arguments = [dataset, loader, str(folder), str(size), str(step_seconds)]
                found = run_apart(arguments, min(left, ONE_SECONDS))
            if loader == "preadv" and "error" not in found:
                step_seconds = workload.bytes_per_step / (DEMAND * found["gb_per_second"] * 1e9)
            same = str(found.get("digest", ""))
            if len(same) == 12:
                first = first or same
                same = "same" if same == first else "DIFFERENT"
            rows.append(row_of(dataset, loader, found, same))
            results.append({"dataset": dataset, "loader": loader, "step": step_seconds} | found)
            print(" | ".join(rows[-1]), flush=True)
            tree = {"machine": describe_machine(), "about": about, "results": results}
            Path(keys["json"]).write_text(json.dumps(tree, indent=1))
    print(f"\n{time.perf_counter() - start:.0f} s\n\n{markdown(HEADER, rows)}")


if __name__ == "__main__":
    try:
        if sys.argv[1:3] == ["--one", "about"]:
            print(json.dumps(describe_gpu(Path(sys.argv[3]))))
        elif sys.argv[1:2] == ["--one"]:
            name, loader, place, factor, computation = sys.argv[2:]
            child(name, loader, Path(place), float(factor), float(computation))
        elif len(sys.argv) > 1:
            main(sys.argv[1:])
        else:
            raise SystemExit(__doc__)
    except DlemuError as error:
        raise SystemExit(str(error)) from None
