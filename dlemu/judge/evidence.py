"""Puts together what the hosts saw of a run: evidence for its limit, and `measured`.

The bytes that storage delivered are those of the best counter; the other bytes came from memory.
Drives count their reads, and NFS mounts count those of the server. Elsewhere there is only
`read_bytes` of /proc/PID/io. File systems differ in what they count there (by their source code;
FUSE was measured as well):

- On a block device the kernel counts each request of a process (submit_bio), also of a drive that
  is not seen here.
- Lustre, Ceph, SMB and 9p do not count what a kernel thread fetched or completed for the process,
  and Lustre no O_DIRECT. BeeGFS counts by its own mode. NFS counted no buffered reads from Linux
  5.18 to 6.2. FUSE and virtiofs count nothing in newer kernels (6.18: with and without O_DIRECT).
  Overlay counts as the file system below. Here the count is true, but may not be complete.
- ZFS counts what its cache in memory served as well, and GPFS is closed: these counts say nothing.

No counter sees what the file system's own cache, or the server's memory, delivered.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import add
from typing import Any, cast

import numpy as np

from dlemu.config.model import Workload
from dlemu.host.intervals import IntervalSummary
from dlemu.host.network import NetworkCounters, network_use
from dlemu.host.watched import PlaceCounts, add_up
from dlemu.host.wear import WearFields, combine_hosts
from dlemu.judge.bottleneck import Evidence, HostEvidence
from dlemu.judge.checkpoints import checkpoint_cost
from dlemu.judge.metrics import find_losses
from dlemu.judge.summary import CacheWatched, Measured, NetworkFields, ObjectsMeasured
from dlemu.judge.sums import Sums
from dlemu.storage.counted import GetCounts, PathBytes, quantile_of
from dlemu.storage.probe import Probe

_IN_MEMORY = ("tmpfs", "ramfs")
_COUNT_ALL = ("btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "ntfs3", "vfat", "xfs")
_COUNT_SOME = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "lustre", "nfs", "nfs4", "overlay", "smb3",
    "virtiofs",
)  # fmt: skip
_VOUCHED = 0.95
"""A count that may not be complete is used if it has this share of the bytes read."""


def stored_bytes(epoch: IntervalSummary, file_system: str) -> int | None:
    """Return the bytes that storage delivered in an epoch, None where no counter tells.

    It is the smallest of the counts, as drives and mounts serve other processes, too.
    """
    if file_system in _IN_MEMORY:
        return 0
    processes = epoch.process_read_bytes
    if epoch.devices and file_system.startswith("fuse"):  # drives that are watched behind it
        return epoch.device_read_bytes
    if not epoch.devices and epoch.network_read_bytes is None:
        return processes if file_system in _COUNT_ALL else None
    counts = [epoch.storage_read_bytes]
    if processes or epoch.devices:  # on NFS a count of 0 may mean that nothing was counted
        counts.append(processes)
    return min((num for num in counts if num is not None), default=None)


def vouched_bytes(epoch: IntervalSummary, file_system: str, *, read: int) -> int | None:
    """Return the bytes that storage delivered at least, if they are nearly all bytes read."""
    counted = epoch.process_read_bytes
    some = file_system.partition(".")[0] in _COUNT_SOME  # "fuse.sshfs"
    return counted if some and counted is not None and counted >= _VOUCHED * read else None


def how_known(file_system: str, *, known: bool) -> str:
    """Return the note on how the share from memory is known, or why it is not."""
    if file_system in _IN_MEMORY:
        return f"the data folder lies in memory ({file_system}): no storage was read"
    name = file_system or "an unknown file system"
    if known:
        return (
            f"no drive is seen under the data folder ({name}): what storage delivered is the "
            "processes' own count (read_bytes), which sees no cache but the page cache"
        )
    return (
        f"no drive is seen under the data folder ({name}), and the processes' own count "
        "(read_bytes) does not tell: how many bytes came from memory is not known"
    )


_CONTRADICTION = 0.1
"""Difference of two shares of cached bytes that is worth a note."""
_LEAST_SHARE = 0.01
"""An origin that gave less of the bytes gives no ratio: it may have read folders only."""


@dataclass(frozen=True)
class Gathered:
    """What all hosts saw of a run, put together."""

    measured: Measured
    """Without the fields that follow from the steps alone."""
    evidence: Evidence
    notes: tuple[str, ...]


@dataclass(kw_only=True)
class HostReport:
    """What a host's first rank sends to rank 0."""

    host: str
    epochs: list[IntervalSummary] = field(default_factory=list)
    probe: Probe | None = None
    num_workers: int = 0
    resident_before: float | None = None
    """Share of the dataset's pages that were in memory when the run began."""
    direct: bool
    notes: list[str] = field(default_factory=list)
    file_system: str = ""
    """Of the data folder, as mountinfo names it."""
    wear: WearFields | None = None
    watched: list[PlaceCounts] = field(default_factory=list)
    """Of each epoch; empty where no place is watched."""
    links: dict[str, int | None] = field(default_factory=dict)
    """The host's network interfaces, and their bits per second; None where unknown."""
    network_name: str = ""
    """Equal for hosts that share their network interfaces; "" where that is not known."""
    start_seconds: float | None = None
    """As in HostEvidence."""
    machine: str = ""
    """Equal for hosts that are one machine, as containers may be; "" where that is not known."""


