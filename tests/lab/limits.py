"""Evidence of runs, each one clear case of what bound it; `limit_lines` for the golden file."""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.config.model import load_workload
from dlemu.host.intervals import IntervalSummary
from dlemu.host.network import NetworkUse
from dlemu.judge.bottleneck import find_run_limit
from dlemu.judge.evidence import Evidence, HostReport
from dlemu.judge.metrics import find_losses
from dlemu.judge.records import Steps
from dlemu.judge.summary import CheckpointCost
from dlemu.judge.sums import RankName, Rule
from dlemu.report.words import advice_of, evidence_of
from dlemu.storage.probe import Probe
from tests.lab.shared import rows, sums_of

GB = 1e9
NUM_STEPS = 11
READER: dict[str, Any] = {"read_threads": 4, "data_loader": "pytorch"}


def steps_of(*waits: Any, **fields: Any) -> Steps:
    """Return the steps of accelerators that wait so long for each batch and compute for 1 s.

    Values are one for all, one for each accelerator, or one for each of its steps. Unless told
    else, workers are in reads for 4 s a batch, and accelerators meet as soon as the last is there.
    """
    asked = {"num_samples": 7, "compute": 1.0, "computation_time": 1.0, "read": 4.0} | fields
    columns = {name: np.asarray(each, float) for name, each in ({"wait": waits} | asked).items()}
    for name, column in columns.items():
        columns[name] = column[:, None] if column.ndim == 1 else column
    return rows(len(waits), NUM_STEPS, **columns).ravel()


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
        read_bytes=seen.get("read_bytes", 600.0 * GB),
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
    names = changes.pop("names", [RankName(rank, "a") for rank in range(num_accelerators)])
    preprocess, allreduce = changes.pop("preprocess", 0.0), changes.pop("allreduce", 0.0)
    rule = Rule(preprocess_seconds=preprocess, allreduce_seconds=allreduce)
    losses = find_losses(sums_of(steps, names, rule))
    measured: dict[str, Any] = {
        "read_seconds": 720.0,
        "worker_seconds": 800.0,
        "page_cache_share": 0.004,
        "read_amplification": 1.0,
    }
    counted = (*measured, "uncounted_share")
    measured |= {name: changes.pop(name) for name in counted if name in changes}
    keys = {f"reader.{key}": value for key, value in changes.pop("reader", READER).items()}
    keys["train.allreduce_time"] = allreduce
    seen: dict[str, Any] = {
        "workload": load_workload("unet3d_h100", keys),
        "losses": losses,
        "hosts": [host()],
        "measured": measured,
        "num_accelerators": num_accelerators,
    }
    return Evidence(**(seen | changes))


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


