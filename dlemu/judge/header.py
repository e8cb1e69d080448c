"""The first lines of a command: workload, dataset, storage, host. summary.json keeps the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from dlemu.config.model import Workload
from dlemu.host.limits import host_memory_bytes, usable_cpus
from dlemu.host.place import Place, find_place
from dlemu.storage.s3.location import Access
from dlemu.units import counted, each_once, format_bytes, format_drive_bytes


class PlaceFields(TypedDict, total=False):
    """Where the data lay, and on which host: `place` in summary.json."""

    file_system: str
    """Type of the file system: "ext4", "nfs4"; "" if unknown, as all text here."""
    mount: str
    """Folder on which it is mounted."""
    source: str
    """What is mounted: a device, or a server's export."""
    device: str
    """Names of the drives, with commas: "nvme0n1, nvme1n1"; "" for networks and memory."""
    model: str
    """Their models, each once, with commas; "" for virtual drives."""
    firmware: str
    """Their firmware, each once, with commas."""
    size_bytes: int
    """Of all drives together; 0 where there is none."""
    is_root: bool
    """Whether one of the drives also holds /, the host's own system."""
    in_memory: bool
    """Whether the folder lies on tmpfs or ramfs: no drive is read."""
    memory: str
    """Drives that are memory: "loop1 over tmpfs"; "" where none is."""
    host: str
    """Name of the host of rank 0."""
    num_hosts: int
    cpus: float
    """CPUs that rank 0 may use, by affinity and cgroup quota."""
    memory_bytes: int
    """Memory of that host, or its cgroup's limit."""


class DatasetFields(TypedDict, total=False):
    """What was read: `dataset` in summary.json."""

    folder: str
    num_files: int
    num_bytes: float
    """Of all samples, without what a format adds."""
    format: str
    num_links: int
    """Files with several names, hard links for example, of a few that were looked at."""


def place_fields(
    folder: Path, *, host: str, num_hosts: int = 1, access: Access | None = None
) -> PlaceFields:
    """Return the facts about a folder's storage and this host; the folder may be missing.

    `access` is that of a bucket.
    """
    place = find_place(folder)
    if access is not None:
        servers = ", ".join(access.endpoints)
        place = Place("s3", f"{folder}", servers, drives=(), is_root=False)
    return PlaceFields(
        file_system=place.file_system,
        mount=place.mount,
        source=place.source,
        device=each_once(drive.name for drive in place.drives),
        model=each_once(drive.model for drive in place.drives),
        firmware=each_once(drive.firmware for drive in place.drives),
        size_bytes=sum(drive.size_bytes for drive in place.drives),
        is_root=place.is_root,
        in_memory=place.in_memory,
        memory=place.memory,
        host=host,
        num_hosts=num_hosts,
        cpus=usable_cpus(),
        memory_bytes=host_memory_bytes()[0],
    )


def introduction(
    workload: Workload, *, host: str, num_hosts: int = 1, num_files: int | None = None
) -> str:
    """Return the header of a command that makes no summary. The data folder may be missing.

    `num_files` is needed where the workload's number is "auto".
    """
    if not workload.dataset.data_folder:
        here = place_fields(Path(), host=host, num_hosts=num_hosts)
        of_host = {key: here.get(key) for key in ("host", "num_hosts", "cpus", "memory_bytes")}
        return header({"workload": workload.name, "place": of_host})
    folder, dataset = workload.data_folder, workload.dataset
    files = workload.num_files if num_files is None else num_files
    size = files * dataset.num_samples_per_file * dataset.stored_bytes
    return header(
        {
            "workload": workload.name,
            "place": place_fields(folder, host=host, num_hosts=num_hosts, access=workload.access),
            "dataset": DatasetFields(
                folder=str(folder), format=dataset.format, num_files=files, num_bytes=size
            ),
        }
    )


def header(summary: Mapping[str, Any]) -> str:
    """Return up to three lines: workload and dataset, storage, host.

    It takes `workload`, `place` and `dataset` of a summary; what is not there is left out.
    """
    lines, place = [], summary.get("place") or {}
    if "workload" in summary:
        dataset = dataset_text(summary.get("dataset") or {})
        lines.append(f"workload: {summary['workload']}{f' on {dataset}' if dataset else ''}")
    if "file_system" in place:
        lines.append(f"storage:  {storage_text(place)}")
    if "host" in place:
        lines.append(f"host:     {host_text(place)}")
    return "\n".join(lines)


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
    if not place.get("device"):
        return f"{where}, from {place.get('source') or 'an unknown source'}"
    size = place.get("size_bytes") or 0
    about = each_once([place.get("model"), size and format_drive_bytes(size)])
    about = f" ({about})" if about else ""
    root = ", the root disk" if place.get("is_root") else ""
    memory = f"; {place['memory']}: memory, no drive" if place.get("memory") else ""
    return f"{where}, {place['device']}{about}{root}{memory}"


def host_text(place: Mapping[str, Any]) -> str:
    """Return "node1, 16 CPUs, 64.0 GiB of memory", without what is not known."""
    more, cpus, memory = (place.get(key) or 0 for key in ("num_hosts", "cpus", "memory_bytes"))
    parts = [
        place.get("host"),
        more > 1 and f"and {counted(more - 1, 'other host')}",
        cpus and f"{cpus:g} CPU{'' if cpus == 1 else 's'}",
        memory and f"{format_bytes(memory)} of memory",
    ]
    return each_once(parts)