def combine(
    workload: Workload,
    hosts: list[HostReport],
    sums: Sums,
    paths: PathBytes,
    gets: GetCounts | None = None,
    *,
    reads: Sequence[Sequence[float]] = (),
    needed: float = 1.0,
) -> Gathered:
    """Return what the hosts saw together.

    The sums are whole, as `measure_sums` checks, and by the workload's rule. `gets` are the
    requests to a bucket, None where the data folder is none. `reads` has the reads of files in each
    epoch, by the bins of `quantile_of`; none were counted in a bucket. `needed`: as in Evidence.
    """
    read = sum(int(each.accelerators["num_bytes"].sum()) for each in sums.epochs)
    gbps = workload.client.nic_gbps
    seen = [_host_evidence(host, read / len(hosts), gbps) for host in hosts]
    measured = _measured(hosts, seen, sums, paths)
    samples = sum(int(each.accelerators["num_samples"].sum()) for each in sums.epochs)
    stored = measured["storage_read_bytes"]
    given = read if stored is None else stored
    measured["read_amplification"] = given / max(1, samples) / workload.dataset.mean_bytes
    evidence = Evidence(
        losses=find_losses(sums),
        hosts=seen,
        measured=measured,
        reader=workload.reader,
        direct=all(host.direct for host in hosts),
        num_accelerators=len(sums.epochs[0].accelerators),
        by_h5py=workload.dataset.by_h5py,
        needed=needed,
        gets=gets,
        checkpoints=checkpoint_cost(sums.epochs),
    )
    if gets is not None:
        every = [epoch for host in hosts for epoch in host.epochs]
        measured["objects"] = objects_fields(gets, every)
    elif reads:
        bins = [dict(enumerate(each)) for each in reads]
        measured["file_read_p50_seconds_per_epoch"] = [quantile_of(each, 0.5) for each in bins]
        measured["file_read_p99_seconds_per_epoch"] = [quantile_of(each, 0.99) for each in bins]
    endurance = workload.drive.endurance if workload.drive is not None else None
    measured["wear"] = combine_hosts(_wear(hosts), endurance=endurance)
    notes = dict.fromkeys(note for host in hosts for note in host.notes)
    return Gathered(measured, evidence, (*notes, *_doubts(hosts, measured)))


def _measured(
    hosts: list[HostReport], seen: list[HostEvidence], sums: Sums, paths: PathBytes
) -> Measured:
    """Return what summary.json has of the hosts."""
    numbers = range(len(hosts[0].epochs))
    of_epochs = {each.epoch: int(each.accelerators["num_bytes"].sum()) for each in sums.epochs}
    read = [of_epochs.get(epoch, 0) for epoch in numbers]
    watched = _watched(hosts, read)
    stored = [
        _stored(hosts, epoch, read[epoch]) if watched is None else stored_behind(watched, epoch)
        for epoch in numbers
    ]
    # What was read ahead in one epoch does not make up for what memory served in another.
    from_memory = [
        None if given is None else max(0, asked - given)
        for given, asked in zip(stored, read, strict=True)
    ]
    shares = [
        None if num is None or not asked else num / asked
        for num, asked in zip(from_memory, read, strict=True)
    ]
    resident = _total([host.resident_before for host in hosts])
    if paths.mode == "none":  # the loader has no other path than through the host
        paths = PathBytes(host=sum(read))
    workers = sum(host.num_workers for host in hosts)
    seconds = float(np.mean([each.seconds for each in seen]))
    measured = Measured(
        storage_read_bytes=_total(stored),
        path=paths.mode,
        path_bytes=asdict(paths),
        device_read_bytes=_device_bytes(hosts),
        network=_network_fields(hosts),
        # By bytes: a mean over epochs would give a short epoch the weight of a long one.
        page_cache_share=None if None in shares else _total(from_memory) / sum(read),
        page_cache_share_per_epoch=shares,
        resident_share_before=None if resident is None else resident / len(hosts),
        hosts=[asdict(each) for each in seen],
        read_seconds=sum(each.read for each in sums.epochs),
        worker_seconds=workers * seconds,
    )
    if watched is not None:
        measured["cache"] = watched
    return measured


