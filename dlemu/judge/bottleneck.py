"""Finds the resource that limited a run, its evidence, and what to change.

Storage is named only if readers waited in read calls while CPUs were free, and more readers would
not have read faster: no other FAIL may look like the storage's fault. A limit is named only if its
evidence accounts for at least half of the loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dlemu.host.devices import total
from dlemu.host.intervals import IntervalSummary
from dlemu.host.network import NetworkUse
from dlemu.judge.evidence import Evidence, HostReport
from dlemu.judge.metrics import LOSSES, name_losses
from dlemu.storage.probe import Probe
from dlemu.units import counted, format_rate, format_seconds

_CEILING = 0.02
"""Losses below this share of the time have no limit."""
_ENOUGH = 0.5
"""Share of the loss that the evidence for a limit must account for."""
_CPU_FULL = 0.85
"""Share of CPU time from which on CPUs are full; some of the kernel's work is not counted."""
_CACHED = 0.5
"""A run with at least this share of its bytes from memory says nothing about storage."""
_MIN_STEAL_SHARE = 0.01
"""The evidence names other guests that took at least this share of the CPUs."""
_MORE = 1.15
"""Storage that is this many times as fast with more readers was not the limit."""
_VARIES = 1.3
"""The same readers may be this many times as fast after a run: drives vary, and are shared."""
_SLOWER = 1.5
"""A rank has slow reads if its batches take this many times as long to make as other ranks'."""
_LINK_FULL = 0.9
"""Share of a link's rate from which on it is full: frames of 1500 bytes leave 5 % for headers."""
_CARRIED = 0.5
"""A link is a limit of reads only if it received this share of the bytes that were read."""
_AMPLIFIED = 1.1
"""Storage that gave this many times the bytes that the format needs is told of."""
_LOSSY = 0.001
"""Share of TCP segments that were lost or came late, from which on the evidence tells of it."""


LimitName = Literal[
    "storage",
    "network",
    "host cpu",
    "loader",
    "barrier",
    "oversleep",
    "checkpoints",
    "none",
    "unclear",
]


@dataclass(frozen=True)
class Limit:
    """The resource that limited a run."""

    name: LimitName
    evidence: str
    advice: str = ""
    explains: float | None = None
    """Share (0-1) of the loss that the evidence accounts for; None for `none` and `unclear`."""


def limit_in_memory(name: str) -> str:
    """Return a limit's name for a run whose files lie in memory, which reads no storage."""
    return "memory" if name in ("storage", "unclear") else name


def find_run_limit(evidence: Evidence) -> Limit:
    """Return the resource that lowered the AU, or `none`, or `unclear` with the losses."""
    parts = evidence.losses.parts
    if parts.total < _CEILING:
        lost = f"accelerators lost {100 * max(parts.total, 0):.1f}% of their time"
        return Limit("none", f"{lost}; this is the ceiling")
    for suspect in _SUSPECTS:
        limit = suspect(evidence)
        if limit is None:
            continue
        if limit.explains is None:
            return limit
        if limit.explains >= _ENOUGH:
            explains = f"; this explains {100 * limit.explains:.0f}% of the loss"
            told_all = f"{limit.evidence}{_amplified(evidence)}{explains}"
            return Limit(limit.name, told_all, limit.advice, limit.explains)
    return Limit(
        "unclear",
        f"accelerators lost {100 * parts.total:.1f}% of their time, and nothing explains half of "
        f"it: {name_losses(parts)}{_amplified(evidence)}{_cpus(evidence)}",
    )


def _checkpoints(evidence: Evidence) -> Limit | None:
    """Return `checkpoints` where the steps during writes lost most of what was lost."""
    cost = evidence.checkpoints
    if cost is None or cost["au_while_writing_percentage"] is None:
        return None
    return Limit(
        "checkpoints",
        f"{_lost(evidence)}; AU {cost['au_while_writing_percentage']:.1f}% in the "
        f"{cost['steps_while_writing']} steps while a checkpoint was written, "
        f"{cost['au_otherwise_percentage'] or 0:.1f}% in the others{_cpus(evidence)}",
        "write checkpoints to other drives or less often, or use faster drives",
        cost["lost_share"],
    )


