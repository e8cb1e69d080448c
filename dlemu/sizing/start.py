"""What comes before the runs: a cold read, the first number, and what the search will take."""

import math
from dataclasses import replace
from pathlib import Path

from dlemu.config.model import Workload
from dlemu.dataset.layout import Dataset
from dlemu.dataset.rule import SizeCheck
from dlemu.loaders.cache.folder import CacheFolder, entry_path
from dlemu.loaders.cache.host import file_sizes, has_tier
from dlemu.ranks.world import World
from dlemu.run.forecast import probe_dataset
from dlemu.run.job import Say
from dlemu.sizing.cached import rate_at, supply_of
from dlemu.sizing.formula import PredictionInput, predict
from dlemu.sizing.predict import known_rates
from dlemu.sizing.search import about_runs
from dlemu.sizing.targets import Target
from dlemu.storage.probe import probe_rate
from dlemu.units import counted, format_rate, format_seconds

_PROBE_SECONDS = 3.0
PROBE_READERS = 64
START_SECONDS = 3.0
"""About how long a run takes beside its steps."""


def first_number(target: Target, enough: SizeCheck, world: World, say: Say) -> tuple[int, float]:
    """Return the first number to try, and how many accelerators the storage is expected to feed.

    In this order: what the user says (size.start), a prediction, a probe. All ranks call it.
    """
    workload = enough.workload
    # Start with the first that should fail: a failing run tells where AU meets the threshold.
    most = max(1, min(workload.size.max_accelerators, enough.most_accelerators))
    if workload.size.start is not None:
        return min(workload.size.start, most), 1.0
    drive, calibration = world.on_first(lambda: known_rates(workload))
    if drive is not None and not has_tier(workload):
        job = PredictionInput.of(workload, drive)
        job = replace(job, num_hosts=max(world.num_hosts, workload.num_hosts))
        expected = predict(job, calibration).real_accelerators
        say(f"the prediction for {drive.name} is {expected:.1f} accelerators")
    else:
        access = world.on_first(lambda: workload.access)
        own = cached = 0.0
        if world.local_rank == 0:
            dataset = Dataset(workload, enough.layout, access=access)
            own = min(probed_rate(dataset), workload.origin.read_bandwidth or math.inf)
            cached = _cache_rate(dataset)
        rates = world.all_gather((own, cached))
        rate, cached = (math.fsum(each) for each in zip(*rates, strict=True))
        what = f"get {format_rate(rate)}"
        if workload.cache.folder is not None:
            rate = _with_cache(workload, rate, cached)
            what += f" from the origin, and {format_rate(rate)} with the cache"
        expected = rate / workload.demand / workload.metric.au
        say(
            f"{target.name}: {PROBE_READERS} readers at once {what}, as much as "
            f"{expected:.1f} accelerators take at AU {100 * workload.metric.au:g}%"
        )
    return max(1, min(math.floor(expected) + 1, most)), expected


def _cache_rate(dataset: Dataset) -> float:
    """Return bytes per second that a probe gets of what this host's cache holds; 0: nothing."""
    workload = dataset.workload
    if workload.cache.folder is None or workload.cache.warm is not True:
        return 0.0
    folder = CacheFolder(workload, dataset.layout, file_sizes(dataset), claim=False)
    paths = [Path(entry_path(str(folder.path), *entry)) for entry in folder.look()]
    if not paths:
        return 0.0
    return probe_rate(paths, num_readers=PROBE_READERS, seconds=_PROBE_SECONDS) or 0.0


def _with_cache(workload: Workload, origin: float, cached: float) -> float:
    """Return bytes per second that an origin and the cache before it should give.

    `cached` is the rate of the caches by a probe; the key drive, which says the same, comes first.
    """
    drive, reads, writes = workload.drive, cached, math.inf
    if drive is not None:
        reads = workload.drives * drive.read_bandwidth if drive.read_bandwidth else cached
        writes = workload.drives * (drive.write_bandwidth or math.inf)
    warm = workload.cache.warm is True
    if not origin or (warm and not reads):  # nothing tells more than the origin does
        return origin
    given = supply_of(workload, origin=origin, reads=reads or math.inf, writes=writes)
    return rate_at(given.warm if warm else given.cold, workload.metric.au)


def probed_rate(dataset: Dataset) -> float:
    """Return bytes per second that PROBE_READERS threads get from a dataset, 0 if nothing."""
    return probe_dataset(dataset, num_readers=PROBE_READERS, seconds=_PROBE_SECONDS) or 0.0


def describe_plan(enough: SizeCheck, first: int, expected: float) -> str:
    """Return what the search will take, and before it what the files are not enough for.

    `first` is the first number to try, `expected` an estimate of what the storage feeds.
    """
    workload, most = enough.workload, enough.most_accelerators
    lines = []
    if math.floor(expected) > most and most < workload.size.max_accelerators:
        files = enough.describe_bound(expected).partition(": ")[2]
        lines.append(f"this storage may feed {math.floor(expected)}: {files}")
    steps = enough.num_steps(first)
    seconds = workload.train.epochs * steps * workload.train.computation_time.mean
    runs, each = about_runs(workload.size.confirm), START_SECONDS + seconds / workload.metric.au
    lines.append(
        f"about {runs} runs of {format_seconds(each)} each: {counted(steps, 'step')} x "
        f"{counted(workload.train.epochs, 'epoch')}"
    )
    return "\n".join(lines)
