"""The first lines of a command: workload, dataset, storage, host. summary.json keeps the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from dlemu.config.model import Workload
from dlemu.host.place import HostFields, find_host
from dlemu.host.processes import host_memory_bytes, usable_cpus
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.storage.s3 import Access
from dlemu.units import counted, each_once, format_bytes, format_drive_bytes


class DatasetFields(TypedDict, total=False):
    """What was read: `dataset` in summary.json."""

    folder: str
    num_files: int
    num_bytes: float
    """Of all samples, without what a format adds."""
    format: str
    num_links: int
    """Files with several names, hard links for example, of a few that were looked at."""


def introduction(
    workload: Workload, *, host: str, num_hosts: int = 1, num_files: int | None = None
) -> str:
    """Return the header of a command that makes no summary. The data folder may be missing.

    `num_files` is needed where the workload's number is "auto".
    """
    if not workload.dataset.data_folder:
        of_host = {"host": host, "cpus": usable_cpus(), "memory_bytes": host_memory_bytes()[0]}
        return header({"workload": workload.name, "num_hosts": num_hosts, "system": [of_host]})
    folder, dataset = workload.data_folder, workload.dataset
    files = workload.num_files if num_files is None else num_files
    size = files * dataset.num_samples_per_file * dataset.stored_bytes
    return header(
        {
            "workload": workload.name,
            "num_hosts": num_hosts,
            "system": [host_of(folder, workload.access, host)],
            "dataset": DatasetFields(
                folder=str(folder), format=dataset.format, num_files=files, num_bytes=size
            ),
        }
    )


def header(summary: Mapping[str, Any]) -> str:
    """Return up to three lines: workload and dataset, storage, host.

    It takes `workload`, `dataset`, `system` and `num_hosts` of a summary, as far as they are there.
    """
    lines, place = [], place_of(summary)
    if "workload" in summary:
        dataset = dataset_text(summary.get("dataset") or {})
        lines.append(f"workload: {summary['workload']}{f' on {dataset}' if dataset else ''}")
    if "file_system" in place:
        lines.append(f"storage:  {storage_text(place)}")
    if "host" in place:
        lines.append(f"host:     {host_text(place, summary.get('num_hosts'))}")
    return "\n".join(lines)


def place_of(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of rank 0's host and its storage; none where they are not known."""
    return next(iter(summary.get("system") or ()), {})


def host_of(folder: Path, access: Access | None, name: str) -> HostFields:
    """Return what this host is, and where a folder, or a bucket with its `access`, lies."""
    return find_host(folder, name=name, servers=None if access is None else access.endpoints)


def hosts_of(
    folder: Path, access: Access | None, world: World, watch: Watchdog
) -> list[HostFields]:
    """Return what `host_of` does of each host on rank 0, none on others; all ranks call it."""
    with watch.phase("while looking at the host"):
        own = host_of(folder, access, world.host) if world.local_rank == 0 else None
    return [host for host in world.gather(own) or () if host is not None]


def dataset_text(dataset: Mapping[str, Any]) -> str:
    """Return "168 npz files, 22.9 GiB, in /mnt/d1/u"; "" where nothing is known."""
    number, size, folder = (dataset.get(name) for name in ("num_files", "num_bytes", "folder"))
    files = number and counted(number, f"{dataset['format']} file")
    return each_once([files, size and format_bytes(size), folder and f"in {folder}"])


def storage_text(place: Mapping[str, Any]) -> str:
    """Return "ext4 at /mnt/d1, nvme0n1 (model, 3.84 TB)"."""
    where = f"{place.get('file_system') or 'unknown file system'} at {place.get('mount') or '?'}"
    if place.get("in_memory"):
        return f"{where}, in memory: no drive is read"
    if not (drives := place.get("drives")):
        return f"{where}, from {place.get('source') or 'an unknown source'}"
    size = sum(drive["size_bytes"] for drive in drives)
    about = each_once([drives_text(place, "model"), size and format_drive_bytes(size)])
    about = f" ({about})" if about else ""
    root = ", the root disk" if place.get("is_root") else ""
    memory = f"; {place['memory']}: memory, no drive" if place.get("memory") else ""
    return f"{where}, {drives_text(place, 'name')}{about}{root}{memory}"


def drives_text(place: Mapping[str, Any], field: str) -> str:
    """Return a field of a host's drives, each value once, with commas."""
    return each_once(drive[field] for drive in place.get("drives") or ())


def host_text(place: Mapping[str, Any], num_hosts: int | None) -> str:
    """Return "node1, 16 CPUs, 64.0 GiB of memory", without what is not known."""
    cpus, memory = (place.get(key) or 0 for key in ("cpus", "memory_bytes"))
    parts = [
        place.get("host"),
        (num_hosts or 1) > 1 and f"and {counted((num_hosts or 1) - 1, 'other host')}",
        cpus and f"{cpus:g} CPU{'' if cpus == 1 else 's'}",
        memory and f"{format_bytes(memory)} of memory",
    ]
    return each_once(parts)
