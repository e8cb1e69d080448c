"""Claims about real time, each beside its bound: python -m benchmarks.truth [WORD ...].

Prints a Markdown table of claim, bound, measured and whether it holds; words choose the claims
whose names hold them all. Ends with 1 where a bound is broken. `make truth` measures all: root, on
a host that does nothing else, about 15 minutes. A claim that does not hold is measured up to three
times, because another program may use the host for a moment; the last measurement is printed.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cache_cases import Case
from benchmarks.cache_cases import run as run_cached
from benchmarks.checkpoint_in_run import asynchronous, synchronous
from benchmarks.held_drive import WORKLOADS, bytes_per_step, rate_for, search
from benchmarks.held_drive import dataset as held_dataset
from benchmarks.known import CASES, Found, job
from benchmarks.published_cells import (
    core_seconds,
    fit,
    largest_overhead,
    off,
    quantile,
    read_caches,
    read_cells,
    read_one_host,
    without_drive,
)
from benchmarks.scale import PARTS, costs
from dlemu import Alone, generate, load_workload, make_loader
from dlemu.clock import WallClock
from dlemu.host.intervals import HostObserver, IntervalSummary, summarize_interval
from dlemu.loaders import Batch
from dlemu.run.replay import new_steps, replay_epoch
from dlemu.sizing.formula import DLIO_CORE_SECONDS, ERROR, UNMEASURED_OVERHEAD
from tests.lab.bench import folder_in_memory, start
from tests.lab.cgroups import throttled_reads
from tests.lab.commands import QUICK, with_checkout
from tests.lab.drives import own_drive
from tests.lab.hosts import Hosts, hosts, ip
from tests.lab.mpirun import mpirun
from tests.lab.waiting import until

Measured = tuple[str, str, bool]
"""The bound, what was measured, and whether that holds."""
_TRIES = 3
_DISK, _SLOW, _CACHED, _TIER = 1.0, 2.0, 3.0, 2.0
"""Points of AU: of a disk's rate, where a batch also costs a worker some time, and of a cache; and
points of a share of bytes."""
_MIB = 1 << 20


def _within(what: str, found: float, low: float, high: float) -> Measured:
    return f"{what} {low:.4g} to {high:.4g}", f"{found:.4g}", low <= found <= high


def _at_most(what: str, found: float, most: float) -> Measured:
    return f"{what} ≤ {most:g}", f"{found:.3g}", found <= most


def _all(*parts: Measured) -> Measured:
    bounds, found, held = zip(*parts, strict=True)
    return "; ".join(bounds), "; ".join(found), all(held)


def known(run: Callable[[], Found], points: float) -> Measured:
    """Compare AU, limit and the share from memory with the truth.

    The AU may also be that of a host whose sleeps end as late as this one's did.
    """
    found = run()
    parts = []
    if found.true_au is not None:
        least = found.true_au if found.late_au is None else found.late_au
        parts.append(_within("AU", found.au, least - points, found.true_au + points))
    if found.true_limit is not None:
        named = found.limit == found.true_limit
        parts.append((f"limit {found.true_limit}", found.limit, named))
        if not named:
            print(found.evidence, file=sys.stderr)
    if found.true_cached is not None:
        truth = 100 * np.array([*found.true_cached, found.true_cached[0]])
        said = 100 * np.array([*found.cached, found.resident])
        parts.append(
            _at_most("points of the share from memory off", abs(said - truth).max(), _CACHED)
        )
    return _all(*parts)


def cached(case: Case) -> Measured:
    """Compare the AU of each epoch through a cache with what two drives of known rates give."""
    with (
        own_drive(256 * _MIB) as origin,
        own_drive(256 * _MIB) as cache,
        tempfile.TemporaryDirectory() as out,
    ):
        rows = run_cached(case, {"origin": origin, "cache": cache, "out": Path(out)})
    return _all(*(_within("AU", row.found, row.true - _TIER, row.true + _TIER) for row in rows))


def checkpoints(run: Callable[..., Any], loader: str) -> Measured:
    """Compare what a checkpoint costs with what a drive of known rates makes it cost."""
    return _all(
        *(
            _within(each.what, each.found, each.truth - each.within, each.truth + each.within)
            for each in run(loader=loader)
        )
    )


def sized(name: str, true: int) -> Measured:
    """Compare the N of `dlemu size` with that of a drive that is held to the rate of N + 0.6."""
    scaled = WORKLOADS[name]
    with (
        # Batches read ahead: 4 of 100 steps, which makes 5.6 at most 5.9.
        held_dataset(scaled, num_steps=100, most=true + 3, image=1 << 29) as (drive, job),
        tempfile.TemporaryDirectory() as out,
    ):
        rate = rate_for(scaled, bytes_per_step(job, Path(out, "one")), true + 0.6)
        found = search([*job, "size.confirm=2"], rate, drive, Path(out, "results"))
    return _all(
        (f"N = {true}", str(found["num_accelerators"]), found["num_accelerators"] == true),
        _within("N*", found["real_accelerators"], 0.91 * (true + 0.6), 1.09 * (true + 0.6)),
        ("limit storage", found["limit"], found["limit"] == "storage"),
    )


def fed_from_memory(loader: str) -> Measured:
    """Run steps of 50 ms on data in memory: nothing keeps the accelerator waiting."""
    with folder_in_memory() as folder:
        workload = job(folder, loader, 0.05, (24, 100_000), 2)
        with start(workload) as run:
            run.completes()
        au = run.summary["metric"]["train_au_mean_percentage"]
    return _within("AU", au, 98.0, 100.05)


_clock = cache(WallClock.calibrate)
"""Calibrated once: that takes longer than the steps."""


def step_cost(num_accelerators: int, num_steps: int = 2000) -> float:
    """Return the seconds that a step takes where nothing is read, computed or waited for."""
    samples = np.arange(1)

    def batches() -> Iterator[list[Batch]]:
        for step in range(num_steps):
            yield [Batch(0, step, number, samples, 1, 0.0, 0.0, 0.0, 0.0) for number in numbers]

    numbers = range(num_accelerators)
    clock = _clock()
    begin = time.perf_counter()
    replay_epoch(
        batches(),
        new_steps(0, np.zeros((num_steps, num_accelerators))),
        barrier=lambda: None,
        clock=clock,
    )
    return (time.perf_counter() - begin) / num_steps


def steps_of_many() -> Measured:
    """Measure what a step itself takes, beside a batch that is made and let go."""

    def bare(num_steps: int) -> float:
        samples = np.arange(1)
        begin = time.perf_counter()
        for step in range(num_steps):
            Batch(0, step, 0, samples, 1, 0.0, 0.0, 0.0, 0.0)
        return (time.perf_counter() - begin) / num_steps

    # Over few milliseconds each, in which other programs may leave it the core.
    batch = min(bare(2000) for _ in range(30))
    one = min(step_cost(1, 200) for _ in range(30))
    many = min(step_cost(64, 20) for _ in range(30))
    return _all(
        _at_most("one accelerator: times a batch", one / batch, 60),
        _at_most("64: times one", many / one, 20),
    )


def reading(loader: str) -> Measured:
    """Measure the CPU time that a loader takes for a GB in memory, beside plain reads of it."""
    with folder_in_memory() as folder:
        workload = load_workload(
            "unet3d_h100",
            {
                "dataset.data_folder": str(folder / "data"),
                "dataset.num_files_train": 64,
                "dataset.record_length_bytes": 8 * _MIB,
                "dataset.record_length_bytes_stdev": 0,
                "reader.batch_size": 4,
                "reader.data_loader": loader,
                "reader.read_threads": 0 if loader == "pytorch" else 1,
                "reader.hand_over": "none",
            },
        )
        generate(workload, world=Alone())
        buffer = bytearray(_MIB)
        ours, plain = [], []
        for _ in range(5):
            with make_loader(workload) as batches:
                begin = time.process_time()
                for _batch in batches:
                    pass
                ours.append(time.process_time() - begin)
            begin = time.process_time()
            for path in (folder / "data" / "train").iterdir():
                with path.open("rb", buffering=0) as file:
                    while file.readinto(buffer):
                        pass
            plain.append(time.process_time() - begin)
    return _at_most("CPU time: times that of plain reads", min(ours) / min(plain), 2.0)


def barrier() -> Measured:
    """Measure how long after the last of 4 ranks the others go on."""
    command = mpirun(4, "--bind-to", "none", sys.executable, "-m", "benchmarks.barrier")
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [median] = re.findall(r"last release \(ms\) \| dlemu \| ([\d.]+)", out)
    return _at_most("median, ms", float(median), 2.0)


def _limit_rate(lab: Hosts, name: str, bits_per_second: int) -> None:
    """Hold what a host sends to a rate, and what is sent to it."""
    shape = ["root", "tbf", "rate", str(bits_per_second), "burst", "256kb", "latency", "50ms"]
    outer = f"{lab.prefix}{lab.names.index(name)}"
    for space, link in ((lab.prefix + name, "eth0"), (lab.prefix + "br", outer)):
        ip("netns", "exec", space, "tc", "qdisc", "add", "dev", link, *shape)


@contextmanager
def _in_network(lab: Hosts, name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of this machine in the network of a host, until left."""
    enter = ["nsenter", f"--net=/run/netns/{lab.prefix}{name}", *command]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(enter, stdin=pipe, stdout=pipe, stderr=nothing)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def _bucket(lab: Hosts, folder: Path) -> Iterator[str]:
    """Serve a folder from the first host as any bucket; yield the URL."""
    words = ["-m", "tests.lab.object_server", str(folder), "8080", "10.77.0.1"]
    with _in_network(lab, "h0", sys.executable, *words) as serving:
        assert serving.stdout is not None
        yield serving.stdout.readline().decode().strip()


