"""The ranks that mpirun or srun started, and make_world, which finds out whether there are any."""

import atexit
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

from dlemu.errors import LostRankError, RunError
from dlemu.world.links import (
    ARRIVED,
    ASK,
    END,
    ENDING,
    FAILED,
    GONE,
    HERE,
    RELEASED,
    Links,
    text_of,
    with_text,
)
from dlemu.world.world import Alone, PeerError, World

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

_ANSWER_SECONDS = 1.0
# Before an abort: time for a rank's last line to reach the terminal.
_LINE_SECONDS = 0.5
# Rank 0 waits so long for the others, and then aborts the job. The others wait half as long again,
# since rank 0 may still write results.
_END_SECONDS = 3.0
# When all have agreed to end, rank 0 waits at most so long for the others to exit.
_LAST_SECONDS = 10.0
# A rank that hangs in MPI_Finalize is killed by SIGALRM after so long.
_EXIT_SECONDS = 30


class Mpi(World):
    """The ranks that mpirun or srun started.

    MPI's own barrier polls, and so takes from the readers the cores that are measured. Here the
    ranks are a tree: those of a host are children of its first rank, the first ranks of the hosts
    are children of rank 0, over sockets on which they sleep. "Arrived" goes up, "released" comes
    down. Sockets also tell at once when a process dies. A host that cannot be reached over TCP has
    none: its first rank and rank 0 test for MPI messages, with short sleeps between, and only the
    launcher, or a barrier's timeout, knows of its death.

    One thread at a time may call it.
    """

    def __init__(self, host: str | None = None) -> None:
        """Join the others; `host` replaces the host's name, to try several hosts on one."""
        self._comm = _mpi_world().Dup()
        self.rank, self.num_ranks = self._comm.rank, self._comm.size
        self.host = host or socket.gethostname()
        self._hosts: list[str] = self._comm.allgather(self.host)
        hosts = list(dict.fromkeys(self._hosts))
        self.host_index, self.num_hosts = hosts.index(self.host), len(hosts)
        local = [rank for rank in range(self.num_ranks) if self._hosts[rank] == self.host]
        self.local_rank, self.num_local_ranks = local.index(self.rank), len(local)

        leaders = [self._hosts.index(host) for host in hosts]
        self._parent = None if self.rank == 0 else 0 if self.rank in leaders else local[0]
        # Other hosts first: they have ranks of their own to release.
        self._children = leaders[1:] if self.rank == 0 else []
        self._children += local[1:] if self.rank in leaders else []
        self._failure: str | None = None
        self._links = Links(self._comm)
        self._unread: list[tuple[int, bytes]] = []
        self._gone: set[int] = set()
        # MPI_Finalize, at exit, waits for all ranks; after a failure some may be stuck.
        atexit.register(self._end_unclosed)
        os.register_at_fork(after_in_child=self._forget)
        try:
            self._links.connect(local, leaders)
        except OSError as error:
            raise RunError(
                f"the ranks on host {self.host} cannot reach each other ({error}); if these are "
                "several machines or containers, give each a host name of its own"
            ) from error
        if self.rank == 0 and self._links.polled:
            self.notes = (
                f"{self._name(self._links.polled)} cannot be reached over TCP: there and on rank "
                "0 the barrier tests for messages of MPI, and may end a few ms late",
            )

    def barrier(self, timeout: float | None = None) -> None:
        begin = time.perf_counter()
        deadline = math.inf if timeout is None else begin + timeout
        self._wait_for(self._children, begin, deadline)
        if self._parent is not None:
            self._links.send(self._parent, ARRIVED)
            self._wait_for([self._parent], begin, deadline)
        for rank in self._children:
            self._links.send(rank, RELEASED)

    def gather(self, value: T) -> list[T] | None:
        self.barrier()  # MPI polls only while it copies
        return self._comm.gather(value)

    def all_gather(self, value: T) -> list[T]:
        self.barrier()
        return self._comm.allgather(value)

    def broadcast(self, value: T) -> T:
        self.barrier()
        received: T = self._comm.bcast(value)
        return received

    def fail(self, error: str) -> None:
        self._tell(f"{self._name([self.rank])}: {error}")

    def close(self) -> None:
        self.barrier()
        atexit.unregister(self._end_unclosed)

    def end(self, status: int) -> int:
        atexit.unregister(self._end_unclosed)
        with suppress(OSError):  # what reads our output may have ended
            sys.stdout.flush()
            sys.stderr.flush()
        worst = self._agree_to_end(status)
        if worst is None:
            # MPI_Finalize would wait for the rank that is dead or stuck. What launchers print of an
            # abort overtakes what ranks have said.
            time.sleep(_LINE_SECONDS)
            self._comm.Abort(status or 1)
        elif worst == 0:
            self._forget()
        else:
            signal.alarm(_EXIT_SECONDS)
            _finalize()
            self._links.outlast(self._children, _LAST_SECONDS)
            self._links.leave_open()
        return (worst or 0) if self.rank == 0 else 0

    def _agree_to_end(self, status: int) -> int | None:
        """Return the exit status of all, once all are ready to end; None if a rank is not."""
        patience = _END_SECONDS if self.rank == 0 else 1.5 * _END_SECONDS
        deadline = time.perf_counter() + patience
        statuses = self._numbers(self._children, ENDING, deadline)
        if statuses is not None:
            statuses = [next((each for each in (status, *statuses) if each), 0)]
        if self._parent is not None:
            if statuses is not None:
                told = with_text(ENDING, str(statuses[0]))
                self._links.send(self._parent, told)
            statuses = self._numbers([self._parent], END, deadline)
            if statuses is None:
                # Others may still have something to show or to keep.
                time.sleep(max(deadline - time.perf_counter(), 0.0))
        if statuses is None:
            return None
        for rank in self._children:
            self._links.send(rank, with_text(END, str(statuses[0])))
        return statuses[0]

    def _numbers(self, ranks: Iterable[int], word: bytes, deadline: float) -> list[int] | None:
        """Return the numbers that these neighbours say with a word; None if one does not."""
        begin = time.perf_counter()
        pending = set(ranks)
        numbers = []
        while pending - self._gone:
            if time.perf_counter() > deadline:
                return None
            for rank, message in self._receive(pending, begin, deadline):
                text = text_of(message)
                if message[:1] == word and text.isdecimal() and len(text) <= 3:
                    pending.discard(rank)
                    numbers.append(int(text))
                elif message[:1] == FAILED:  # after our last meeting
                    self._tell(text, but=rank)
        return None if pending else numbers

    def _wait_for(self, ranks: Iterable[int], begin: float, deadline: float) -> None:
        """Return when all these neighbours have arrived, or the one above has released us."""
        if self._failure is not None:
            raise PeerError(self._failure)
        pending = set(ranks)
        silent: set[int] | None = None
        since = time.perf_counter()
        while pending:
            for rank, message in self._receive(pending, since, deadline):
                if message in (ARRIVED, RELEASED):
                    pending.discard(rank)
                elif message == HERE:
                    if silent is not None:
                        silent.discard(rank)
                elif message == ASK:
                    if rank not in pending:  # else our answer is on its way
                        self._links.send(rank, HERE)
                        if silent is None:
                            deadline = min(deadline, time.perf_counter())
                else:
                    self._cannot_go_on(rank, message)
            if time.perf_counter() < deadline:
                continue
            # The one we wait for may itself wait for others, and then knows better.
            if silent is None:
                silent = set(pending)
                for rank in silent:
                    self._links.send(rank, ASK)
                deadline = time.perf_counter() + _ANSWER_SECONDS
            elif silent & pending:
                waited = time.perf_counter() - begin
                error = f"waited {waited:.3g} s at a barrier for {self._name(silent & pending)}"
                self._tell(error)
                raise RunError(error)
            else:
                deadline = math.inf

    def _receive(
        self, pending: set[int], since: float, deadline: float
    ) -> Iterator[tuple[int, bytes]]:
        """Yield what neighbours say. What an error leaves unread comes first the next time."""
        if not self._unread:
            self._unread = self._links.receive(pending, since, deadline)
        while self._unread:
            rank, message = self._unread.pop(0)
            if message == GONE:
                self._gone.add(rank)
            yield rank, message

    def _cannot_go_on(self, rank: int, message: bytes) -> NoReturn:
        """Pass on that a neighbour has failed or ended.

        Raises:
            PeerError: it has said why.
            LostRankError: it has not.
        """
        failed = message[:1] == FAILED
        if failed:
            error = text_of(message)
        elif message == GONE:
            error = f"{self._name([rank])} ended without a word (killed? out of memory?)"
        else:
            error = f"{self._name([rank])} sent what no rank sends at a barrier: {message[:20]!r}"
        self._tell(error, but=rank)
        raise PeerError(error) if failed else LostRankError(error)

    def _tell(self, error: str, but: int | None = None) -> None:
        """Keep what went wrong, and pass it on to all neighbours but the one that knows."""
        if self._failure is None:
            self._failure = error
            for rank in [self._parent, *self._children]:
                if rank is not None and rank != but:
                    self._links.send(rank, with_text(FAILED, error))

    def _name(self, ranks: Iterable[int]) -> str:
        """Return "ranks 3, 5 on host a and rank 7 on host b"."""
        by_host: dict[str, list[str]] = {}
        for rank in sorted(ranks):
            by_host.setdefault(self._hosts[rank], []).append(str(rank))
        return " and ".join(
            f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(numbers)} on host {host}"
            for host, numbers in by_host.items()
        )

    def _forget(self) -> None:
        """Let go of the others: this is the end, or a child process, which is no rank.

        A child that kept the sockets would hide from the others that this process has died.
        """
        atexit.unregister(self._end_unclosed)
        self._links.close()

    def _end_unclosed(self) -> None:
        """End a job that nobody closed, as at an exception."""
        self.fail("ended before the others")
        self.end(1)


