"""The words of `dlemu doctor`: what it finds of a host and a folder, and what to do about it."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from dlemu.units import format_bytes, format_seconds

_ONLY_FOR = {
    None: "",
    "dali": "only for reader.data_loader=dali: ",
    "plots": "only for plots: ",
    "ranks": "only for several ranks: ",
}
_FOR_SLURM = {"pmi2": "srun --mpi=pmi2 with MPICH", "pmix": "srun --mpi=pmix with Open MPI"}


def _dali(f: Any) -> str:
    text = f"{f.version} for CUDA {f.cuda}"
    if f.driver_cuda is None:
        return text
    return f"{text}, but the GPU's driver serves CUDA {f.driver_cuda}; works without the GPU only"


def _gpus(f: Any) -> str:
    models = ", ".join(f"{count} x {model}" for model, count in f.models.items())
    return f"{models}, the driver serves CUDA {f.cuda}"


def _drive_queue(f: Any) -> str:
    scheduler, ahead = f.scheduler or "unknown", f.read_ahead_kib or "unknown"
    return f"scheduler {scheduler}, readahead {ahead} KiB, blocks of {f.block or 'unknown'} B"


def _slurm(f: Any) -> str:
    given = f.default or "unknown, for slurmctld does not answer"
    return f"takes --mpi={' and --mpi='.join(f.kinds) or 'of no MPI'}; without it: {given}"


DOCTOR: Mapping[str, Callable[[Any], str]] = {
    # what was found
    "bucket_listed": lambda f: (
        f"{f.path} can be listed, and holds {'nothing yet' if f.is_empty else 'something'}; "
        f"{', '.join(f.servers)}"
    ),
    "cpus_usable": lambda f: f"{f.usable:g} of {f.cpus} may be used (affinity or cgroup quota)",
    "dali_version": _dali,
    "direct_aligned": lambda f: f"works, aligned to {f.bytes} bytes",
    "direct_not_opened": lambda f: "the file system does not open files with it",
    "drive_queue": _drive_queue,
    "file_system": lambda f: f"{f.type} of {f.source} at {f.mount}",
    "gds_by_host": lambda f: (
        "compatibility mode: through host memory, not GPUDirect Storage"
        if f.is_enough
        else "only compatibility mode, through host memory"
    ),
    "gds_expected": lambda f: f"{f.mode} expected; a run proves it by cuFile's counters",
    "gpu_driver": lambda f: (
        f"{f.version or 'its version unknown'}, {'' if f.is_open else 'not the '}open kernel module"
    ),
    "gpus": _gpus,
    "memory_by": lambda f: f"{format_bytes(f.bytes)}, {f.source}",
    "mpi_versions": lambda f: f"mpi4py {f.mpi4py}, Open MPI {f.open_mpi}",
    "no_answer": lambda f: "does not answer",
    "no_drive_under": lambda f: f"none found under {f.folder} ({f.file_system})",
    "no_folder": lambda f: f"{f.folder} is not a folder",
    "no_mpirun": lambda f: "mpi4py, but no mpirun",
    "not_installed": lambda f: "not installed",
    "not_in_kernel": lambda f: "not built into this kernel",
    "not_loaded": lambda f: "not loaded",
    "not_needed": lambda f: "none; not needed",
    "not_tried": lambda f: f"not tried: {f.error}",
    "not_written": lambda f: f"none was written: {f.error}",
    "object_differs": lambda f: "what was written is not what is read",
    "object_read": lambda f: (
        f"{format_bytes(f.bytes)} written; read back in {format_seconds(f.seconds)}"
    ),
    "page_cache_dropped": lambda f: (
        "all of it can be dropped" if f.whole else "only the dataset's own pages can be dropped"
    ),
    "ranks_meet": lambda f: (
        f"{f.processes} processes meet within {format_seconds(f.median)}, "
        f"p99 {format_seconds(f.p99)}"
    ),
    "sleeps_end_late": lambda f: (
        f"sleeps of {format_seconds(f.seconds)} end {format_seconds(f.mean)} late, "
        f"p99 {format_seconds(f.p99)}"
    ),
    "slurm_takes": _slurm,
    "version_unknown": lambda f: "installed, its version unknown",
    # what to do
    "ask_scontrol": lambda f: "scontrol ping tells whether it is up",
    "create_folder": lambda f: "create or mount it",
    "direct_costs_cpu": lambda f: (
        f"O_DIRECT costs more CPU{f'; echo madvise > {f.setting}' if f.setting else ''}"
    ),
    "direct_falls_back": lambda f: (
        "reader.odirect=true falls back to the page cache and says so; use ext4 or XFS"
    ),
    "drive_unknown": lambda f: (
        "what a drive does cannot be told here"
        f"{'; tmpfs measures memory, use a folder on a drive' * f.in_memory}"
    ),
    "free_cpus": lambda f: "a busy host: short steps will seem longer; free CPUs",
    "generating_writes": lambda f: "generating needs a folder that can be written",
    "install": lambda f: f"{_ONLY_FOR[f.only_for]}pip install {shlex.quote(f.package)}",
    "load_nvidia_fs": lambda f: (
        "load nvidia-fs; or for P2PDMA: kernel 6.2, NVMe, open driver 565, cuFile 1.13"
    ),
    "load_without_p2pdma": lambda f: "not needed with P2PDMA; else modprobe it",
    "many_ranks_need_hash": lambda f: (
        "above 128 ranks, Open MPI 5 may need PMIX_MCA_gds=hash mpirun ..."
    ),
    "may_starve": lambda f: (
        "loaders may starve: mpirun --bind-to none, or raise the container's CPU limit"
    ),
    "own_pages_are_enough": lambda f: "enough for dlemu's runs; to drop everything, run as root",
    "p2pdma_needs_open": lambda f: "P2PDMA needs the open kernel module, 565 or newer",
    "ranks_are_alone": lambda f: (
        "each rank is alone then; write "
        f"{', or '.join([*(_FOR_SLURM[kind] for kind in f.kinds), 'mpirun inside salloc'])}"
    ),
    "ranks_may_not_start": lambda f: "several ranks of a host may not start here",
    "reading_needs_no_right": lambda f: (
        "reading needs no right to write; datagen and checkpoints do"
    ),
    "see_nvidia_smi": lambda f: "see nvidia-smi",
}
