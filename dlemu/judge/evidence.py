"""Puts together what the hosts saw of a run: evidence for its limit, `measured`, and `cache`.

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

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from dlemu.config.model import Workload
from dlemu.host.devices import IN_MEMORY, total
from dlemu.host.intervals import IntervalSummary, PlaceCounts, whole_of
from dlemu.host.network import NetworkUse, network_use
from dlemu.host.wear import DriveWrites, combine_hosts
from dlemu.judge.findings import Finding, note
from dlemu.judge.metrics import Losses, Metrics, find_losses
from dlemu.judge.steady import Steadiness
from dlemu.judge.summary import CacheMeasured, CheckpointCost, Measured, checkpoint_cost
from dlemu.judge.sums import Sums
from dlemu.storage.counted import GetCounts, PathBytes, quantile_of
from dlemu.storage.probe import Probe

_COUNT_ALL = ("btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "ntfs3", "vfat", "xfs")
_COUNT_SOME = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "lustre", "nfs", "nfs4", "overlay", "smb3",
    "virtiofs",
)  # fmt: skip
_VOUCHED = 0.95
"""A count that may not be complete is used if it has this share of the bytes read."""
_CACHE_NOISE = 0.01
"""Smaller shares of an epoch's time, and smaller hit shares, are noise."""
_FEW_PAGES = 0.01
"""Share of a dataset's pages in memory below which no cache has served it."""
_CEILING = 98.0
"""At this AU in percent and above, storage is no limit."""


def stored_bytes(epoch: IntervalSummary, file_system: str, read: int | None = None) -> int | None:
    """Return the bytes that storage delivered in an epoch, None where no counter tells.

    It is the smallest of the counts, as drives and mounts serve other processes, too. A count that
    may not be complete is taken if it has nearly all of the bytes `read`; None: not known.
    """
    if file_system in IN_MEMORY:
        return 0
    processes = epoch.process_read_bytes
    if epoch.devices and file_system.startswith("fuse"):  # drives that are watched behind it
        return epoch.device_read_bytes
    if not epoch.devices and epoch.network_read_bytes is None:
        if file_system in _COUNT_ALL:
            return processes
        some = file_system.partition(".")[0] in _COUNT_SOME  # "fuse.sshfs"
        least = inf if read is None or not some else _VOUCHED * read
        return processes if processes is not None and processes >= least else None
    counts = [epoch.storage_read_bytes]
    if processes or epoch.devices:  # on NFS a count of 0 may mean that nothing was counted
        counts.append(processes)
    return min((num for num in counts if num is not None), default=None)


def how_known(file_system: str, *, known: bool, resident_share: float | None = None) -> Finding:
    """Return how the share from memory is known, or why it is not.

    `resident_share` is that of the pages in memory before, told where the other is not known.
    """
    if file_system in IN_MEMORY:
        return note("data_in_memory", file_system=file_system, resident_share=resident_share)
    if known:
        return note("storage_by_process_count", file_system=file_system or None)
    return note("storage_unknown", file_system=file_system or None, resident_share=resident_share)


_CONTRADICTION = 0.1
"""Difference of two shares of cached bytes that is worth a note."""
_LEAST_SHARE = 0.01
"""An origin that gave less of the bytes gives no ratio: it may have read folders only."""


