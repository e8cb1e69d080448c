"""The ranks of a job as the rest of dlemu sees them."""

import socket
from collections.abc import Callable
from typing import Self, TypeVar, cast

from dlemu.errors import DlemuError, LostRankError, RunError

T = TypeVar("T")
_INTERRUPTED = "interrupted"
"""The message that tells the other ranks of an interrupt."""


class PeerError(RunError):
    """Another rank has failed; the message is its error. That rank shows it to the user itself."""

    @property
    def is_interrupt(self) -> bool:
        """Whether the other rank was interrupted, as it may be before the signal comes here."""
        return str(self).endswith(f": {_INTERRUPTED}")


class World:
    """The ranks of a job, as one of them sees it; here is one rank that has no others.

    Use it in a `with` statement: if that is left by an exception, the other ranks get its message.
    """

    rank = 0
    num_ranks = 1
    host: str
    """Name of this rank's host."""
    host_index = 0
    """Number of this host, from 0 on."""
    num_hosts = 1
    local_rank = 0
    """Number of this rank among those of its host."""
    num_local_ranks = 1
    opened = 0.0
    """When the last barrier opened, on time.perf_counter(): on one host the moment when the last
    rank came. 0 of one rank."""
    notes: tuple[str, ...] = ()
    """Notes for the run's summary about how the ranks are connected."""

    def barrier(self, timeout: float | None = None) -> None:
        """Sleep until all ranks have called barrier; None waits for ever.

        Raises:
            PeerError: another rank has failed.
            RunError: a rank's process has ended without an error, or some ranks have not arrived
                after `timeout` seconds; the message names them.
        """

    def gather(self, value: T) -> list[T] | None:
        """Return the values of all ranks, in order of rank, on rank 0; None on the others."""
        return [value]

    def reduce(self, value: T, combine: Callable[[T, T], T]) -> T | None:
        """Return the values of all ranks, combined two by two, on rank 0; None on the others.

        `combine(a, b)` must be associative; b's ranks follow those of a. No rank holds more than
        two values, so this is for what would be too much in a list of all.
        """
        return value

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in order of rank."""
        return [value]

    def broadcast(self, value: T) -> T:
        """Return rank 0's value."""
        return value

    def on_first(self, make: Callable[[], T]) -> T:
        """Call `make` on rank 0 alone; return its value on all ranks.

        If `make` raises there, the other ranks learn of it when rank 0 leaves the world.
        """
        return cast(T, self.broadcast(make() if self.rank == 0 else None))

    def fail(self, error: str) -> None:
        """Make every other rank raise PeerError from its current barrier, or its next one."""

    def cause(self, error: BaseException) -> BaseException:
        """Return why a rank ends: the failure of another one that let a launcher interrupt it.

        For any other interrupt, and any other error, that is `error` itself. Where a rank was
        killed, launchers interrupt the others before they look.
        """
        if isinstance(error, KeyboardInterrupt):
            try:
                self.barrier(timeout=0)
            except (PeerError, LostRankError) as failure:
                if not (isinstance(failure, PeerError) and failure.is_interrupt):
                    return failure  # while a Ctrl-C goes to all
            except RunError:
                pass
        return error

    def close(self) -> None:
        """Wait for all ranks a last time, after a job without failures."""

    def end(self, status: int) -> int:
        """Leave the job, closed or failed; return the exit status for this process.

        Rank 0 leaves last. It returns its own status, or if that is 0, another rank's; all other
        ranks return 0. So a launcher prints no error of its own below our last line.
        """
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        cause = self.cause(error)
        if isinstance(cause, KeyboardInterrupt):
            self.fail(_INTERRUPTED)
        else:
            self.fail(str(cause) if isinstance(cause, DlemuError) else repr(cause))
        if cause is not error:
            raise cause from None


class Alone(World):
    """A world of one rank, without MPI."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
