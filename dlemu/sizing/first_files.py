"""The files of `dlemu try`, and those of the full measurement that it proposes.

They lie in a folder of their own below the one that is tried, and are removed.

A dataset of dlemu's that is there already is read instead of new files, if a workload can read it.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlemu.config.model import Workload
from dlemu.config.published import command
from dlemu.datagen import read_manifest
from dlemu.datagen.survey import folders_below
from dlemu.dataset.layout import Layout, layout_of
from dlemu.dataset.rule import SizeCheck, datagen_command, measure_memory
from dlemu.errors import DatasetError, DlemuError, RunError
from dlemu.host.devices import lies_in_memory
from dlemu.ranks.world import Alone
from dlemu.sizing.measured import START_SECONDS
from dlemu.sizing.search import about_runs
from dlemu.storage.owned import OwnedFolder, direct
from dlemu.terminal import complain
from dlemu.units import format_bytes, format_seconds

NAME = "dlemu-try"
_MARK = "dlemu-try.json"
_OURS = re.compile(r"dlemu\.json|dlemu\.files\.npy|plan\.json|.*\.journal|img_\d+_of_\d+\.\w+")
"""Names of the files that are removed at the end; all others stay."""
_HEADROOM = 1.25
_SIZE_KEYS = (
    *("reader.data_loader", "reader.read_threads", "reader.batch_size", "metric.au"),
    *("train.computation_time", "train.epochs", "dataset.record_length_bytes"),
)
_FREE_SHARE = 0.9
_LEAST_FILES = 2
_SEEDS = 64


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
            fields = {"removed": "when dlemu try ends; see dlemu try --help"}
            stack.enter_context(own.passing(fields, complain, keep=keep))
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


def find_files(folder: Path, workload: Workload) -> Files | None:
    """Return a dataset in a folder, or one level below it, that the workload can read."""
    for place in (folder, folder / NAME / workload.name, *folders_below(folder, workload.name)):
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


def full_measurement(
    folder: Path, files: Files, number: int, most: int, *, write_rate: float, own: Path
) -> tuple[str, tuple[str, ...]]:
    """Return what the full measurement below `folder` needs, and its commands: none without room.

    It is of `number` accelerators, and `most` at most. `own` holds files that will be removed.
    Where the dataset of the rule has no room, it is a quick search.
    """
    free = shutil.disk_usage(folder).free + sum(
        path.lstat().st_blocks * 512 for path in own.rglob("*") if path.is_file()
    )
    job, have = _job(folder, files, own)
    for quick in (False, True):
        job = job.with_keys({"size.quick": quick, "train.epochs": 1 if quick else 5})
        check = SizeCheck(job, layout_of(job), measure_memory(job, Alone()))
        num_files = check.files_for(max(1, round(_HEADROOM * most)))
        num_bytes = max(0, num_files - have) * _file_bytes(job)
        if num_bytes <= free:
            break
    else:
        needs = format_bytes(num_bytes)
        return f"needs {needs} even for a quick search; {format_bytes(free)} are free", ()
    more: dict[str, object] = {"dataset.data_folder": job.data_folder}
    kind = ""
    if quick:
        kind = " (quick: the dataset of the benchmark's rule has no room here)"
        more["size.quick"] = True
    if quick and num_bytes:  # else those that are there are enough
        several = ((n, max(0, n - have) * _file_bytes(job)) for n in (5 * num_files, 2 * num_files))
        fits = (each for each in several if each[1] <= free / 2)
        num_files, num_bytes = next(fits, (num_files, num_bytes))
    num_files, train = max(have, num_files), job.train
    samples = num_files * job.dataset.num_samples_per_file
    steps = train.epochs * samples / (job.reader.batch_size * max(1, number))
    each = START_SECONDS + steps * train.computation_time.mean / job.metric.au
    told = f"measures for about {format_seconds(about_runs(job.size.confirm) * each)}{kind}"
    size = command("size", job, _SIZE_KEYS, more)
    if not num_bytes:
        return told, (size,)
    writing = f"writes {format_bytes(num_bytes)} in about {format_seconds(num_bytes / write_rate)}"
    return f"{writing}, then {told}", (datagen_command(job, num_files), size)


def _job(folder: Path, files: Files, own: Path) -> tuple[Workload, int]:
    """Return the workload with the folder of its full dataset, and the files that are there."""
    workload = files.workload
    place = workload.data_folder
    if not files.written and not place.is_relative_to(own.absolute()):
        return workload, files.layout.num_files
    place = folder / workload.name
    if place.exists():  # another dataset, or something else
        place = folder / f"{workload.name}.full"
    return workload.with_keys({"dataset.data_folder": str(place), "dataset.seed": 0}), 0
