"""Claims about real time, each beside its bound: python -m benchmarks.truth [WORD ...].

Prints a Markdown table of claim, bound, measured and whether it holds; words choose the claims
whose names hold them all. Ends with 1 where a bound is broken. `make truth` measures all: root, on
a host that does nothing else, about 15 minutes. A claim that does not hold is measured up to three
times, because another program may use the host for a moment; the last measurement is printed.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np

from benchmarks import published
from benchmarks.harness import Measured, all_of, apart, at_most, dlemu, named, near, scratch, within
from benchmarks.known import CASES
from benchmarks.scale import PARTS, costs
from dlemu.config.model import load_workload
from dlemu.ranks.mpi import make_world
from tests.lab.cgroups import throttled
from tests.lab.commands import QUICK, summary_of, with_checkout
from tests.lab.drives import own_drive
from tests.lab.hosts import Hosts, hosts, ip

_TRIES = 3
_MIB = 1 << 20
_HELD: dict[str, Any] = {"reader.data_loader": "threads", "reader.read_threads": 2}
SCALED: dict[str, dict[str, Any]] = {
    # A tenth of the time; samples a 2000th, 7 of them a batch.
    "unet3d_h100": {
        "dataset.record_length_bytes": 73_300,
        "dataset.record_length_bytes_stdev": 34_171,
        "dataset.record_length_bytes_resize": 1_048,
        "train.computation_time": 0.0323,
    },
    # Ten times the time: at 3.5 ms two cores are the limit. Samples a 20th.
    "cosmoflow_h100": {
        "dataset.record_length_bytes": 141_424,
        "dataset.record_length_bytes_stdev": 3_565,
        "train.computation_time": 0.035,
    },
}
"""Workloads, made small so that a slow device feeds few accelerators."""


def cached(capacity: float) -> Measured:
    """Compare the AU of a cold and a warm epoch through a cache with what two held drives give.

    Accelerators ask for three times what the origin gives, so it is never idle while it has to
    give anything: an epoch takes the time of the slower drive, or of computing.
    """
    sample, num_files, origin, cache = 2_000_000, 96, 50e6, 500e6
    demand = 3 * origin
    with own_drive(256 * _MIB) as slow, own_drive(256 * _MIB) as fast, scratch() as out:
        keys = {
            "workload": "unet3d_h100",
            "dataset.data_folder": slow / "data",
            "dataset.num_files_train": num_files,
            "dataset.record_length_bytes": sample,
            "dataset.record_length_bytes_stdev": 0,
            "cache.folder": fast / "cache",
            "cache.capacity": capacity,
            "cache.policy": "keep",
            "output.folder": out / "run",
            "reader.data_loader": "threads",
            "reader.batch_size": 1,
            "reader.read_threads": 4,
            "reader.odirect": True,
            "train.computation_time": 2 * sample / demand,
            "train.epochs": 2,
            "num_accelerators": 2,
        }
        dlemu("datagen", keys)
        with throttled((slow, int(origin)), (fast, int(cache))) as group:
            dlemu("run", keys, enter=group.enter)
        summary = summary_of(out / "run")
    found = [epoch["whole_epoch_au_percentage"] for epoch in summary["per_epoch"]]
    hits = [0.0, summary["measured"]["cache"]["hit_share_per_epoch"][1]]
    seconds = [max(1 / demand, (1 - hit) / origin, hit / cache) for hit in hits]
    truth = [100 / demand / each for each in seconds]
    return all_of(
        within("share of hits", hits[1], capacity - 0.02, capacity),
        *(near("AU", each, true, 2.0) for each, true in zip(found, truth, strict=True)),
    )


def sized(command: str, name: str, true: int) -> Measured:
    """Compare the N of `dlemu size` or `try` with that of a drive held to the rate of N + 0.6.

    An accelerator takes, at the threshold, AU x (bytes that the drive reads for a step) /
    computation_time; counted at the drive, headers, whole blocks and the file system's own are
    among them. Batches read ahead in the step left out, 4 of 100, make 5.6 at most 5.9.
    """
    scaled, steps = SCALED[name], 100
    au = load_workload(name, {}).metric.au
    with own_drive(1 << 29) as drive, scratch() as out:
        given = {
            "workload": name,
            **_HELD,
            **scaled,
            "dataset.data_folder": drive / "data",
            "dataset.num_files_train": steps * (true + 3) * (7 if "unet3d" in name else 1),
            "train.epochs": 1,
            "train.total_training_steps": steps,
            "reader.odirect": True,
        }
        dlemu("datagen", given)
        dlemu("run", given | {"num_accelerators": 1, "output.folder": out / "one"})
        one = summary_of(out / "one")["measured"]
        each = au * one["device_read_bytes"] / steps / scaled["train.computation_time"]
        words: list[str] = []
        if command == "size":
            given |= {"size.quick": True, "size.confirm": 2}
        else:
            shutil.rmtree(drive / "data")  # a try would read these files
            words = [str(drive)]
            given = {**_HELD, **scaled, "workloads": name, "seconds": 60, "max_bytes": "128MiB"}
        with throttled((drive, round((true + 0.6) * each))) as group:
            dlemu(command, given | {"output.folder": out / "answer"}, *words, enter=group.enter)
        (found,) = json.loads((out / "answer" / "sizing.json").read_text())["answers"]
    if command == "try":
        found |= found["first"]
        high = found["high"] if not found["at_least"] else float("inf")
        return within(f"{true} in the interval; N", true, found["low"], high)
    return all_of(
        named("N =", found["num_accelerators"], true),
        within("N*", found["real_accelerators"], 0.91 * (true + 0.6), 1.09 * (true + 0.6)),
        named("limit", found["limit"], "storage"),
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
    return all_of(
        at_most("median, ms", 1e3 * late, 2.0), at_most("% of a core, waiting", 100 * share, 5.0)
    )


def _limit_rate(lab: Hosts, name: str, bits_per_second: int) -> None:
    """Hold what a host sends to a rate, and what is sent to it."""
    shape = ["root", "tbf", "rate", str(bits_per_second), "burst", "256kb", "latency", "50ms"]
    outer = f"{lab.prefix}{lab.names.index(name)}"
    for space, link in ((lab.prefix + name, "eth0"), (lab.prefix + "br", outer)):
        ip("netns", "exec", space, "tc", "qdisc", "add", "dev", link, *shape)


def held_link() -> Measured:
    """Run on a host that gets objects from another one over 12 Mb/s, headers included."""
    words = [*QUICK, "dataset.record_length_bytes=50000", "dataset.num_files_train=112"]
    # One worker: else most files are there when the first step ends, which does not count.
    words += ["train.epochs=1", "reader.read_threads=1", "reader.prefetch_size=1"]
    with tempfile.TemporaryDirectory() as name, hosts(Path(name) / "hosts", 2) as lab:
        folder = Path(name)
        _limit_rate(lab, "h0", 12_000_000)
        server = ["nsenter", f"--net=/run/netns/{lab.prefix}h0", sys.executable, "-m"]
        server += ["tests.lab.object_server", name, "8080", "10.77.0.1"]
        dlemu("datagen", {"dataset.data_folder": folder / "data"}, *words)
        with subprocess.Popen(server, stdin=PIPE, stdout=PIPE, text=True) as serving:
            assert serving.stdout is not None
            url = serving.stdout.readline().strip()
            words += [f"storage.endpoint_url={url}", "dataset.data_folder=s3://any/data"]
            words += [f"output.folder={folder / 'run'}", "client.nic_gbps=0.012"]
            run = lab.on("h1", sys.executable, "-m", "dlemu", "run", *words)
            subprocess.run(run, env=with_checkout(), stdout=subprocess.DEVNULL)
            serving.terminate()
        summary = summary_of(folder / "run")
    received = summary["measured"]["network"]["received_bytes"]
    share = received / summary["measured"]["read_bytes"]
    return all_of(
        named("limit", summary["limit"]["name"], "network"),
        within("bytes received: times those read", share, 1.0, 1.15),
    )


def growing(part: str) -> Measured:
    """Measure ten times as many files: 100 times the CPU time would be quadratic.

    Records have 88 bytes for each file, the plan 8.
    """
    few, many = costs(part, [100_000, 1_000_000])
    each = max(0, many.peak_bytes - 2_000_000) / 1_000_000
    return all_of(
        at_most("times that of a tenth", many.cpu_seconds / (few.cpu_seconds + 0.003), 30),
        at_most("bytes a file", each, PARTS[part].most_bytes),
    )


def claims() -> dict[str, Callable[[], Measured]]:
    """Return how each claim is measured, by its name."""
    return {
        **CASES,
        "a cache between drives, of all files": partial(cached, 1.0),
        "a cache between drives, of a third": partial(cached, 0.33),
        **{
            f"{command} of a held drive, {name}": partial(sized, command, name, true)
            for name, true in (("unet3d_h100", 3), ("cosmoflow_h100", 5))
            for command in ("size", "try")
        },
        "a bucket behind a held link": held_link,
        "the barrier of 4 ranks": barrier,
        "published: the band of predictions": published.band_of_predictions,
        "published: core seconds of DLIO": published.cores_of_dlio,
        "published: caches": published.published_caches,
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
