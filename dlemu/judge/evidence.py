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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from dlemu.config.model import Workload
from dlemu.findings import Finding, note
from dlemu.host.devices import IN_MEMORY, total
from dlemu.host.intervals import IntervalSummary, PlaceCounts, whole_of
from dlemu.host.network import NetworkUse, network_use
from dlemu.host.wear import DriveWrites, combine_hosts
from dlemu.judge.cache import stored_behind, watched_fields
from dlemu.judge.metrics import Losses, checkpoint_cost, find_losses
from dlemu.judge.steady import Steadiness
from dlemu.judge.summary import CacheMeasured, CheckpointCost, Measured
from dlemu.judge.sums import EpochSums, Sums
from dlemu.storage.counted import GetCounts, PathBytes, quantile_of
from dlemu.storage.probe import Probe

_COUNT_ALL = ("btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "ntfs3", "vfat", "xfs")
_COUNT_SOME = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "lustre", "nfs", "nfs4", "overlay", "smb3",
    "virtiofs",
)  # fmt: skip
_VOUCHED = 0.95
"""A count that may not be complete is used if it has this share of the bytes read."""
_FEW_PAGES = 0.01
"""Share of a dataset's pages in memory below which no cache has served it."""


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
    given_in_steps: float | None = None
    """Bytes per second that the storage gave for the steps that count; None: not known."""
    given_but_ahead: float | None = None
    """The same without all that first steps may have read ahead for them; None: not known."""


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
        given_in_steps=_given_in_steps(sums, given / max(1, read)),
        given_but_ahead=_given_but_ahead(workload, hosts, sums, given / max(1, read)),
    )


def _given_in_steps(
    sums: Sums, stored_share: float, ahead: Callable[[EpochSums], float] = lambda epoch: 0.0
) -> float | None:
    """Return bytes per second from the storage in the time of the steps that count.

    The time of all steps has the start of the workers, and an end at which nothing is read any
    more. `stored_share`: bytes that the storage gave / bytes that were read. `ahead`: bytes of an
    epoch's steps that count which were read before them.
    """
    num_bytes = seconds = 0.0
    for each in sums.epochs:
        rows, counted = each.accelerators, float(each.window.mean())
        num_bytes += max(0.0, counted * float(rows["num_bytes"].sum()) - ahead(each))
        seconds += float(rows["inside"].mean())
    return stored_share * num_bytes / seconds if seconds else None


def _given_but_ahead(
    workload: Workload, hosts: Sequence[HostReport], sums: Sums, stored_share: float
) -> float | None:
    """Return the same without what first steps, which do not count, may have read for others.

    That is as much as the loader may hold, and no more than the storage gives in this time: a job
    that warms up for seconds in its first step reads as many batches ahead.
    """
    probe = total([host.probe for host in hosts])
    if probe is None:
        return None
    most_batches = workload.batches_in_flight - 1  # that of the first step itself is used

    def ahead(epoch: EpochSums) -> float:
        if epoch.window[:1].any():  # the first step counts, and so does its time
            return 0.0
        rows, num_steps = epoch.accelerators, max(1, epoch.num_steps)
        step_bytes = float(rows["num_bytes"].sum()) / num_steps
        given = max(probe.few, probe.many) * float(rows["first_step"].mean())
        return max(0.0, min(most_batches * step_bytes, given - step_bytes))

    return _given_in_steps(sums, stored_share, ahead)


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
