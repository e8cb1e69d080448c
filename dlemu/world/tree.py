"""The tree in which the ranks of a job are connected: each talks to its parent and its children.

    rank 0 ─┬─ rank 1, rank 2, rank 3             host a
            ├─ rank 4 ─── rank 5, rank 6, rank 7  host b
            └─ rank 8 ─── rank 9                  host c

The first rank of a host is its leader: the parent of the host's other ranks. Rank 0 is the parent
of the other leaders.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tree:
    """One rank's place in the tree."""

    leaders: list[int]
    """The first rank of each host, in the order of host_index; the first is rank 0."""
    local: list[int]
    """The ranks of this rank's host; the first is its leader."""
    parent: int | None
    """None for rank 0."""
    children: list[int]

    @classmethod
    def of(cls, rank: int, hosts: Sequence[str]) -> "Tree":
        """Return the place of a rank, given the name of each rank's host."""
        leaders = [hosts.index(host) for host in dict.fromkeys(hosts)]
        local = [other for other, host in enumerate(hosts) if host == hosts[rank]]
        if rank == 0:
            # Other hosts first: their leaders have ranks of their own to release.
            return cls(leaders, local, None, leaders[1:] + local[1:])
        if rank in leaders:
            return cls(leaders, local, 0, local[1:])
        return cls(leaders, local, local[0], [])