def _slow_rank(evidence: Evidence) -> Limit | None:
    """Return `barrier` for the rank that made the others wait."""
    ranks = evidence.losses.ranks
    if len(ranks) < 2:
        return None
    slowest = max(ranks, key=lambda rank: rank.saved)
    others = [rank for rank in ranks if rank is not slowest]

    def of_others(value: str) -> float:
        return float(np.median([getattr(rank, value) for rank in others]))

    # Among equal ranks, too, the others would wait a little less without any one of them.
    explains = _part(evidence, slowest.saved - of_others("saved"))
    if slowest.late_seconds > slowest.wait_seconds:
        own, usual = slowest.late_seconds, of_others("late_seconds")
        did = f"overran its compute by {format_seconds(own)} a step"
        advice = f"look at what else runs on the CPUs of {slowest.name}"
    elif slowest.making_seconds < _SLOWER * of_others("making_seconds"):
        # Ranks may share a slow drive that always serves one of them last. Its reads are not
        # slower: the others wait as long, at the barrier.
        return None
    else:
        own, usual = slowest.wait_seconds, of_others("wait_seconds")
        did = f"waited {format_seconds(own)} a step for its batches"
        advice = (
            f"look at what is different about {slowest.name}: its storage path, its CPUs, its "
            "neighbours"
        )
    return Limit(
        "barrier",
        f"{slowest.name} {did}, the others {format_seconds(usual)}; they waited "
        f"{100 * slowest.saved:.1f}% of the time for it",
        advice,
        explains,
    )


def _host_cpu(evidence: Evidence) -> Limit | None:
    """Return `host cpu` for the host where the lack of CPUs explains most of the loss."""
    host = max(evidence.hosts, key=lambda each: _explained_by_cpus(evidence, each))
    explains = _explained_by_cpus(evidence, host)
    if explains == 0:
        return None
    used, did = host.whole, []
    seconds = max(used.seconds, 1e-9)
    if used.process_cpu_share is not None:
        did.append(f"used {100 * used.process_cpu_share:.0f}% of {used.usable_cpus:g} CPUs")
    if used.lacked_seconds is not None:
        did.append(f"waited {used.lacked_seconds / seconds:.2f} s per second for a CPU (sum)")
    seen = [f"ranks and workers {' and '.join(did)}"] if did else []
    if used.host_cpu_share is not None:
        seen.append(f"total CPU {100 * used.host_cpu_share:.0f}%")
    if (stolen := used.host_steal_share or 0.0) >= _MIN_STEAL_SHARE:
        seen.append(f"other guests took {100 * stolen:.0f}%")
    if used.throttled_seconds:
        seen.append(
            f"the CPU quota stopped them {used.throttled_seconds / seconds:.2f} s per second"
        )
    words = ""
    if _others_work(used):
        words = f"other programs took {100 * (used.others_cpu_share or 0):.0f}% of the CPUs; "
    words += f"{_lost(evidence)}; on host {host.host}: {', '.join(seen)}"
    return Limit("host cpu", words + _busy([host]), _advice_for_cpus(evidence, host), explains)


def _explained_by_cpus(evidence: Evidence, host: HostReport) -> float:
    """Return the share of the loss that a host's lack of CPUs accounts for."""
    used = host.whole
    if (used.process_cpu_share or 0.0) > _CPU_FULL:
        return 1.0  # all of its CPUs were in use: nothing could have been done sooner
    parts, lacked = evidence.losses.parts, used.lacked_seconds
    explained = 0.0
    full = (used.host_cpu_share or 0.0) + (used.host_steal_share or 0.0)
    if full > _CPU_FULL:  # others used the CPUs: all waits but those without CPU count
        without_cpu = 0.0 if lacked is None else parts.read + parts.preprocess
        explained = _part(evidence, parts.total - parts.uneven - without_cpu)
    if lacked is None:
        return explained
    # A worker without a CPU delays its batch, whatever it does at that time.
    share = host.num_workers / max(1, sum(each.num_workers for each in evidence.hosts))
    making = share * evidence.losses.making_seconds
    of_wait = parts.waited * min(1.0, lacked / max(making, 1e-9))
    # Ranks in a queue for a CPU wait, on average, half as long as the last of them.
    accelerators = host.num_workers / max(1, evidence.workload.reader.read_threads)
    late = parts.oversleep + parts.meeting
    of_late = min(late, 2 * lacked / max(accelerators * used.seconds, 1e-9))
    return max(explained, _part(evidence, of_wait + of_late))


