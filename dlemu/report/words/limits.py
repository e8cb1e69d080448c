"""The words of what limited a run: its evidence, what to try, and how time was lost."""

from collections.abc import Callable, Mapping
from typing import Any

from dlemu.units import counted, format_rate, format_seconds

LOSSES: Mapping[str, str] = {
    "read": "waiting for reads",
    "decode": "waiting for decoding",
    "hand_over": "waiting for the hand-over",
    "preprocess": "waiting for preprocessing",
    "elsewhere": "batches waiting in a queue",
    "oversleep": "compute overran its target",
    "uneven": "compute times drawn unequal",
    "allreduce": "all-reduce",
    "meeting": "barrier",
}
"""The fields of LostShares."""


def name_losses(shares: Mapping[str, float]) -> str:
    """Return shares of the time by their causes, the largest first, without those below 0.1 %."""
    largest = sorted(shares, key=lambda name: -shares[name])
    return ", ".join(
        f"{100 * shares[name]:.1f}% {LOSSES[name]}" for name in largest if shares[name] >= 0.001
    )


def latencies(gets: int, half: float | None, most: float | None) -> str:
    """Return "1,234 GETs, p50 12 ms, p99 80 ms"."""
    if half is None or most is None:
        return counted(gets, "GET")
    return f"{counted(gets, 'GET')}, p50 {format_seconds(half)}, p99 {format_seconds(most)}"


def either(*ways: str) -> str:
    """Return "a", "a, or b" or "a, b, or c"."""
    return ", or ".join([", ".join(ways[:-1]), ways[-1]]) if len(ways) > 1 else "".join(ways)


def _rank(f: Any) -> str:
    """Return "rank 3 on host node1", as far as it is known."""
    host = getattr(f, "host", None)
    name = f"rank {f.rank}" if isinstance(f.rank, int) else f.rank  # it was a text on Nov 27, 2026
    return f"{name} on host {host}" if host else f"{name}"


def _slow_rank(f: Any) -> str:
    own, usual = format_seconds(f.seconds_a_step), format_seconds(f.usual_seconds_a_step)
    did = f"waited {own} a step for its batches"
    if f.overran:
        did = f"overran its compute by {own} a step"
    return (
        f"{_rank(f)} {did}, the others {usual}; they waited {100 * f.waited_share:.1f}% of the "
        "time for it"
    )


def _host_cpus(f: Any) -> str:
    did, seen = [], []
    if f.cpu_share is not None:
        did.append(f"used {100 * f.cpu_share:.0f}% of {f.usable_cpus:g} CPUs")
    if f.lacked_seconds_per_second is not None:
        did.append(f"waited {f.lacked_seconds_per_second:.2f} s per second for a CPU (sum)")
    if did:
        seen.append(f"ranks and workers {' and '.join(did)}")
    if f.total_cpu_share is not None:
        seen.append(f"total CPU {100 * f.total_cpu_share:.0f}%")
    if f.steal_share is not None:
        seen.append(f"other guests took {100 * f.steal_share:.0f}%")
    if f.throttled_seconds_per_second is not None:
        seen.append(f"the CPU quota stopped them {f.throttled_seconds_per_second:.2f} s per second")
    return f"on host {f.host}: {', '.join(seen)}"


def _link_full(f: Any) -> str:
    others = f", and of {counted(f.num_other_hosts, 'other host')}" if f.num_other_hosts else ""
    return (
        f"{f.nic} of host {f.host} received {format_rate(f.received_bytes_per_second)}, "
        f"{100 * f.share:.0f}% of its {f.gbps:g} Gb/s{others}"
    )


def _gave(f: Any) -> str:
    """Return which storage gave how much, while it was read from."""
    rate = format_rate(f.bytes_per_second)
    if f.source == "drives" and f.num_drives > 1:
        return f"the {f.num_drives} drives gave {rate} while they were read from"
    name = f.device if f.source == "drives" else f"the {f.source}"
    to = f" to {f.num_hosts} hosts" if f.num_hosts > 1 else ""
    return f"{name} gave {rate}{to} while it was read from"


