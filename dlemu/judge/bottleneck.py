"""Finds the resource that limited a run, its evidence, and what to change.

Storage is named only if readers waited in read calls while CPUs were free, and more readers would
not have read faster: no other FAIL may look like the storage's fault. A limit is named only if its
evidence accounts for at least half of the loss.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from dlemu.config.model import Workload
from dlemu.findings import Finding, note
from dlemu.host.devices import total
from dlemu.host.intervals import IntervalSummary
from dlemu.host.network import NetworkUse
from dlemu.judge.evidence import Evidence, HostReport
from dlemu.storage.objects import requests_of
from dlemu.storage.probe import Probe

_CEILING = 0.02
"""Losses below this share of the time have no limit."""
_ENOUGH = 0.5
"""Share of the loss that the evidence for a limit must account for."""
_CPU_FULL = 0.85
"""CPUs are full from this share of their time; some of the kernel's work is not counted."""
_FREE_FOR_STEPS, _FREE_FOR_READS = 0.5, 0.25
"""Shares of CPU time below which waits in run queues are no lack of CPUs, for steps that end late
and for batches: a thread that wakes up is in a queue for a moment on an idle host, too, and in
short steps the moments add up."""
_CACHED = 0.5
"""A run with at least this share of its bytes from memory says nothing about storage."""
_MIN_STEAL_SHARE = 0.01
"""The evidence names other guests that took at least this share of the CPUs."""
_MORE = 1.15
"""Storage that is this many times as fast with more readers was not the limit."""
_NO_MORE = 1.05
"""Storage that gives nobody more than this many times as much was at its limit, also on a host
whose CPUs were all in use: with more of them it would have given no more."""
_NEARLY_ALL = 0.9
"""Storage that gave a smaller share of what it gives to readers alone had time left: another limit
held the job back first."""
_VARIES = 1.3
"""The same readers may be this many times as fast after a run: drives vary, and are shared."""
_CHANGED = 2.0
"""From this many times on the storage is another one than in the run: a throttle was lifted, a
neighbour's job ended. Then what it gives to more readers says nothing about the run."""
_SLOWER = 1.5
"""A rank has slow reads if its batches take this many times as long to make as other ranks'."""
_LINK_FULL = 0.9
"""A link is full from this share of its rate: frames of 1500 bytes leave 5 % for headers."""
_CARRIED = 0.5
"""A link is a limit of reads only if it received this share of the bytes that were read."""
_HARDLY_BUSY = 0.5
"""A drive that is busy for less of the time in which it is read is no limit: a cap above it is."""
_SEEN = 0.001
"""The evidence names an all-reduce that took at least this share of the time."""
_AMPLIFIED = 1.1
"""The evidence names storage that gave this many times the bytes that the format needs."""
_LOSSY = 0.001
"""The evidence names lost and late TCP segments that are at least this share of all."""


LimitName = Literal[
    "storage",
    "network",
    "host cpu",
    "loader",
    "barrier",
    "own barrier",
    "oversleep",
    "all-reduce",
    "checkpoints",
    "none",
    "unclear",
]


@dataclass(frozen=True)
class Limit:
    """The resource that limited a run."""

    name: LimitName
    evidence: tuple[Finding, ...]
    """What it was concluded from: notes, in the order in which they are told."""
    advice: tuple[Finding, ...] = ()
    """Each is one way to raise the limit; `not_the_storage` says that it is not that of storage."""
    explains: float | None = None
    """Share (0-1) of the loss that the evidence accounts for; None for `none` and `unclear`."""


def limit_in_memory(name: str) -> str:
    """Return a limit's name for a run whose files lie in memory, which reads no storage."""
    return "memory" if name in ("storage", "unclear") else name


