"""Claims about real time, each beside its bound: python -m benchmarks.truth [WORD ...].

Prints a Markdown table of claim, bound, measured and whether it holds; words choose the claims
whose names hold them all. Ends with 1 where a bound is broken. `make truth` measures all: root, on
a host that does nothing else, about 15 minutes. A claim that does not hold is measured up to three
times, because another program may use the host for a moment; the last measurement is printed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoint import Held, asynchronous, synchronous
from benchmarks.harness import apart, dlemu
from benchmarks.known import CASES, Found
from benchmarks.published import (
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
from dlemu.ranks.mpi import make_world
from dlemu.sizing.formula import DLIO_CORE_SECONDS, ERROR, UNMEASURED_OVERHEAD
from tests.lab import warm
from tests.lab.cgroups import throttled_reads
from tests.lab.commands import QUICK, with_checkout
from tests.lab.drives import own_drive
from tests.lab.hosts import Hosts, hosts, ip
from tests.lab.waiting import until

Measured = tuple[str, str, bool]
"""The bound, what was measured, and whether that holds."""
_TRIES = 3
_DISK, _SLOW, _CACHED, _TIER = 1.0, 2.0, 3.0, 2.0
"""Points of AU: of a disk's rate, where a batch also costs a worker some time, and of a cache; and
points of a share of bytes."""
_MIB = 1 << 20
_HELD: dict[str, Any] = {"reader.data_loader": "threads", "reader.read_threads": 2}
SCALED: dict[str, tuple[dict[str, Any], float]] = {
    # A tenth of the time; samples a 2000th, 7 of them a batch.
    "unet3d_h100": (
        {
            "dataset.record_length_bytes": 73_300,
            "dataset.record_length_bytes_stdev": 34_171,
            "dataset.record_length_bytes_resize": 1_048,
            "train.computation_time": 0.0323,
        },
        0.9,
    ),
    # Ten times the time: at 3.5 ms two cores are the limit. Samples a 20th.
    "cosmoflow_h100": (
        {
            "dataset.record_length_bytes": 141_424,
            "dataset.record_length_bytes_stdev": 3_565,
            "train.computation_time": 0.035,
        },
        0.7,
    ),
}
"""Workloads, made small so that a slow device feeds few accelerators; and the AU asked for."""


def _within(what: str, found: float, low: float, high: float) -> Measured:
    return f"{what} {low:.4g} to {high:.4g}", f"{found:.4g}", low <= found <= high


def _at_most(what: str, found: float, most: float) -> Measured:
    return f"{what} ≤ {most:g}", f"{found:.3g}", found <= most


def _all(*parts: Measured) -> Measured:
    bounds, found, held = zip(*parts, strict=True)
    return "; ".join(bounds), "; ".join(found), all(held)


def known(run: Callable[[], Found], points: float) -> Measured:
    """Compare AU, limit and the share from memory with the truth."""
    found = run()
    parts = []
    if found.true_au is not None:
        parts.append(_within("AU", found.au, found.true_au - points, found.true_au + points))
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


def cached(capacity: float) -> Measured:
    """Compare the AU of a cold and a warm epoch through a cache with what two held drives give.

    Accelerators ask for three times what the origin gives, so it is never idle while it has to
    give anything: an epoch takes the time of the slower drive, or of computing.
    """
    sample, num_files, origin, cache = 2_000_000, 96, 50e6, 500e6
    demand = 3 * origin
    with own_drive(256 * _MIB) as slow, own_drive(256 * _MIB) as fast:
        keys = {
            "workload": "unet3d_h100",
            "dataset.data_folder": slow / "data",
            "dataset.num_files_train": num_files,
            "dataset.record_length_bytes": sample,
            "dataset.record_length_bytes_stdev": 0,
        }
        dlemu("datagen", keys)
        with tempfile.TemporaryDirectory() as out:
            keys |= {
                "cache.folder": fast / "tier",
                "cache.capacity": capacity,
                "cache.policy": "keep",
                "output.folder": out + "/run",
                "reader.data_loader": "threads",
                "reader.batch_size": 1,
                "reader.read_threads": 4,
                "reader.odirect": True,
                "train.computation_time": 2 * sample / demand,
                "train.epochs": 2,
                "num_accelerators": 2,
            }
            with throttled_reads(slow, int(origin), (fast, int(cache))) as group:
                _run_in(group.enter, "run", *_words(keys))
            summary = json.loads(Path(out, "run", "summary.json").read_text())
    found = [epoch["whole_epoch_au_percentage"] for epoch in summary["per_epoch"]]
    hits = [0.0, summary["measured"]["cache"]["hit_share_per_epoch"][1]]
    seconds = [max(1 / demand, (1 - hit) / origin, hit / cache) for hit in hits]
    truth = [100 / demand / each for each in seconds]
    return _all(
        _within("share of hits", hits[1], capacity - 0.02, capacity),
        *(
            _within("AU", each, true - _TIER, true + _TIER)
            for each, true in zip(found, truth, strict=True)
        ),
    )


def _words(keys: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in keys.items()]


def _run_in(enter: Callable[[int], None], *words: str) -> None:
    """Run dlemu in a cgroup."""
    done = warm.run([*warm.COMMAND, *words], enter=enter)
    if done.returncode not in (0, 2):
        raise SystemExit(f"dlemu {' '.join(words)}\n{done.stderr}")


def checkpoints(run: Callable[[], list[Held]]) -> Measured:
    """Compare what a checkpoint costs with what a drive of known rates makes it cost."""
    return _all(
        *(
            _within(each.what, each.found, each.truth - each.within, each.truth + each.within)
            for each in run()
        )
    )


def sized(command: str, name: str, true: int) -> Measured:
    """Compare the N of `dlemu size` or `try` with that of a drive held to the rate of N + 0.6.

    An accelerator takes, at the threshold, AU x (bytes that the drive reads for a step) /
    computation_time; counted at the drive, headers, whole blocks and the file system's own are
    among them. Batches read ahead in the step left out, 4 of 100, make 5.6 at most 5.9.
    """
    (scaled, au), steps = SCALED[name], 100
    keys = {"workload": name, **_HELD, **scaled}
    with own_drive(1 << 29) as drive, tempfile.TemporaryDirectory() as out:
        given = keys | {
            "dataset.data_folder": drive / "data",
            "dataset.num_files_train": steps * (true + 3) * (7 if "unet3d" in name else 1),
            "train.epochs": 1,
            "train.total_training_steps": steps,
            "reader.odirect": True,
        }
        dlemu("datagen", given)
        dlemu("run", given | {"num_accelerators": 1, "output.folder": f"{out}/one"})
        one = json.loads(Path(out, "one", "summary.json").read_text())["measured"]
        each = au * one["device_read_bytes"] / steps / scaled["train.computation_time"]
        answer = {"output.folder": f"{out}/answer"}
        if command == "size":
            words = _words(given | {"size.quick": True, "size.confirm": 2} | answer)
        else:
            shutil.rmtree(drive / "data")  # a try would read these files
            asked = {"workloads": keys.pop("workload"), "seconds": 60, "max_bytes": "128MiB"}
            words = [str(drive), *_words(keys | asked | answer)]
        with throttled_reads(drive, round((true + 0.6) * each)) as group:
            _run_in(group.enter, command, *words)
        (found,) = json.loads(Path(out, "answer", "sizing.json").read_text())["answers"]
    if command == "try":
        found |= found["first"]
        high = found["high"] if not found["at_least"] else float("inf")
        return _within(f"{true} in the interval; N", true, found["low"], high)
    return _all(
        (f"N = {true}", str(found["num_accelerators"]), found["num_accelerators"] == true),
        _within("N*", found["real_accelerators"], 0.91 * (true + 0.6), 1.09 * (true + 0.6)),
        ("limit storage", found["limit"], found["limit"] == "storage"),
    )


def barriers() -> list[float] | None:
    """Return seconds from the last arrival to the last release, per round, and the share of a core.

    Each round another rank is the last, by 5 ms; in the end one is by 2 s.
    """
    with make_world() as world:
        times = []
        for index in range(200):
            if index % world.num_ranks == world.rank:
                time.sleep(0.005)
            arrived = time.perf_counter()
            world.barrier()
            times.append((arrived, time.perf_counter()))
        cpu, begin = time.process_time(), time.perf_counter()
        if world.rank == 0:
            time.sleep(2)
        world.barrier()
        share = (time.process_time() - cpu) / (time.perf_counter() - begin)
        shares, of_ranks = world.gather(share), world.gather(times)
    if shares is None or of_ranks is None:
        return None
    rounds = [zip(*each, strict=True) for each in zip(*of_ranks, strict=True)]
    late = [max(released) - max(arrived) for arrived, released in rounds]
    return [float(np.median(late)), max(shares[1:])]


def barrier() -> Measured:
    """Measure how long after the last of 4 ranks the others go on, and what waiting takes."""
    late, share = apart(barriers, ranks=4)
    return _all(
        _at_most("median, ms", 1e3 * late, 2.0), _at_most("% of a core, waiting", 100 * share, 5.0)
    )


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


def growing(part: str) -> Measured:
    """Measure ten times as many files: 100 times the CPU time would be quadratic.

    Records have 88 bytes for each file, the plan 8.
    """
    few, many = costs(part, [100_000, 1_000_000])
    each = max(0, many.peak_bytes - 2_000_000) / 1_000_000
    return _all(
        _at_most("times that of a tenth", many.cpu_seconds / (few.cpu_seconds + 0.003), 30),
        _at_most("bytes a file", each, PARTS[part].most_bytes),
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
    found: dict[str, Callable[[], Measured]] = {
        f"{name}, {loader}": partial(known, run, _DISK if "disk" in name else _SLOW)
        for (name, loader), run in CASES.items()
    }
    for loader in ("threads", "pytorch"):
        for run in (synchronous, asynchronous):
            name = f"a checkpoint, {run.__name__}, {loader}"
            found[name] = partial(checkpoints, partial(run, loader=loader))
    return found | {
        "a cache between drives, of all files": partial(cached, 1.0),
        "a cache between drives, of a third": partial(cached, 0.33),
        **{
            f"{command} of a held drive, {name}": partial(sized, command, name, true)
            for name, true in (("unet3d_h100", 3), ("cosmoflow_h100", 5))
            for command in ("size", "try")
        },
        "files behind a held link": partial(held_link, objects=False),
        "a bucket behind a held link": partial(held_link, objects=True),
        "the barrier of 4 ranks": barrier,
        "published: the band of predictions": band_of_predictions,
        **{
            f"published: core seconds of DLIO, {each}": partial(cores_of_dlio, each)
            for each in DLIO_CORE_SECONDS
        },
        **{f"published: a cache, {each + 1}": partial(published_cache, each) for each in range(3)},
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