@dataclass(kw_only=True)
class HostReport:
    """What a host's first rank sends to rank 0, and what follows from it; None: not known."""

    host: str
    epochs: list[IntervalSummary] = field(default_factory=list)
    probe: Probe | None = None
    """Rates that readers got from the same files after the run."""
    num_workers: int = 0
    resident_before: float | None = None
    """Share of the dataset's pages that were in memory when the run began."""
    resident_after: float | None = None
    """The same after the last epoch; None as well where reads did not bypass the page cache."""
    direct: bool
    """Whether reads bypassed the page cache."""
    notes: list[str | Finding] = field(default_factory=list)
    file_system: str = ""
    """Of the data folder, as mountinfo names it."""
    wear: DriveWrites | None = None
    watched: list[PlaceCounts] = field(default_factory=list)
    """Of each epoch; empty where no place is watched."""
    links: dict[str, int | None] = field(default_factory=dict)
    """The host's network interfaces, and their bits per second; None where unknown."""
    network_name: str = ""
    """Equal for hosts that share their network interfaces; "" where that is not known."""
    start_seconds: float | None = None
    """From the start of this rank to the first step; None: not the first of runs."""
    machine: str = ""
    """Equal for hosts that are one machine, as containers may be; "" where that is not known."""
    read_bytes: float = 0.0
    """Bytes read by this host's loaders. Set on rank 0 by `combine`, as is nic_gbps."""
    nic_gbps: float | None = None
    """client.nic_gbps."""

    @cached_property
    def whole(self) -> IntervalSummary:
        """All epochs together."""
        return whole_of(self.epochs)

    @cached_property
    def network(self) -> NetworkUse | None:
        """None where the kernel shows no network interface."""
        counted = self.whole.network
        if counted is None:
            return None
        return network_use(counted, self.whole.seconds, self.links, self.nic_gbps)

    @property
    def device(self) -> str | None:
        """Name of the busiest drive under the data folder."""
        return max(self.whole.devices, key=self.whole.devices.__getitem__, default=None)

    @property
    def device_busy_share(self) -> float | None:
        """Its share (0-1) of the time."""
        return max(self.whole.devices.values(), default=None)

    @property
    def read_bytes_per_second(self) -> float:
        """Delivered by storage, or, where that cannot be seen, taken by the loaders."""
        stored = total([stored_bytes(epoch, self.file_system) for epoch in self.epochs])
        return (stored or self.read_bytes) / self.whole.seconds

    def fields(self) -> dict[str, Any]:
        """Return what summary.json has of the host: the counters of all epochs, and what follows.

        `cpu_share` is the CPU time of ranks and workers / usable CPUs, `num_drives` the number of
        drives that are seen under the data folder.
        """
        follows: dict[str, Any] = {
            "device": self.device,
            "device_busy_share": self.device_busy_share,
            "read_bytes_per_second": self.read_bytes_per_second,
            "probe": self.probe and asdict(self.probe),
            "cpu_share": self.whole.process_cpu_share,
            "num_workers": self.num_workers,
            "network": self.network and asdict(self.network),
            "start_seconds": self.start_seconds,
            "num_drives": len(self.whole.devices),
        }
        return {"host": self.host, **asdict(self.whole), **follows}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What all hosts saw of a run, put together: all that its limit is found from."""

    workload: Workload
    losses: Losses
    hosts: Sequence[HostReport]
    measured: Measured
    """Without the fields that follow from the steps alone."""
    num_accelerators: int
    needed: float = 1.0
    """Bytes that the format needs at most / bytes of the samples: headers, whole pages."""
    gets: GetCounts | None = None
    """Requests to the bucket; None where the data folder is a folder."""
    checkpoints: CheckpointCost | None = None
    """What checkpoints cost the steps; None where none were written."""
    notes: tuple[str | Mapping[str, Any], ...] = ()
    """As summary.json has them: findings, and what loaders and the places of a cache say."""
    steady: Steadiness | None = None
    """How steadily the storage gave; None: not known."""


def combine(
    workload: Workload,
    hosts: list[HostReport],
    sums: Sums,
    paths: PathBytes,
    gets: GetCounts | None = None,
    *,
    reads: Sequence[Sequence[float]] = (),
    needed: float = 1.0,
) -> Evidence:
    """Return what the hosts saw together.

    The sums are whole, as `measure_sums` checks, and by the workload's rule. `gets` are the
    requests to a bucket, None where the data folder is none. `reads` has the reads of files in each
    epoch, by the bins of `quantile_of`; none were counted in a bucket. `needed`: as in Evidence.
    """
    read = sum(int(each.accelerators["num_bytes"].sum()) for each in sums.epochs)
    for host in hosts:
        host.read_bytes, host.nic_gbps = read / len(hosts), workload.client.nic_gbps
    cached = any((workload.cache.folder, workload.cache.origin, workload.cache.devices))
    measured = _measured(hosts, sums, paths, cached=cached)
    samples = sum(int(each.accelerators["num_samples"].sum()) for each in sums.epochs)
    stored = measured["storage_read_bytes"]
    given = read if stored is None else stored
    measured["read_amplification"] = given / max(1, samples) / workload.dataset.mean_bytes
    if gets is not None:
        cpu = total([host.whole.process_cpu_seconds for host in hosts])
        measured["objects"] = objects_fields(gets, cpu)
    elif reads:
        bins = [dict(enumerate(each)) for each in reads]
        measured["file_read_p50_seconds_per_epoch"] = [quantile_of(each, 0.5) for each in bins]
        measured["file_read_p99_seconds_per_epoch"] = [quantile_of(each, 0.99) for each in bins]
    endurance = workload.drive.endurance if workload.drive is not None else None
    measured["wear"] = combine_hosts(_wear(hosts), endurance=endurance)
    notes: list[str | Mapping[str, Any]] = []
    for each in (*(each for host in hosts for each in host.notes), *_doubts(hosts, measured)):
        told = each.fields if isinstance(each, Finding) else each
        notes += [] if told in notes else [told]
    return Evidence(
        workload=workload,
        losses=find_losses(sums),
        hosts=hosts,
        measured=measured,
        num_accelerators=len(sums.epochs[0].accelerators),
        needed=needed,
        gets=gets,
        checkpoints=checkpoint_cost(sums.epochs),
        notes=tuple(notes),
    )


def _measured(hosts: list[HostReport], sums: Sums, paths: PathBytes, *, cached: bool) -> Measured:
    """Return what summary.json has of the hosts; `cached`: a cache holds a part of the files."""
    numbers = range(len(hosts[0].epochs))
    of_epochs = {each.epoch: int(each.accelerators["num_bytes"].sum()) for each in sums.epochs}
    read = [of_epochs.get(epoch, 0) for epoch in numbers]
    watched = _watched(hosts, read)
    if watched is None:
        one = len(hosts) == 1  # steps do not tell which of several hosts has read
        stored = [
            total([stored_bytes(h.epochs[n], h.file_system, num if one else None) for h in hosts])
            for n, num in enumerate(read)
        ]
    else:
        stored = [stored_behind(watched, epoch) for epoch in numbers]
    # What was read ahead in one epoch does not make up for what memory served in another.
    from_memory = [
        None if given is None else max(0, asked - given)
        for given, asked in zip(stored, read, strict=True)
    ]
    uncounted = None
    if not cached and not any(map(may_use_memory, hosts)):
        uncounted = total(from_memory)
        from_memory = [None if num is None else 0 for num in from_memory]
    shares = [
        None if num is None or not asked else num / asked
        for num, asked in zip(from_memory, read, strict=True)
    ]
    resident = total([host.resident_before for host in hosts])
    if paths.mode == "none":  # the loader has no other path than through the host
        paths = PathBytes(host=sum(read))
    workers = sum(host.num_workers for host in hosts)
    seconds = float(np.mean([host.whole.seconds for host in hosts]))
    measured = Measured(
        storage_read_bytes=total(stored),
        path=paths.mode,
        path_bytes=asdict(paths),
        device_read_bytes=_device_bytes(hosts),
        network=_network_fields(hosts),
        # By bytes: a mean over epochs would give a short epoch the weight of a long one.
        page_cache_share=None if None in shares else (total(from_memory) or 0) / sum(read),
        page_cache_share_per_epoch=shares,
        resident_share_before=None if resident is None else resident / len(hosts),
        hosts=[host.fields() for host in hosts],
        read_seconds=sum(each.read for each in sums.epochs),
        worker_seconds=workers * seconds,
    )
    if uncounted:
        measured["uncounted_share"] = uncounted / sum(read)
    if watched is not None:
        measured["cache"] = watched
    return measured


def may_use_memory(host: HostReport) -> bool:
    """Return whether memory of a host can have served reads: with O_DIRECT none does.

    But some file systems take O_DIRECT and read through a cache of their own, or through the page
    cache: btrfs compressed files, ext4 with data=journal. Then pages of the files are there.
    """
    if not host.direct or host.file_system not in (*_COUNT_ALL, "nfs", "nfs4"):
        return True
    return max(host.resident_before or 0.0, host.resident_after or 0.0) >= _FEW_PAGES


def _watched(hosts: list[HostReport], read: list[int]) -> CacheMeasured | None:
    """Return what the places behind a mounted cache counted; None if none is watched."""
    if not all(host.watched for host in hosts):
        return None
    seconds = [max(host.epochs[epoch].seconds for host in hosts) for epoch in range(len(read))]
    return watched_fields(read, [host.watched for host in hosts], seconds)


def _doubts(hosts: list[HostReport], measured: Measured) -> tuple[Finding, ...]:
    """Return what is not sure about the share of bytes from memory."""
    shares = measured["page_cache_share_per_epoch"]
    share, before = shares[0], measured["resident_share_before"]
    if "objects" in measured:  # which no page cache keeps
        return ()
    if "cache" in measured and share is not None:  # the places behind the mount have told
        return ()
    first = [(host, host.epochs[0]) for host in hosts]
    unseen = [h for h, seen in first if not seen.devices and seen.network_read_bytes is None]
    if unseen:
        known = None not in shares
        resident = None if known else before
        return (how_known(unseen[0].file_system, known=known, resident_share=resident),)
    # O_DIRECT does not use the page cache, whatever is in it.
    if share is None or before is None or any(host.direct for host in hosts):
        return ()
    if abs(share - before) < _CONTRADICTION:
        return ()
    return (note("counters_contradict", share=share, resident_share=before),)


def _network_fields(hosts: list[HostReport]) -> dict[str, int | None] | None:
    """Return what all hosts' networks counted together; interfaces that hosts share count once."""
    counts = {host.network_name or str(n): host.whole.network for n, host in enumerate(hosts)}
    counted = total(list(counts.values()))
    if counted is None:
        return None
    segments = {name: count for name, count in asdict(counted).items() if name != "nics"}
    return {"received_bytes": counted.received_bytes, "sent_bytes": counted.sent_bytes, **segments}


