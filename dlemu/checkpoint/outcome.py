"""What the checkpoints of a command say: durations, rates, limits, fields of summary.json."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import Any, Literal, TypedDict

import numpy as np

from dlemu.checkpoint.files import ReadTimes, WriteTimes
from dlemu.findings import Finding, fields_of, note
from dlemu.host.intervals import IntervalSummary
from dlemu.judge.dlio_names import dlio_clock
from dlemu.judge.own_rates import Moved, pieces_of
from dlemu.judge.steady import Piece, Steadiness

Kind = Literal["save", "load"]
_WAITED = 0.01
"""Waiting for bytes is worth a word if it takes at least this share of the time."""
_MOSTLY = 0.5
"""It is the limit if it takes more of the time than all else."""
_CACHED = 0.01
"""Memory, not storage, gives the rate if at least this share of the bytes comes from it."""
_SLOWER = 0.10
"""The slowest accelerator is the limit if it exceeds the mean by at least this share."""
_CPU_BUSY = 0.9
LimitName = Literal["page cache", "generation", "host cpu", "one rank", "storage", "unclear"]
IN_MEMORY: LimitName = "page cache"
"""The limit where memory, not storage, took or gave the bytes."""


Worked = tuple[int, float, WriteTimes | ReadTimes]
"""An accelerator, the seconds from the common start to its own end, and what they were spent on."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank did for one checkpoint."""

    rank: int
    host: str
    worked: Sequence[Worked]
    counted: IntervalSummary | None
    """What its host did meanwhile, from its first rank."""
    stored: int | None
    """Bytes that storage delivered to that host meanwhile; None: not known, or another rank's."""
    moved: Sequence[Moved] = ()
    """What its accelerators had written or read, about every second from the start on."""


class Entry(TypedDict):
    """One checkpoint that was written or read."""

    step: int
    """Its number, from 1 on."""
    num_bytes: int
    seconds: float
    """Its duration: the maximum over all accelerators."""
    rank0_seconds: float
    """Until rank 0's own accelerators had ended."""
    between_barriers_seconds: float
    """On rank 0's clock, from the barrier before to the barrier behind."""
    mean_seconds: float
    """Over all accelerators, and the least."""
    least_seconds: float
    slowest: Mapping[str, Any]
    """Accelerator, rank, host, num_bytes, and bytes_to_mean: its bytes to the mean of all."""
    hosts: Mapping[str, float]
    """Of each host the seconds until its last accelerator had ended."""
    parts: Mapping[str, float]
    """Mean seconds of an accelerator by the names of WriteTimes or ReadTimes."""
    counted: Mapping[str, Mapping[str, Any]]
    """Of each host the fields of IntervalSummary, and stored_bytes, which storage delivered."""


def entry_of(step: int, reports: Sequence[RankReport], between: float) -> Entry:
    """Return the fields of one checkpoint. `between` are rank 0's seconds between the barriers."""
    everyone = [(*each, report) for report in reports for each in report.worked]
    accelerator, longest, times, its_rank = max(everyone, key=lambda each: each[1])
    seconds = [each for _, each, _, _ in everyone]
    num_bytes = [each.num_bytes for _, _, each, _ in everyone]
    names = [field.name for field in fields(times) if field.name != "num_bytes"]
    hosts = {report.host: 0.0 for report in reports}
    for _, each, _, report in everyone:
        hosts[report.host] = max(hosts[report.host], each)
    return {
        "step": step,
        "num_bytes": sum(num_bytes),
        "seconds": longest,
        "rank0_seconds": max((each[1] for each in everyone if each[3].rank == 0), default=between),
        "between_barriers_seconds": between,
        "mean_seconds": fmean(seconds),
        "least_seconds": min(seconds),
        "slowest": {
            "accelerator": accelerator,
            "rank": its_rank.rank,
            "host": its_rank.host,
            "num_bytes": times.num_bytes,
            "bytes_to_mean": times.num_bytes / max(1.0, fmean(num_bytes)),
        },
        "hosts": hosts,
        "parts": {name: fmean(getattr(each[2], name) for each in everyone) for name in names},
        "counted": {
            report.host: asdict(report.counted) | {"stored_bytes": report.stored}
            for report in reports
            if report.counted is not None
        },
    }


