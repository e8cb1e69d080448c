"""The files of `dlemu try`: in a folder of their own below the one that is tried, and removed.

A dataset of dlemu's that is there already is read instead of new files, if a workload can read it.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlemu.datagen import generate, read_manifest
from dlemu.dataset.layout import Layout, layout_of
from dlemu.errors import DatasetError, DlemuError, RunError
from dlemu.host.devices import lies_in_memory
from dlemu.storage.owned import OwnedFolder, direct, held
from dlemu.terminal import complain
from dlemu.units import format_bytes
from dlemu.workload.model import Workload
from dlemu.world.ending import last_act
from dlemu.world.world import Alone

NAME = "dlemu-try"
_MARK = "dlemu-try.json"
_OURS = re.compile(r"dlemu\.json|dlemu\.files\.npy|plan\.json|.*\.journal|img_\d+_of_\d+\.\w+")
"""Names of the files that are removed at the end; all others stay."""
_FREE_SHARE = 0.9
_LEAST_FILES = 2
_SEEDS = 64
_MOST_FOLDERS = 100
"""So many folders below the one that is tried are searched for datasets."""


@dataclass(frozen=True)
class Files:
    """The dataset that a workload reads in a try."""

    workload: Workload
    """With the keys that describe the dataset, and its folder."""
    layout: Layout
    written: bool
    """False: it was there already."""

    @property
    def num_bytes(self) -> float:
        """Bytes of its samples."""
        return self.layout.num_samples * self.layout.mean_bytes


@contextmanager
def scratch_folder(folder: Path, *, keep: bool) -> Iterator[Path]:
    """Yield a held folder for the files of a try; remove it in the end, whatever happens.

    Raises:
        DatasetError: the folder is none, lies in memory, cannot be written, or cannot be read with
            O_DIRECT.
        WorkloadError: another try uses it, or what has its name is somebody else's.
    """
    if not folder.is_dir():
        raise DatasetError(f"{folder} is no folder; name one on the storage to be tried")
    if lies_in_memory(folder):
        raise DatasetError(
            f"{folder} lies in memory, where no drive is read; name a folder on the storage"
        )
    own = OwnedFolder(folder / NAME, _MARK, _is_ours, "folder", is_named=False)
    with ExitStack() as stack:
        try:
            stack.enter_context(held(own.path))
            if own.path.is_symlink() or own.fields() is None:
                own.entries()  # refuses what is there
            own.write({"removed": "when dlemu try ends; see dlemu try --help"})
            if not keep:
                # The last act ends after the removal: an interrupted removal is then done again.
                stack.enter_context(last_act(lambda error: _remove_at_last(own)))
                stack.callback(own.clean)
            is_direct = direct(own.path)
        except OSError as error:
            raise DatasetError(f"{folder} cannot be written ({error.strerror})") from None
        if not is_direct:
            raise DatasetError(
                f"{folder} has no O_DIRECT, so memory would answer for the drive; write a dataset "
                "of five times the memory instead: dlemu datasize, dlemu datagen, dlemu size"
            )
        yield own.path


def _is_ours(name: str) -> bool:
    """Return whether a try makes what has this path; foreign files keep their folders."""
    *folders, own = name.split("/")
    return name.endswith("/") or ".dlemu" in folders or _OURS.fullmatch(own) is not None


def _remove_at_last(own: OwnedFolder) -> None:
    """Remove it while the process ends, and say so if the files of a stuck thread stay."""
    own.clean()
    if own.path.exists():
        complain(f"{own.path} could not be removed; remove it, or let the next dlemu try do it")


def find_files(folder: Path, workload: Workload) -> Files | None:
    """Return a dataset in a folder, or one level below it, that the workload can read."""
    try:
        below = sorted(path for path in folder.iterdir() if path.is_dir())[:_MOST_FOLDERS]
    except OSError:
        below = []
    for place in (folder, folder / workload.name, folder / NAME / workload.name, *below):
        with suppress(DlemuError, OSError):  # damaged, or somebody else's: then files are written
            manifest = read_manifest(place)
            if manifest is None or manifest.layout.num_files < _LEAST_FILES:
                continue
            layout = manifest.layout
            keys: dict[str, object] = {
                "dataset.data_folder": str(place.absolute()),
                "dataset.num_files_train": layout.num_files,
                "dataset.seed": layout.seed,
                "dataset.file_prefix": layout.prefix,
                "dataset.num_subfolders_train": layout.num_subfolders,
            }
            own = workload.with_keys(keys)
            manifest.check(layout_of(own), place)
            return Files(own, layout, written=False)
    return None


def plan_files(
    own: Path, workloads: list[Workload], max_bytes: int, *, most_each: float
) -> list[Files]:
    """Return the files to write for each workload, `max_bytes` together, `most_each` for one.

    Raises:
        RunError: there is no room for the fewest files that make sense.
    """
    free = shutil.disk_usage(own).free
    room = min(max_bytes, _FREE_SHARE * free)
    least = sum(_LEAST_FILES * _file_bytes(workload) for workload in workloads)
    if least > room:
        remedy = "raise max_bytes" if room == max_bytes else "free space"
        raise RunError(
            f"{own.parent} has {format_bytes(free)} free, and dlemu try may write "
            f"{format_bytes(room)} of it; {format_bytes(least)} are needed: {remedy}, or name "
            "fewer workloads"
        )
    planned: list[Files] = []
    for left, workload in zip(range(len(workloads), 0, -1), workloads, strict=True):
        rest = sum(_LEAST_FILES * _file_bytes(other) for other in workloads[len(planned) + 1 :])
        share = min(max(room / left, _LEAST_FILES * _file_bytes(workload)), room - rest, most_each)
        number = max(_LEAST_FILES, int(share / _file_bytes(workload)))
        room -= number * _file_bytes(workload)
        planned.append(_planned(own, workload, number))
    return planned


def write_files(files: Files) -> None:
    """Write a planned dataset, or what is missing of it."""
    generate(files.workload, world=Alone())


def _file_bytes(workload: Workload) -> float:
    return workload.dataset.num_samples_per_file * workload.dataset.mean_bytes


def _planned(own: Path, workload: Workload, num_files: int) -> Files:
    """Return the dataset of so many files whose mean sample is nearest to the workload's."""
    keys: dict[str, object] = {
        "dataset.data_folder": str((own / workload.name).absolute()),
        "dataset.num_files_train": num_files,
        "dataset.num_subfolders_train": 0,
        "dataset.file_prefix": "img",
    }

    def of(seed: int) -> Workload:
        return workload.with_keys({**keys, "dataset.seed": seed})

    def off(planned: Workload) -> float:
        layout = layout_of(planned)
        samples = np.arange(min(layout.num_samples, 1 << 16))
        return abs(float(layout.sizes(samples).mean()) - layout.mean_bytes)

    spread = workload.dataset.record_length_bytes_stdev > 0
    chosen = min(map(of, range(_SEEDS)), key=off) if spread else of(0)
    return Files(chosen, layout_of(chosen), written=True)
