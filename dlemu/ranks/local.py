"""Ranks that dlemu starts itself: processes of this host that share a job, without MPI.

One new process imports what a rank runs, once, and forks the ranks from there: it has no threads
yet, and they share its memory. Rank 0 is the process that asks for them.
"""

import ctypes
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar, cast
from weakref import WeakSet

from dlemu.errors import DlemuError, LostRankError, RunError
from dlemu.plugins import named_by
from dlemu.ranks.links import Links
from dlemu.ranks.mpi import Mpi
from dlemu.ranks.world import PeerError

T = TypeVar("T")

_END_SECONDS = 3.0
"""Time for the other ranks to end after rank 0 has ended the job; then they are killed."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_joined: "WeakSet[Processes]" = WeakSet()


class Processes(Mpi):
    """A rank that dlemu has started, or rank 0, which has started the others."""

    def __init__(self, comm: Any) -> None:
        self._pipes: _Comm = comm
        self._join(comm, socket.gethostname(), Links(comm))
        _joined.add(self)

    def end(self, status: int) -> int:
        """Leave at once: the others end with rank 0, which waits for them."""
        return status

    def leave(self) -> None:
        """Close all connections: at the end, or in a forked child, which would hide our death."""
        self._drop_links()
        self._pipes.close()


def _leave_all() -> None:
    for world in list(_joined):
        world.leave()


os.register_at_fork(after_in_child=_leave_all)


class _Comm:
    """What `Mpi` and `Links` call of a communicator, over a pipe between rank 0 and each other."""

    def __init__(self, rank: int, size: int, pipes: Sequence["Connection[Any, Any]"]) -> None:
        self.rank, self.size, self._pipes = rank, size, pipes

    def gather(self, value: T) -> list[T] | None:
        if self.rank:
            self._pipes[0].send(value)
            return None
        return [value, *(self._receive(rank) for rank in range(1, self.size))]

    def bcast(self, value: T) -> T:
        if self.rank:
            return cast(T, self._receive(0))
        data = pickle.dumps(value)
        for pipe in self._pipes:
            with suppress(OSError):  # a rank that has ended is noticed where it is waited for
                pipe.send_bytes(data)
        return value

    def allgather(self, value: T) -> list[T]:
        found = self.gather(value)
        return self.bcast([] if found is None else found)

    def reduce(self, value: T, op: Callable[[T, T], T]) -> T | None:
        found = self.gather(value)
        return None if found is None else reduce(op, found)

    def Barrier(self) -> None:
        self.allgather(None)

    def Split(self, color: int) -> "_Comm":
        """Return itself: on one host no group of leaders has anything to say."""
        return self

    def Free(self) -> None:
        pass

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()

    def _receive(self, rank: int) -> Any:
        try:
            return self._pipes[0 if self.rank else rank - 1].recv()
        except (EOFError, OSError):
            name = f"rank {rank} on host {socket.gethostname()}"
            raise LostRankError(f"{name} ended without a word (killed? out of memory?)") from None


@contextmanager
def processes(num: int, run: str, *arguments: object) -> Iterator[Processes]:
    """Start `num` - 1 other ranks, and yield the world of rank 0, which is this process.

    The others call `run`, a MODULE:NAME, with their world and the arguments, which are pickled.
    They print nothing: what stops one of them is raised here. At the end they are gone, and so they
    are if this process is killed.

    Raises:
        RunError: another rank has failed; the message names it. LostRankError: its process has
            ended without an error.
    """
    pipes = [Pipe() for _ in range(num - 1)]
    files = [theirs.fileno() for _, theirs in pipes]
    start = f"import sys; sys.path[:] = {sys.path!r}; from dlemu.ranks.local import serve; serve()"
    crew = subprocess.Popen(
        [sys.executable, "-c", start, run, *map(str, files)],
        stdin=subprocess.DEVNULL,
        pass_fds=files,
    )
    for _, theirs in pipes:
        theirs.close()
    comm = _Comm(0, num, [ours for ours, _ in pipes])
    world: Processes | None = None
    try:
        comm.bcast((num, arguments))
        with (world := Processes(comm)):
            yield world
    except PeerError as error:
        raise RunError(str(error)) from error  # nobody else shows it
    finally:
        comm.close() if world is None else world.leave()
        try:
            crew.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            crew.kill()  # and the kernel kills the ranks
            crew.wait()


def serve() -> None:
    """Be the process that forks the ranks: `sys.argv` has what they run, and the pipe of each."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # rank 0 ends with them, and so do the ranks
    _end_with_parent()
    run, *files = named_by(sys.argv[1]), *map(int, sys.argv[2:])
    gc.freeze()  # the ranks share what is there; a collection would copy its pages
    for rank, file in enumerate(files, 1):
        if os.fork() == 0:
            _end_with_parent()
            for other in files:
                if other != file:
                    os.close(other)
            os._exit(_be_rank(rank, Connection(file), run))
    for file in files:
        os.close(file)
    for _ in files:
        os.wait()


def _be_rank(rank: int, pipe: "Connection[Any, Any]", run: Callable[..., object]) -> int:
    """Run as one of the ranks; return the exit status."""
    # A Ctrl-C reaches all processes of a terminal, and ends rank 0, which ends the others.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        num, arguments = pipe.recv()
        with Processes(_Comm(rank, num, [pipe])) as world:
            run(world, *arguments)
        return 0
    except (DlemuError, OSError, EOFError):
        pass  # the world has told rank 0, which shows it
    except Exception:
        traceback.print_exc()
    return 1


def _end_with_parent() -> None:
    """Let the kernel kill this process when the one that has started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
