"""What comes before the runs: the first number of accelerators to try, and a cold read."""

import math

from dlemu.dataset.layout import Layout
from dlemu.dataset.rule import SizeCheck
from dlemu.run.job import Say
from dlemu.sizing.formula import PredictionInput, predict
from dlemu.sizing.predict import known_rates
from dlemu.sizing.targets import Target
from dlemu.storage.probe import probe_rate
from dlemu.units import format_rate
from dlemu.workload.model import Workload
from dlemu.world.world import World

_PROBE_SECONDS = 3.0
_PROBE_READERS = 64
_PROBE_FILES = 512


def first_number(target: Target, enough: SizeCheck, world: World, say: Say) -> tuple[int, float]:
    """Return the first number to try, and how many accelerators the storage is expected to feed.

    In this order: what the user says (size.start), a prediction, a probe. All ranks call it.
    """
    workload = enough.workload
    if workload.size.start is not None:
        return workload.size.start, 1.0
    drive, calibration = world.on_first(lambda: known_rates(workload))
    if drive is not None:
        expected = predict(PredictionInput.of(workload, drive), calibration).real_accelerators
        say(f"the prediction for {drive.name} is {expected:.1f} accelerators")
    else:
        own = 0.0
        if world.local_rank == 0:
            own = cold_rate(workload, enough.layout, _PROBE_READERS, _PROBE_SECONDS)
        rate = math.fsum(world.all_gather(own))
        expected = rate / workload.demand / workload.metric.au
        say(
            f"{target.name}: {_PROBE_READERS} readers at once get {format_rate(rate)}, as "
            f"much as {expected:.1f} accelerators take at AU {100 * workload.metric.au:g}%"
        )
    most = min(workload.size.max_accelerators, enough.most_accelerators)
    # Start with the first that should fail: a failing run tells where AU meets the threshold.
    return max(1, min(math.floor(expected) + 1, most)), expected


def cold_rate(workload: Workload, layout: Layout, num_readers: int, seconds: float) -> float:
    """Return bytes per second that threads get from the dataset's files; 0: nothing was read."""
    files = range(0, layout.num_files, max(1, layout.num_files // _PROBE_FILES))
    paths = [workload.data_folder / layout.path(file) for file in files]
    return probe_rate(paths, num_readers=num_readers, seconds=seconds) or 0.0
