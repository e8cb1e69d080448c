"""What one's own training loop read from the storage below a folder, by the kernel's counters."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dlemu.config.model import Workload
from dlemu.errors import WorkloadError
from dlemu.host.devices import mount_under
from dlemu.host.intervals import IntervalSummary, summarize_interval
from dlemu.host.network import machine_name, network_name
from dlemu.host.observer import HostObserver
from dlemu.judge.evidence import HostReport, combine
from dlemu.judge.header import place_fields
from dlemu.judge.summary import Summary
from dlemu.judge.sums import Sums
from dlemu.ranks.world import World
from dlemu.storage.counted import PathBytes


class WatchedFolder:
    """Counts what the ranks of each host, with their workers, read in each epoch.

    The first rank of a host does the work. All ranks make one, and call `summary`.

    Raises:
        WorkloadError: the folder is missing.
    """

    def __init__(self, folder: Path, world: World) -> None:
        if not folder.is_dir():
            raise WorkloadError(
                f"Meter: folder {folder} is no folder; name the one with the files that the loop "
                "reads"
            )
        ranks = world.all_gather((world.host_index, os.getpid()))
        self._pids = [pid for host, pid in ranks if host == world.host_index]
        self._folder, self._world = folder, world
        self._epochs: dict[int, IntervalSummary] = {}
        self._links: dict[str, int | None] = {}

    @contextmanager
    def epoch(self, number: int) -> Iterator[None]:
        """Count while an epoch runs."""
        if self._world.local_rank:
            yield
            return
        with HostObserver([self._folder], lambda: self._pids) as observer:
            observer.mark("start")
            try:
                yield
            finally:
                observer.mark("end")
                self._epochs[number] = summarize_interval(observer.between("start", "end"))
                self._links = observer.links

    def summary(
        self, workload: Workload, sums: Sums | None, epochs: Sequence[int], *, in_files: bool
    ) -> Summary:
        """Return `place`, `measured` and `notes` of a run's summary on rank 0; all ranks call it.

        `epochs` are the numbers of those that have steps, `sums` their sums, None elsewhere.
        `in_files`: the steps' bytes are those of the files, so that the share of them that came
        from memory is known.
        """
        world, mount = self._world, mount_under(self._folder)
        own = HostReport(
            host=world.host,
            epochs=[self._epochs[number] for number in epochs if number in self._epochs],
            probe=None,
            num_workers=0,
            resident_before=None,
            direct=False,
            file_system="" if mount is None else mount.kind,
            links=self._links,
            network_name=network_name(),
            machine=machine_name(),
        )
        hosts = world.gather(None if world.local_rank else own)
        if hosts is None or sums is None:
            return Summary()
        found = [host for host in hosts if host is not None]
        each = tuple(replace(one, epoch=number) for number, one in enumerate(sums.epochs))
        seen = combine(workload, found, replace(sums, epochs=each), PathBytes())
        measured, notes = seen.measured, list(seen.notes)
        if not in_files:
            measured["page_cache_share"] = None
            measured["page_cache_share_per_epoch"] = [None] * len(each)
            del measured["read_amplification"]
            notes = [
                "how many bytes came from memory is not known: a batch tells its bytes in memory; "
                "Meter(sample_bytes=) gives those of a sample in the files"
            ]
        place = place_fields(self._folder, host=world.host, num_hosts=world.num_hosts)
        return Summary(place=place, measured=measured, notes=notes)