def _watched(hosts: list[HostReport], read: list[int]) -> CacheWatched | None:
    """Return what the places behind a mounted cache counted; None if none is watched."""
    if not all(host.watched for host in hosts):
        return None
    seconds = [max(host.epochs[epoch].seconds for host in hosts) for epoch in range(len(read))]
    return watched_fields(read, [host.watched for host in hosts], seconds)


def _doubts(hosts: list[HostReport], measured: Measured) -> tuple[str, ...]:
    """Return what is not sure about the share of bytes from memory."""
    shares = measured["page_cache_share_per_epoch"]
    share, before = shares[0], measured["resident_share_before"]
    if "objects" in measured:  # which no page cache keeps
        return ()
    if "cache" in measured and share is not None:  # the places behind the mount have told
        return ()
    in_memory = "" if before is None else f"{100 * before:.0f}% of the pages were in memory before"
    unseen = [host for host in hosts if _unseen(host.epochs[0])]
    if unseen:
        note = how_known(unseen[0].file_system, known=None not in shares)
        return (f"{note}; {in_memory}" if in_memory and None in shares else note,)
    # O_DIRECT does not use the page cache, whatever is in it.
    if share is None or before is None or any(host.direct for host in hosts):
        return ()
    if abs(share - before) < _CONTRADICTION:
        return ()
    return (
        f"the drives' counters say that {100 * share:.0f}% of the first epoch came from memory, "
        f"but {in_memory}: something else reads these drives, or memory was short",
    )


def _host_evidence(host: HostReport, mean_bytes: float, gbps: float | None) -> HostEvidence:
    """Return one host's counters over all epochs; loaders read `mean_bytes` on a host."""
    seconds = sum(epoch.seconds for epoch in host.epochs)
    busiest: dict[str, float] = {}
    for epoch in host.epochs:
        for name, busy_share in epoch.devices.items():
            busiest[name] = busiest.get(name, 0.0) + busy_share * epoch.seconds / seconds
    device = max(busiest, key=lambda name: busiest[name], default=None)
    stored = _total([stored_bytes(epoch, host.file_system) for epoch in host.epochs])
    cpu = _total([epoch.process_cpu_seconds for epoch in host.epochs])
    usable = host.epochs[-1].usable_cpus
    return HostEvidence(
        host=host.host,
        seconds=seconds,
        device=device,
        device_busy_share=None if device is None else busiest[device],
        read_bytes_per_second=(stored if stored else mean_bytes) / seconds,
        probe=host.probe,
        cpu_share=None if cpu is None else cpu / (usable * seconds),
        host_cpu_share=_weighted(host.epochs, [e.host_cpu_share for e in host.epochs]),
        host_steal_share=_weighted(host.epochs, [e.host_steal_share for e in host.epochs]),
        runqueue_seconds=_total([epoch.runqueue_seconds for epoch in host.epochs]),
        throttled_seconds=_total([epoch.throttled_seconds for epoch in host.epochs]),
        usable_cpus=usable,
        num_workers=host.num_workers,
        max_pss_bytes=max((epoch.max_pss_bytes or 0 for epoch in host.epochs), default=0),
        network=None
        if (counted := _network(host)) is None
        else network_use(counted, seconds, host.links, gbps),
        start_seconds=host.start_seconds,
        num_drives=len(busiest),
    )


def _network(host: HostReport) -> NetworkCounters | None:
    """Return what a host's network counted over all epochs; None where it did not."""
    counts = [epoch.network for epoch in host.epochs if epoch.network is not None]
    if not counts or len(counts) < len(host.epochs):
        return None
    return reduce(add, counts)


def _network_fields(hosts: list[HostReport]) -> NetworkFields | None:
    """Return what all hosts' networks counted together; interfaces that hosts share count once."""
    counts = {host.network_name or str(number): _network(host) for number, host in enumerate(hosts)}
    known = [count for count in counts.values() if count is not None]
    if not known or len(known) < len(counts):
        return None
    total = reduce(add, known)
    names = NetworkFields.__annotations__  # in their order
    return cast(NetworkFields, {name: getattr(total, name) for name in names})


def _device_bytes(hosts: list[HostReport]) -> int | None:
    """Return the bytes that all drives gave; what hosts of one machine share counts once."""
    most: dict[tuple[str, str], int] = {}
    for number, host in enumerate(hosts):
        if any(epoch.device_read_bytes is None for epoch in host.epochs):
            return None
        for name in {name for epoch in host.epochs for name in epoch.device_reads}:
            read = sum(epoch.device_reads.get(name, 0) for epoch in host.epochs)
            key = (host.machine or str(number), name)
            most[key] = max(most.get(key, 0), read)
    return sum(most.values())


