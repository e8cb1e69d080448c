"""Evidence of runs, each one clear case of what bound it; `limit_lines` for the golden file."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.config.model import load_workload
from dlemu.host.intervals import IntervalSummary
from dlemu.host.network import NetworkUse
from dlemu.judge.bottleneck import find_run_limit
from dlemu.judge.checkpoints import CheckpointCost
from dlemu.judge.evidence import Evidence, HostReport
from dlemu.judge.metrics import find_losses
from dlemu.judge.records import STEP, Steps
from dlemu.judge.sums import Rule
from dlemu.storage.probe import Probe
from tests.lab.summed import sums_of

GB = 1e9
NUM_STEPS = 11
READER: dict[str, Any] = {"read_threads": 4, "data_loader": "pytorch"}


NO_DRIVE: dict[str, Any] = {"device": None, "device_busy_share": None}
READERS: list[tuple[dict[str, Any], bool]] = [
    ({"odirect": True}, True),
    ({"odirect": "auto"}, True),
    ({"data_loader": "threads", "decode": "library"}, False),
]
LOADERS: list[dict[str, Any]] = [
    {"decode": "library"},
    {"data_loader": "pytorch"},
    {"data_loader": "threads"},
]


def steps_of(*waits: Any, **fields: Any) -> Steps:
    """Return the steps of accelerators that wait so long for each batch and compute for 1 s.

    Values are one for all, one for each accelerator, or one for each of its steps. Unless told
    else, workers are in reads for 4 s a batch, and accelerators meet as soon as the last is there.
    """
    rows = np.zeros((len(waits), NUM_STEPS), STEP)
    rows["accelerator"] = np.arange(len(waits))[:, None]
    rows["step"] = np.arange(NUM_STEPS)
    rows["num_samples"] = 7
    asked = {"compute": 1.0, "computation_time": 1.0, "read": 4.0} | fields
    for name, value in ({"wait": waits} | asked).items():
        column = np.asarray(value, float)
        rows[name] = column[:, None] if column.ndim == 1 else column
    ready = rows["wait"] + rows["compute"]
    if "barrier" not in fields:
        rows["barrier"] = ready.max(axis=0) - ready
    return rows.ravel()


def host(**changes: Any) -> HostReport:
    """Return a host with CPUs to spare, whose drive is busy and gives no more.

    `cpu_share` stands for `process_cpu_seconds`; `device` and its busy share, the storage's rate
    and what was made of the network are given as they follow from counters.
    """
    seen: dict[str, Any] = {"probe": probe(6.1), "device": "nvme0n1", "device_busy_share": 0.99}
    seen |= {"num_workers": 8, "network": None, "cpu_share": 0.3, "host_cpu_share": 0.35}
    seen |= {"host_steal_share": 0.0, "runqueue_seconds": 2.0, "throttled_seconds": 0.0}
    seen |= changes
    cpu, busy = seen["cpu_share"], seen["device_busy_share"]
    unknown: dict[str, Any] = dict.fromkeys(field.name for field in fields(IntervalSummary))
    counters = ("host_cpu_share", "host_steal_share", "runqueue_seconds", "throttled_seconds")
    unknown |= {"seconds": 100.0, "devices": {} if busy is None else {seen["device"]: busy}}
    unknown |= {"usable_cpus": 16.0, "process_cpu_seconds": cpu and 1600.0 * cpu}
    epoch = IntervalSummary(**(unknown | {name: seen[name] for name in counters}))
    found = HostReport(
        host=seen.get("host", "a"),
        epochs=[epoch],
        probe=seen["probe"],
        num_workers=seen["num_workers"],
        direct=seen.get("direct", False),
        read_bytes=600.0 * GB,
    )
    vars(found)["network"] = seen["network"]
    return found


def link(share: float | None, **changes: Any) -> dict[str, Any]:
    """Return a host without a drive that received so much of its link's rate."""
    use: dict[str, Any] = {
        "nic": "eth0",
        "gbps": None if share is None else 50.0,
        "received_share": share,
        "sent_share": share and 0.01,
        "received_bytes_per_second": 6.2 * GB,
        "sent_bytes_per_second": 0.1 * GB,
        "resent_share": 0.0,
        "unordered_share": 0.0,
    }
    network = NetworkUse(**(use | changes))
    return {"device": None, "device_busy_share": None, "network": network}