def _storage_gave(f: Any) -> str:
    if f.probe is None:
        return _gave(f)
    most = format_rate(f.probe["many"]) if f.probe["gives_more"] else "no more"
    return f"{_gave(f)}, and {most} to {f.probe['num_many']} readers"


def _storage_gives_more(f: Any) -> str:
    many, few = format_rate(f.probe["many"]), format_rate(f.probe["few"])
    return (
        f"{_gave(f)}, but gives {many} to {f.probe['num_many']} readers ({few} to "
        f"{f.probe['num_few']})"
    )


EVIDENCE: Mapping[str, Callable[[Any], str]] = {
    "ceiling": lambda f: (
        f"accelerators lost {100 * f.lost_share:.1f}% of their time; this is the ceiling"
    ),
    "allreduce_took": lambda f: (
        f"the job's own all-reduce (train.allreduce_time={f.seconds:g}) took "
        f"{100 * f.share:.1f}% of the time"
    ),
    "compute_overran": lambda f: (
        f"compute overran its target by {100 * f.share:.1f}% of the run time; the barrier of "
        f"dlemu's own processes took {100 * f.barrier_share:.1f}%, waiting for data "
        f"{100 * f.waited_share:.1f}%"
    ),
    "compute_unequal": lambda f: (
        "compute times are drawn unequal (train.computation_time): waiting for the longest took "
        f"{100 * f.share:.1f}% of the time"
    ),
    "cpus": lambda f: f"CPUs {100 * f.share:.0f}%",
    "readers_queued": lambda f: (
        f"on host {f.host} reading threads waited in run queues, though most CPUs were free"
    ),
    "cpus_unknown": lambda f: f"the kernel of host {f.host} does not show whether CPUs were free",
    "cap_above_drive": lambda f: (
        f"{f.device} was hardly busy, and more readers get no more: a cap above it is likely (a "
        "volume's limit, a cgroup)"
    ),
    "device_busy": lambda f: f"{f.device} was busy {100 * f.share:.0f}% of the time",
    "explains": lambda f: f"this explains {100 * f.share:.0f}% of the loss",
    "explains_rest": lambda f: f"this explains {100 * f.share:.0f}% of the rest of the loss",
    "host_cpus": _host_cpus,
    "late_batches": lambda f: (
        f"accelerators lost {100 * f.lost_share:.0f}% of the time: {100 * f.share:.0f}% "
        f"{LOSSES[f.cause]}, {100 * f.read_share:.0f}% {LOSSES['read']}"
    ),
    "latencies": lambda f: latencies(f.num_gets, f.p50_seconds, f.p99_seconds),
    "link_full": _link_full,
    "lost": lambda f: f"accelerators lost {100 * f.lost_share:.0f}% of the time",
    "lost_by_cause": lambda f: (
        f"accelerators lost {100 * f.lost_share:.0f}% of the time ({name_losses(f.parts)})"
    ),
    "mostly_from_memory": lambda f: (
        f"{100 * f.share:.0f}% of the bytes came from memory, not from storage"
    ),
    "mostly_uncounted": lambda f: (
        f"{100 * f.share:.0f}% of the bytes were not read from any drive that is seen"
    ),
    "nothing_failed": lambda f: f"nothing failed up to {f.num_accelerators}",
    "other_programs": lambda f: f"other programs took {100 * f.share:.0f}% of the CPUs",
    "page_cache_served": lambda f: f"page cache served {100 * f.share:.1f}%",
    "probe_below_one": lambda f: (
        f"{f.num_readers} readers at once get {format_rate(f.bytes_per_second)}, one accelerator "
        f"needs {format_rate(f.needed_bytes_per_second)}; no run was made"
    ),
    "read_amplified": lambda f: (
        f"{f.amplification:.3g} bytes were read for each byte of the samples, the format needs "
        f"{f.needed:.3g}"
    ),
    "segments_resent": lambda f: f"{100 * f.share:.1f}% of those sent were sent again",
    "segments_unordered": lambda f: (
        f"{100 * f.share:.1f}% of the TCP segments received came out of order"
    ),
    "slow_rank": _slow_rank,
    "steal": lambda f: f"other guests took {100 * f.share:.0f}% of the CPUs (steal)",
    "steps_while_writing": lambda f: (
        f"AU {f.au_percentage:.1f}% in the {f.num_steps} steps while a checkpoint was written, "
        f"{f.au_otherwise_percentage:.1f}% in the others"
    ),
    "held_back": lambda f: (
        f"it gave {format_rate(f.bytes_per_second)} to {f.num_readers} readers after the run: "
        "something held it back before"
    ),
    "storage_gave": _storage_gave,
    "storage_gives_more": _storage_gives_more,
    "target_in_memory": lambda f: "the target lies in memory: no drive was read",
    "unexplained": lambda f: (
        f"accelerators lost {100 * f.lost_share:.1f}% of their time, and nothing explains half of "
        f"it: {name_losses(f.parts)}"
    ),
    "waited_for_reads": lambda f: f"{100 * f.share:.0f}% of the loss was waiting for reads",
}
"""What a limit was concluded from: clauses of one line."""