def _wear(hosts: list[HostReport]) -> list[WearFields]:
    """Return each host's wear; a drive that hosts of one machine share stays with the first."""
    found: set[tuple[str, str]] = set()
    kept = []
    for number, host in enumerate(hosts):
        if host.wear is None:
            continue
        own = {(host.machine or str(number), drive["name"]): drive for drive in host.wear["drives"]}
        drives = [drive for key, drive in own.items() if key not in found]
        found.update(own)
        kept.append(WearFields(**{**host.wear, "drives": drives}))
    return kept


def _stored(hosts: list[HostReport], epoch: int, read: int) -> int | None:
    """Return the bytes that storage delivered to all hosts in an epoch, None if not known."""
    known: int | None = _total([stored_bytes(h.epochs[epoch], h.file_system) for h in hosts])
    if known is not None or len(hosts) > 1:  # steps do not tell which host has read
        return known
    return vouched_bytes(hosts[0].epochs[epoch], hosts[0].file_system, read=read)


def _unseen(epoch: IntervalSummary) -> bool:
    """Return whether neither a drive nor a network mount has counted its reads."""
    return not epoch.devices and epoch.network_read_bytes is None


def _total(values: Sequence[float | int | None]) -> Any:
    """Return the sum, or None if a value is unknown or there is none."""
    if not values or any(value is None for value in values):
        return None
    return sum(value for value in values if value is not None)


def _weighted(epochs: list[IntervalSummary], shares: list[float | None]) -> float | None:
    """Return the mean of the epochs' shares, weighted by their seconds."""
    total = _total(
        [None if s is None else s * e.seconds for s, e in zip(shares, epochs, strict=True)]
    )
    return None if total is None else total / sum(epoch.seconds for epoch in epochs)


def objects_fields(gets: GetCounts, epochs: Sequence[IntervalSummary]) -> ObjectsMeasured:
    """Return the fields; `epochs` are those of all hosts."""
    cpu = [epoch.process_cpu_seconds for epoch in epochs]
    known = [seconds for seconds in cpu if seconds is not None]
    per_byte = sum(known) / gets.received_bytes if gets.received_bytes else None
    return ObjectsMeasured(
        gets=gets.gets,
        p50_seconds=gets.quantile(0.5),
        p99_seconds=gets.quantile(0.99),
        retries=gets.retries,
        slow_downs=gets.slow_downs,
        received_bytes=gets.received_bytes,
        needed_bytes=gets.needed_bytes,
        cpu_seconds_per_GB=(
            1e9 * per_byte if per_byte is not None and len(known) == len(cpu) else None
        ),
    )


def watched_fields(
    read: Sequence[int], hosts: Sequence[Sequence[PlaceCounts]], seconds: Sequence[float]
) -> CacheWatched:
    """Return the fields of summary.json.

    Args:
        read: bytes that training read in each epoch.
        hosts: of each host, the growth of the counters in each epoch.
        seconds: of each epoch.
    """
    places = [add_up(epoch) for epoch in zip(*hosts, strict=True)]
    origin = [each.origin_read_bytes for each in places]
    written = [each.cache_written_bytes for each in places]
    return CacheWatched(
        hit_share_per_epoch=[_hits(*pair) for pair in zip(origin, read, strict=True)],
        read_bytes_per_epoch=list(read),
        origin_bytes_per_epoch=origin,
        cache_read_bytes_per_epoch=[each.cache_read_bytes for each in places],
        cache_write_bytes_per_epoch=written,
        fill_ratio_per_epoch=[_fill(*each) for each in zip(origin, written, read, strict=True)],
        daemon_cpu_seconds_per_epoch=[each.daemon_cpu_seconds for each in places],
        seconds_per_epoch=list(seconds),
    )


def stored_behind(cached: CacheWatched, epoch: int) -> int | None:
    """Return the bytes of an epoch that drives delivered: origin's and cache's; None if unknown."""
    parts = (cached["origin_bytes_per_epoch"][epoch], cached["cache_read_bytes_per_epoch"][epoch])
    known = [part for part in parts if part is not None]
    return min(sum(known), cached["read_bytes_per_epoch"][epoch]) if len(known) == 2 else None


def _hits(origin: int | None, read: int) -> float | None:
    """Return the share of the bytes read that the origin did not give."""
    return None if origin is None or not read else max(0.0, 1 - origin / read)


def _fill(origin: int | None, written: int | None, read: int) -> float | None:
    """Return the bytes written to the cache for each byte of the origin."""
    if origin is None or written is None or origin < _LEAST_SHARE * max(read, 1):
        return None
    return written / origin