def probe(many: float, few: float = 6.0) -> Probe:
    """Return what 8 and 64 readers got, in GB/s."""
    return Probe(8, few * GB, 64, many * GB)


def evidence(**changes: Any) -> Evidence:
    """Return the evidence of a run that storage bound; by default a third of the time is lost."""
    steps = changes.pop("steps", None)
    steps = steps_of(0.5, 0.5) if steps is None else steps
    num_accelerators = int(steps["accelerator"].max()) + 1
    names = changes.pop("names", [f"rank {rank} on host a" for rank in range(num_accelerators)])
    preprocess = changes.pop("preprocess", 0.0)
    losses = find_losses(sums_of(steps, names, Rule(preprocess_seconds=preprocess)))
    measured: dict[str, Any] = {
        "read_seconds": 720.0,
        "worker_seconds": 800.0,
        "page_cache_share": 0.004,
        "read_amplification": 1.0,
    }
    measured |= {name: changes.pop(name) for name in measured if name in changes}
    keys = {f"reader.{key}": value for key, value in changes.pop("reader", READER).items()}
    seen: dict[str, Any] = {
        "workload": load_workload("unet3d_h100", keys),
        "losses": losses,
        "hosts": [host()],
        "measured": measured,
        "num_accelerators": num_accelerators,
    }
    return Evidence(**(seen | changes))


ONE_WAITS = 0.5, 0.01, 0.01
TWO_IN_TURN = np.where(np.arange(NUM_STEPS) % 2 == np.arange(2)[:, None], 1.2, 1.0)
IN_TURN = np.where(np.arange(NUM_STEPS) % 8 == np.arange(8)[:, None], 1.04, 1.0)
"""(8, steps) seconds of compute: in each step another accelerator is late."""
OTHERS_WORK = {"cpu_share": 0.1, "host_cpu_share": 0.91}