def find_run_limit(evidence: Evidence) -> Limit:
    """Return the resource that lowered the AU, or `none`, or `unclear` with the losses."""
    parts = evidence.losses.parts
    if parts.total < _CEILING:
        return Limit("none", (note("ceiling", lost_share=max(parts.total, 0.0)),))
    for suspect in _SUSPECTS:
        limit = suspect(evidence)
        if limit is None:
            continue
        if limit.explains is None:
            return limit
        if limit.explains >= _ENOUGH:
            more = (*_amplified(evidence), note("explains", share=limit.explains))
            if limit.name != "all-reduce" and parts.allreduce >= _SEEN:
                rest = note("explains_rest", share=limit.explains)
                more = (_took(evidence), *_amplified(evidence), rest)
            return Limit(limit.name, (*limit.evidence, *more), limit.advice, limit.explains)
    unexplained = note("unexplained", lost_share=parts.total, parts=asdict(parts))
    return Limit("unclear", (unexplained, *_amplified(evidence), *_cpus(evidence)))


def _checkpoints(evidence: Evidence) -> Limit | None:
    """Return `checkpoints` where the steps during writes lost most of what was lost."""
    cost = evidence.checkpoints
    if cost is None or cost["au_while_writing_percentage"] is None:
        return None
    steps = note(
        "steps_while_writing",
        au_percentage=cost["au_while_writing_percentage"],
        num_steps=cost["steps_while_writing"],
        au_otherwise_percentage=cost["au_otherwise_percentage"] or 0.0,
    )
    return Limit(
        "checkpoints",
        (_lost(evidence), steps, *_cpus(evidence)),
        (note("other_checkpoint_drives"),),
        cost["lost_share"],
    )


def _slow_rank(evidence: Evidence) -> Limit | None:
    """Return `barrier` for the rank that made the others wait."""
    ranks = evidence.losses.ranks
    if len(ranks) < 2:
        return None
    slowest = max(ranks, key=lambda rank: rank.saved)
    others = [rank for rank in ranks if rank is not slowest]
    of_rank = slowest.name._asdict()

    def of_others(value: str) -> float:
        return float(np.median([getattr(rank, value) for rank in others]))

    # Among equal ranks, too, the others would wait a little less without any one of them.
    explains = _part(evidence, slowest.saved - of_others("saved"))
    overran = slowest.late_seconds > slowest.wait_seconds
    if overran:
        own, usual = slowest.late_seconds, of_others("late_seconds")
        advice = note("look_at_cpus", **of_rank)
    elif slowest.making_seconds < _SLOWER * of_others("making_seconds"):
        # Ranks may share a slow drive that always serves one of them last. Its reads are not
        # slower: the others wait as long, at the barrier.
        return None
    else:
        own, usual = slowest.wait_seconds, of_others("wait_seconds")
        advice = note("look_at_rank", **of_rank)
    found = note(
        "slow_rank",
        **of_rank,
        overran=overran,
        seconds_a_step=own,
        usual_seconds_a_step=usual,
        waited_share=slowest.saved,
    )
    return Limit("barrier", (found,), (advice,), explains)


def _host_cpu(evidence: Evidence) -> Limit | None:
    """Return `host cpu` for the host where the lack of CPUs explains most of the loss."""
    host = max(evidence.hosts, key=lambda each: _explained_by_cpus(evidence, each))
    explains = _explained_by_cpus(evidence, host)
    if explains == 0:
        return None
    used = host.whole
    seconds, lacked = max(used.seconds, 1e-9), used.lacked_seconds
    stolen = used.host_steal_share or 0.0
    found = note(
        "host_cpus",
        host=host.host,
        cpu_share=used.process_cpu_share,
        usable_cpus=used.usable_cpus,
        lacked_seconds_per_second=None if lacked is None else lacked / seconds,
        total_cpu_share=used.host_cpu_share,
        steal_share=stolen if stolen >= _MIN_STEAL_SHARE else None,
        throttled_seconds_per_second=(used.throttled_seconds or 0.0) / seconds or None,
    )
    others = note("other_programs", share=used.others_cpu_share)
    return Limit(
        "host cpu",
        (*([others] if _others_work(used) else []), _lost(evidence), found, *_busy([host])),
        _advice_for_cpus(evidence, host),
        explains,
    )


