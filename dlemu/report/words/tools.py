"""The words of `dlemu load`, `paths` and `steptime`: what they do, leave out and measure."""

from collections.abc import Callable, Mapping
from typing import Any

from dlemu.units import counted, format_bytes, format_left, format_rate, format_seconds

_DTYPES = {
    "bf16": "bfloat16 by autocast, float32 weights",
    "fp16": "float16 by autocast with loss scaling, float32 weights",
    "tf32": "float32, products in TF32",
    "fp32": "float32",
}
_LOOPS = {"waits": "each step is waited for", "queues": "steps are queued ahead"}
_OWN = {"user": "the user's"}


def environment_lines(environment: Mapping[str, str]) -> list[str]:
    """Return where and how steps were timed, a line each; earlier versions stored the words."""
    words = {"dtype": _DTYPES | _OWN, "layout": _OWN, "loop": _LOOPS}
    shown = {name: words.get(name, {}).get(each, each) for name, each in environment.items()}
    if python := shown.pop("python", ""):
        shown["torch"] += f", Python {python}"
    return [f"{name}: {each}" for name, each in shown.items()]


def steps_comment(
    model: str, num_steps: int, batch: int, environment: Mapping[str, str]
) -> list[str]:
    """Return the comment of a workload file with measured step times."""
    return [
        f"{model}: the time of a training step (forward, loss, backward, optimizer) with "
        "its data on the",
        f"device, measured by dlemu steptime over {num_steps:,} steps of batch {batch}.",
        *environment_lines(environment),
    ]


def _attached(f: Any) -> str:
    facts = [f.connection] if f.connection else []
    if f.numa_node is not None:
        facts.append(f"readers on NUMA node {f.numa_node}")
    if f.gpu is not None:
        facts.append(f"GPU {f.gpu}, {'the nearest to it, ' * f.is_nearest}{f.address}")
    return f"{f.target}: {', '.join(facts)}"


def _cell(f: Any) -> str:
    deep = "" if f.queue_depth == 1 else f", depth {f.queue_depth}"
    return (
        f"{f.target} {f.path} {f.pattern} {format_bytes(f.io_size)} x {f.workers}{deep}: "
        f"{format_rate(f.bytes_per_second)}, p99 {format_seconds(f.latency_p99)}, "
        f"{f.cpu_seconds_per_gb:.3f} CPU-s/GB{format_left(f.left_seconds, before='; ')}"
    )


def _planned(f: Any) -> str:
    takes = (
        f"; {f.left} x {format_seconds(f.seconds)} = {format_seconds(f.left * f.seconds)}"
        if f.left
        else ""
    )
    return f"{counted(f.cells, 'cell')}, {f.known} of them measured before{takes}"


def _batch_begins(f: Any) -> str:
    search = "cuDNN looks for its fastest kernels, then " * f.searches
    left = "" if f.left_seconds is None else f", {format_seconds(f.left_seconds)} left"
    return (
        f"batch {f.batch}, {f.number} of {f.batches}: {search}steps for "
        f"{format_seconds(f.seconds)} or more{left}"
    )


def _batch_timed(f: Any) -> str:
    memory = f", {format_bytes(f.memory_bytes)} of the GPU" if f.memory_bytes else ""
    return f"batch {f.batch}: {format_seconds(f.mean_seconds)} a step, {f.steps:,} steps{memory}"


def _blocks_too_small(f: Any) -> str:
    of = " (the logical block of the device)" * f.by_the_device
    return (
        f"left out on {f.target}: {f.path} with blocks of {f.size} B: {f.least} B is the least "
        f"there{of}"
    )


TOOLS: Mapping[str, Callable[[Any], str]] = {
    # dlemu load
    "drive_by_datasheet": lambda f: f"{f.drives} x {f.drive} by its datasheet",
    "drive_by_probe": lambda f: f"probed: {f.readers} readers of random pieces of 1 MiB",
    "drive_by_reading": lambda f: (
        f"what these files gave; {f.readers} readers of random pieces of them got "
        f"{format_rate(f.bytes_per_second)}"
    ),
    "files_there_already": lambda f: f"{f.folder} has the files already; they stay",
    "names_of_one_file": lambda f: f"{f.names} names of {counted(f.files, 'file')}: read once",
    "way_left_out": lambda f: f"left out: {f.way}: {f.error}",
    "way_read": lambda f: (
        f"{f.way} x {f.readers}: {format_seconds(f.seconds)}, {format_rate(f.bytes_per_second)}"
    ),
    "writing_model": lambda f: (
        f"writing {counted(f.files, 'file')}, {format_bytes(f.bytes)}, into {f.folder}"
    ),
    # dlemu paths
    "blocks_too_small": _blocks_too_small,
    "cell_measured": _cell,
    "cells_planned": _planned,
    "path_left_out": lambda f: f"left out on {f.target}: {f.path}: {f.error}",
    "rank_bound": lambda f: (
        f"{f.target}: its rank may use {f.usable} of {f.cpus} CPUs; "
        "mpirun --bind-to none gives it all"
    ),
    "target_attached": _attached,
    "writing_files": lambda f: (
        f"writing {counted(f.files, 'file')} of {format_bytes(f.bytes)} into {f.target}"
    ),
    # dlemu steptime
    "batch_begins": _batch_begins,
    "batch_timed": _batch_timed,
    "faster_layout": lambda f: f"layout {f.layout}: the faster one of channels_last and contiguous",
    "gpu_not_watched": lambda f: (
        "clocks, power and temperature are unknown: pip install 'dlemu[gds]'"
    ),
    "out_of_memory": lambda f: "out of memory",
    "preprocessing_begins": lambda f: (
        f"preprocessing: timed in one process, then in {f.workers} at once"
    ),
    "steps_on_cpu": lambda f: (
        "on the CPU: this shows that the command works; the times are this CPU's, in float32, and "
        "stand for no GPU"
    ),
}
