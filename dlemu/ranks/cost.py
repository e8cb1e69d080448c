"""What a barrier costs on this host: processes without any work meet, as ranks do after a step."""

import time
from dataclasses import dataclass

import numpy as np

from dlemu.ranks.local import processes
from dlemu.ranks.world import World

STEP_SECONDS = 0.0035
"""Between two barriers: the shortest step in use, CosmoFlow's."""


@dataclass(frozen=True)
class BarrierCost:
    """How long a barrier takes, from the moment when the last process comes to it."""

    processes: int
    median: float
    """Seconds."""
    p99: float
    """Seconds; 99 % of the barriers took no longer."""


def barrier_cost(*, num: int = 2, meetings: int = 100) -> BarrierCost:
    """Let `num` processes of this host meet so often; return what it took them.

    It takes half a second, and a third more to start them.

    Raises:
        RunError: a process could not be started, or has ended.
    """
    with processes(num, f"{__name__}:{_meet.__name__}", meetings) as world:
        taken = _meet(world, meetings)
    return BarrierCost(num, float(np.median(taken)), float(np.quantile(taken, 0.99)))


def _meet(world: World, meetings: int) -> list[float]:
    """Meet the others so often; return the seconds that each barrier took, on rank 0."""
    came, left = [], []
    for _ in range(meetings):
        time.sleep(STEP_SECONDS)
        came.append(time.perf_counter())
        world.barrier()
        left.append(time.perf_counter())
    last = np.max(world.all_gather(came), axis=0)  # the clock is the same in all of them
    return [float(each) for each in np.subtract(left, last)]