def _lateness(evidence: Evidence) -> Limit | None:
    """Return `oversleep` or `barrier` where steps ended late though CPUs were free."""
    parts = evidence.losses.parts
    explains = _part(evidence, parts.oversleep + parts.meeting)
    name: LimitName = "oversleep" if parts.oversleep >= parts.meeting else "barrier"
    return Limit(
        name,
        f"compute overran its target by {100 * parts.oversleep:.1f}% of the run time; barrier "
        f"{100 * parts.meeting:.1f}%, waiting for data {100 * parts.waited:.1f}%{_cpus(evidence)}",
        f"{'use fewer accelerators a host, or ' if _several_a_host(evidence) else ''}"
        "leave cores to the ranks",
        explains,
    )


def _uneven(evidence: Evidence) -> Limit | None:
    """Return `barrier` where the workload's compute times make accelerators wait for each other."""
    uneven = evidence.losses.parts.uneven
    return Limit(
        "barrier",
        f"compute times are drawn unequal (train.computation_time): waiting for the longest took "
        f"{100 * uneven:.1f}% of the time",
        "no storage and no host can change that",
        _part(evidence, uneven),
    )


def _loader(evidence: Evidence) -> Limit | None:
    """Return `loader` where batches were late for other reasons than reads."""
    parts, reader = evidence.losses.parts, evidence.workload.reader
    shares = {
        name: getattr(parts, name) for name in ("decode", "hand_over", "preprocess", "elsewhere")
    }
    longest = max(shares, key=lambda name: shares[name])
    explains = _part(evidence, sum(shares.values()))
    if explains >= _ENOUGH and (unknown := _cpus_unknown(evidence)):
        return _unclear(evidence, unknown)
    advice = f"raise reader.read_threads (now {reader.read_threads})"
    if longest == "decode" and reader.decode == "library" and not evidence.workload.dataset.by_h5py:
        advice += ", or set reader.decode=raw"
    if longest == "elsewhere" and reader.data_loader == "pytorch":
        advice += ", or set reader.data_loader=threads"
    return Limit(
        "loader",
        f"{_lost(evidence)}: {100 * shares[longest]:.0f}% {LOSSES[longest]}, "
        f"{100 * parts.read:.0f}% {LOSSES['read']}{_cpus(evidence)}",
        advice,
        explains,
    )


def _network(evidence: Evidence) -> Limit | None:
    """Return `network` where reads were waited for and came over links that were full."""
    full = _full_links(evidence)
    if not full:
        return None
    share, host, use = max(full, key=lambda each: each[0])
    explains = _part(evidence, evidence.losses.parts.read)
    others = f", and of {counted(len(full) - 1, 'other host')}" if len(full) > 1 else ""
    rate = (use.gbps or 0.0) * 1e9 / 8  # of this link: a host may receive more, over several
    return Limit(
        "network",
        f"{use.nic} of host {host.host} received {format_rate(share * rate)}, {100 * share:.0f}% "
        f"of its {use.gbps:g} Gb/s{others}{_lost_segments(evidence)}; "
        f"{100 * explains:.0f}% of the loss was waiting for reads"
        f"{_busy(evidence.hosts)}{_cpus(evidence)}",
        _either("use faster or more links", *_spread(evidence))
        + "; this does not measure the storage",
        explains * len(full) / len(evidence.hosts),
    )


def _full_links(evidence: Evidence) -> list[tuple[float, HostReport, NetworkUse]]:
    """Return the hosts whose link was at its rate while workers read, with what they read.

    Each has the share of the rate that it received over the whole time.
    """
    reading = _share_with_reads(evidence)
    return [
        (use.received_share, host, use)
        for host in evidence.hosts
        if (use := host.network) is not None
        and use.received_share is not None
        and use.received_share / reading >= _LINK_FULL
        and use.received_bytes_per_second >= _CARRIED * host.read_bytes_per_second
    ]


def _lost_segments(evidence: Evidence) -> str:
    """Return that TCP lost segments, for the end of a clause; "" where it lost hardly any."""
    uses = [host.network for host in evidence.hosts if host.network is not None]
    words = ""
    for name, what in (
        ("unordered_share", "of the TCP segments received came out of order"),
        ("resent_share", "of those sent were sent again"),
    ):
        most = max((getattr(use, name) or 0.0 for use in uses), default=0.0)
        if most >= _LOSSY:
            words += f"; {100 * most:.1f}% {what}"
    return words


