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
from dlemu.units import format_bytes, format_seconds

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

    def yaml(self) -> str:
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
        comment = [
            f"{self.model}: the time of a training step (forward, loss, backward, optimizer) with "
            "its data on the",
            f"device, measured by dlemu steptime over {len(own.seconds):,} steps of batch "
            f"{own.batch}.",
            *(f"{name}: {value}" for name, value in self.environment.items()),
        ]
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


_ON_CPU = (
    "on the CPU: this shows that the command works; the times are this CPU's, in float32, and "
    "stand for no GPU"
)
_DTYPES = {
    "bf16": "bfloat16 by autocast, float32 weights",
    "fp16": "float16 by autocast with loss scaling, float32 weights",
    "tf32": "float32, products in TF32",
    "fp32": "float32",
}


def measure_steps(workload: Workload, say: Callable[[str], None]) -> tuple[dict[str, Any], Path]:
    """Time the steps of all batch sizes; return the document and the workload file that it wrote.

    The files are written again with each batch size: what was measured stays if the rest fails.

    Raises:
        WorkloadError: there is no GPU, another process computes on it, or a key is refused.
        RunError: no batch size fits into memory, or a file cannot be written.
    """
    section = workload.steptime
    model = model_of(section.model, workload.name)
    device = section.device
    gpu = find_gpu() if device == "cuda" else None
    if gpu is not None and (others := gpu.others()):
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
            say(_ON_CPU)
        elif gpu is None:
            say("clocks, power and temperature are unknown: pip install 'dlemu[gds]'")
        preprocessing = _preprocessing(workload, say)
        layout = _layout(job, workload, say)
        path = folder / f"{stem}.yaml"
        for timed, skipped in _all_batches(job, workload, layout, gpu, say):
            answer = StepTimes(
                workload=workload,
                model=model,
                name=stem,
                environment=_environment(torch, job, layout, gpu),
                timed=timed,
                skipped=skipped,
                preprocessing=preprocessing,
            )
            write_text(path, answer.yaml())
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


def _preprocessing(workload: Workload, say: Callable[[str], None]) -> Preprocessing | None:
    section = workload.steptime
    if section.preprocess is None:
        return None
    workers = workload.workers_of_rank
    say(f"preprocessing: timed in one process, then in {workers} at once")
    return time_preprocessing(section.preprocess, workers, section.seconds / 4)


def _layout(job: StepTask, workload: Workload, say: Callable[[str], None]) -> str:
    given = workload.steptime.layout
    if ":" in job.model:
        return "the user's"
    if given != "auto":
        return given
    layout = faster_layout(job, workload.reader.batch_size)
    say(f"layout {layout}: the faster one of channels_last and contiguous")
    return layout


def _all_batches(
    job: StepTask, workload: Workload, layout: str, gpu: Gpu | None, say: Callable[[str], None]
) -> Iterator[tuple[list[Timed], list[int]]]:
    """Yield what is timed and what is skipped so far, in order, after each batch that was timed."""
    section = workload.steptime
    timed: list[Timed] = []
    skipped: list[int] = []
    sizes = batch_sizes(section.batches, workload.reader.batch_size)
    nominal = (1 + WARM_UP) * section.seconds
    search = "cuDNN looks for its fastest kernels, then " if job.device == "cuda" else ""
    begin = perf_counter()
    for number, batch in enumerate(sizes):
        taken = perf_counter() - begin
        left = f", {format_seconds(taken / number * (len(sizes) - number))} left" if number else ""
        say(
            f"batch {batch}, {number + 1} of {len(sizes)}: {search}steps for "
            f"{format_seconds(nominal)} or more{left}"
        )
        found = measure(job, batch, layout, gpu, section.steps, section.seconds)
        if isinstance(found, str):
            say(f"batch {batch}: {found}, skipped")
            skipped = sorted([*skipped, batch])
            continue
        say(
            f"batch {batch}: {format_seconds(found.mean)} a step, {len(found.seconds):,} steps"
            + (f", {format_bytes(found.memory)} of the GPU" if found.memory else "")
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
    return {
        "device": torch.cuda.get_device_name() if on_gpu else f"CPU, {os.cpu_count()} cores",
        "driver": gpu.driver if gpu else "unknown" if on_gpu else "none",
        "torch": f"{torch.__version__}, Python {platform.python_version()}",
        "cuDNN": str(cudnn) if on_gpu and cudnn else "none",
        "dtype": "the user's" if own else _DTYPES[job.precision] if on_gpu else "float32",
        "layout": layout,
        "compile": str(job.compiled).lower(),
        "graph": str(job.graph).lower(),
        "loop": "each step is waited for" if job.waits else "steps are queued ahead",
        "date": datetime.now().strftime("%Y-%m-%d"),
    }