def _device_bytes(hosts: list[HostReport]) -> int | None:
    """Return the bytes that all drives gave; what hosts of one machine share counts once."""
    most: dict[tuple[str, str], int] = {}
    for number, host in enumerate(hosts):
        if host.whole.device_read_bytes is None:
            return None
        for name, read in host.whole.device_reads.items():
            key = (host.machine or str(number), name)
            most[key] = max(most.get(key, 0), read)
    return sum(most.values())


def _wear(hosts: list[HostReport]) -> list[DriveWrites]:
    """Return each host's wear; a drive that hosts of one machine share stays with the first."""
    found: set[tuple[str, str]] = set()
    kept = []
    for number, host in enumerate(hosts):
        if host.wear is not None:
            machine = host.machine or str(number)
            own = {(machine, drive["name"]): drive for drive in host.wear.drives}
            drives = [drive for key, drive in own.items() if key not in found]
            found.update(own)
            kept.append(host.wear._replace(drives=drives))
    return kept


def objects_fields(gets: GetCounts, cpu_seconds: float | None) -> dict[str, Any]:
    """Return the fields; `cpu_seconds` are those of all ranks and workers, None: not known."""
    received = gets.received_bytes
    cpu = None if not received or cpu_seconds is None else 1e9 * cpu_seconds / received
    counts = {name: count for name, count in asdict(gets).items() if name != "_bins"}
    half, most = gets.quantile(0.5), gets.quantile(0.99)
    return counts | {"p50_seconds": half, "p99_seconds": most, "cpu_seconds_per_GB": cpu}