def _reads(evidence: Evidence) -> Limit | None:
    """Return `storage` where reads were slow, or `loader` if more readers would read faster."""
    explains = _part(evidence, evidence.losses.parts.read)
    if explains < _ENOUGH:
        return None
    # Hosts may share the storage, so the rates of all hosts are added up.
    given = sum(host.read_bytes_per_second for host in evidence.hosts)
    gets = evidence.gets
    got = _rate_in_words(evidence, given / _share_with_reads(evidence))
    probe = total([host.probe for host in evidence.hosts])  # None if one is missing
    more, saved = (1.0, 0.0) if probe is None else _gain(evidence, given, probe)
    waited = f"{100 * explains:.0f}% of the loss was waiting for reads"
    if probe is not None and saved >= _ENOUGH:
        reader = evidence.workload.reader
        return Limit(
            "loader",
            f"{waited}; {got}, but gives {format_rate(probe.many)} to {probe.num_many} readers "
            f"({format_rate(probe.few)} to {probe.num_few}){_cpus(evidence)}",
            f"raise reader.read_threads (now {reader.read_threads}) or reader.io_depth "
            f"(now {reader.io_depth})",
            explains * saved,
        )
    if unknown := _cpus_unknown(evidence):
        return _unclear(evidence, unknown)
    cached = evidence.measured["page_cache_share"] or 0.0
    if cached > _CACHED:
        reason = f"{100 * cached:.0f}% of the bytes came from memory, not from storage"
        return _unclear(evidence, reason)
    uncounted = evidence.measured.get("uncounted_share", 0.0)
    if uncounted > _CACHED:
        reason = f"{100 * uncounted:.0f}% of the bytes were not read from any drive that is seen"
        return _unclear(evidence, reason)
    if probe is not None:
        most = format_rate(probe.many) if more > _MORE else "no more"
        got += f", and {most} to {probe.num_many} readers"
    fewer = ["fewer accelerators"] if evidence.num_accelerators > 1 else []
    advice = _either("use more or faster drives", *fewer)
    busy = _busy(evidence.hosts)
    if gets is not None:
        busy = f"; {latencies(gets.gets, gets.quantile(0.5), gets.quantile(0.99))}"
        advice = _either(
            f"raise reader.gets_in_flight (now {evidence.workload.reader.gets_in_flight}) or "
            f"reader.read_threads (now {evidence.workload.reader.read_threads})",
            "use more servers (storage.endpoint_url)",
            *fewer,
        )
    # Drives of the host read nothing over the network, whatever else its links carry.
    lossy = "" if any(host.device for host in evidence.hosts) else _lost_segments(evidence)
    return Limit(
        "storage",
        f"{got}; {_lost(evidence)}{busy}{lossy}{_cpus(evidence)}",
        advice,
        explains * (1 - saved),
    )


_SUSPECTS = (
    _checkpoints, _slow_rank, _host_cpu, _lateness, _uneven, _loader, _network, _reads,
)  # fmt: skip
"""The order in which limits are tried."""


def _rate_in_words(evidence: Evidence, rate: float) -> str:
    """Return which storage gave how much, while it was read from."""
    hosts = evidence.hosts
    if evidence.gets is not None:
        name = "the bucket"
    elif len(hosts) > 1 or hosts[0].device is None:
        name = "the storage"
    elif (number := len(hosts[0].whole.devices)) > 1:
        return f"the {number} drives gave {format_rate(rate)} while they were read from"
    else:
        name = hosts[0].device
    to = f" to {len(hosts)} hosts" if len(hosts) > 1 else ""
    return f"{name} gave {format_rate(rate)}{to} while it was read from"


def latencies(gets: int, half: float | None, most: float | None) -> str:
    """Return "1,234 GETs, p50 12 ms, p99 80 ms"."""
    if half is None or most is None:
        return counted(gets, "GET")
    return f"{counted(gets, 'GET')}, p50 {format_seconds(half)}, p99 {format_seconds(most)}"


def _busy(hosts: Sequence[HostReport]) -> str:
    """Return how busy the busiest drive was, for the end of a clause; "" where none is seen."""
    share, name = max(
        ((host.device_busy_share or 0.0, host.device) for host in hosts if host.device),
        default=(0.0, ""),
    )
    return f"; {name} was busy {100 * share:.0f}% of the time" if name else ""


def _amplified(evidence: Evidence) -> str:
    """Return that more was read than the format needs, for the end of a clause; "" if not."""
    amplification = evidence.measured["read_amplification"]
    if amplification <= _AMPLIFIED * evidence.needed:
        return ""
    return (
        f"; {amplification:.3g} bytes were read for each byte of the samples, the format "
        f"needs {evidence.needed:.3g}"
    )


