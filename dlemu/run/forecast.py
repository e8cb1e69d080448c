"""What a run would read, and for how long, before it begins (`--dry-run`)."""

import math
from dataclasses import dataclass

from dlemu.checkpoint.in_run import examine_in_run
from dlemu.config.model import Workload
from dlemu.datagen.survey import find_dataset
from dlemu.dataset.layout import Dataset, Layout
from dlemu.dataset.plan import count_steps
from dlemu.dataset.rule import DatasetSize, accelerators_of, num_accelerators, required_size
from dlemu.judge.folders import check_free
from dlemu.loaders.cache.host import CacheForecast, forecast_cache, uses_cache
from dlemu.loaders.source import readers_memory
from dlemu.ranks.world import World
from dlemu.run.job import check_job
from dlemu.run.protocol import check_closed
from dlemu.run.replay import check_blocks

_PROBE_SECONDS = 1.0
_MOST_READERS = 64
_PROBE_FILES = 512


@dataclass(frozen=True)
class RunForecast:
    """A run, or several in a row, before it begins. Rates and times come from a short probe."""

    workload: Workload
    layout: Layout
    num_accelerators: int
    num_steps: int
    """Of an epoch."""
    size: DatasetSize
    """What the rule asks for."""
    memory_bytes: int
    """Of the readers on the host of rank 0."""
    bytes_per_second: float | None
    """Of the storage, by the probe; None: nothing could be read."""
    notes: tuple[str, ...]
    """Lines about the dataset."""
    cache: CacheForecast | None
    """None: there is no cache, and no emulated origin."""

    @property
    def num_epochs(self) -> int:
        """Epochs of all runs together."""
        return self.workload.train.epochs * (self.workload.runs + self.workload.warmup)

    @property
    def epoch_bytes(self) -> float:
        """Read in an epoch."""
        return self.num_steps * self.num_accelerators * self.workload.bytes_per_step

    @property
    def seconds(self) -> float:
        """Of all epochs: computing or reading, whichever takes longer. Hits take no time."""
        train = self.workload.train
        compute = self.num_steps * (train.computation_time.mean + train.allreduce_time)
        if not self.bytes_per_second:
            return math.inf
        epochs, cache = train.epochs, self.cache
        num_bytes = [
            self.epoch_bytes if cache is None else cache.origin_bytes(epoch)
            for epoch in range(epochs)
        ]
        runs = self.num_epochs // epochs
        return runs * sum(max(compute, num / self.bytes_per_second) for num in num_bytes)


def forecast_run(workload: Workload, world: World, *, probes: bool = True) -> RunForecast:
    """Return what a run would do; all ranks call it. Nothing is written, nothing stays.

    The probe has as many threads as the job has workers; unless it `probes`, no rate is known.

    Raises:
        DlemuError: the dataset or the cache is not as the workload says. `check_run` raises the
            rest of what the run itself would raise before its first step.
    """
    size = required_size(workload, world)
    dataset = find_dataset(workload, world)
    if not dataset.known_places:  # by the sizes that were found
        size = required_size(dataset.workload, world)
    total = num_accelerators(workload, world)
    own = accelerators_of(world.rank, world.num_ranks, total)
    memory = readers_memory(dataset, len(own)) if own else 0
    memories = world.all_gather((world.host_index, memory))
    cache = forecast_cache(dataset, world, own, total) if uses_cache(dataset.workload) else None

    def rest() -> RunForecast:
        layout = dataset.layout
        num_steps = count_steps(dataset.workload, layout, num_accelerators=total)
        readers = min(total * workload.reader.num_streams, _MOST_READERS)
        rate = None
        if probes:
            rate = probe_dataset(dataset, num_readers=readers, seconds=_PROBE_SECONDS)
        emulated = dataset.workload.origin.read_bandwidth
        return RunForecast(
            workload=dataset.workload,
            layout=layout,
            notes=dataset.notes,
            num_accelerators=total,
            num_steps=num_steps,
            size=size,
            memory_bytes=sum(each for host, each in memories if host == world.host_index),
            # Of an emulated origin no more than it gives.
            bytes_per_second=min(rate, emulated) if rate and emulated else rate,
            cache=cache,
        )

    return world.on_first(rest)


def check_run(workload: Workload, found: RunForecast, world: World) -> None:
    """Raise what the run that was forecast would raise before its first step; all ranks call it."""
    check_job(workload, world)
    if workload.division == "closed":
        check_closed(workload, found.size)
    if world.rank == 0:
        check_free(workload)
        if workload.workflow.checkpoint:
            check_blocks(found.workload, found.num_steps)
            examine_in_run(found.workload, found.num_accelerators, found.num_steps)


def probe_dataset(
    dataset: Dataset, *, num_readers: int, seconds: float, once: bool = False
) -> float | None:
    """Return bytes per second that threads get from a dataset's files or objects; None: nothing.

    `once`: no part of a file is read twice; objects may be.
    """
    layout = dataset.layout
    files = range(0, layout.num_files, max(1, layout.num_files // _PROBE_FILES))
    names = list(map(layout.path, files))
    return dataset.place.probe(names, num_readers=num_readers, seconds=seconds, once=once)
