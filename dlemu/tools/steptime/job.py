"""`dlemu steptime` from a workload to its files."""

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.config.published import derived_yaml, normal, origin_of
from dlemu.errors import RunError, WorkloadError
from dlemu.findings import Finding, Tell, note
from dlemu.judge.folders import hold
from dlemu.judge.records import check_writable, write_json, write_text
from dlemu.tools.steptime.measure import (
    WARM_UP,
    Gpu,
    Timed,
    faster_layout,
    find_gpu,
    measure,
    summary,
)
from dlemu.tools.steptime.steps import (
    Preprocessing,
    StepTask,
    UsersFunction,
    find_torch,
    model_of,
    names_function,
    time_preprocessing,
)

_PARTS = 20
_SKEWED = 0.01
"""From this distance between mean and median on, as a share of the mean, a normal distribution does
not describe the steps: the file gets the mean of each twentieth of them."""


def fit_line(batches: Sequence[int], means: Sequence[float]) -> Mapping[str, float] | None:
    """Return seconds over batch sizes as the line a + b · batch, by least squares over the means.

    `residual` is the largest distance of a mean from it, as a share of the mean. None: there are
    fewer than two batch sizes.
    """
    if len(set(batches)) < 2:
        return None
    sizes, times = np.array(batches, float), np.array(means)
    b, a = np.polyfit(sizes, times, 1)
    residual = np.max(np.abs(a + b * sizes - times) / times)
    return {"a": float(a), "b": float(b), "residual": float(residual)}


CommentOf = Callable[[str, int, int, Mapping[str, str]], list[str]]
"""Returns the comment of a workload file, for a model, a number of steps, their batch size, and
where they were timed."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The answer of `dlemu steptime` for one workload and model."""

    workload: Workload
    model: str
    name: str
    """Of the workload file."""
    environment: Mapping[str, str]
    """GPU, driver, torch, cuDNN, dtype, layout, compile, graph and date, in this order."""
    timed: Sequence[Timed]
    skipped: Sequence[int] = ()
    """Batch sizes for which memory did not suffice."""
    preprocessing: Preprocessing | None = None
    """Of the user's samples, where `steptime.preprocess` names a function."""

    @property
    def row(self) -> Timed:
        """The steps that the workload file takes: of the workload's batch size, or the nearest."""
        wanted = self.workload.reader.batch_size
        return min(self.timed, key=lambda each: abs(each.batch - wanted))

    def yaml(self, comment_of: CommentOf) -> str:
        """Return the workload file: what was given and the measured times."""
        own = self.row
        keys: dict[str, object] = {
            "reader.batch_size": own.batch,
            "train.computation_time": distribution(own.seconds),
        }
        if own.on_gpu:
            keys["train.launch_time"] = float(f"{min(own.launch, own.mean):.4g}")
        if self.preprocessing is not None:
            keys["reader.preprocess_time"] = self.preprocessing.key()
        comment = comment_of(self.model, len(own.seconds), own.batch, self.environment)
        return derived_yaml(self.workload, self.name, keys, comment)

    def document(self) -> dict[str, Any]:
        """Return all that was measured, every step's time included; stored as JSON.

        `batch`: of the workload file. `fit`: through the means that launching does not limit.
        """
        free = [each for each in self.timed if not each.launch_bound]
        base = origin_of(self.workload) or self.workload
        given = base.train.computation_time.mean
        published = {"name": base.name, "seconds": given, "batch": base.reader.batch_size}
        return {
            "workload": self.workload.name,
            "model": self.model,
            "environment": dict(self.environment),
            "sample_bytes": self.workload.dataset.mean_bytes,
            "accelerators": self.workload.accelerators_per_rank,
            "batch": self.row.batch,
            "fit": fit_line([each.batch for each in free], [each.mean for each in free]),
            "skipped_batches": list(self.skipped),
            "published": published if given else None,
            "preprocessing": self.preprocessing and self.preprocessing.evidence(),
            "batches": [_evidence(each) for each in self.timed],
        }