def _explained_by_cpus(evidence: Evidence, host: HostReport) -> float:
    """Return the share of the loss that a host's lack of CPUs accounts for."""
    used = host.whole
    parts, lacked = evidence.losses.parts, used.lacked_seconds
    if (used.process_cpu_share or 0.0) > _CPU_FULL and not (
        _part(evidence, _by_storage(evidence)) >= _ENOUGH and _gave_all(evidence, more=_NO_MORE)
    ):
        return 1.0  # all of its CPUs were in use: nothing could have been done sooner
    explained = 0.0
    busy = (used.host_cpu_share or 0.0) + (used.host_steal_share or 0.0)
    if busy > _CPU_FULL:  # others used the CPUs: all waits but those without CPU count
        without_cpu = 0.0 if lacked is None else parts.read + parts.preprocess
        explained = _part(evidence, parts.total - parts.allreduce - parts.uneven - without_cpu)
    if lacked is None:
        return explained
    stopped = (used.throttled_seconds or 0.0) + used.stolen_seconds
    use = max(busy, used.process_cpu_share or 0.0)
    in_wait = stopped if use < _FREE_FOR_READS else lacked
    of_wait = _waits_without_cpu(evidence, host, in_wait, stopped)
    # Ranks in a queue for a CPU wait, on average, half as long as the last of them.
    accelerators = host.num_workers / max(1, evidence.workload.reader.read_threads)
    late = parts.oversleep + parts.meeting
    lacked = stopped if use < _FREE_FOR_STEPS else lacked
    of_late = min(late, 2 * lacked / max(accelerators * used.seconds, 1e-9))
    return max(explained, _part(evidence, of_wait + of_late))


def _waits_without_cpu(
    evidence: Evidence, host: HostReport, lacked: float, stopped: float
) -> float:
    """Return the share of the time lost to waits for batches whose workers lacked a host's CPUs.

    A worker without a CPU delays its batch, whatever it does at that time. But where the storage
    gives nobody more, reads end no sooner for a reader that has its CPU sooner: unless it is
    `stopped`, by a quota or by other guests.
    """
    parts = evidence.losses.parts
    share = host.num_workers / max(1, sum(each.num_workers for each in evidence.hosts))
    making = share * evidence.losses.making_seconds
    lacking = min(1.0, lacked / max(making, 1e-9))
    of_wait = parts.waited * lacking
    if parts.read > 0 and _gave_all(evidence):
        of_wait -= parts.read * (lacking - min(1.0, stopped / max(making, 1e-9)))
    return of_wait


def _lateness(evidence: Evidence) -> Limit | None:
    """Return `oversleep` or `own barrier` where steps ended late though CPUs were free."""
    parts = evidence.losses.parts
    explains = _part(evidence, parts.oversleep + parts.meeting)
    name: LimitName = "oversleep" if parts.oversleep >= parts.meeting else "own barrier"
    found = note(
        "compute_overran",
        share=parts.oversleep,
        barrier_share=parts.meeting,
        waited_share=parts.waited,
    )
    fewer = [note("use_fewer_accelerators_a_host")] if _several_a_host(evidence) else []
    return Limit(name, (found, *_cpus(evidence)), (*fewer, note("leave_cores")), explains)


def _allreduce(evidence: Evidence) -> Limit | None:
    """Return `all-reduce` for what the job's own took; the other limits explain the rest."""
    parts = evidence.losses.parts
    explains = min(1.0, parts.allreduce / parts.total)
    return Limit("all-reduce", (_took(evidence),), (note("the_jobs_own"),), explains)


def _took(evidence: Evidence) -> Finding:
    seconds = evidence.workload.train.allreduce_time
    return note("allreduce_took", share=evidence.losses.parts.allreduce, seconds=seconds)