def pieces_of_ranks(reports: Sequence[RankReport]) -> list[Piece]:
    """Return the rates of all ranks together while they wrote or read a checkpoint.

    Only until the first accelerator ended: the others alone may get less of the same storage.
    """
    worked = [each for report in reports for each in report.worked if each[2].num_bytes]
    busy = [report for report in reports if any(each in worked for each in report.worked)]
    ranks = [pieces_of(report.moved) for report in busy]
    if not ranks or not all(ranks):
        return []
    # Each has its own clock, from the common start on.
    ends = [np.cumsum([piece.seconds for piece in pieces]) for pieces in ranks]
    last = min(*(float(each[-1]) for each in ends), *(seconds for _, seconds, _ in worked))
    grid = np.linspace(0.0, last, max(2, round(last) + 1))
    moved = np.zeros(len(grid))
    for pieces, own in zip(ranks, ends, strict=True):
        at = np.cumsum([piece.seconds * piece.bytes_per_second for piece in pieces])
        moved += np.interp(grid, np.append(0.0, own), np.append(0.0, at))
    rates = np.diff(moved) / np.diff(grid)
    return list(map(Piece, np.diff(grid).tolist(), rates.tolist()))


def dlio_metric(
    saves: Sequence[Entry], loads: Sequence[Entry], *, rank_sync: bool
) -> dict[str, float]:
    """Return the metrics by DLIO's names, and rank 0's beside them.

    The "GB" in DLIO's names are GiB. Its durations are rank 0's; the rule says the maximum over the
    ranks, so that is what its names have here, and `..._rank0_...` have rank 0's.
    """
    metric: dict[str, float] = {}
    for kind, entries in (("save", saves), ("load", loads)):
        if not entries:
            continue
        size = entries[0]["num_bytes"] / 2**30
        first = [
            entry["between_barriers_seconds"] if rank_sync else entry["rank0_seconds"]
            for entry in entries
        ]
        slowest = [entry["seconds"] for entry in entries]
        metric |= dlio_clock(f"{kind}_checkpoint", slowest, size)
        metric |= dlio_clock(f"{kind}_checkpoint_rank0", first, size)
        metric["checkpoint_size_GB"] = size
    return metric


@dataclass(frozen=True)
class Conditions:
    """The conditions that decide, beside the times, which limit is named."""

    file_system: str
    bypasses: bool
    """Whether O_DIRECT was used, or the files are objects."""
    fsync: bool
    cached_share: float | None
    """Share (0-1) of the pages that were in memory before the reads."""


_Suspect = tuple[LimitName, Finding] | tuple[LimitName, Finding, Finding]
"""The limit's name, its evidence, and what to try, if there is something."""


def limit_of(
    kind: Kind,
    entries: Sequence[Entry],
    conditions: Conditions,
    steady: Steadiness | None = None,
) -> dict[str, Any]:
    """Return `name`, `evidence` and `advice` of what decided the durations; findings' fields.

    `steady` is how the drives' rate went on meanwhile: it counts where they were the limit.
    """
    name, evidence, *advice = next(_suspects(kind, entries, conditions))
    told = [evidence]
    if name == "storage":
        if kind == "save" and (share := waited_share(entries)) > _WAITED:
            told.append(note("waited_for_bytes", share=share))
            advice.append(note("make_bytes_sooner"))
        if busy := _busy_cpus(entries, by_own=False):
            told.append(busy)
        if steady is not None and steady.trend != "steady":
            levels = steady.fields["levels"]
            told.append(note("not_steady", trend=steady.trend, levels=levels))
    return {"name": name, "evidence": fields_of(told), "advice": fields_of(advice)}


def _suspects(kind: Kind, entries: Sequence[Entry], conditions: Conditions) -> Iterator[_Suspect]:
    """Yield what may have decided, the first to be named first; at last the storage."""
    known: list[float] = []
    if conditions.file_system in ("tmpfs", "ramfs"):
        yield IN_MEMORY, note("folder_in_memory", file_system=conditions.file_system)
    if kind == "save":
        if not (conditions.fsync or conditions.bypasses):
            advice = note("key", key="checkpoint.fsync", value="true")
            yield IN_MEMORY, note("writes_ended_in_memory"), advice
        if (share := waited_share(entries)) > _MOSTLY:
            yield "generation", note("waited_for_bytes", share=share), note("make_bytes_sooner")
    elif not conditions.bypasses:
        shares = (conditions.cached_share, from_memory(entries))
        known = [share for share in shares if share is not None]
        if known and max(known) > _CACHED:
            yield IN_MEMORY, note("read_from_memory", share=max(known)), note("read_past_memory")
    if busy := _busy_cpus([each for each in entries if _needs_cpu(each)], by_own=True):
        yield "host cpu", busy, note("more_cpus", or_odirect=not conditions.bypasses)
    yield from _one_rank(entries)
    if kind == "load" and not (conditions.bypasses or known):  # 0 is not what nobody knows
        yield "unclear", note("from_memory_unknown"), note("read_past_memory")
    yield "storage", _storage(kind, entries)