def distribution(seconds: NDArray[np.float64]) -> dict[str, object]:
    """Return the keys of a `Distribution` with the mean of these times."""
    mean = float(seconds.mean())
    if abs(mean - float(np.median(seconds))) < _SKEWED * mean or len(seconds) < _PARTS:
        return normal(seconds)
    parts = np.array_split(np.sort(seconds), _PARTS)
    # Parts differ by a step in length: each counts alike, so they are scaled to the steps' mean.
    scale = mean / float(np.mean([part.mean() for part in parts]))
    times = [float(f"{scale * part.mean():.6g}") for part in parts]
    return {**normal(np.array(times)), "type": "quantiles", "quantiles": times}


def _evidence(timed: Timed) -> dict[str, Any]:
    seconds = timed.seconds
    return {
        "batch": timed.batch,
        "layout": timed.layout,
        "median_seconds": timed.median,
        "mean_seconds": float(seconds.mean()),
        "stdev_seconds": float(seconds.std()),
        "p05_seconds": float(np.percentile(seconds, 5)),
        "p95_seconds": float(np.percentile(seconds, 95)),
        "launch_seconds": timed.launch,
        "launch_bound": timed.launch_bound,
        "flop_per_step": timed.flops,
        "gpu_memory_bytes": timed.memory,
        "gpu": summary(timed.states),
        "step_seconds": [float(f"{value:.7g}") for value in seconds],
    }


def measure_steps(
    workload: Workload, tell: Tell, comment_of: CommentOf
) -> tuple[dict[str, Any], Path]:
    """Time the steps of all batch sizes; return the document and the workload file that it wrote.

    `comment_of` has the words of that file's comment.

    The files are written again with each batch size: what was measured stays if the rest fails.

    Raises:
        WorkloadError: there is no GPU, another process computes on it, or a key is refused.
        RunError: no batch size fits into memory, or a file cannot be written.
    """
    section = workload.steptime
    model = model_of(section.model, workload.name)
    device = section.device
    gpu = find_gpu() if device == "cuda" else None
    if gpu is not None and (others := gpu.other_processes()):
        raise WorkloadError(
            f"another process computes on this GPU: {', '.join(others)}; wait for its end, or "
            "choose another GPU with CUDA_VISIBLE_DEVICES"
        )
    torch = find_torch(device)
    if section.side is not None and model == "unet3d" and section.side < 64:
        raise WorkloadError(f"steptime.side must be at least 64 for unet3d, got {section.side}")
    job = StepTask(
        model=model,
        device=device,
        precision=section.precision,
        compiled=section.compile,
        graph=section.graph,
        side=section.side,
        waits=workload.train.loop == "rule",
    )
    _check_job(job)
    if section.preprocess is not None and not names_function(section.preprocess):
        raise WorkloadError(
            f"steptime.preprocess must be PACKAGE.MODULE:FUNCTION, got {section.preprocess!r}"
        )
    with hold(workload.output.folder, "steptime") as folder:
        stem = _stem(workload, torch, device)
        check_writable(folder / f"{stem}.json")
        if device == "cpu":
            tell(note("steps_on_cpu"))
        elif gpu is None:
            tell(note("gpu_not_watched"))
        preprocessing = _preprocessing(workload, tell)
        layout = _layout(job, workload, tell)
        path = folder / f"{stem}.yaml"
        for timed, skipped in _all_batches(job, workload, layout, gpu, tell):
            answer = StepTimes(
                workload=workload,
                model=model,
                name=stem,
                environment=_environment(torch, job, layout, gpu),
                timed=timed,
                skipped=skipped,
                preprocessing=preprocessing,
            )
            write_text(path, answer.yaml(comment_of))
            document = answer.document()
            write_json(path.with_suffix(".json"), document)
    return document, path


def _check_job(job: StepTask) -> None:
    on_gpu, own = job.device == "cuda", ":" in job.model
    for key, given in (("precision", job.precision != "bf16"), ("graph", job.graph)):
        if given and own:
            raise WorkloadError(f"steptime.{key} is for dlemu's networks; {job.model} sets its own")
        if given and not on_gpu:
            raise WorkloadError(f"steptime.{key} needs a GPU; a CPU computes in float32")
    if job.graph and job.compiled:
        raise WorkloadError("steptime.graph and steptime.compile exclude each other; set one")
    if own:
        UsersFunction("steptime.model", job.model).find()