def on(*more: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return what differs on the host, and on more of them."""
    others = (host(**({"host": "b"} | each)) for each in more)
    return {"hosts": [host(**changes), *others]}


def in_steps(*waits: Any, **fields: Any) -> dict[str, Any]:
    """Return what differs in the steps."""
    return {"steps": steps_of(*waits, **fields)}


NOT_TOLD: dict[str, Any] = {"runqueue_seconds": None, "throttled_seconds": None}
"""By a kernel that does not say who waits for a CPU."""
TWO_IN_TURN = np.where(np.arange(NUM_STEPS) % 2 == np.arange(2)[:, None], 1.2, 1.0)
"""(2, steps) seconds of compute: in each step another accelerator is late."""
OTHERS_WORK = {"cpu_share": 0.1, "host_cpu_share": 0.91}

DECODES = in_steps(0.5, 0.5, read=1.0, decode=1.2, hand_over=0.3)
"""Workers that read for 40 % of the time in which they make a batch."""

CASES: dict[str, dict[str, Any]] = {
    "steps during writes lost most": {"checkpoints": written(0.6)},
    "drive busy, no more to more readers": {},
    "no probe, no device seen": on(probe=None, device_busy_share=None),
    "little lost": in_steps(0.005, 0.01),
    "one host of two is stopped": on({"cpu_share": 0.2, "throttled_seconds": 50.0}),
    "others have the CPUs, but compute times differ as asked": in_steps(
        0.0, 0.0, compute=TWO_IN_TURN, computation_time=TWO_IN_TURN
    )
    | on(**OTHERS_WORK),
    "others have the CPUs, and the kernel does not tell who waits for one": on(
        **OTHERS_WORK, **NOT_TOLD
    ),
    "other guests have the CPUs": in_steps(0.5, 0.5, read=0.01, decode=0.1)
    | on(cpu_share=1e-4, host_cpu_share=0.25, host_steal_share=0.65),
    # 16 CPUs x 1 % x 100 s are used, and three times as much is stolen: of 80 s of making.
    "other guests take what workers use": on(
        cpu_share=0.01, host_cpu_share=0.02, host_steal_share=0.06
    ),
    "more readers get more, but far less than what is asked for": on(probe=probe(9))
    | in_steps(9.0, 9.0, read=40.0),
    "as many readers get more after the run, and more readers no more than that": on(
        probe=probe(7.8, few=7.6)
    ),
    "a throttle was lifted when the run had ended": on(probe=probe(784, few=391)),
    "a busy host, and a drive that gives no more": on(runqueue_seconds=632.0),
    "a busy host, and a drive that would give more": on(
        runqueue_seconds=632.0, probe=probe(20, few=12)
    ),
    # Workers are in reads for 5 % of the time, in which they get what the probe gets.
    "a fast drive that is seldom asked stalls": on(probe=probe(20, few=19), num_workers=8)
    | in_steps(0.05, 0.05)
    | {"read_seconds": 40.0},
    "together they would get more": on({"host": "a", "probe": probe(9)}, probe=probe(9)),
    "half in reads": in_steps(0.5, 0.5, read=1.0, decode=1.0),
    # A throttle held the reads of a ResNet-50 to 0.9 of its demand, and workers were busy for more
    # than half of their time: more of them would have waited for it, too.
    "workers decode for long, and the storage gives all it has": DECODES
    | {"given_in_steps": 5.5 * GB},
    "workers decode for long, and the storage has more": DECODES | {"given_in_steps": 4.3 * GB},
    "workers decode for long, and the storage has time left": DECODES | {"given_in_steps": 5 * GB},
    "workers decode for long, and the storage has become slower": DECODES
    | {"given_in_steps": 7.2 * GB},
    # Jobs that warmed up for seconds in their first step: a quarter of what steps needed was read
    # in it, and the throttle gave nothing while the loader could hold no more.
    "workers decode for long, and a slow first step has read ahead": DECODES
    | {"given_in_steps": 7.2 * GB, "given_but_ahead": 5.5 * GB},
    "workers decode for long, and little was read in a slow first step": DECODES
    | on(read_bytes=400 * GB, probe=probe(6.2, few=5.2))
    | {"given_in_steps": 6.5 * GB},
    "workers decode for long, and nobody knows what the storage has": DECODES
    | on(probe=None)
    | {"given_in_steps": 6 * GB},
    "workers decode on full CPUs, and the storage gives all it has": DECODES
    | on(cpu_share=0.9, probe=probe(6.2))
    | {"given_in_steps": 6.1 * GB},
    "CPUs unknown": on(cpu_share=None, **NOT_TOLD),
    "the link is full while it is read from": on(**link(0.5), num_workers=1)
    | {"read_seconds": 400.0},
    "the link is nearly full": on(**link(0.88)),
    "the link is full of what others read": on(**link(0.95, received_bytes_per_second=2.9 * GB)),
    "one link of three is full, and no rank is slower": on(
        link(0.5) | {"host": "a"}, link(0.5) | {"host": "a"}, **link(0.95)
    ),
    "most bytes from memory": {"page_cache_share": 0.97},
    "most bytes in holes": {"page_cache_share": 0.0, "uncounted_share": 0.97},
    "one rank waits for slow reads, the others for it": in_steps(
        0.5, 0.01, 0.01, read=[1.0, 0.02, 0.02]
    ),
    "one rank is always served last": in_steps(0.5, 0.01, 0.01, read=[1.0, 0.9, 1.1]),
    "many ranks on few cores: each step another one is late": in_steps(
        *[0.0] * 8,
        compute=np.where(np.arange(NUM_STEPS) % 8 == np.arange(8)[:, None], 1.04, 1.0),
    )
    | on(runqueue_seconds=9.0, num_workers=8, cpu_share=0.5, host_cpu_share=0.55)
    | {"reader": {"read_threads": 1}},
    "many ranks, and CPUs that are free: those who wake up wait a moment for one": in_steps(
        *[0.0] * 8, barrier=0.04
    )
    | on(runqueue_seconds=9.0, num_workers=8)
    | {"reader": {"read_threads": 1}},
    "CPUs are free, and readers that wake up wait for one": on(
        runqueue_seconds=60.0, probe=None, cpu_share=0.1, host_cpu_share=0.1
    ),
    "all are at the barrier, and stay there": in_steps(0.0, 0.0, barrier=0.1),
    "the job's all-reduce takes longer than dlemu's barrier": in_steps(0.0, 0.0, barrier=0.1)
    | {"allreduce": 0.09},
    "the job's all-reduce takes less than reads": in_steps(0.3, 0.3, barrier=0.35)
    | {"allreduce": 0.3},
    "one of two ranks is late, now this one and now that": in_steps(0.0, 0.0, compute=TWO_IN_TURN),
    "woken late by a quota": in_steps(0.01, 0.01, compute=1.2) | on(throttled_seconds=30.0),
    # What the others' lines lack.
    "the page cache helped": {"page_cache_share": 0.2},
    "more bytes than the format needs": {"read_amplification": 1.38, "needed": 1.25},
    "hardly more bytes than the format needs": {"read_amplification": 1.37, "needed": 1.25},
    "other guests took few CPUs": on(cpu_share=0.05, host_steal_share=0.05),
    "segments were lost": on(**link(None, resent_share=0.031)),
    "segments came out of order": on(**link(0.97, unordered_share=0.012)),
    "the links of two hosts are full": on(link(0.96), **link(0.95)),
    "all CPUs full, and nobody tells by whom": on(
        cpu_share=None, host_cpu_share=0.95, runqueue_seconds=50.0, probe=probe(20, few=12)
    ),
    "one accelerator": in_steps(0.5),
    "a slow rank, and another nearly as slow, which excuses neither": in_steps(
        0.5, 0.01, 0.01, 0.04, read=[2.9, 1.0, 1.0, 2.8]
    ),
    "a slow rank of two accelerators": in_steps(0.5, 0.5, 0.01, 0.01, read=[2.0, 2.0, 0.1, 0.1])
    | {"names": [RankName(0)] * 2 + [RankName(1)] * 2},
    "CPUs full, direct already": on(cpu_share=0.97, direct=True, probe=probe(20, few=12))
    | {"reader": READER | {"odirect": True}},
    "CPUs full, but the storage gives nobody more": on(cpu_share=0.97, probe=probe(6.12)),
    "CPUs full, threads already": on(cpu_share=0.97, probe=probe(20, few=12))
    | {"reader": {"data_loader": "threads", "decode": "library"}},
    "few reads, the library decodes": in_steps(0.5, read=0.1, decode=3.0)
    | {"reader": READER | {"decode": "library"}},
    "few reads": in_steps(0.5, read=0.1),
    "few reads, in threads": in_steps(0.5, read=0.1)
    | {"reader": READER | {"data_loader": "threads"}},
}
"""What differs in each case; tests/golden/limits.txt has the limit that each must get."""


def limit_lines(_: Path) -> str:
    """Return what each case's limit says, and what it advises."""
    limits = ((case, find_run_limit(evidence(**changes))) for case, changes in CASES.items())
    return "\n\n".join(
        "\n".join(
            filter(
                None,
                (f"{case}: {limit.name}", evidence_of(asdict(limit)), advice_of(asdict(limit))),
            )
        )
        for case, limit in limits
    )
