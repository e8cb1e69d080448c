"""What a command knows before it begins: its workload, the hosts, and where the data lies.

The first lines of a command show it (`report.words.places`), and summary.json keeps it.
"""

from collections.abc import Mapping
from typing import Any

from dlemu.config.model import Workload
from dlemu.host.place import HostFields, find_host
from dlemu.host.processes import host_memory_bytes, usable_cpus
from dlemu.judge.summary import DatasetFields
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.storage.place import Place


def introduced(
    workload: Workload, *, host: str, num_hosts: int = 1, num_files: int | None = None
) -> Mapping[str, Any]:
    """Return `workload`, `num_hosts`, `system` and `dataset` of a command that makes no summary.

    The data folder may be missing. `num_files` is needed where the workload's number is "auto".
    """
    if not workload.dataset.data_folder:
        of_host = {"host": host, "cpus": usable_cpus(), "memory_bytes": host_memory_bytes()[0]}
        return {"workload": workload.name, "num_hosts": num_hosts, "system": [of_host]}
    folder, dataset = workload.data_folder, workload.dataset
    files = workload.num_files if num_files is None else num_files
    size = files * dataset.num_samples_per_file * dataset.stored_bytes
    return {
        "workload": workload.name,
        "num_hosts": num_hosts,
        "system": [host_of(workload.reach(), host)],
        "dataset": DatasetFields(
            folder=str(folder), format=dataset.format, num_files=files, num_bytes=size
        ),
    }


def host_of(place: Place, name: str) -> HostFields:
    """Return what this host is, and where a place lies."""
    servers = None if place.has_paths else place.servers
    return find_host(place.path, name=name, servers=servers, kind=place.kind)


def hosts_of(place: Place, world: World, watch: Watchdog) -> list[HostFields]:
    """Return what `host_of` does of each host on rank 0, none on others; all ranks call it."""
    with watch.phase("looking at the host"):
        own = host_of(place, world.host) if world.local_rank == 0 else None
    return [host for host in world.gather(own) or () if host is not None]
