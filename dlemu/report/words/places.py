"""The words of where something ran: dataset, storage and host, as the first lines of a command."""

from collections.abc import Mapping, Sequence
from typing import Any

from dlemu.judge.summary import place_of
from dlemu.units import counted, each_once, format_bytes, format_drive_bytes

Fact = tuple[str, str]
"""What it is of, and the words."""


def facts_of(summary: Mapping[str, Any]) -> list[Fact]:
    """Return up to four facts: workload and dataset, storage, host, variables that are set.

    It takes `workload`, `dataset`, `system` and `num_hosts` of a summary, as far as they are there.
    """
    facts, place = [], place_of(summary)
    if "workload" in summary:
        dataset = dataset_text(summary.get("dataset") or {})
        facts.append(("workload", f"{summary['workload']}{f' on {dataset}' if dataset else ''}"))
    if "file_system" in place:
        facts.append(("storage", storage_text(place)))
    if "host" in place:
        facts.append(("host", host_text(place, summary.get("num_hosts"))))
    if place.get("environment"):
        facts.append(("set", "; ".join(f"{n}={v}" for n, v in place["environment"].items())))
    return facts


def lines_of(facts: Sequence[Fact]) -> str:
    """Return facts as lines, their words below each other."""
    return "\n".join(f"{f'{name}:':<10}{text}" for name, text in facts)


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
