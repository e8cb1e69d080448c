"""A rank with others, which keeps what it saw: python -m tests.lab.ranks FOLDER HOSTS CASE JSON.

HOSTS is the host each rank plays, "a,a,b"; "a,a,b!" where nobody tells its addresses, and
"a,b,c>" where each host has one below it only: a tree of many levels. JSON is the rank that fails,
or the keys of the job that is run. A rank's result goes to FOLDER/<rank>.json, because launchers
may lose the output of ranks that they end.
"""

import atexit
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dlemu.ranks.links
from dlemu.errors import RunError
from dlemu.ranks.links import Tree
from dlemu.ranks.mpi import Mpi
from dlemu.ranks.world import World
from tests.lab.waiting import LONG

# So long sleeps a rank that is stuck; no test waits for it.
STUCK_SECONDS = 60


def values_of(world: World) -> dict[str, Any]:
    """Return what this rank gets of the others in each way there is."""
    return {
        "place": [world.host_index, world.num_hosts, world.local_rank, world.num_local_ranks],
        "gathered": world.gather(world.rank * 10),
        "reduced": world.reduce(str(world.rank), str.__add__),
        "all_gathered": world.all_gather(world.host),
        "broadcast": world.broadcast({"from": world.rank}),
        "on_first": world.on_first(lambda: world.rank),
    }


def meet(world: World) -> dict[str, Any]:
    """Meet 20 times, each time with another rank late."""
    times = []
    for index in range(20):
        if index % world.num_ranks == world.rank:
            time.sleep(0.01)
        arrived = time.perf_counter()
        world.barrier(timeout=LONG if index % 2 else None)
        times.append((arrived, time.perf_counter()))
    return {
        "values": values_of(world),
        "times": times,
        "notes": world.notes,
        "maps_shared_memory": "sm_segment" in Path("/proc/self/maps").read_text(),
    }


def wait(world: Mpi) -> dict[str, Any]:
    """Return how often a rank looks while it waits for the last one."""
    looks = 0
    receive = world._links.receive

    def look(*arguments: Any) -> list[tuple[int, bytes]]:
        nonlocal looks
        looks += 1
        return receive(*arguments)

    world.barrier()
    world._links.receive = look  # type: ignore[assignment,method-assign]
    if world.rank == world.num_ranks - 1:
        time.sleep(0.5)  # in which one that polls would look often
    world.barrier()
    return {"looks": looks}


def stop(world: Mpi, case: str, culprit: int) -> None:
    """Let one rank end or hang while the others wait for it."""
    world.barrier()
    if world.rank == culprit:
        time.sleep(0.2)
        if case == "slow":
            raise RunError("/data/img_1.npz: is gone")
        if case == "watchdog":

            def end() -> None:
                world.fail("no step has finished")
                os._exit(world.end(1))

            threading.Thread(target=end).start()
        if case == "kill":
            if os.fork() == 0:  # a worker lives on, and must not hide the death
                os.closerange(0, 3)  # mpirun waits for those
                time.sleep(15)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(STUCK_SECONDS)
    world.barrier()


def run(world: Mpi, folder: Path, keys: dict[str, object]) -> None:
    """Run a job in FOLDER/<host>: hosts share no folder that is named from there."""
    from dlemu.config.model import load_workload  # which takes the other cases too long
    from dlemu.run.job import run_job

    own = folder / world.host
    own.mkdir(exist_ok=True)
    os.chdir(own)
    run_job(load_workload("unet3d_h100", keys), world=world)


def count_late() -> None:
    """Let this rank take its host's counters late, as on a host that is busy."""
    from dlemu.host.intervals import HostObserver

    mark = HostObserver.mark

    def late(self: HostObserver, label: str) -> Any:
        time.sleep(0.3)
        return mark(self, label)

    HostObserver.mark = late  # type: ignore[method-assign]


def main(folder: Path, hosts: list[str], case: str, given: Any) -> int:
    """Play the case as the command line would; return the process's exit status."""
    # Mpi alone may load MPI: it says first what MPI must not use.
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    result: dict[str, Any] = {}
    if "!" in hosts[-1]:
        dlemu.ranks.links.own_addresses = list
    if ">" in hosts[-1]:
        Tree.FAN_OUT = 1
    world = Mpi(host=hosts[rank].rstrip("!>"))
    status = 0
    try:
        with world:
            if case == "meet":
                result = meet(world)
            elif case == "wait":
                result = wait(world)
            elif case in ("run", "late"):
                if case == "late":
                    count_late()
                run(world, folder, given)
            else:
                stop(world, case, given)
    except RunError as error:
        result = {"error": f"{type(error).__name__}: {error}"}
        status = 1
    finally:
        (folder / f"{rank}.json").write_text(json.dumps(result))
    if case == "slow" and rank > 0:  # to leave, as where a large library is unloaded
        atexit.register(time.sleep, 1.0)
        atexit.register(world._links.close)  # comes first, as when Python takes down its objects
    return world.end(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3], json.loads(sys.argv[4])))