@contextmanager
def _mounted(lab: Hosts, folder: Path, point: Path) -> Iterator[None]:
    """Mount on the second host a folder that the first one serves, by HTTP and FUSE."""
    rclone = ("rclone", "--config", os.devnull, "--quiet")
    where = "10.77.0.1:8080"
    point.mkdir()
    with _in_network(lab, "h0", *rclone, "serve", "http", "--addr", where, str(folder)) as serving:
        listening = Path(f"/proc/{serving.pid}/net/tcp")
        until(lambda: ":1F90 " in listening.read_text(), "port 8080")
        words = ("mount", "--read-only", "--http-url", f"http://{where}", ":http:", str(point))
        with _in_network(lab, "h1", *rclone, *words):
            until(point.is_mount, "the mount")
            try:
                yield
            finally:
                subprocess.run(["fusermount3", "-u", "-z", point], check=False)


def held_link(*, objects: bool) -> Measured:
    """Run on a host whose files another one serves over 12 Mb/s, headers included."""
    with (
        tempfile.TemporaryDirectory() as name,
        hosts(Path(name) / "hosts", 2) as lab,
        ExitStack() as served,
    ):
        folder = Path(name)
        _limit_rate(lab, "h0", 12_000_000)
        words = [*QUICK, "dataset.record_length_bytes=50000", "dataset.num_files_train=112"]
        # One worker: else most files are there when the first step ends, which does not count.
        words += ["train.epochs=1", "reader.read_threads=1", "reader.prefetch_size=1"]
        dlemu = [sys.executable, "-m", "dlemu"]
        data = f"dataset.data_folder={folder / 'data'}"
        subprocess.run([*dlemu, "datagen", *words, data], check=True, stdout=subprocess.DEVNULL)
        if objects:
            url = served.enter_context(_bucket(lab, folder))
            words += [f"storage.endpoint_url={url}"]
            data = "dataset.data_folder=s3://any/data"
        else:
            served.enter_context(_mounted(lab, folder / "data", folder / "mounted"))
            data = f"dataset.data_folder={folder / 'mounted'}"
        words += [data, f"output.folder={folder / 'run'}", "client.nic_gbps=0.012"]
        subprocess.run(
            lab.on("h1", *dlemu, "run", *words), env=with_checkout(), stdout=subprocess.DEVNULL
        )
        summary = json.loads((folder / "run" / "summary.json").read_text())
    limit, read = summary["limit"]["name"], summary["measured"]["read_bytes"]
    received = summary["measured"]["network"]["received_bytes"]
    return _all(
        ("limit network", limit, limit == "network"),
        _within("bytes received: times those read", received / read, 1.0, 1.15),
    )