def _uneven(evidence: Evidence) -> Limit | None:
    """Return `barrier` where the workload's compute times make accelerators wait for each other."""
    uneven = evidence.losses.parts.uneven
    found = note("compute_unequal", share=uneven)
    return Limit("barrier", (found,), (note("as_asked"),), _part(evidence, uneven))


def _loader(evidence: Evidence) -> Limit | None:
    """Return `loader` where batches were late for other reasons than reads."""
    parts, reader = evidence.losses.parts, evidence.workload.reader
    shares = {
        name: getattr(parts, name) for name in ("decode", "hand_over", "preprocess", "elsewhere")
    }
    longest = max(shares, key=lambda name: shares[name])
    # Workers without any cost would still wait for all that the storage can give.
    explains = _part(evidence, min(sum(shares.values()), 1 - _at_rate(evidence)))
    if explains >= _ENOUGH and (unknown := _cpus_unknown(evidence)):
        return _unclear(evidence, unknown)
    advice = [note("raise_read_threads", read_threads=reader.read_threads)]
    if longest == "decode" and reader.decode == "library" and not evidence.workload.dataset.by_h5py:
        advice.append(note("set_key", key="reader.decode", value="raw"))
    if longest == "elsewhere" and reader.loader.is_dataloader:
        advice.append(note("set_key", key="reader.data_loader", value="threads"))
    found = note(
        "late_batches",
        lost_share=parts.total,
        cause=longest,
        share=shares[longest],
        read_share=parts.read,
    )
    return Limit("loader", (found, *_cpus(evidence)), tuple(advice), explains)