def written(lost_share: float, during: float | None = 50.0) -> CheckpointCost:
    """Return what checkpoints cost, with this share of the loss in the steps during writes."""
    return CheckpointCost(
        number=2,
        total_stall_seconds=1.0,
        au_with_stalls_percentage=60.0,
        steps_while_writing=5,
        au_while_writing_percentage=during,
        au_otherwise_percentage=95.0,
        lost_share=lost_share,
    )


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "steps during writes lost most": ({"checkpoints": written(0.6)}, "checkpoints"),
    "steps during writes lost most, by CPUs": (
        {"checkpoints": written(0.6), "hosts": [host(cpu_share=0.97)]},
        "checkpoints",
    ),
    "drive busy, no more to more readers": ({}, "storage"),
    "no probe, no device seen": (
        {"hosts": [host(probe=None, device=None, device_busy_share=None)]},
        "storage",
    ),
    "little lost": ({"steps": steps_of(0.005, 0.01)}, "none"),
    "CPUs full": ({"hosts": [host(cpu_share=0.97)]}, "host cpu"),
    "stopped by the quota": (
        {"hosts": [host(throttled_seconds=50.0, runqueue_seconds=None)]},
        "host cpu",
    ),
    "one host of two is stopped": (
        {"hosts": [host(), host(host="b", cpu_share=0.2, throttled_seconds=50.0)]},
        "host cpu",
    ),
    "others have the CPUs, but compute times differ as asked": (
        {
            "steps": steps_of(0.0, 0.0, compute=TWO_IN_TURN, computation_time=TWO_IN_TURN),
            "hosts": [host(**OTHERS_WORK)],
        },
        "barrier",
    ),
    "others have the CPUs, and the kernel does not tell who waits for one": (
        {"hosts": [host(**OTHERS_WORK, runqueue_seconds=None, throttled_seconds=None)]},
        "host cpu",
    ),
    "other guests have the CPUs": (
        {
            "steps": steps_of(0.5, 0.5, read=0.01, decode=0.1),
            "hosts": [host(cpu_share=1e-4, host_cpu_share=0.25, host_steal_share=0.65)],
        },
        "host cpu",
    ),
    "other guests take what workers use": (
        # 16 CPUs x 1 % x 100 s are used, and three times as much is stolen: of 80 s of making.
        {
            "hosts": [host(cpu_share=0.01, host_cpu_share=0.02, host_steal_share=0.06)],
        },
        "host cpu",
    ),
    "more readers get more": ({"hosts": [host(probe=probe(9))]}, "loader"),
    "more readers get more, but far less than what is asked for": (
        {"hosts": [host(probe=probe(9))], "steps": steps_of(9.0, 9.0, read=40.0)},
        "storage",
    ),
    "more readers get twice as much, where nothing is computed": (
        {
            "hosts": [host(probe=probe(13))],
            "steps": steps_of(1.0, 1.0, compute=0.0, computation_time=0.0),
        },
        "loader",
    ),
    "more readers get a third more, where nothing is computed": (
        {
            "hosts": [host(probe=probe(8))],
            "steps": steps_of(1.0, 1.0, compute=0.0, computation_time=0.0),
        },
        "storage",
    ),
    "as many readers get more after the run, and more readers no more than that": (
        {"hosts": [host(probe=probe(7.8, few=7.6))]},
        "storage",
    ),
    "as many readers get twice as much": ({"hosts": [host(probe=probe(12, few=12))]}, "loader"),
    "a fast drive that is seldom asked stalls": (
        # Workers are in reads for 5 % of the time, in which they get what the probe gets.
        {
            "hosts": [host(probe=probe(20, few=19), num_workers=8)],
            "steps": steps_of(0.05, 0.05),
            "read_seconds": 40.0,
        },
        "storage",
    ),
    "together they would get more": (
        {"hosts": [host(probe=probe(9)), host(probe=probe(9))]},
        "loader",
    ),
    "workers decode": ({"steps": steps_of(0.5, 0.5, read=0.4, decode=3.0)}, "loader"),
    "workers sleep": ({"steps": steps_of(0.5, 0.5, read=0.4), "preprocess": 0.5}, "loader"),
    "workers wait for their turn, but not those that are waited for": (
        {"read_seconds": 320.0},
        "storage",
    ),
    "half in reads": ({"steps": steps_of(0.5, 0.5, read=1.0, decode=1.0)}, "loader"),
    "CPUs unknown": (
        {"hosts": [host(cpu_share=None, runqueue_seconds=None, throttled_seconds=None)]},
        "unclear",
    ),
    "CPUs unknown, workers not in reads": (
        {
            "hosts": [host(cpu_share=None, runqueue_seconds=None, throttled_seconds=None)],
            "steps": steps_of(0.5, 0.5, read=0.01),
        },
        "unclear",
    ),
    "the link is full": ({"hosts": [host(**link(0.95))]}, "network"),
    "the link is full while it is read from": (
        {"hosts": [host(**link(0.5), num_workers=1)], "read_seconds": 400.0},
        "network",
    ),
    "the link is nearly full": ({"hosts": [host(**link(0.88))]}, "storage"),
    "the link is full of what others read": (
        {"hosts": [host(**link(0.95, received_bytes_per_second=2.9 * GB))]},
        "storage",
    ),
    "one link of three is full, and no rank is slower": (
        {"hosts": [host(**link(share)) for share in (0.95, 0.5, 0.5)]},
        "storage",
    ),
    "most bytes from memory": ({"page_cache_share": 0.97}, "unclear"),
    "one rank waits for slow reads, the others for it": (
        {"steps": steps_of(*ONE_WAITS, read=[1.0, 0.02, 0.02])},
        "barrier",
    ),
    "one rank is always served last": (
        {"steps": steps_of(*ONE_WAITS, read=[1.0, 0.9, 1.1])},
        "storage",
    ),
    "many ranks on few cores: each step another one is late": (
        {
            "steps": steps_of(*[0.0] * 8, compute=IN_TURN),
            "hosts": [host(runqueue_seconds=9.0, num_workers=8)],
            "reader": {"read_threads": 1},
        },
        "host cpu",
    ),
    "all are at the barrier, and stay there": (
        {"steps": steps_of(0.0, 0.0, barrier=0.1)},
        "barrier",
    ),
    "compute times differ as asked": (
        {"steps": steps_of(*[0.0] * 8, compute=IN_TURN, computation_time=IN_TURN)},
        "barrier",
    ),
    "one of two ranks is late, now this one and now that": (
        {"steps": steps_of(0.0, 0.0, compute=TWO_IN_TURN)},
        "oversleep",
    ),
    "woken late by a quota": (
        {"steps": steps_of(0.01, 0.01, compute=1.2), "hosts": [host(throttled_seconds=30.0)]},
        "host cpu",
    ),
    "woken late": ({"steps": steps_of(0.01, 0.01, compute=1.2)}, "oversleep"),
    # What the others' lines lack.
    "two hosts, no drive seen": (
        {"hosts": [host(**NO_DRIVE), host(host="b", **NO_DRIVE)]},
        "storage",
    ),
    "one host of two was not probed, so none counts": (
        {"hosts": [host(probe=probe(20)), host(host="b", probe=None)]},
        "storage",
    ),
    "the page cache helped": ({"page_cache_share": 0.2}, "storage"),
    "more bytes than the format needs": ({"read_amplification": 1.38, "needed": 1.25}, "storage"),
    "hardly more bytes than the format needs": (
        {"read_amplification": 1.37, "needed": 1.25},
        "storage",
    ),
    "more bytes than needed, by few readers": (
        {"hosts": [host(probe=probe(12))], "read_amplification": 1.38, "needed": 1.25},
        "loader",
    ),
    "other guests took few CPUs": (
        {"hosts": [host(cpu_share=0.05, host_steal_share=0.05)]},
        "storage",
    ),
    "segments were lost": ({"hosts": [host(**link(None, resent_share=0.031))]}, "storage"),
    "segments were lost, of a host with a drive": (
        {"hosts": [host(network=host(**link(None, resent_share=0.031)).network)]},
        "storage",
    ),
    "segments came out of order": (
        {"hosts": [host(**link(0.97, unordered_share=0.012))]},
        "network",
    ),
    "the links of two hosts are full": (
        {"hosts": [host(**link(0.95)), host(host="b", **link(0.96))]},
        "network",
    ),
    "all CPUs full, and nobody tells by whom": (
        {"hosts": [host(cpu_share=None, host_cpu_share=0.95, runqueue_seconds=50.0)]},
        "host cpu",
    ),
    "all CPUs full, and nobody tells more": (
        {
            "hosts": [
                host(
                    cpu_share=None,
                    host_cpu_share=0.95,
                    runqueue_seconds=None,
                    throttled_seconds=None,
                )
            ]
        },
        "host cpu",
    ),
    "woken late by other guests": (
        {
            "steps": steps_of(0.01, 0.01, compute=1.2),
            "hosts": [host(cpu_share=0.05, host_cpu_share=0.06, host_steal_share=0.12)],
        },
        "host cpu",
    ),
    "one accelerator": ({"steps": steps_of(0.5)}, "storage"),
    "one accelerator, a full link": (
        {"steps": steps_of(0.5), "hosts": [host(**link(0.97))]},
        "network",
    ),
    "a slow rank, and another nearly as slow, which excuses neither": (
        {"steps": steps_of(0.5, 0.01, 0.01, 0.04, read=[2.9, 1.0, 1.0, 2.8])},
        "barrier",
    ),
    "a slow rank of two accelerators": (
        {
            "steps": steps_of(0.5, 0.5, 0.01, 0.01, read=[2.0, 2.0, 0.1, 0.1]),
            "names": ["rank 0"] * 2 + ["rank 1"] * 2,
        },
        "barrier",
    ),
    **{
        f"CPUs full, {keys}, {'direct' if direct else 'through the page cache'}": (
            {
                "hosts": [host(cpu_share=0.97, direct=direct)],
                "reader": READER | keys,
            },
            "host cpu",
        )
        for keys, direct in READERS
    },
    **{
        f"few reads, {keys}": (
            {
                "steps": steps_of(0.5, read=0.1, decode=3.0 * ("decode" in keys)),
                "reader": READER | keys,
            },
            "loader",
        )
        for keys in LOADERS
    },
}


def limit_lines(_: Path) -> str:
    """Return what each case's limit says, and what it advises."""
    limits = ((case, find_run_limit(evidence(**changes))) for case, (changes, _) in CASES.items())
    return "\n\n".join(
        "\n".join(filter(None, (f"{case}: {limit.name}", limit.evidence, limit.advice)))
        for case, limit in limits
    )
