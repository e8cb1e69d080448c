"""The summary of a run when it begins and when it is complete, and what rank 0 gathers for it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import reduce
from pathlib import Path

import numpy as np

from dlemu.config.model import Workload
from dlemu.dataset.layout import Dataset, Layout
from dlemu.dataset.rule import num_accelerators
from dlemu.errors import DatasetError
from dlemu.judge.bottleneck import find_run_limit
from dlemu.judge.evidence import Evidence
from dlemu.judge.folders import versions
from dlemu.judge.metrics import Metrics
from dlemu.judge.records import Steps, host_file, named, steps_file
from dlemu.judge.summary import Measured, Summary
from dlemu.judge.sums import Ends, Rule, Sums, both_ends, ends_of, sum_up
from dlemu.loaders.cache.host import file_sizes
from dlemu.ranks.world import World
from dlemu.storage.atomic import write_atomically
from dlemu.units import PAGE_BYTES, ceil_div, format_rate, round_up

_PORTION_BYTES = 1 << 28
"""Of records that rank 0 takes from other hosts at a time."""


def gather_sums(workload: Workload, world: World, parts: Sequence[Steps]) -> Sums | None:
    """Return the sums over the steps of all ranks on rank 0, None on the others.

    `parts` are this rank's records. The records of others stay where they are.
    """
    ends: Ends = {}
    if workload.workflow.checkpoint:
        own = reduce(both_ends, map(ends_of, parts), ends)
        ends = world.broadcast(world.reduce(own, both_ends) or own)
    name, rule = f"rank {world.rank} on host {world.host}", Rule.of(workload)
    sums = (sum_up(part, rule, ends, name) for part in parts)
    return world.reduce(reduce(Sums.joined, sums, Sums(rule, ())), Sums.joined)


def collect_files(world: World, folder: Path) -> None:
    """Write into rank 0's folder the records of hosts that do not share it."""
    if world.num_hosts == 1:
        return
    seen = world.on_first(lambda: {path.name for path in folder.iterdir()})
    own = [steps_file(folder, world.rank)]
    if world.local_rank == 0:
        own.append(host_file(folder, world.rank))
    own = [path for path in own if path.name not in seen]
    sizes = world.all_gather(sum(path.stat().st_size for path in own))
    for ranks in portions(sizes, _PORTION_BYTES):
        sent = {path.name: path.read_bytes() for path in own if world.rank in ranks}
        for files in world.gather(sent) or ():
            for name, content in files.items():
                with named(folder / name):
                    write_atomically(folder / name, content, sync=False)


def portions(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Yield the ranks in portions of at most so many bytes, or of one rank.

    `sizes` has the bytes of each rank. Ranks without any may be in none.
    """
    first, so_far = 0, 0
    for rank, size in enumerate([*sizes, 0]):
        last = rank == len(sizes)
        if so_far and (last or so_far + size > most):
            yield range(first, rank)
            first, so_far = rank, 0
        so_far += size


_LOOKED_AT = 64
"""Files whose sizes tell what a format adds to its samples."""


def first_summary(workload: Workload, world: World, started: str, notes: Sequence[str]) -> Summary:
    """Return the summary as it is when the run starts, `started` o'clock."""
    if workload.reader.data_loader == "tensorflow":
        tensorflow = "reader.data_loader tensorflow: read by dlemu's threads in tf.data's order"
        notes = [*notes, tensorflow]
    return Summary(
        kind="run",
        status="incomplete",
        workload=workload.name,
        data_loader=workload.reader.data_loader,
        decode=workload.reader.decode,
        loop=workload.train.loop,
        hand_over="batch" if workload.hands_over else "none",
        num_accelerators=num_accelerators(workload, world),
        num_ranks=world.num_ranks,
        num_hosts=world.num_hosts,
        hostname=world.host,
        start=started,
        metric={},
        measured={},
        limit=None,
        ignored=list(workload.ignored),
        notes=list(notes),
        versions=versions(),
    )


def dlio_fields(layout: Layout, hosts: Sequence[tuple[int, int]]) -> Summary:
    """Return the fields that DLIO's users look for; `hosts` has the bytes and CPUs of each."""
    num_bytes = layout.num_samples * layout.mean_bytes / len(hosts)
    return Summary(
        num_files_train=layout.num_files,
        num_files_eval=0,
        num_samples_per_file=layout.samples_per_file,
        data_size_per_host_GB=num_bytes / 2**30,
        host_memory_GB=[memory / 2**30 for memory, _ in hosts],
        host_cpu_count=[cpus for _, cpus in hosts],
        potential_caching=[int(memory > num_bytes) for memory, _ in hosts],
        epochs=0,
    )


def complete_summary(summary: Summary, seen: Evidence, metrics: Metrics) -> Summary:
    """Return the summary with what was measured and what the limit was."""
    measured: Measured = {
        **seen.measured,
        "read_bytes": metrics.read_bytes,
        "read_bytes_per_second": metrics.read_bytes_per_second,
    }
    return {
        **summary,
        "status": "complete",
        "measured": measured,
        "limit": asdict(find_run_limit(seen)),
        "notes": [*summary["notes"], *seen.notes],
    }


def needed_ratio(dataset: Dataset) -> float:
    """Return the bytes that reading needs at most for a byte of samples; inf: that is not known.

    Headers count, and whole pages: of files that are read from end to end, else of each sample
    with its file's head, and in parquet of each column of a row group.
    """
    workload, each = dataset.workload, dataset.layout.samples_per_file
    layout = replace(dataset.layout, num_files=min(dataset.layout.num_files, _LOOKED_AT))
    if each > 1 and not (workload.streamed or workload.by_tf_data or layout.columns):
        return (layout.mean_bytes + 3 * PAGE_BYTES) / layout.mean_bytes
    try:
        files = file_sizes(replace(dataset, layout=layout))
    except DatasetError:  # a bucket, or a file that is gone
        return math.inf
    samples = float(layout.sizes(np.arange(layout.num_samples)).sum())
    needed = float(round_up(files).sum())
    if layout.columns:
        chunks = len(workload.dataset.read_columns) * ceil_div(each, layout.row_group_size)
        unread = each * (workload.dataset.stored_bytes - layout.mean_bytes)
        needed += layout.num_files * (2 * PAGE_BYTES * chunks - unread)
    return needed / samples


def demand_line(workload: Workload, num_accelerators: int) -> str:
    """Return what the accelerators ask of the storage at AU 100 %."""
    one = workload.demand
    if one == float("inf"):
        return "demand: no computation time, so as much as the storage gives"
    return (
        f"demand: {format_rate(one)} an accelerator, {format_rate(one * num_accelerators)} in all "
        "at AU 100%"
    )
