"""What a cache will do in a run, before it begins: the plan of its first epochs. Writes nothing."""

from dataclasses import dataclass

from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import make_plan
from dlemu.loaders.cache.folder import CacheFolder
from dlemu.loaders.cache.host import EpochForecast, HostCache, file_sizes, visits_of
from dlemu.ranks.world import World

_MOST_EPOCHS = 3
"""From the third epoch on, all are alike."""


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
    folder = None
    if workload.cache.folder is not None:
        folder = CacheFolder(workload, layout, sizes, claim=False)
    cache, epochs = HostCache(dataset, sizes, folder), []
    introduction = cache.describe()
    for epoch in range(min(workload.train.epochs, _MOST_EPOCHS)):
        plan = make_plan(workload, layout, num_accelerators=total, epoch=epoch)
        epochs.append(cache.epoch(visits_of(dataset, plan, accelerators))[1])
    return TierForecast(introduction, workload.train.epochs, epochs, cache.one_drive())
