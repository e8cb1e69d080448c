"""What only the hosts of a job can tell: its accelerators, their memory, "auto" settled."""

from dataclasses import dataclass

from dlemu.dataset.layout import DatasetSize, dataset_size
from dlemu.host.limits import host_memory_bytes
from dlemu.units import ceil_div, format_bytes
from dlemu.workload.model import Workload
from dlemu.world.world import World


@dataclass(frozen=True)
class Memory:
    """Memory that could cache the dataset, over all hosts."""

    num_bytes: int
    text: str
    """Where it comes from, to be shown."""


def num_accelerators(workload: Workload, world: World) -> int:
    """Return the emulated accelerators of a job over all its ranks."""
    return workload.num_accelerators or world.num_ranks * workload.accelerators_per_rank


def accelerators_of(rank: int, num_ranks: int, total: int) -> range:
    """Return the accelerators that a rank emulates: as many as the others, or one more.

    Rank 0, which speaks for all, has some where any rank has.
    """
    return range(ceil_div(rank * total, num_ranks), ceil_div((rank + 1) * total, num_ranks))


def measure_memory(workload: Workload, world: World) -> Memory:
    """Return the hosts' memory: what was given, or what each host has."""
    if workload.host_memory is not None:
        num_hosts = max(world.num_hosts, workload.num_hosts)
        return Memory(
            workload.host_memory * num_hosts,
            f"{num_hosts} x {format_bytes(workload.host_memory)} (host_memory, as given)",
        )
    own, source = host_memory_bytes()
    by_host = dict(world.all_gather((world.host_index, own)))
    total = sum(by_host.values())
    if world.num_hosts == 1 and workload.num_hosts > 1:
        total *= workload.num_hosts
        return Memory(total, f"{workload.num_hosts} x {format_bytes(own)} ({source})")
    if world.num_hosts > 1:
        return Memory(total, f"{format_bytes(total)} (of {world.num_hosts} hosts)")
    return Memory(total, f"{format_bytes(total)} ({source})")


def settle_size(
    workload: Workload, world: World, *, accelerators: int
) -> tuple[Workload, DatasetSize, Memory]:
    """Return the workload with "auto" replaced by the rule's number of files."""
    memory = measure_memory(workload, world)
    size = dataset_size(workload, num_accelerators=accelerators, host_memory=memory.num_bytes)
    if workload.dataset.num_files_train == "auto":
        workload = workload.with_keys({"dataset.num_files_train": size.num_files})
    return workload, size, memory