def make_world(environment: Mapping[str, str] | None = None) -> World:
    """Return the world that a launcher made this process a rank of, or Alone.

    `environment` replaces the process's own, which help() would show as the parameter's default.

    Launchers tell their processes by environment variables and in no other way, and MPI, loaded
    just to find out, would cost a second: so this function, alone in dlemu, looks at them.

    Raises:
        RunError: there is a launcher, and no MPI, or one that belongs to another launcher; or it
            says what is no number.
    """
    global _joined
    num_ranks = _launched_ranks(os.environ if environment is None else environment)
    if num_ranks == 1:
        return Alone()
    size = _mpi_world().size
    if num_ranks not in (None, size):
        raise RunError(
            f"the launcher started {num_ranks} ranks, but mpi4py is in a world of {size}: they "
            f"belong to different MPIs; use the mpirun beside {sys.executable}, or build mpi4py "
            "with the launcher's MPI: pip install --no-binary mpi4py mpi4py"
        )
    _joined = Mpi()
    return _joined


_joined: World = Alone()


def leave(status: int) -> int:
    """End the world that `make_world` made here; return this process's exit status."""
    return _joined.end(status)


def _launched_ranks(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks were launched, None if there are several or one."""
    # Of Open MPI, MPICH and Intel MPI, MVAPICH, and srun. Slurm also tells a batch script, which
    # is no rank, about tasks: only steps have SLURM_STEP_NUM_TASKS.
    for key in (
        "OMPI_COMM_WORLD_SIZE",
        "PMI_SIZE",
        "MV2_COMM_WORLD_SIZE",
        "SLURM_STEP_NUM_TASKS",
    ):
        if key in environment:
            value = environment[key]
            if not (value.isascii() and value.isdecimal() and int(value) > 0):
                raise RunError(
                    f"the launcher's {key} must be the number of ranks, got {value!r}; start "
                    f"dlemu with mpirun or srun, or unset {key}"
                )
            return int(value)
    return None if "PMIX_RANK" in environment else 1


def _mpi_world() -> "MPI.Intracomm":
    # Ranks of a host meet over sockets. Open MPI's shared memory would serve the few messages that
    # are left, and leave its files in /dev/shm when a rank is killed.
    os.environ.setdefault("OMPI_MCA_btl", "^sm")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # the latter where it finds no MPI library
        raise RunError(
            f"started as one of several ranks, but MPI cannot be loaded ({error}); "
            "pip install 'dlemu[mpi]'"
        ) from error
    return MPI.COMM_WORLD


def _finalize() -> None:
    from mpi4py import MPI

    MPI.Finalize()
