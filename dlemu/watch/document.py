"""From what was seen of a job to the document of a run, and to a workload of the job."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, cast

import numpy as np
import yaml

from dlemu.config.model import Workload, check_workload
from dlemu.config.types import facts_of_loader
from dlemu.errors import RunError, WorkloadError
from dlemu.host.devices import mount_under
from dlemu.host.intervals import IntervalSummary, summarize_interval
from dlemu.host.network import machine_name, network_name
from dlemu.host.place import find_host
from dlemu.judge.evidence import HostReport, combine
from dlemu.judge.metrics import Metrics, measure_sums
from dlemu.judge.outcome import with_metrics, without_threshold
from dlemu.judge.own_advice import advice_for
from dlemu.judge.records import Steps
from dlemu.judge.summary import DatasetFields, Summary
from dlemu.judge.sums import RankName, Rule, sum_all
from dlemu.meter import first_step_of, keys_of_start
from dlemu.report.words import told
from dlemu.run.job import complete_summary
from dlemu.storage.counted import PathBytes
from dlemu.units import counted
from dlemu.watch import hook
from dlemu.watch.events import Saved
from dlemu.watch.launch import Watched
from dlemu.watch.loops import Loop, Role, find_loops, steps_of

_FORMATS = {
    **{".npy": "npy", ".npz": "npz", ".h5": "hdf5", ".hdf5": "hdf5", ".parquet": "parquet"},
    **{".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png", ".tar": "webdataset", ".csv": "csv"},
    **{".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".bin": "bin", ".raw": "raw"},
}
"""Formats by the suffix of a file's name, in any case."""
_SKEWED = 0.1
"""Share of the mean that the deviation has where times may be given as quantiles, and of the
deviation by which mean and median then differ."""
_QUANTILES = 20
_UNNAMED = "watched"


NamedBy = Literal["the dataset", "the folder", "open files", ""]
"""What named the files of a job: its dataset, the folder that was given, or its open files."""


@dataclass(frozen=True, kw_only=True)
class FilesOfJob:
    """The files that a job reads, as far as they were seen."""

    folder: Path | None
    """That holds all of them."""
    num_files: int
    is_all: bool
    """Whether that is their number; else the number of those that were seen."""
    mean_bytes: float
    """Of a file; 0: not known."""
    stdev_bytes: float
    format: str
    """dlemu's name for it, "" where the names do not tell."""
    named_by: NamedBy
    """What named them; "" where none was seen."""