def _gain(evidence: Evidence, given: float, probe: Probe) -> tuple[float, float]:
    """Return how many times as fast more readers are, and the share of the wait that this saves."""
    # The best rate of the loader's own readers: in the run while they read, or right after it.
    in_reads = given / _share_with_reads(evidence)
    own = max(in_reads, min(probe.few, _VARIES * in_reads), 1.0)
    more = probe.many / own
    if more <= _MORE:
        return more, 0.0
    wanted = given / max(1 - evidence.losses.parts.total, 1e-9)
    if wanted <= own:
        return more, 1.0
    # A byte takes 1 / rate seconds; without a loss it would take 1 / wanted.
    return more, (1 / own - 1 / min(probe.many, wanted)) / (1 / own - 1 / wanted)


def _share_with_reads(evidence: Evidence) -> float:
    """Return the share of the time in which at least one worker was reading.

    Workers are assumed to read independently. The storage's rate is compared over this time only:
    while accelerators compute, little may be asked of the storage.
    """
    measured = evidence.measured
    each = min(1.0, measured["read_seconds"] / max(measured["worker_seconds"], 1e-9))
    workers = sum(host.num_workers for host in evidence.hosts)
    return max(1 - (1 - each) ** workers, 1e-3)


def _cpus_unknown(evidence: Evidence) -> str:
    """Return why nothing can be said where CPUs may have been short, else ""."""
    for host in evidence.hosts:
        if host.whole.process_cpu_share is None and host.whole.runqueue_seconds is None:
            return f"the kernel of host {host.host} does not show whether CPUs were free"
    return ""


def _unclear(evidence: Evidence, reason: str) -> Limit:
    return Limit("unclear", f"{_lost(evidence)} ({name_losses(evidence.losses.parts)}); {reason}")


def _part(evidence: Evidence, share: float) -> float:
    """Return a share of the time as a share (0-1) of all that was lost."""
    return min(1.0, max(0.0, share / evidence.losses.parts.total))


def _lost(evidence: Evidence) -> str:
    return f"accelerators lost {100 * evidence.losses.parts.total:.0f}% of the time"


def _cpus(evidence: Evidence) -> str:
    """Return the use of CPUs and page cache, for the end of a sentence."""
    shares = [
        host.whole.process_cpu_share
        for host in evidence.hosts
        if host.whole.process_cpu_share is not None
    ]
    words = f"; CPUs {100 * max(shares):.0f}%" if shares else ""
    stolen = max(host.whole.host_steal_share or 0.0 for host in evidence.hosts)
    if stolen >= _MIN_STEAL_SHARE:
        words += f"; other guests took {100 * stolen:.0f}% of the CPUs (steal)"
    cached = evidence.measured["page_cache_share"]
    if cached is not None and cached > 0.05:
        words += f"; page cache served {100 * cached:.1f}%"
    return words


def _advice_for_cpus(evidence: Evidence, host: HostReport) -> str:
    """Return what takes load off a host's CPUs, and is not set yet."""
    reader = evidence.workload.reader
    if host.whole.stolen_seconds > (host.whole.lacked_seconds or 0.0) / 2:
        ways = ["give this virtual machine CPUs of its own"]
    elif _others_work(host.whole):
        ways = ["end the other programs"]
    else:
        ways = ["use more cores or hosts" if _several_a_host(evidence) else "use more cores"]
    if _part(evidence, evidence.losses.parts.waited) < _ENOUGH:
        ways += _spread(evidence)[1:]
    else:
        if reader.data_loader == "pytorch":
            ways.append("reader.data_loader=threads")
        if reader.decode == "library" and not evidence.workload.dataset.by_h5py:
            ways.append("reader.decode=raw")
        elif (
            reader.odirect is False
            and not all(host.direct for host in evidence.hosts)
            and evidence.gets is None
        ):
            ways.append("reader.odirect=true")
    return f"{_either(*ways)}; this does not measure the storage"


def _others_work(used: IntervalSummary) -> bool:
    """Return whether other programs used more of a host's CPUs than ranks and workers did."""
    others = used.others_cpu_share
    return others is not None and others > (used.process_cpu_share or 0.0)


def _several_a_host(evidence: Evidence) -> bool:
    return evidence.num_accelerators > len(evidence.hosts)


def _spread(evidence: Evidence) -> list[str]:
    """Return the advice to put fewer accelerators on a host; empty where each has one."""
    several = _several_a_host(evidence)
    return ["more hosts", "fewer accelerators a host"] if several else []


def _either(*ways: str) -> str:
    """Return "a", "a, or b" or "a, b, or c"."""
    return ", or ".join([", ".join(ways[:-1]), ways[-1]]) if len(ways) > 1 else ways[0]
