"""What waiting at the barrier costs: mpirun -n 16 python -m benchmarks.barrier [NUM_HOSTS].

With NUM_HOSTS the ranks play as many hosts, so that the barrier also goes over TCP. MPI's own is
measured beside it, in turn.
"""

import sys
import time
from collections.abc import Callable

from benchmarks.harness import describe_machine, markdown, spread
from dlemu.ranks.mpi import Mpi
from dlemu.ranks.world import World

NUM_ROUNDS = 200
WAIT_SECONDS = 2.0


def measure_latency(world: World, barrier: Callable[[], None]) -> list[float]:
    """Return seconds from the last arrival to the last release, per round; on rank 0.

    Each round another rank is the last, by 5 ms.
    """
    times = []
    for index in range(NUM_ROUNDS):
        if index % world.num_ranks == world.rank:
            time.sleep(0.005)
        arrived = time.perf_counter()
        barrier()
        times.append((arrived, time.perf_counter()))
    of_ranks = world.gather(times) or []
    return [
        max(released for _, released in one) - max(arrived for arrived, _ in one)
        for one in zip(*of_ranks, strict=True)
    ]


def measure_waiting(world: World, barrier: Callable[[], None]) -> list[float]:
    """Return the share of a core that each rank uses while it waits for the last one; on rank 0."""
    world.barrier()
    cpu, begin = time.process_time(), time.perf_counter()
    if world.rank == world.num_ranks - 1:
        time.sleep(WAIT_SECONDS)
    barrier()
    share = (time.process_time() - cpu) / (time.perf_counter() - begin)
    return (world.gather(share) or [])[:-1]


def main(num_hosts: int) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    world = Mpi(host=f"host{comm.rank * num_hosts // comm.size}" if num_hosts > 1 else None)
    barriers: dict[str, Callable[[], None]] = {"dlemu": world.barrier, "MPI": comm.Barrier}
    rows = []
    for name, barrier in barriers.items():
        barrier()
        for what, values in (
            ("last arrival to last release (ms)", measure_latency(world, barrier)),
            ("CPU of a waiting rank (ms/s)", measure_waiting(world, barrier)),
        ):
            if world.rank == 0:
                rows.append([what, name, spread([1e3 * value for value in values], ".3f")])
    if world.rank == 0:
        heading = f"{world.num_ranks} ranks, {world.num_hosts} hosts"
        print(f"{describe_machine()}\n")
        print(markdown([heading, "barrier", "median (min–max)"], sorted(rows)))
    world.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
