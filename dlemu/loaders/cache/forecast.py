"""What a cache will do in a run, before it begins: the plan of its first epochs. Writes nothing."""

from dataclasses import dataclass

import numpy as np

from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import make_plan
from dlemu.loaders.cache.folder import CacheFolder
from dlemu.loaders.cache.hits import find_visits
from dlemu.loaders.cache.host import asked_bytes, emulates, file_sizes, one_device, planned_cache
from dlemu.ranks.world import World
from dlemu.units import counted, format_bytes

_MOST_EPOCHS = 3
"""From the third epoch on, all are alike."""


@dataclass(frozen=True)
class EpochForecast:
    """An epoch of one host, in bytes."""

    hit_share: float
    """0 to 1, of the bytes that training asks for."""
    origin: int
    """Read from the origin; files that are admitted are read whole."""
    hit: int
    """Read from the cache."""
    written: int


@dataclass(frozen=True)
class TierForecast:
    """The cache of rank 0's host, and what it will do."""

    introduction: str
    num_epochs: int
    """Of a run."""
    epochs: list[EpochForecast]
    """The first ones; those behind the last are taken to be like it."""
    notes: list[str]

    def origin_bytes(self, epoch: int) -> int:
        """Return what an epoch reads from the origin."""
        return self.epochs[min(epoch, len(self.epochs) - 1)].origin


def forecast_tier(dataset: Dataset, world: World, own: range, total: int) -> TierForecast:
    """Return what the cache of rank 0's host will do; all ranks call it.

    `own`: the accelerators of this rank, of `total`.

    Raises:
        WorkloadError: cache.folder or cache.capacity is refused.
        DatasetError: a file of the dataset is missing.
    """
    everyone = world.all_gather((world.host_index, own))
    here = [number for host, owned in everyone if host == 0 for number in owned]
    return world.on_first(lambda: _forecast(dataset, here, total))


def _forecast(dataset: Dataset, accelerators: list[int], total: int) -> TierForecast:
    workload, layout, sizes = dataset.workload, dataset.layout, file_sizes(dataset)
    cache, slow = workload.cache, emulates(workload)
    parts, notes, capacity, found = [], list[str](), 0, list[tuple[int, int]]()
    if cache.folder is not None:
        folder = CacheFolder(workload, layout, sizes, claim=False)
        capacity, found = folder.capacity, folder.look()
        notes = one_device(workload.data_folder, folder.path)
        kept = len(found) if cache.warm is not False else 0
        parts += [
            f"{folder.path}, {folder.describe()}",
            f"{format_bytes(folder.free_bytes)} are free",
            f"cache.policy={cache.policy}",
            f"{counted(kept, 'file')} there at the begin",
        ]
    parts += [f"origin emulated {slow}"] if slow else []
    planned = planned_cache(workload, sizes, capacity, found)
    if cache.warm is True:
        copies = [file for file, _ in planned.fill_up()]
        parts.append(f"{format_bytes(int(sizes[copies].sum()))} are copied before the epochs")
    epochs = []
    for epoch in range(min(workload.train.epochs, _MOST_EPOCHS)):
        plan = make_plan(workload, layout, num_accelerators=total, epoch=epoch)
        num_streams = workload.reader.num_streams
        visits = find_visits(plan, layout, accelerators, num_streams=num_streams)
        hits = planned.epoch(visits.files.tolist(), fills=cache.fill != "off")
        asked, whole = asked_bytes(visits, layout, sizes), sizes[visits.files]
        admitted = hits.admitted >= 0
        hit = int(asked[hits.hits].sum())
        epochs.append(
            EpochForecast(
                hit_share=hit / max(int(asked.sum()), 1),
                origin=int(np.where(admitted, whole, asked)[~hits.hits].sum()),
                hit=hit,
                written=int(whole[admitted].sum()),
            )
        )
    return TierForecast(", ".join(parts), workload.train.epochs, epochs, notes)