def from_memory(loads: Sequence[Entry]) -> float | None:
    """Return the share (0-1) of the bytes read that no storage delivered; None: not known."""
    stored = [[host["stored_bytes"] for host in entry["counted"].values()] for entry in loads]
    if not any(stored) or any(None in hosts for hosts in stored):
        return None
    read = [entry["num_bytes"] for entry in loads]
    # What was read ahead in one load does not make up for what memory served in another.
    cached = sum(max(0, asked - sum(hosts)) for asked, hosts in zip(read, stored, strict=True))
    return float(cached) / max(1, sum(read))


def waited_share(entries: Sequence[Entry]) -> float:
    """Return the share (0-1) of the writing time that was spent waiting for bytes."""
    waited = sum(entry["parts"]["waited"] for entry in entries)
    return waited / max(1e-9, sum(entry["mean_seconds"] for entry in entries))


def _busy_cpus(entries: Sequence[Entry], *, by_own: bool) -> Finding | None:
    """Return that a host's CPUs were busy; `by_own`: with the threads that wrote or read."""
    shares: dict[str, list[float]] = {}
    for entry in entries:
        for host, counted in entry["counted"].items():
            if counted["host_cpu_share"] is not None:
                shares.setdefault(host, []).append(counted["host_cpu_share"])
    busy = max(((fmean(each), host) for host, each in shares.items()), default=(0.0, ""))
    if busy[0] < _CPU_BUSY:
        return None
    return note("host_cpus_busy", host=busy[1], share=busy[0], by_own_threads=by_own)


def _needs_cpu(entry: Entry) -> bool:
    """Return whether CPU time can explain half of the duration, on the slowest host.

    The threads of all its accelerators together must have run, or stood ready, for so long.
    """
    counted = entry["counted"].get(entry["slowest"]["host"])
    if counted is None or None in (counted["process_cpu_seconds"], counted["runqueue_seconds"]):
        return True
    spent: float = counted["process_cpu_seconds"] + counted["runqueue_seconds"]
    return spent >= entry["seconds"] / 2


def _one_rank(entries: Sequence[Entry]) -> Iterator[_Suspect]:
    excess = fmean(entry["seconds"] / max(1e-9, entry["mean_seconds"]) - 1 for entry in entries)
    if excess <= _SLOWER or len(entries[0]["hosts"]) == 1:  # threads of one host: chance decides
        return
    latest = max(entries, key=lambda entry: float(entry["seconds"]))
    slowest = latest["slowest"]
    uneven = slowest["bytes_to_mean"] > 1 + _SLOWER / 2
    found = note(
        "slow_accelerator",
        accelerator=slowest["accelerator"],
        host=slowest["host"],
        seconds=latest["seconds"],
        mean_seconds=latest["mean_seconds"],
        bytes_to_mean=slowest["bytes_to_mean"] if uneven else None,
    )
    yield ("one rank", found) if uneven else ("one rank", found, note("look_at_path"))


def _storage(kind: Kind, entries: Sequence[Entry]) -> Finding:
    whole = max(1e-9, sum(entry["mean_seconds"] for entry in entries))
    names = ("write", "fsync") if kind == "save" else ("read",)
    seconds = {name: sum(entry["parts"][name] for entry in entries) for name in names}
    shares = {name: each / whole for name, each in seconds.items() if each}
    busy = [
        max(counted["devices"].values(), default=0.0)
        for entry in entries
        for counted in entry["counted"].values()
    ]
    return note("time_in_calls", shares=shares, drive_share=fmean(busy) if any(busy) else None)


def verdict_of(
    saves: Sequence[Entry],
    loads: Sequence[Entry],
    max_seconds: float | None,
    limit: Mapping[str, Any] | None = None,
) -> str:
    """Return "PASS", "FAIL" or "NO VERDICT"; "" without a bound, or if nothing was done.

    The bound is on the mean duration of the writes; of the reads if nothing was written. Writes
    that ended in memory, as their `limit` says, pass no bound; a drive would be slower still.
    """
    if max_seconds is None or not (saves or loads):
        return ""
    mean = fmean(entry["seconds"] for entry in saves or loads)
    if mean > max_seconds:
        return "FAIL"
    in_memory = saves and limit is not None and limit["name"] == IN_MEMORY
    return "NO VERDICT" if in_memory else "PASS"


def young_interval(save_seconds: float, mtbf: float) -> float:
    """Return the seconds between checkpoints that lose least: sqrt(2 x save x MTBF), Young 1974."""
    return math.sqrt(2 * save_seconds * mtbf)
