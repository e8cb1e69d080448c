"""What `dlemu size` is asked to search: every workload on every target, in the table's order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlemu.config.model import Workload, load_workload
from dlemu.config.published import value_of
from dlemu.dataset.rule import datagen_command
from dlemu.errors import WorkloadError
from dlemu.host.devices import devices_under
from dlemu.run.job import Say

_NOT_HERE = {
    "num_accelerators": "it is what is searched for; size.start says where to begin",
    "accelerators_per_rank": "the search spreads its accelerators over the ranks",
    "runs": "size.confirm says how many runs confirm the answer",
    "warmup": "the first run is known to be cold",
}

FIRST_DATASET = 8
"""A dataset is proposed for this many accelerators where nothing is known of the storage."""


@dataclass(frozen=True)
class Target:
    """One storage to be sized."""

    name: str
    folder: str
    num_drives: int


def find_jobs(workload: Workload, say: Say) -> list[tuple[Target, Workload]]:
    """Return what is to be searched, in the table's order."""
    for key, remedy in _NOT_HERE.items():
        if key in workload.given:
            raise WorkloadError(f"{key} has no place in dlemu size: {remedy}")
    size = workload.size
    if size.start is not None and size.start > size.max_accelerators:
        raise WorkloadError(
            f"size.start must be at most size.max_accelerators={size.max_accelerators}, "
            f"got {size.start}"
        )
    return [
        job
        for target in find_targets(workload, say)
        for name in size.workloads or (workload.name,)
        for job in _cold_and_warm(target, _workload_for(workload, name, target))
    ]


def answers_twice(workload: Workload) -> bool:
    """Return whether a cache is sized cold and warm: not if the user chose one of both."""
    return workload.cache.folder is not None and "cache.warm" not in workload.given


def _cold_and_warm(target: Target, workload: Workload) -> Iterator[tuple[Target, Workload]]:
    """Yield the searches for a target: with a cache, for its first epoch and for warm ones."""
    if not answers_twice(workload):
        yield target, workload
        return
    cold, warm = (replace(target, name=f"{target.name}-{name}") for name in ("cold", "warm"))
    yield cold, workload.with_keys({"cache.warm": False, "train.epochs": 1})
    yield warm, workload.with_keys({"cache.warm": True})


def find_targets(workload: Workload, say: Say) -> list[Target]:
    """Return the targets with their names and drive counts; warn of two on one device."""
    size = workload.size
    folders = size.targets or (str(workload.data_folder),)
    key = "size.targets" if size.targets else "dataset.data_folder"
    for name, values in (("size.names", size.names), ("size.drives", size.drives)):
        if values and len(values) != len(folders):
            raise WorkloadError(
                f"{name} must have one value for each target ({len(folders)}), got {len(values)}"
            )
    names = size.names or names_of(folders)
    for number, name in enumerate(names):
        if name in names[:number]:
            raise WorkloadError(f"size.targets names {name} twice; give each a name: size.names")
    targets: list[Target] = []
    seen: dict[str, set[str]] = {}
    for number, (name, folder) in enumerate(zip(names, folders, strict=True)):
        if "://" not in folder and not Path(folder).is_dir():
            there = {"dataset.data_folder": folder, "storage.storage_root": "./"}
            made = datagen_command(
                workload.with_keys(there), "auto", num_accelerators=FIRST_DATASET
            )
            raise WorkloadError(
                f"{key}: {folder} is no folder; this writes a dataset there, for "
                f"{FIRST_DATASET} accelerators: {made}"
            )
        devices = set()
        if "://" not in folder:
            devices = {device.name for device in devices_under(Path(folder))}
        for other, others in seen.items():
            if shared := ", ".join(sorted(devices & others)):
                say(f"warning: {name} and {other} share {shared}: one drive, twice")
        seen[name] = devices
        drives = size.drives[number] if size.drives else max(1, len(devices))
        targets.append(Target(name, folder, drives))
    return targets


def _workload_for(workload: Workload, name: str, target: Target) -> Workload:
    """Return the named workload on a target, with the keys that the user gave."""
    if name != workload.name:
        tree = workload.model_dump()
        given = {key: value_of(tree, key) for key in workload.given}
        # A key without a value here has no effect (`Workload.ignored`).
        workload = load_workload(name, {k: v for k, v in given.items() if v is not None})
    if workload.train.computation_time.mean == 0:
        raise WorkloadError(
            f"train.computation_time of {workload.name} must be above 0 for a search: accelerators "
            "that do not compute are never busy"
        )
    place = target.folder
    # A target may hold the dataset of each workload in a folder of that name.
    if "://" not in place and Path(place, workload.name).is_dir():
        place = str(Path(place, workload.name))
    return workload.with_keys({"dataset.data_folder": place, "storage.storage_root": "./"})


def names_of(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the last parts of the folders' paths: as few as make the names different."""
    parts = [Path(folder).absolute().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = tuple("-".join(part[-length:]).strip("/-") or "root" for part in parts)
        if len(set(names)) == len(names):
            break
    return names