def files_of_job(loops: Sequence[Loop], watched: Watched, folder: Path | None = None) -> FilesOfJob:
    """Return the files of the training loaders.

    Those that their datasets name, else all below the folder that was given, else those that were
    seen open.
    """
    described = [loop.described for loop in loops]
    named = [file for each in described for file in each.get("files", ())]
    sizes: list[int] = []
    by: NamedBy = ""
    if named:
        sizes, by = [_size(path) for path in dict.fromkeys(named)], "the dataset"
        paths = list(dict.fromkeys(named))
    elif folder is not None and (below := _files_below(folder)):
        paths = below[:: max(1, len(below) // hook.MOST_FILES)]
        sizes, by = [_size(path) for path in paths], "the folder"
        described = [{"num_files": len(below), "root": str(folder)}]
    else:
        paths = list(watched.files.sizes)
        sizes, by = list(watched.files.sizes.values()), "open files" if paths else ""
    known = [size for size in sizes if size]
    count = max((each.get("num_files", 0) for each in described), default=0)
    roots = [each["root"] for each in described if "root" in each]
    return FilesOfJob(
        folder=_folder_of(roots or [str(Path(path).parent) for path in paths]),
        num_files=count or len(paths),
        is_all=bool(count),
        mean_bytes=fmean(known) if known else 0.0,
        stdev_bytes=float(np.std(known)) if known else 0.0,
        format=_format_of(paths),
        named_by=by,
    )


def _files_below(folder: Path) -> list[str]:
    """Return the files below a folder but for hidden ones, sorted."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [os.path.join(place, name) for name in sorted(names) if name[0] != "."]
    return found


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _folder_of(folders: Iterable[str]) -> Path | None:
    found = list(dict.fromkeys(folders))
    return Path(os.path.commonpath(found)) if found else None


def _format_of(paths: Sequence[str]) -> str:
    """Return the format that most of the names tell."""
    found = [_FORMATS.get(Path(path).suffix.lower(), "") for path in paths]
    return max(set(found), key=found.count) if found else ""


@dataclass(frozen=True, kw_only=True)
class WorkersOfJob:
    """What the workers of the training loaders did, in the epochs that are measured."""

    num_batches: int
    cpu_seconds: float
    """Of a batch, mean."""
    other_seconds: float
    """Of a batch, mean: time in which its worker waited, for reads or for a CPU."""

    @property
    def seconds(self) -> float:
        """Of a batch."""
        return self.cpu_seconds + self.other_seconds


def workers_of_job(loops: Sequence[Loop], watched: Watched) -> WorkersOfJob | None:
    """Return what making a batch cost; None where no worker was seen."""
    spans = [(epoch.begun, epoch.ended) for loop in loops for epoch in loop.epochs]
    left_out = [span for loop in loops for epoch in loop.epochs for span in epoch.left_out]
    made = [
        (ended - begun, cpu)
        for process in watched.journals.processes.values()
        for begun, ended, cpu, _ in process.made
        if any(low <= ended and begun <= high for low, high in spans)
        and not any(low <= begun and ended <= high for low, high in left_out)
    ]
    if not made:
        return None
    seconds, cpu = (fmean(column) for column in zip(*made, strict=True))
    return WorkersOfJob(
        num_batches=len(made), cpu_seconds=cpu, other_seconds=max(0.0, seconds - cpu)
    )


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A job, measured: all that its document and its workload are made of."""

    watched: Watched
    loops: Sequence[Loop]
    files: FilesOfJob
    workers: WorkersOfJob | None
    samples_per_file: int
    sample_bytes: float
    """In the files; 0: not known."""
    steps: Steps
    """(steps,) of `records.STEP`, all ranks."""
    workload: Workload
    has_threshold: bool


def see(watched: Watched, name: str, au: float | None, folder: Path | None = None) -> Seen:
    """Return a job as it was seen; `au` is the threshold, None where none was asked for.

    `folder` is where its data lies, None where that was not told.

    Raises:
        RunError: it trained with no loader that is watched, or took fewer than two batches.
    """
    loops = find_loops(watched.journals.processes.values())
    if not loops:
        raise RunError(_why_none(watched))
    files, workers = files_of_job(loops, watched, folder), workers_of_job(loops, watched)
    samples = loops[0].described.get("samples") or _samples_of_pass(loops)
    in_file = 1
    if samples and files.is_all and files.num_files:
        in_file = max(1, round(samples / files.num_files))
    sample_bytes = files.mean_bytes / in_file
    steps = steps_of(loops, sample_bytes)
    if not len(steps):
        raise RunError(
            "the job took fewer than two batches of its loader in every epoch; nothing is measured"
        )
    if workers is not None:
        steps["read"], steps["decode"] = late_by(workers, loops, steps)
    keys = _keys_of(loops, files, workers, in_file, sample_bytes, steps)
    if au is not None:
        keys["metric"] = {"au": au}
    workload = _checked(name or _UNNAMED, keys)
    return Seen(
        watched=watched,
        loops=loops,
        files=files,
        workers=workers,
        samples_per_file=in_file,
        sample_bytes=sample_bytes,
        steps=steps,
        workload=workload,
        has_threshold=au is not None,
    )


def starts_of(loops: Sequence[Loop], workers: WorkersOfJob | None) -> list[float]:
    """Return seconds for each worker until all were at work, of each pass that started them.

    That is when the loader had forked them, or what the first batch took longer than others: beside
    a GPU, new workers of 12 were up to 1.4 s slower at their first batch, a few times the forks.
    """
    usual = workers.seconds if workers else np.inf
    found = []
    for loop in loops:
        number = int(loop.described.get("num_workers") or 1)
        for epoch, start in zip(loop.epochs, loop.starts, strict=False):
            late = (float(epoch.wait[0]) - usual) / number if len(epoch.wait) else 0.0
            found.append(max(start, late))
    return found


def late_by(workers: WorkersOfJob, loops: Sequence[Loop], steps: Steps) -> tuple[float, float]:
    """Return seconds of a batch in which its worker made the loop wait, by reads and by its CPU.

    A loader with several workers may take as long for a batch as the loop computes as many
    batches. What the CPU takes beyond that would make the loop wait if reads took no time. The
    rest of what it waits for is the reads'.
    """
    number = int(loops[0].described.get("num_workers") or 0)
    hidden = number * float(steps["compute"][steps["step"] > 0].mean())
    late = workers.seconds - hidden
    if not number or late <= 0:
        return workers.other_seconds, workers.cpu_seconds
    by_cpu = max(0.0, workers.cpu_seconds - hidden)
    return late - by_cpu, by_cpu


def _checked(name: str, keys: dict[str, Any]) -> Workload:
    """Return the workload of a job: DALI's loader where it reads such files, else PyTorch's."""
    reader = keys["reader"]
    if facts_of_loader(reader["data_loader"]).by_dali:
        with suppress(WorkloadError):
            return check_workload({"name": name, **keys})
        keys = {**keys, "reader": {**reader, "data_loader": "pytorch"}}
    return check_workload({"name": name, **keys})


def _samples_of_pass(loops: Sequence[Loop]) -> int:
    """Return the samples of all ranks in a whole pass over their loaders; 0 without one."""
    passes = zip(*(loop.epochs for loop in loops), strict=False)
    whole = (each for each in passes if all(epoch.is_whole for epoch in each))
    return sum(int(epoch.samples.sum()) for epoch in next(whole, ()))


def _why_none(watched: Watched) -> str:
    """Return why no training loop was seen."""
    processes = watched.journals.processes.values()
    if not processes:
        return (
            "no Python process with a DataLoader was seen; name the command that trains (dlemu "
            "watch -- python train.py), or where it clears its environment (env -i, python -I, -S "
            "or -E) put dlemu.Meter into the loop"
        )
    notes = [note for process in processes for note in process.notes]
    about = f" ({notes[0]})" if notes else ""
    looked_at = counted(len(processes), "Python process")
    return (
        "no DataLoader was iterated: no torch.utils.data.DataLoader, DALI or WebDataset iterator "
        f"gave a batch in {looked_at}{about}; for another loader put "
        "dlemu.Meter into the loop"
    )


def _keys_of(
    loops: Sequence[Loop],
    files: FilesOfJob,
    workers: WorkersOfJob | None,
    in_file: int,
    sample_bytes: float,
    steps: Steps,
) -> dict[str, Any]:
    """Return the keys of the workload, as far as they were seen."""
    described = loops[0].described
    counted = steps[steps["step"] > 0]
    batch = int(np.median(counted["num_samples"])) or described.get("batch_size") or 1
    dataset: dict[str, Any] = {
        "format": files.format or "raw",
        "num_files_train": max(1, files.num_files),
        "num_samples_per_file": in_file,
        "record_length_bytes": max(1.0, round(sample_bytes, 1)),
        "record_length_bytes_stdev": round(files.stdev_bytes / in_file * sqrt(in_file), 1),
    }
    if files.folder is not None:
        dataset["data_folder"] = str(files.folder)
    reader: dict[str, Any] = {
        "data_loader": "dali" if described.get("kind") == "dali" else "pytorch",
        "batch_size": batch,
        **_read_ahead(described),
        "file_shuffle": "off" if "Sequential" in str(described.get("sampler")) else "seed",
    }
    starts = starts_of(loops, workers)
    kept = bool(described.get("persistent_workers"))
    for key, value in keys_of_start(starts, persistent=kept).items():
        reader[key.removeprefix("reader.")] = value
    if workers is not None and workers.cpu_seconds:
        reader["preprocess_time"] = float(f"{workers.cpu_seconds / batch:.4g}")
    train: dict[str, Any] = {
        "epochs": max(1, len(np.unique(steps["epoch"]))),
        "computation_time": times_of(counted["compute"]),
    }
    if (first := first_step_of(steps)) is not None:
        train["first_step_time"] = float(f"{first:.6g}")
    if launch := fmean(loop.launch for loop in loops):
        train["launch_time"] = float(f"{min(launch, counted['compute'].mean()):.4g}")
    return {"dataset": dataset, "reader": reader, "train": train}


def _read_ahead(described: Mapping[str, Any]) -> dict[str, int]:
    """Return the workers of a loader, and how many batches they read ahead, all together."""
    workers, each = described.get("num_workers") or 0, described.get("prefetch_factor") or 2
    if described.get("kind") == "dali":  # its threads share a batch
        return {"read_threads": max(1, workers), "prefetch_size": each}
    return {"read_threads": workers, "prefetch_size": workers * each}


def times_of(seconds: "np.ndarray[Any, np.dtype[np.float64]]") -> dict[str, Any]:
    """Return the keys of a Distribution: mean and deviation, or quantiles of skewed times."""
    mean, half, stdev = float(seconds.mean()), float(np.median(seconds)), float(seconds.std())
    if abs(mean - half) > _SKEWED * stdev and stdev > _SKEWED * mean:
        ranks = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        quantiles = np.quantile(seconds, ranks)
        quantiles *= mean / quantiles.mean()  # what is cut off at the ends does not change the mean
        return {"type": "quantiles", "quantiles": [float(f"{each:.6g}") for each in quantiles]}
    return {"mean": float(f"{mean:.6g}"), "stdev": float(f"{stdev:.4g}"), "type": "normal"}


def document_of(seen: Seen, first: Mapping[str, Any], command: Sequence[str]) -> Summary:
    """Return the job as the document of a run; `first`: the fields of all documents."""
    sums = sum_all(_parts(seen.steps), Rule.of(seen.workload))
    metrics = measure_sums(sums)
    folder = seen.files.folder or Path.cwd()
    dataset = DatasetFields(
        folder=str(folder),
        format=seen.files.format or "unknown",
        num_files=seen.files.num_files,
        num_bytes=seen.files.num_files * seen.files.mean_bytes,
    )
    begun = cast(
        Summary,
        {
            **first,
            "status": "complete",
            "workload": seen.workload.name,
            "data_loader": str(seen.loops[0].described.get("kind", "torch")),
            "num_accelerators": metrics.num_accelerators,
            "num_ranks": len(seen.loops),
            "dataset": dataset,
            "system": [find_host(folder)],
            "measured": {
                "read_bytes": metrics.read_bytes,
                "read_bytes_per_second": metrics.read_bytes_per_second,
            },
            "limit": None,
            "accelerator": "accelerator",
            "watched": watched_fields(seen, metrics, command),  # what is advised depends on it
        },
    )
    report = _host_report(seen, folder)
    if report is not None:
        evidence = combine(seen.workload, [report], sums, PathBytes(), needed=np.inf)
        begun = complete_summary(begun, evidence, metrics)
        if not seen.sample_bytes:
            begun["measured"]["page_cache_share"] = None
            begun["measured"]["page_cache_share_per_epoch"] = [None] * len(sums.epochs)
    document = with_metrics(begun, seen.workload, metrics)
    if not seen.has_threshold:
        document = without_threshold(document)
    if limit := document["limit"]:
        by_gpu = any(epoch.by_gpu for loop in seen.loops for epoch in loop.epochs)
        own = advice_for(limit["advice"], seen.loops[0].described, by_gpu=by_gpu)
        document = cast(Summary, {**document, "limit": {**limit, "advice": own}})
    return document


def _parts(steps: Steps) -> list[tuple[RankName, Steps]]:
    ranks = np.unique(steps["accelerator"]).tolist()
    return [(RankName(rank), steps[steps["accelerator"] == rank]) for rank in ranks]


def _host_report(seen: Seen, folder: Path) -> HostReport | None:
    """Return what the host's counters saw in the epochs; None where none was read."""
    intervals = list(_intervals(seen))
    if not intervals or len(intervals) != len(np.unique(seen.steps["epoch"])):
        return None
    mount = mount_under(folder)
    own = max(1, int(seen.loops[0].described.get("num_workers") or 0))
    return HostReport(
        host=os.uname().nodename,
        epochs=intervals,
        num_workers=own * len(seen.loops),
        direct=False,
        file_system="" if mount is None else mount.kind,
        links=seen.watched.observers[0].links,
        network_name=network_name(),
        machine=machine_name(),
    )


def _intervals(seen: Seen) -> Iterable[IntervalSummary]:
    """Yield the host's counters over each epoch, between the observations nearest around it."""
    for observer in seen.watched.observers:
        taken = observer.observations
        for number in np.unique(seen.steps["epoch"]).tolist():
            epochs = [loop.epochs[number] for loop in seen.loops]
            begun, ended = min(e.begun for e in epochs), max(e.ended for e in epochs)
            first = max((n for n, one in enumerate(taken) if one.time <= begun), default=0)
            last = min((n for n, o in enumerate(taken) if o.time >= ended), default=len(taken) - 1)
            if last > first:
                yield summarize_interval(taken[first : last + 1])


def watched_fields(seen: Seen, metrics: Metrics, command: Sequence[str]) -> dict[str, Any]:
    """Return the document's `watched`: numbers and names of what a watched job did.

    command, status         the words, and the exit status
    interrupted             whether it was told to end
    loaders                 each loader by its place and dataset, with its role
    batches_a_step          for each step of an optimizer; 0: none was seen
    ahead                   batches that the loop takes before it needs them
    by_gpu                  whether a GPU's clock tells the times
    files, workers          as FilesOfJob, WorkersOfJob
    needs_bytes_per_second  of an accelerator at AU 100 %; None: bytes are not known
    needs_samples_per_second
    checkpoints             number, bytes and seconds of those that the job saved
    evaluation_seconds      in loops over other loaders, all ranks
    early_ends              epochs that the loop left before its loader was exhausted
    notes                   what failed in the hook
    """
    roles = [role for loop in seen.loops for role in loop.roles]
    saves = [save for loop in seen.loops for save in loop.process.saves]
    compute = float(seen.steps["compute"][seen.steps["step"] > 0].mean())
    rate = seen.workload.reader.batch_size / max(compute, 1e-9)
    epochs = [epoch for loop in seen.loops for epoch in loop.epochs]
    processes = seen.watched.journals.processes.values()
    return {
        "command": list(command),
        "status": seen.watched.status,
        "seconds": seen.watched.seconds,
        "interrupted": seen.watched.interrupted,
        "loaders": [_loader_fields(role) for role in roles],
        "batches_a_step": seen.loops[0].batches_a_step,
        "ahead": max(loop.ahead for loop in seen.loops),
        "by_gpu": all(epoch.by_gpu for epoch in epochs),
        "files": {
            "folder": str(seen.files.folder or ""),
            "num": seen.files.num_files,
            "is_all": seen.files.is_all,
            "mean_bytes": seen.files.mean_bytes,
            "format": seen.files.format,
            "named_by": seen.files.named_by,
            "samples_per_file": seen.samples_per_file,
        },
        "workers": seen.workers
        and {
            "num_batches": seen.workers.num_batches,
            "cpu_seconds_a_batch": seen.workers.cpu_seconds,
            "other_seconds_a_batch": seen.workers.other_seconds,
        },
        "needs_samples_per_second": rate,
        "needs_bytes_per_second": rate * seen.sample_bytes or None,
        "checkpoints": {
            "num": len(saves),
            "num_bytes": sum(save.num_bytes for save in saves),
            "seconds": sum(save.ended - save.begun for save in saves),
        },
        "evaluation_seconds": sum(role.seconds for role in roles if role.role == "evaluation"),
        "early_ends": sum(not epoch.is_whole for epoch in epochs),
        "notes": list(dict.fromkeys(note for process in processes for note in process.notes)),
    }


def _loader_fields(role: Role) -> dict[str, Any]:
    hidden = ("files", "root", "num_files", "place")
    described = {name: value for name, value in role.described.items() if name not in hidden}
    return {
        "role": role.role,
        "place": role.key.place,
        "iterations": role.num_iterations,
        "batches": role.num_batches,
        "seconds": role.seconds,
        **described,
    }


def workload_yaml(seen: Seen) -> str:
    """Return a workload file of the job, with a comment for each thing that was not seen."""
    counted = seen.steps[seen.steps["step"] > 0]
    parts = ("wait", "overhead", "compute", "barrier")
    whole = sum(counted[part].sum() for part in parts)
    waiting = float(counted["wait"].sum() / whole)
    about = {"steps": len(counted), "ranks": len(seen.loops), "waiting_share": waiting}
    lines = [told("job_seen", **about)]
    files = seen.files
    if not files.named_by:
        lines.append(told("files_not_seen"))
    elif files.named_by == "the folder":
        lines.append(told("files_of_folder"))
    elif not files.is_all:
        lines.append(told("files_seen_open", files=files.num_files))
    if not files.format:
        lines.append(told("format_not_seen"))
    if seen.workers is None:
        lines.append(told("preprocessing_not_seen"))
    by_gpu = any(epoch.by_gpu for loop in seen.loops for epoch in loop.epochs)
    if by_gpu and not seen.workload.train.launch_time:
        lines.append(told("launch_not_seen"))
    keys = seen.workload.model_dump(mode="json")
    tree: dict[str, Any] = {"name": seen.workload.name}
    for section, names in _HANDED_OVER.items():
        tree[section] = {
            name: keys[section][name]
            for name in names
            if name in keys[section] and (name not in _IF_SEEN or keys[section][name])
        }
    for section, name in (("reader", "preprocess_time"), ("train", "computation_time")):
        tree[section][name] = _short(tree[section][name])
    if saves := [save for loop in seen.loops for save in loop.process.saves]:
        lines.append(told("checkpoint_seen", path=saves[-1].path))  # none, as Lightning does
        lines.append(_checkpoints(saves, keys["train"]["epochs"], seen.steps))
    if any(role.role == "evaluation" for loop in seen.loops for role in loop.roles):
        lines.append(told("evaluation_seen"))
    text = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=100)
    return "".join(f"# {line}\n" for line in lines) + text


def _checkpoints(saves: Sequence[Saved], epochs: int, steps: Steps) -> str:
    """Return the words that ask for checkpoints as large and as often as those of the job.

    What is saved between the same two steps, as the model and its optimizer, is one checkpoint.
    """
    starts = np.unique(steps["start"])
    number = len(np.unique(np.searchsorted(starts, [save.begun for save in saves])))
    unit, every = "epochs", max(1, round(epochs / number))
    if number > epochs:
        unit, every = "steps", max(1, len(starts) // number)
    num_bytes = max(1, round(sum(save.num_bytes for save in saves) / number))
    return told("checkpoint_keys", bytes=num_bytes, unit=unit, every=every)


def _short(time: Mapping[str, Any]) -> object:
    """Return a distribution by the keys that define it: a number where nothing is spread."""
    if time["type"] == "quantiles":
        return {"type": "quantiles", "quantiles": time["quantiles"]}
    if not time["stdev"]:
        return time["mean"]
    return {name: time[name] for name in ("mean", "stdev", "type")}


_HANDED_OVER = {
    "dataset": (
        *("data_folder", "format", "num_files_train", "num_samples_per_file"),
        *("record_length_bytes", "record_length_bytes_stdev"),
    ),
    "reader": (
        *("data_loader", "batch_size", "read_threads", "prefetch_size", "file_shuffle"),
        *("preprocess_time", "worker_start_time", "persistent_workers"),
    ),
    "train": ("epochs", "computation_time", "first_step_time", "launch_time"),
    "metric": ("au",),
}
"""The keys of the workload file: what was seen, and the threshold."""
_IF_SEEN = ("first_step_time", "launch_time", "worker_start_time", "persistent_workers")