def _network(evidence: Evidence) -> Limit | None:
    """Return `network` where reads were waited for and came over links that were full."""
    full = _full_links(evidence)
    if not full:
        return None
    share, host, use = max(full, key=lambda each: each[0])
    explains = _part(evidence, _by_storage(evidence))
    rate = (use.gbps or 0.0) * 1e9 / 8  # of this link: a host may receive more, over several
    found = note(
        "link_full",
        host=host.host,
        nic=use.nic,
        received_bytes_per_second=share * rate,
        share=share,
        gbps=use.gbps,
        num_other_hosts=len(full) - 1,
    )
    return Limit(
        "network",
        (
            found,
            *_lost_segments(evidence),
            note("waited_for_reads", share=explains),
            *_busy(evidence.hosts),
            *_cpus(evidence),
        ),
        (note("faster_links"), *_spread(evidence), note("not_the_storage")),
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


def _lost_segments(evidence: Evidence) -> list[Finding]:
    """Return which shares of its segments TCP lost; none where it lost hardly any."""
    uses = [host.network for host in evidence.hosts if host.network is not None]
    received = max((use.unordered_share or 0.0 for use in uses), default=0.0)
    sent = max((use.resent_share or 0.0 for use in uses), default=0.0)
    return [
        *([note("segments_unordered", share=received)] if received >= _LOSSY else []),
        *([note("segments_resent", share=sent)] if sent >= _LOSSY else []),
    ]


def _reads(evidence: Evidence) -> Limit | None:
    """Return `storage` where reads were slow, or `loader` if more readers would read faster."""
    lost = _by_storage(evidence)
    explains = _part(evidence, lost)
    if explains < _ENOUGH:
        return None
    given, probe = _rates(evidence)
    gets = evidence.gets
    in_reads = given / _share_with_reads(evidence)
    changed = probe is not None and probe.few > _CHANGED * max(in_reads, 1.0)
    levels = () if evidence.steady is None else evidence.steady.levels
    # With the same readers nothing waited at other times: more of them would not have helped.
    varied = len({level.is_free for level in levels}) == 2
    unlike = changed or varied
    # At its rate all the time: workers that wait for one throttle do not read independently.
    rate = in_reads if lost == evidence.losses.parts.read else _in_steps(evidence, probe)
    more, saved = 1.0, 0.0
    if probe is not None and not unlike:
        more, saved = _gain(evidence, given, max(in_reads, rate or 0.0), probe)
    got = {**_source(evidence), "bytes_per_second": rate}
    reader = evidence.workload.reader
    if probe is not None and saved >= _ENOUGH:
        waited = note("waited_for_reads", share=explains)
        found = note("storage_gives_more", **got, probe=asdict(probe))
        threads, depth = reader.read_threads, reader.io_depth
        return Limit(
            "loader",
            (waited, found, *_cpus(evidence)),
            (note("raise_read_threads_or_depth", read_threads=threads, io_depth=depth),),
            explains * saved,
        )
    if unknown := _cpus_unknown(evidence):
        return _unclear(evidence, unknown)
    for host in evidence.hosts:
        used = host.whole
        stopped = (used.throttled_seconds or 0.0) + used.stolen_seconds
        queued = _waits_without_cpu(evidence, host, used.lacked_seconds or 0.0, stopped)
        if _part(evidence, queued) >= _ENOUGH:
            return _unclear(evidence, note("readers_queued", host=host.host))
    cached = evidence.measured["page_cache_share"]
    before = evidence.measured.get("resident_share_before", 0.0)
    if cached is before is None and "objects" not in evidence.measured:
        return _unclear(evidence, note("from_memory_unknown"))
    if cached is not None and cached > _CACHED:
        return _unclear(evidence, note("mostly_from_memory", share=cached))
    uncounted = evidence.measured.get("uncounted_share", 0.0)
    if uncounted > _CACHED:
        return _unclear(evidence, note("mostly_uncounted", share=uncounted))
    tried = None if probe is None else asdict(probe) | {"gives_more": more > _MORE}
    advice, busy = [note("more_drives")], _busy(evidence.hosts)
    if probe is not None and unlike:  # what more readers got then is told of another storage
        tried, advice = None, [note("look_at_neighbours")]
        if changed:
            held = note("held_back", bytes_per_second=probe.few, num_readers=probe.num_few)
            busy = [held, *busy]
    if gets is not None:
        half, most = gets.quantile(0.5), gets.quantile(0.99)
        busy = [note("latencies", num_gets=gets.gets, p50_seconds=half, p99_seconds=most)]
        advice = [_more_requests(evidence.workload), note("more_servers")]
    if evidence.num_accelerators > 1 and not unlike:
        advice.append(note("fewer_accelerators"))
    # Drives of the host read nothing over the network, whatever else its links carry.
    lossy = [] if any(host.device for host in evidence.hosts) else _lost_segments(evidence)
    if gets is None and busy and probe is not None and not unlike and more <= _MORE:
        drive = busy[-1].figures
        if drive["share"] < _HARDLY_BUSY * _share_with_reads(evidence):
            busy = [*busy, note("cap_above_drive", device=drive["device"])]
    found = note("storage_gave", **got, probe=tried)
    return Limit(
        "storage",
        (found, _lost(evidence), *busy, *lossy, *_cpus(evidence)),
        tuple(advice),
        explains * (1 - saved),
    )


_SUSPECTS = (
    _allreduce, _checkpoints, _slow_rank, _host_cpu, _lateness, _uneven, _loader, _network, _reads,
)  # fmt: skip
"""The order in which limits are tried."""


def _more_requests(workload: Workload) -> Finding:
    """Return which key has more requests outstanding: a worker asks for no more than one batch."""
    reader, dataset = workload.reader, workload.dataset
    if dataset.num_samples_per_file == 1:
        of_batch = reader.batch_size * requests_of(dataset.mean_bytes, reader.range_bytes)
        if of_batch <= reader.gets_in_flight:
            return note("raise_read_threads", read_threads=reader.read_threads)
    keys = {name: getattr(reader, name) for name in ("gets_in_flight", "read_threads")}
    return note("raise_gets_in_flight", **keys)


def _source(evidence: Evidence) -> dict[str, Any]:
    """Return which storage was read: `source`, the `device` of a drive, and how many there are."""
    hosts = evidence.hosts
    source, number = "storage", len(hosts[0].whole.devices)
    if evidence.gets is not None:
        source = "bucket"
    elif len(hosts) == 1 and hosts[0].device is not None:
        source = "drives"
    is_drive = source == "drives"
    return {
        "source": source,
        "num_drives": number if is_drive else None,
        "device": hosts[0].device if is_drive and number == 1 else None,
        "num_hosts": len(hosts),
    }


def _busy(hosts: Sequence[HostReport]) -> list[Finding]:
    """Return how busy the busiest drive was; none where none is seen."""
    share, name = max(
        ((host.device_busy_share or 0.0, host.device) for host in hosts if host.device),
        default=(0.0, ""),
    )
    return [note("device_busy", device=name, share=share)] if name else []


def _amplified(evidence: Evidence) -> list[Finding]:
    """Return that more was read than the format needs; none if not."""
    amplification = evidence.measured["read_amplification"]
    if amplification <= _AMPLIFIED * evidence.needed:
        return []
    return [note("read_amplified", amplification=amplification, needed=evidence.needed)]


def _gain(evidence: Evidence, given: float, in_reads: float, probe: Probe) -> tuple[float, float]:
    """Return how many times as fast more readers are, and the share of the wait that this saves.

    `in_reads` is what the storage gave while the loader's own readers read.
    """
    # The best rate of the loader's own readers: in the run while they read, or right after it.
    levels = () if evidence.steady is None else evidence.steady.levels
    best = max((level.bytes_per_second for level in levels), default=0.0)
    own = max(in_reads, min(probe.few, _VARIES * in_reads), best, 1.0)
    more = probe.many / own
    if more <= _MORE:
        return more, 0.0
    wanted = given / max(1 - evidence.losses.parts.total, 1e-9)
    if wanted <= own:
        return more, 1.0
    # A byte takes 1 / rate seconds; without a loss it would take 1 / wanted.
    return more, (1 / own - 1 / min(probe.many, wanted)) / (1 / own - 1 / wanted)


def _at_rate(evidence: Evidence) -> float:
    """Return the share (0-1) of the steps' time that the storage alone would have taken.

    It gives no more than it gives to readers alone; a throttle lets bursts pass in a short probe.
    0: not known, or it could have given more, or has become slower since.
    """
    _, probe = _rates(evidence)
    rate = _in_steps(evidence, probe)
    if probe is None or rate is None:
        return 0.0
    share = rate / max(probe.few, probe.many, 1.0)
    return min(1.0, _NO_MORE * share) if _NEARLY_ALL <= share <= _MORE else 0.0


def _in_steps(evidence: Evidence, probe: Probe | None) -> float | None:
    """Return the bytes per second that the storage gave in the steps; None: not known.

    It gives no more than it gives to readers alone: if the steps had more, a first step has read
    the rest ahead.
    """
    rate, but_ahead = evidence.given_in_steps, evidence.given_but_ahead
    if probe is None or rate is None:
        return rate
    most = max(probe.few, probe.many, 1.0)
    if rate <= _MORE * most:
        return min(rate, most)
    return rate if but_ahead is None else but_ahead


def _by_storage(evidence: Evidence) -> float:
    """Return the share (0-1) of the time that was lost by the storage.

    That in which late batches were read; or, where it is more, all that a job would lose whose
    workers and CPUs cost nothing. Workers that wait for a throttle in a quarter of their time may
    be at its rate: with less work of their own they would wait for the rest, too.
    """
    parts = evidence.losses.parts
    return max(parts.read, _at_rate(evidence) - (1 - parts.total))


def _rates(evidence: Evidence) -> tuple[float, Probe | None]:
    """Return what the storage gave per second, and what it gives to probes; None: not probed."""
    # Hosts may share the storage, so the rates of all hosts are added up.
    given = sum(host.read_bytes_per_second for host in evidence.hosts)
    return given, total([host.probe for host in evidence.hosts])  # None if one is missing


def _gave_all(evidence: Evidence, *, more: float = _MORE) -> bool:
    """Return whether the storage gave in the run what it gives to more readers after it."""
    given, probe = _rates(evidence)
    return probe is not None and probe.many <= more * given / _share_with_reads(evidence)


def _share_with_reads(evidence: Evidence) -> float:
    """Return the share of the time in which at least one worker was reading.

    Workers are assumed to read independently. The storage's rate is compared over this time only:
    while accelerators compute, little may be asked of the storage.
    """
    measured = evidence.measured
    each = min(1.0, measured["read_seconds"] / max(measured["worker_seconds"], 1e-9))
    workers = sum(host.num_workers for host in evidence.hosts)
    return max(1 - (1 - each) ** workers, 1e-3)


def _cpus_unknown(evidence: Evidence) -> Finding | None:
    """Return why nothing can be said where CPUs may have been short."""
    for host in evidence.hosts:
        if host.whole.process_cpu_share is None and host.whole.runqueue_seconds is None:
            return note("cpus_unknown", host=host.host)
    return None


def _unclear(evidence: Evidence, why: Finding) -> Limit:
    parts = evidence.losses.parts
    return Limit(
        "unclear", (note("lost_by_cause", lost_share=parts.total, parts=asdict(parts)), why)
    )


def _part(evidence: Evidence, share: float) -> float:
    """Return a share of the time as a share (0-1) of all that the job itself did not take."""
    parts = evidence.losses.parts
    return min(1.0, max(0.0, share / max(parts.total - parts.allreduce, 1e-9)))


def _lost(evidence: Evidence) -> Finding:
    return note("lost", lost_share=evidence.losses.parts.total)


def _cpus(evidence: Evidence) -> list[Finding]:
    """Return the use of CPUs and page cache, where it is known and matters."""
    shares = [
        host.whole.process_cpu_share
        for host in evidence.hosts
        if host.whole.process_cpu_share is not None
    ]
    found = [note("cpus", share=max(shares))] if shares else []
    stolen = max(host.whole.host_steal_share or 0.0 for host in evidence.hosts)
    if stolen >= _MIN_STEAL_SHARE:
        found.append(note("steal", share=stolen))
    cached = evidence.measured["page_cache_share"]
    if cached is not None and cached > 0.05:
        found.append(note("page_cache_served", share=cached))
    return found


def _advice_for_cpus(evidence: Evidence, host: HostReport) -> tuple[Finding, ...]:
    """Return what takes load off a host's CPUs, and is not set yet."""
    reader = evidence.workload.reader
    if host.whole.stolen_seconds > (host.whole.lacked_seconds or 0.0) / 2:
        ways = [note("own_cpus")]
    elif _others_work(host.whole):
        ways = [note("end_other_programs")]
    else:
        ways = [note("more_cores", or_hosts=_several_a_host(evidence))]
    if _part(evidence, evidence.losses.parts.waited) < _ENOUGH:
        ways += _spread(evidence)[1:]
    else:
        if reader.loader.is_dataloader:
            ways.append(note("key", key="reader.data_loader", value="threads"))
        if reader.decode == "library" and not evidence.workload.dataset.by_h5py:
            ways.append(note("key", key="reader.decode", value="raw"))
        elif (
            reader.odirect is False
            and not all(host.direct for host in evidence.hosts)
            and evidence.gets is None
        ):
            ways.append(note("key", key="reader.odirect", value="true"))
    return (*ways, note("not_the_storage"))


def _others_work(used: IntervalSummary) -> bool:
    """Return whether other programs used more of a host's CPUs than ranks and workers did."""
    others = used.others_cpu_share
    return others is not None and others > (used.process_cpu_share or 0.0)


def _several_a_host(evidence: Evidence) -> bool:
    return evidence.num_accelerators > len(evidence.hosts)


def _spread(evidence: Evidence) -> list[Finding]:
    """Return the advice to put fewer accelerators on a host; none where each has one."""
    several = _several_a_host(evidence)
    return [note("more_hosts"), note("fewer_accelerators_a_host")] if several else []
