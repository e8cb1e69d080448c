"""The ranks of a job as everything else sees them: World, and Alone, a world of one."""

import socket
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TypeVar, cast

from dlemu.errors import DlemuError, RunError

T = TypeVar("T")


class PeerError(RunError):
    """Another rank could not go on and has said why; this one ends because of it."""


class World(Protocol):
    """The ranks of a job. Left by an exception, a `with` over it tells the other ranks."""

    rank: int
    num_ranks: int
    host: str
    """Name of this rank's host."""
    host_index: int
    num_hosts: int
    local_rank: int
    """Number of this rank among those of its host."""
    num_local_ranks: int
    notes: tuple[str, ...] = ()
    """What a run's summary must tell of how the ranks meet."""

    def barrier(self, timeout: float | None = None) -> None:
        """Wait, asleep, until all ranks are here.

        Raises:
            PeerError: another rank failed or ended, and shows the reason itself.
            RunError: a rank ended without a word, or ranks, which are named, are not here after
                `timeout` seconds.
        """
        ...

    def gather(self, value: T) -> list[T] | None:
        """Return the values of all ranks, by rank, on rank 0, and None on the others."""
        ...

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        ...

    def broadcast(self, value: T) -> T:
        """Return rank 0's value."""
        ...

    def on_first(self, make: Callable[[], T]) -> T:
        """Call `make` on rank 0 alone; return its value on all ranks.

        If `make` raises there, the other ranks learn of it when rank 0 leaves the world.
        """
        return cast(T, self.broadcast(make() if self.rank == 0 else None))

    def fail(self, error: str) -> None:
        """Make every other rank raise PeerError from the barrier where it is, or its next."""
        ...

    def close(self) -> None:
        """Wait for all ranks; the last meeting of those that did not fail."""
        ...

    def end(self, status: int) -> int:
        """Leave the world, closed or failed, for good; return the process's exit status.

        Rank 0 is the last to leave and alone returns other than 0: its own status, or else that
        of a rank that has one. So launchers find nothing to complain of under our last line.
        """
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            interrupted = isinstance(error, KeyboardInterrupt)
            known = "interrupted" if interrupted else str(error)
            self.fail(known if interrupted or isinstance(error, DlemuError) else repr(error))


class Alone(World):
    """A world of one, without MPI."""

    def __init__(self) -> None:
        self.rank, self.num_ranks = 0, 1
        self.host, self.host_index, self.num_hosts = socket.gethostname(), 0, 1
        self.local_rank, self.num_local_ranks = 0, 1

    def barrier(self, timeout: float | None = None) -> None:
        pass

    def gather(self, value: T) -> list[T] | None:
        return [value]

    def all_gather(self, value: T) -> list[T]:
        return [value]

    def broadcast(self, value: T) -> T:
        return value

    def fail(self, error: str) -> None:
        pass

    def close(self) -> None:
        pass

    def end(self, status: int) -> int:
        return status
