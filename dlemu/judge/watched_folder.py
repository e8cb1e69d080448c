"""A training loop of one's own: what it read from a folder, and its steps as a workload file."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np

from dlemu.config.model import Workload
from dlemu.config.published import derived_yaml, normal
from dlemu.errors import WorkloadError
from dlemu.host.devices import mount_under
from dlemu.host.intervals import HostObserver, IntervalSummary, summarize_interval
from dlemu.host.network import machine_name, network_name
from dlemu.host.place import find_host
from dlemu.judge.evidence import HostReport, combine
from dlemu.judge.records import Steps
from dlemu.judge.summary import Summary
from dlemu.judge.sums import Sums
from dlemu.ranks.world import World
from dlemu.storage.counted import PathBytes


def own_workload_yaml(
    workload: Workload, steps: Steps, *, name: str, timed_by: str, launch_seconds: float = 0.0
) -> str:
    """Return a workload file with the batch, sample bytes and compute of these steps.

    `steps` is (steps,) of `records.STEP`. The first step of an epoch is left out: it starts the
    loader, and a GPU looks for its fastest kernels. The loop's own work counts as compute: an
    emulation without it would be faster than the loop (docs/fidelity.md).

    Raises:
        WorkloadError: no epoch has two steps.
    """
    counted = steps[steps["step"] > 0]
    if not len(counted):
        raise WorkloadError(
            "meter.workload_yaml() needs an epoch of at least two steps; the first one is left out"
        )
    compute, samples = counted["compute"] + counted["overhead"], counted["num_samples"]
    batch = int(np.median(samples))
    keys: dict[str, object] = {"train.computation_time": normal(compute)}
    if batch:
        keys["reader.batch_size"] = batch
    if launch_seconds:
        keys["train.launch_time"] = float(f"{min(launch_seconds, compute.mean()):.4g}")
    known = bool(batch and counted["num_bytes"].sum()) and not workload.dataset.record_dims
    of_sample = counted["num_bytes"] / np.maximum(samples, 1)
    if known:
        keys["dataset.record_length_bytes"] = float(f"{of_sample.mean():.10g}")
    # A stream counts what it read ahead with the batch at hand: that tells the mean of a sample,
    # not how samples deviate.
    deviates = known and not (workload.by_tf_data or workload.streamed)
    if deviates:
        # A batch's mean deviates by 1 / sqrt(batch) of what a sample deviates.
        keys["dataset.record_length_bytes_stdev"] = float(f"{of_sample.std() * sqrt(batch):.6g}")
    whole = sum(counted[part].sum() for part in ("wait", "overhead", "compute", "barrier"))
    comment = [
        f"A training loop measured by dlemu.Meter, {len(counted):,} steps, timed by {timed_by}.",
        f"waiting for batches: {100 * counted['wait'].sum() / whole:.1f} % of the time; "
        f"the loop's own work, which computation_time includes: "
        f"{100 * counted['overhead'].sum() / whole:.1f} %",
    ]
    if not batch:
        comment.append(f"batch size: that of {workload.name}; Meter(batch_size=) gives the loop's")
    if not known:
        comment.append(
            f"dataset: that of {workload.name}; the loader does not tell its bytes, "
            "Meter(sample_bytes=) gives them"
        )
    elif not deviates:
        comment.append(
            f"deviation of the samples' bytes: that of {workload.name}; files are streams"
        )
    return derived_yaml(workload, name or f"{workload.name}_measured", keys, comment)


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
        system = [find_host(self._folder, name=world.host)]
        return Summary(system=system, measured=measured, notes=notes)