def watched_fields(
    read: Sequence[int], hosts: Sequence[Sequence[PlaceCounts]], seconds: Sequence[float]
) -> CacheMeasured:
    """Return the fields of summary.json.

    Args:
        read: bytes that training read in each epoch.
        hosts: of each host, the growth of the counters in each epoch.
        seconds: of each epoch.
    """
    places = [total(epoch) for epoch in zip(*hosts, strict=True)]
    origin = [each.origin_read_bytes for each in places]
    written = [each.cache_written_bytes for each in places]
    return CacheMeasured(
        hit_share_per_epoch=[_hits(*pair) for pair in zip(origin, read, strict=True)],
        read_bytes_per_epoch=list(read),
        origin_bytes_per_epoch=origin,
        cache_read_bytes_per_epoch=[each.cache_read_bytes for each in places],
        cache_write_bytes_per_epoch=written,
        fill_ratio_per_epoch=[_fill(*each) for each in zip(origin, written, read, strict=True)],
        daemon_cpu_seconds_per_epoch=[each.daemon_cpu_seconds for each in places],
        seconds_per_epoch=list(seconds),
    )


def stored_behind(cached: CacheMeasured, epoch: int) -> int | None:
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


def cache_fields(
    workload: Workload, emulated: str, hosts: Sequence[Any], metrics: Metrics
) -> CacheMeasured:
    """Return the fields of all hosts, from what `loaders.cache.host` counted on each."""

    endurance = workload.drive.endurance if workload.drive is not None else None
    of_hosts = list(zip(*(host.epochs for host in hosts), strict=True))
    epochs = [total(each) for each in of_hosts]
    found = CacheMeasured(
        policy=workload.cache.policy,
        fill=workload.cache.fill,
        emulated_origin=emulated,
        capacity_bytes=sum(min(host.capacity_bytes, host.dataset_bytes) for host in hosts),
        dataset_bytes=hosts[0].dataset_bytes,
        hit_share_per_epoch=[_share(each.hit, each) for each in epochs],
        planned_hit_share_per_epoch=[_share(each.planned_hit, each) for each in epochs],
        hit_bytes_per_epoch=[each.hit for each in epochs],
        planned_hit_bytes_per_epoch=[each.planned_hit for each in epochs],
        origin_bytes_per_epoch=[each.origin for each in epochs],
        cache_read_bytes_per_epoch=[each.cache_read for each in epochs],
        cache_write_bytes_per_epoch=[each.cache_written for each in epochs],
        seconds_per_epoch=[epoch.seconds for epoch in metrics.epochs],
        settle_seconds_per_epoch=[max(e.settle_seconds for e in each) for each in of_hosts],
        preload=_preload([host.preload for host in hosts]),
        pays_from_epoch=None,
        can_save=False,
        one_drive=not emulated and any(host.one_drive for host in hosts),
        endurance_bytes=endurance * workload.drives if endurance else None,
        hosts=[_of_host(host) for host in hosts if host.capacity_bytes],
    )
    found["pays_from_epoch"] = pays_from(found, metrics)
    found["can_save"] = can_save(found, metrics)
    return found