ADVICE: Mapping[str, Callable[[Any], str]] = {
    "as_asked": lambda f: (
        "this is the workload's own imbalance; faster storage or hosts will not help"
    ),
    "the_jobs_own": lambda f: (
        "this is a part of the job; faster storage or hosts will not help, larger batches will"
    ),
    "decode_less": lambda f: "do less a sample in the workers: decode or resize before training",
    "end_other_programs": lambda f: "end the other programs",
    "faster_links": lambda f: "use faster or more links",
    "fewer_accelerators": lambda f: "fewer accelerators",
    "fewer_accelerators_a_host": lambda f: "fewer accelerators a host",
    "key": lambda f: f"{f.key}={f.value}",
    "leave_cores": lambda f: "leave cores to the ranks",
    "look_at_cpus": lambda f: f"look at what else runs on the CPUs of {_rank(f)}",
    "look_at_neighbours": lambda f: (
        "look at what else used the storage or held it to a rate, and run again"
    ),
    "look_at_rank": lambda f: (
        f"look at what is different about {_rank(f)}: its storage path, its CPUs, its neighbours"
    ),
    "more_cores": lambda f: f"use more cores{' or hosts' if f.or_hosts else ''}",
    "more_drives": lambda f: "use more or faster drives",
    "more_hosts": lambda f: "more hosts",
    "more_servers": lambda f: "use more servers (storage.endpoint_url)",
    "not_the_storage": lambda f: "this does not measure the storage",
    "other_checkpoint_drives": lambda f: (
        "write checkpoints to other drives or less often, or use faster drives"
    ),
    "own_cpus": lambda f: "give this virtual machine CPUs of its own",
    "raise_argument": lambda f: f"raise {f.argument} (now {f.now})",
    "raise_gets_in_flight": lambda f: (
        f"raise reader.gets_in_flight (now {f.gets_in_flight}) or reader.read_threads (now "
        f"{f.read_threads})"
    ),
    "raise_read_threads": lambda f: f"raise reader.read_threads (now {f.read_threads})",
    "raise_read_threads_or_depth": lambda f: (
        f"raise reader.read_threads (now {f.read_threads}) or reader.io_depth (now {f.io_depth})"
    ),
    "set_argument": lambda f: f"set {f.argument}={f.value}",
    "set_key": lambda f: f"set {f.key}={f.value}",
    "use_fewer_accelerators_a_host": lambda f: "use fewer accelerators a host",
}
"""Ways to raise a limit: parts of one line, joined by "or"."""