_READ = """
import mmap, os, sys
buffer = mmap.mmap(-1, 1 << 20)
input()
file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
while os.readv(file, [buffer]): pass
print(flush=True)
input()
"""
_BURN = """
import time
print(flush=True)
end = time.perf_counter() + 3
while time.perf_counter() < end: pass
"""


def observed_rate() -> Measured:
    """Observe a drive that is held to 40 MiB/s while a program reads a file of it."""
    rate = 40 * _MIB
    with own_drive(80 * _MIB) as folder:
        (folder / "file").write_bytes(os.urandom(_MIB) * 64)
        with throttled_reads(folder, rate) as group:
            child = subprocess.Popen(
                [sys.executable, "-c", _READ, folder / "file"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
            )
            assert child.stdin is not None and child.stdout is not None
            group.enter(child.pid)
            with HostObserver([folder], lambda: [child.pid], period=0.1) as observer:
                observer.mark("start")
                child.stdin.write(b"\n")
                child.stdout.readline()
                observer.mark("end")
            child.communicate(b"\n")
    seen: IntervalSummary = summarize_interval(observer.between("start", "end"))
    assert seen.device_read_bytes is not None
    # The kernel lets the first tenth of a second pass: 4 of 64 MiB.
    return _within("times the rate", seen.device_read_bytes / seen.seconds / rate, 0.97, 1.09)


def observed_queue() -> Measured:
    """Observe four who burn on one CPU: each waits about three times as long as it runs."""
    cpu = min(os.sched_getaffinity(0))
    burners = [
        subprocess.Popen(
            [sys.executable, "-c", _BURN],
            stdout=subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
        )
        for _ in range(4)
    ]
    for burner in burners:
        assert burner.stdout is not None
        burner.stdout.readline()
    with HostObserver([Path(".")], lambda: [each.pid for each in burners]) as observer:
        observer.mark("start")
        time.sleep(1)
        observer.mark("end")
    for burner in burners:
        burner.communicate()
    seen = summarize_interval(observer.between("start", "end"))
    assert seen.runqueue_seconds is not None and seen.process_cpu_seconds is not None
    ratio = seen.runqueue_seconds / seen.process_cpu_seconds
    return _within("waited: times run", ratio, 2.5, 5.0)


def observing() -> Measured:
    """Measure an observation of 20 processes, beside plain reads of the same files."""
    words = [sys.executable, "-c", "input()"]
    sleepers = [subprocess.Popen(words, stdin=subprocess.PIPE) for _ in range(20)]
    names = ("stat", "io", "schedstat", "status", "smaps_rollup")
    bare = []
    with HostObserver([Path(".")], lambda: [each.pid for each in sleepers]) as observer:
        while len(observer.observations) < 5:
            begin = time.thread_time()
            for each in sleepers:
                for name in names:
                    Path(f"/proc/{each.pid}/{name}").read_bytes()
            bare.append(time.thread_time() - begin)
            time.sleep(0.1)
    for each in sleepers:
        each.communicate(b"\n")
    one = observer.cpu_seconds / len(observer.observations)
    return _at_most("times plain reads", one / float(np.median(bare)), 4.0)


def growing(part: str) -> Measured:
    """Measure ten times as many files: 100 times the CPU time would be quadratic.

    Records have 88 bytes for each file, the plan 8.
    """
    large = 100_000 if part == "drop" else 1_000_000
    few, many = costs(part, [large // 10, large])
    return _all(
        _at_most("times that of a tenth", many.cpu_seconds / (few.cpu_seconds + 0.003), 30),
        _at_most(
            "bytes a file", max(0, many.peak_bytes - 2_000_000) / large, PARTS[part].most_bytes
        ),
    )


def band_of_predictions() -> Measured:
    """Take the printed band from cells whose drive was left out of the fit."""
    cells = read_cells()
    band = quantile(off(*pair) for pair in without_drive(cells))
    residuals = quantile(off(cell, fit(cells)) for cell in cells)
    return _all(
        _within("band", 100 * band, 100 * ERROR - 1, 100 * ERROR),
        _at_most("residuals, %", 100 * residuals, 50 * ERROR),
        _at_most("overhead, %", 100 * largest_overhead(cells), 100 * UNMEASURED_OVERHEAD),
    )


def cores_of_dlio(name: str) -> Measured:
    """Take what DLIO's host needs for a GB from the published hosts, to a tenth outward."""
    low, high = DLIO_CORE_SECONDS[name]
    least, most = core_seconds(read_cells(), read_one_host())[name]
    return _all(
        _within("least", least, low, low + 0.1 - 1e-9), _within("most", most, high - 0.1, high)
    )


def published_cache(number: int) -> Measured:
    """Compare what datasheets say of a cache before an origin with its published test."""
    row = read_caches()[number]
    said = f"limit {row['published_limit']}"
    return _all(
        _within("share of the rate", row["published"] / row["rate"], 0.88, 1.12),
        (said, row["limit"], row["limit"] == row["published_limit"]),
    )


def claims() -> dict[str, Callable[[], Measured]]:
    """Return how each claim is measured, by its name."""
    keys = {"num_files": 96, "sample": 2_000_000}
    kept = {"train.epochs": 2, "cache.capacity": 0.33, "cache.policy": "keep"}
    found: dict[str, Callable[[], Measured]] = {
        f"{name}, {loader}": partial(known, run, _DISK if "disk" in name else _SLOW)
        for (name, loader), run in CASES.items()
    }
    for loader in ("threads", "pytorch"):
        found[f"data in memory, {loader}"] = partial(fed_from_memory, loader)
        found[f"a synchronous checkpoint, {loader}"] = partial(checkpoints, synchronous, loader)
        found[f"an asynchronous checkpoint, {loader}"] = partial(checkpoints, asynchronous, loader)
        found[f"CPU of reading, {loader}"] = partial(reading, loader)
    return found | {
        "cache, cold, then warm": partial(
            cached, Case("cold, then warm", 100e6, {"train.epochs": 2}, **keys)
        ),
        "cache of a third": partial(cached, Case("a third is kept", 100e6, kept, **keys)),
        "size of a held drive, unet3d": partial(sized, "unet3d", 3),
        "size of a held drive, cosmoflow": partial(sized, "cosmoflow", 5),
        "files behind a held link": partial(held_link, objects=False),
        "a bucket behind a held link": partial(held_link, objects=True),
        "latency of the barrier, 4 ranks": barrier,
        "what a step itself takes": steps_of_many,
        "a held drive, observed": observed_rate,
        "four who want one CPU, observed": observed_queue,
        "CPU of an observation": observing,
        "the band of predictions": band_of_predictions,
        **{
            f"core seconds of DLIO, {each}": partial(cores_of_dlio, each)
            for each in DLIO_CORE_SECONDS
        },
        **{f"a published cache, {each + 1}": partial(published_cache, each) for each in range(3)},
        **{f"ten times the files, {part}": partial(growing, part) for part in PARTS},
    }


def main(words: Sequence[str]) -> int:
    """Measure the claims and print a line of each; return the exit status."""
    chosen = {
        name: measure for name, measure in claims().items() if all(word in name for word in words)
    }
    broken = 0
    print("| claim | bound | measured | holds |\n|---|---|---|---|")
    for name, measure in chosen.items():
        for _ in range(_TRIES):
            bound, found, holds = measure()
            if holds:
                break
            print(f"{name}: {bound}: {found}", file=sys.stderr)
        broken += not holds
        print(f"| {name} | {bound} | {found} | {'yes' if holds else 'NO'} |", flush=True)
    print(f"\n{len(chosen)} claims, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