def _of_host(host: Any) -> Mapping[str, Any]:
    return {
        "host": host.host,
        "capacity_bytes": host.capacity_bytes,
        "hit_share_per_epoch": [_share(epoch.hit, epoch) for epoch in host.epochs],
        "hit_bytes_per_epoch": [epoch.hit for epoch in host.epochs],
        "planned_hit_bytes_per_epoch": [epoch.planned_hit for epoch in host.epochs],
    }


def _share(part: int, epoch: Any) -> float | None:
    return part / epoch.asked if epoch.asked else None


def _preload(hosts: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return what all hosts copied: together, in the time of the slowest."""
    whole = total(hosts)
    if whole is None:
        return None
    slowest = max(host.seconds for host in hosts)
    return {**asdict(whole), "seconds": slowest, "read_share": whole.read_share / len(hosts)}


def pays_from(cached: CacheMeasured, metrics: Metrics) -> int | None:
    """Return the epoch by whose end the cache has saved time, None if it never will.

    Without the cache, each epoch is taken to last as long as the coldest one, or as long as the
    origin would need for all bytes at the best rate that it gave. Later epochs are taken to be as
    the last one. First steps are left out: in that of the first epoch the loader starts.
    """
    if not can_save(cached, metrics):
        return None
    seconds, preload = _counted_seconds(metrics), cached["preload"]
    alone = _seconds_without(cached, seconds)
    assert alone is not None
    spent = preload["seconds"] if preload else 0.0
    number = 0
    for number, (took, settled) in enumerate(
        zip(seconds, cached["settle_seconds_per_epoch"], strict=True), 1
    ):
        spent += took + settled - alone
        if spent < -_CACHE_NOISE * alone:
            return number
    gain = alone - seconds[-1]
    if gain <= _CACHE_NOISE * alone:
        return None
    return number + int(max(0.0, spent) / gain) + 1


def can_save(cached: CacheMeasured, metrics: Metrics) -> bool:
    """Return whether a cache can save time: not where it shares the origin's drive, nor where an
    epoch without hits has all the utilisation that there is, nor where the origin gave nothing."""
    if _seconds_without(cached, _counted_seconds(metrics)) is None:
        return False
    coldest = _coldest(cached)
    cold = (cached["hit_share_per_epoch"][coldest] or 0.0) < _CACHE_NOISE
    full = cold and metrics.epochs[coldest].au_percentage >= _CEILING
    return bool(cached["capacity_bytes"]) and not (cached["one_drive"] or full)


def _coldest(cached: CacheMeasured) -> int:
    """Return the first epoch of those with the fewest hits, from 0."""
    shares = [share or 0.0 for share in cached["hit_share_per_epoch"]]
    return shares.index(min(shares))


def _counted_seconds(metrics: Metrics) -> list[float]:
    """Return each epoch's seconds without its first step."""
    return [epoch.seconds - epoch.first_step_seconds for epoch in metrics.epochs]


def _seconds_without(cached: CacheMeasured, seconds: Sequence[float]) -> float | None:
    """Return the seconds of an epoch that reads all bytes from the origin; None: not known."""
    origin, coldest = cached["origin_bytes_per_epoch"], _coldest(cached)
    rates = [(num or 0) / took for num, took in zip(origin, seconds, strict=True)]
    if preload := cached["preload"]:
        rates.append(preload["num_bytes"] / max(preload["seconds"], 1e-9))
    share = cached["hit_share_per_epoch"][coldest]
    if not max(rates):
        return None
    whole = cached["hit_bytes_per_epoch"][coldest] / share if share else 0.0
    return max(seconds[coldest], whole / max(rates))