def batch_sizes(given: object, batch: int) -> list[int]:
    """Return the batch sizes: those given, else a quarter, half, one and two times the workload's.

    Where there is no half, four times is taken, so that a line can be fitted. The workload's own
    comes first: what is interrupted then has it.
    """
    sizes = {max(1, batch // 4), max(1, batch // 2), batch, 2 * batch}
    if isinstance(given, tuple):
        sizes = set(given)
    elif batch < 4:
        sizes |= {4 * batch}
    return sorted(sizes, key=lambda size: (size != batch, size))


def _preprocessing(workload: Workload, tell: Tell) -> Preprocessing | None:
    section = workload.steptime
    if section.preprocess is None:
        return None
    workers = workload.workers_of_rank
    tell(note("preprocessing_begins", workers=workers))
    return time_preprocessing(section.preprocess, workers, section.seconds / 4)


def _layout(job: StepTask, workload: Workload, tell: Tell) -> str:
    given = workload.steptime.layout
    if ":" in job.model:
        return "user"
    if given != "auto":
        return given
    layout = faster_layout(job, workload.reader.batch_size)
    tell(note("faster_layout", layout=layout))
    return layout


def _all_batches(
    job: StepTask, workload: Workload, layout: str, gpu: Gpu | None, tell: Tell
) -> Iterator[tuple[list[Timed], list[int]]]:
    """Yield what is timed and what is skipped so far, in order, after each batch that was timed."""
    section = workload.steptime
    timed: list[Timed] = []
    skipped: list[int] = []
    sizes = batch_sizes(section.batches, workload.reader.batch_size)
    nominal = (1 + WARM_UP) * section.seconds
    begin = perf_counter()
    for number, batch in enumerate(sizes):
        taken = perf_counter() - begin
        tell(
            note(
                "batch_begins",
                batch=batch,
                number=number + 1,
                batches=len(sizes),
                searches=job.device == "cuda",
                seconds=nominal,
                left_seconds=taken / number * (len(sizes) - number) if number else None,
            )
        )
        found = measure(job, batch, layout, gpu, section.steps, section.seconds)
        if isinstance(found, Finding):
            tell(note("batch_skipped", batch=batch, why=found.fields))
            skipped = sorted([*skipped, batch])
            continue
        tell(
            note(
                "batch_timed",
                batch=batch,
                mean_seconds=found.mean,
                steps=len(found.seconds),
                memory_bytes=found.memory,
            )
        )
        timed = sorted([*timed, found], key=lambda each: each.batch)
        yield timed, skipped
    if not timed:
        raise RunError(
            f"out of memory at every batch size ({', '.join(map(str, skipped))}); set smaller ones "
            "with steptime.batches"
        )
    yield timed, skipped


def _stem(workload: Workload, torch: Any, device: str) -> str:
    """Return the name of the files: "unet3d_measured_h200" for unet3d_h100 on an NVIDIA H200.

    No published row has such a name.
    """
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    words = re.findall(r"[a-z0-9]+", name.lower())
    short = next((w for w in words if re.fullmatch(r"[a-z]{1,3}\d{2,4}[a-z]*", w)), words[-1])
    row = re.sub(r"(_real|_measured)?_([a-z]{1,3}\d{2,4}[a-z]*|cpu)$", "", workload.name)
    return f"{row}_measured_{short}"


def _environment(torch: Any, job: StepTask, layout: str, gpu: Gpu | None) -> Mapping[str, str]:
    on_gpu, own = job.device == "cuda", ":" in job.model
    cudnn = torch.backends.cudnn.version()
    name = torch.cuda.get_device_name() if on_gpu else f"CPU, {os.cpu_count()} cores"
    return {
        "device": name,
        "driver": gpu.driver if gpu else "unknown" if on_gpu else "none",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cuDNN": str(cudnn) if on_gpu and cudnn else "none",
        "dtype": "user" if own else job.precision if on_gpu else "fp32",
        "layout": layout,
        "compile": str(job.compiled).lower(),
        "graph": str(job.graph).lower(),
        "loop": "waits" if job.waits else "queues",
        "date": datetime.now().strftime("%Y-%m-%d"),
    }
