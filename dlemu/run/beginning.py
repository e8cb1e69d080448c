"""What is known of a run before its first step: its summary so far, and what it will ask for."""

import platform
from collections.abc import Sequence
from importlib import metadata

from dlemu.dataset.layout import Layout
from dlemu.dataset.rule import num_accelerators
from dlemu.results.summary import Summary
from dlemu.units import format_rate
from dlemu.workload.model import Workload
from dlemu.world.world import World


def first_summary(workload: Workload, world: World, started: str, notes: Sequence[str]) -> Summary:
    """Return the summary as it is when the run starts, `started` o'clock."""
    if workload.reader.data_loader == "tensorflow":
        tensorflow = "reader.data_loader tensorflow: read by dlemu's threads in tf.data's order"
        notes = [*notes, tensorflow]
    return Summary(
        status="incomplete",
        workload=workload.name,
        data_loader=workload.reader.data_loader,
        decode=workload.reader.decode,
        loop=workload.train.loop,
        hand_over="batch" if workload.hands_over else "none",
        num_accelerators=num_accelerators(workload, world),
        num_ranks=world.num_ranks,
        num_hosts=world.num_hosts,
        hostname=world.host,
        start=started,
        metric={},
        measured={},
        limit=None,
        ignored=list(workload.ignored),
        notes=list(notes),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Return the versions of dlemu, Python, the kernel and the libraries that read."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in ("dlemu", "numpy", "h5py", "torch", "mpi4py", "obstore", "nvidia-dali-cuda130"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def dlio_fields(layout: Layout, hosts: Sequence[tuple[int, int]]) -> Summary:
    """Return the fields that DLIO's users look for; `hosts` has the bytes and CPUs of each."""
    num_bytes = layout.num_samples * layout.mean_bytes / len(hosts)
    return Summary(
        num_files_train=layout.num_files,
        num_files_eval=0,
        num_samples_per_file=layout.samples_per_file,
        data_size_per_host_GB=num_bytes / 2**30,
        host_memory_GB=[memory / 2**30 for memory, _ in hosts],
        host_cpu_count=[cpus for _, cpus in hosts],
        potential_caching=[int(memory > num_bytes) for memory, _ in hosts],
        epochs=0,
    )


def demand_line(workload: Workload, num_accelerators: int) -> str:
    """Return what the accelerators ask of the storage at full utilisation."""
    one = workload.demand
    if one == float("inf"):
        return "demand: no computation time, so as much as the storage gives"
    return (
        f"demand: {format_rate(one)} an accelerator, {format_rate(one * num_accelerators)} in all "
        f"at 100% utilisation"
    )
