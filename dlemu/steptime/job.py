"""`dlemu steptime` from a workload to its files."""

import os
import platform
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from dlemu.errors import RunError, WorkloadError
from dlemu.host.limits import free_memory_bytes
from dlemu.results.folders import hold
from dlemu.results.records import check_writable, write_json, write_text
from dlemu.steptime.answer import StepTimes
from dlemu.steptime.gpu_state import Gpu, find_gpu
from dlemu.steptime.measure import Length, Timed, faster_layout, measure
from dlemu.steptime.preprocessing import Preprocessing, time_preprocessing
from dlemu.steptime.steps import Job, find_torch, model_of
from dlemu.units import format_bytes, format_seconds
from dlemu.workload.model import Workload

_ON_CPU = (
    "on the CPU: this shows that the command works; the times are this CPU's, in float32, and "
    "stand for no GPU"
)


def measure_steps(workload: Workload, say: Callable[[str], None]) -> tuple[StepTimes, Path]:
    """Time the steps of all batch sizes; return the answer and the workload file that it wrote.

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
    job = Job(model=model, device=device, compiled=section.compile, side=section.side)
    with hold(workload.output.folder, "steptime") as folder:
        stem = _stem(workload, torch, device)
        check_writable(folder / f"{stem}.json")
        if device == "cpu":
            say(_ON_CPU)
        elif gpu is None:
            say("clocks, power and temperature are unknown: pip install nvidia-ml-py")
        preprocessing = _preprocessing(workload, say)
        sizes = batch_sizes(section.batches, workload.reader.batch_size)
        too_large = _too_large(job, sizes, say)
        fitting = [batch for batch in sizes if batch not in too_large]
        layout = _layout(job, workload, fitting, say)
        timed, skipped = _all_batches(job, workload, fitting, layout, gpu, say)
        skipped = sorted([*skipped, *too_large])
        if not timed:
            raise RunError(
                f"out of memory at every batch size ({', '.join(map(str, skipped))}); set smaller "
                "ones with steptime.batches, or a smaller input with steptime.side"
            )
        answer = StepTimes(
            workload=workload,
            model=model,
            name=stem,
            environment=_environment(torch, job, layout, gpu),
            timed=timed,
            skipped=skipped,
            preprocessing=preprocessing,
        )
        path = folder / f"{stem}.yaml"
        write_text(path, answer.yaml())
        write_json(folder / f"{stem}.json", answer.evidence())
    return answer, path


def batch_sizes(given: object, batch: int) -> list[int]:
    """Return the batch sizes: those given, else a quarter, half, one and two times the workload's.

    Where there is no half, four times is taken, so that a line can be fitted.
    """
    if isinstance(given, tuple):
        return sorted(set(given))
    sizes = {max(1, batch // 4), max(1, batch // 2), batch, 2 * batch}
    return sorted(sizes | {4 * batch}) if batch < 4 else sorted(sizes)


def _preprocessing(workload: Workload, say: Callable[[str], None]) -> Preprocessing | None:
    section = workload.steptime
    if section.preprocess is None:
        return None
    workers = workload.reader.read_threads * workload.accelerators_per_rank
    found = time_preprocessing(section.preprocess, max(1, workers), section.seconds / 4)
    say(found.lines(0)[0])
    return found


def _too_large(job: Job, sizes: list[int], say: Callable[[str], None]) -> list[int]:
    """Return the batch sizes for which a CPU's host lacks memory: the kernel would kill dlemu."""
    if job.device != "cpu" or ":" in job.model:
        return []
    from dlemu.steptime.networks import bytes_of_step, network

    free = free_memory_bytes()
    found = []
    for batch in sizes:
        needed = bytes_of_step(network(job.model, job.side), batch)
        if needed > free:
            say(
                f"batch {batch}: skipped, a step takes about {format_bytes(needed)} of memory, "
                f"{format_bytes(free)} are free"
            )
            found.append(batch)
    return found


def _layout(job: Job, workload: Workload, sizes: list[int], say: Callable[[str], None]) -> str:
    given = workload.steptime.layout
    if ":" in job.model:
        return "the user's"
    if given != "auto":
        return given
    if not sizes:
        return "channels_last"
    batch = workload.reader.batch_size
    layout = faster_layout(job, batch if batch in sizes else sizes[-1])
    say(f"layout {layout}: the faster one of channels_last and contiguous")
    return layout


def _all_batches(
    job: Job,
    workload: Workload,
    sizes: list[int],
    layout: str,
    gpu: Gpu | None,
    say: Callable[[str], None],
) -> tuple[list[Timed], list[int]]:
    section = workload.steptime
    length = Length(steps=section.steps, seconds=section.seconds)
    timed: list[Timed] = []
    skipped: list[int] = []
    for batch in sizes:
        found = measure(job, batch, layout, length, gpu)
        if found is None:
            say(f"batch {batch}: out of memory, skipped")
            skipped.append(batch)
            continue
        say(
            f"batch {batch}: {format_seconds(found.median)} a step, {len(found.seconds):,} steps"
            + (f", {format_bytes(found.memory)} of the GPU" if found.memory else "")
        )
        timed.append(found)
    return timed, skipped


def _stem(workload: Workload, torch: Any, device: str) -> str:
    """Return the name of the files: "unet3d_h200" for unet3d_h100 on an NVIDIA H200."""
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    words = re.findall(r"[a-z0-9]+", name.lower())
    short = next((w for w in words if re.fullmatch(r"[a-z]{1,3}\d{2,4}[a-z]*", w)), words[-1])
    row = re.sub(r"_[a-z]{1,3}\d{2,4}[a-z]*$", "", workload.name)
    return f"{row}_{short}"


def _environment(torch: Any, job: Job, layout: str, gpu: Gpu | None) -> Mapping[str, str]:
    on_gpu = job.device == "cuda"
    cudnn = torch.backends.cudnn.version()
    return {
        "device": torch.cuda.get_device_name() if on_gpu else f"CPU, {os.cpu_count()} cores",
        "driver": gpu.driver if gpu else "unknown" if on_gpu else "none",
        "torch": f"{torch.__version__}, Python {platform.python_version()}",
        "cuDNN": str(cudnn) if on_gpu and cudnn else "none",
        "dtype": _dtype(job, on_gpu),
        "layout": layout,
        "compile": str(job.compiled).lower(),
        "date": datetime.now().strftime("%Y-%m-%d"),
    }


def _dtype(job: Job, on_gpu: bool) -> str:
    if ":" in job.model:
        return "the user's"
    return "bfloat16 by autocast, float32 weights" if on_gpu else "float32"
