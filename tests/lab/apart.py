"""A rank of a run on a host of its own: python -m tests.lab.apart FOLDER HOSTS KEYS.

HOSTS is the host each rank plays, "a,b,b", KEYS the workload's keys as JSON. Each host works in
FOLDER/<host>, so that hosts share no folder that is named from there.
"""

import json
import os
import sys
from pathlib import Path

from mpi4py import MPI

from dlemu.config.model import load_workload
from dlemu.errors import DlemuError
from dlemu.ranks.mpi import Mpi
from dlemu.run.job import run_job


def main(folder: Path, hosts: list[str], keys: dict[str, object]) -> int:
    host = hosts[MPI.COMM_WORLD.rank]
    own = folder / host
    own.mkdir(exist_ok=True)
    os.chdir(own)
    try:
        with Mpi(host=host) as world:
            run_job(load_workload("unet3d_h100", keys), world=world)
    except DlemuError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2].split(","), json.loads(sys.argv[3])))
