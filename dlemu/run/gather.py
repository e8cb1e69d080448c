"""Brings to rank 0 what the ranks of a run have measured: sums of their records, and files."""

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

from dlemu.config.model import Workload
from dlemu.judge.records import Steps, host_file, named, steps_file
from dlemu.judge.sums import Ends, RankName, Rule, Sums, both_ends, ends_of, sum_up
from dlemu.ranks.world import World
from dlemu.storage.files import write_atomically

_PORTION_BYTES = 1 << 28
"""Of records that rank 0 takes from other hosts at a time."""


def gather_sums(workload: Workload, world: World, parts: Sequence[Steps]) -> Sums | None:
    """Return the sums over the steps of all ranks on rank 0, None on the others.

    `parts` are this rank's records. The records of others stay where they are.
    """
    ends: Ends = {}
    if workload.workflow.checkpoint:
        own = reduce(both_ends, map(ends_of, parts), ends)
        ends = world.broadcast(world.reduce(own, both_ends) or own)
    name, rule = RankName(world.rank, world.host), Rule.of(workload)
    sums = (sum_up(part, rule, ends, name) for part in parts)
    return world.reduce(reduce(Sums.joined, sums, Sums(rule, ())), Sums.joined)


def collect_files(world: World, folder: Path) -> None:
    """Write into rank 0's folder the records of hosts that do not share it."""
    if world.num_hosts == 1:
        return
    seen = world.on_first(lambda: {path.name for path in folder.iterdir()})
    own = [steps_file(folder, world.rank)]
    if world.local_rank == 0:
        own.append(host_file(folder, world.rank))
    own = [path for path in own if path.name not in seen]
    sizes = world.all_gather(sum(path.stat().st_size for path in own))
    for ranks in portions(sizes, _PORTION_BYTES):
        sent = {path.name: path.read_bytes() for path in own if world.rank in ranks}
        for files in world.gather(sent) or ():
            for name, content in files.items():
                with named(folder / name):
                    write_atomically(folder / name, content, sync=False)


def portions(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Yield the ranks in portions of at most so many bytes, or of one rank.

    `sizes` has the bytes of each rank. Ranks without any may be in none.
    """
    first, taken = 0, 0
    for rank, size in enumerate([*sizes, 0]):
        last = rank == len(sizes)
        if taken and (last or taken + size > most):
            yield range(first, rank)
            first, taken = rank, 0
        taken += size
