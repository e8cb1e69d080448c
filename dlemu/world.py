"""World protocol (rank, num_ranks, barrier, gather); Alone; Mpi, imported when asked for."""

import atexit
import contextlib
import math
import os
import select
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from dlemu.errors import DlemuError, RunError

if TYPE_CHECKING:
    from mpi4py import MPI

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

    def barrier(self, timeout: float | None = None) -> None:
        """Wait, asleep, until all ranks are here.

        Raises:
            PeerError: another rank failed or ended, and shows the reason itself.
            RunError: a rank of this host ended without a word, or ranks, which are named, are not
                here after `timeout` seconds.
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

    def fail(self, error: str) -> None:
        """Make every other rank raise PeerError from the barrier where it is, or its next."""
        ...

    def close(self) -> None:
        """Wait for all ranks and leave the world for good."""
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


# What neighbours say: one of these, and after _FAILED the error.
_ARRIVED = b"a"
_RELEASED = b"r"
_ASK = b"?"  # are you at the barrier?
_HERE = b"h"  # yes; whoever is missing, it is not this rank
_FAILED = b"f"
_GONE = b""  # said by the kernel for a process that has ended

_ANSWER_SECONDS = 1.0
# A rank that fails has this long to show its line before rank 0 ends the job, and rank 0 this long
# to keep what was measured before the others end it.
_LINE_SECONDS = 0.5
_RESULTS_SECONDS = 3.0


class Mpi(World):
    """The ranks that mpirun or srun started.

    MPI's own barrier polls, and so takes from the readers the cores that are measured. Here the
    ranks are a tree: those of a host are children of its first rank, over sockets on which they
    sleep; the first ranks of the hosts are children of rank 0, over MPI messages. "Arrived" goes
    up, "released" comes down. Sockets also tell at once when a process dies. One that is alone on
    its host has none: there only its launcher knows, or a barrier's timeout.

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
        self._links = _Links(self._comm)
        # MPI_Finalize, at exit, waits for all ranks; after a failure some may be stuck.
        atexit.register(self._abort)
        os.register_at_fork(after_in_child=self._forget)
        try:
            self._links.connect(local)
        except OSError as error:
            raise RunError(
                f"the ranks on host {self.host} cannot reach each other ({error}); if these are "
                "several machines or containers, give each a host name of its own"
            ) from error
        self._links.greet(leaders)

    def barrier(self, timeout: float | None = None) -> None:
        begin = time.perf_counter()
        deadline = math.inf if timeout is None else begin + timeout
        self._wait_for(self._children, begin, deadline)
        if self._parent is not None:
            self._links.send(self._parent, _ARRIVED)
            self._wait_for([self._parent], begin, deadline)
        for rank in self._children:
            self._links.send(rank, _RELEASED)

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
        self._forget()

    def _wait_for(self, ranks: Iterable[int], begin: float, deadline: float) -> None:
        """Return when all these neighbours have arrived, or the one above has released us."""
        if self._failure is not None:
            raise PeerError(self._failure)
        pending = set(ranks)
        silent: set[int] | None = None
        since = time.perf_counter()
        while pending:
            for rank, message in self._links.receive(pending, since, deadline):
                if message in (_ARRIVED, _RELEASED):
                    pending.discard(rank)
                elif message == _GONE:
                    error = f"{self._name([rank])} ended without a word (killed? out of memory?)"
                    self._tell(error, but=rank)
                    raise RunError(error)
                elif message.startswith(_FAILED):
                    error = message[1:].decode(errors="replace")
                    self._tell(error, but=rank)
                    raise PeerError(error)
                elif message == _HERE and silent is not None:
                    silent.discard(rank)
                elif message == _ASK and rank not in pending:  # else our answer is on its way
                    self._links.send(rank, _HERE)
                    if silent is None:
                        deadline = min(deadline, time.perf_counter())
            if time.perf_counter() < deadline:
                continue
            # The one we wait for may itself wait for others, and then knows better.
            if silent is None:
                silent = set(pending)
                for rank in silent:
                    self._links.send(rank, _ASK)
                deadline = time.perf_counter() + _ANSWER_SECONDS
            elif silent & pending:
                waited = time.perf_counter() - begin
                error = f"waited {waited:.3g} s at a barrier for {self._name(silent & pending)}"
                self._tell(error)
                raise RunError(error)
            else:
                deadline = math.inf

    def _tell(self, error: str, but: int | None = None) -> None:
        """Keep what went wrong, and pass it on to all neighbours but the one that knows."""
        if self._failure is None:
            self._failure = error
            for rank in [self._parent, *self._children]:
                if rank not in (None, but):
                    self._links.send(rank, _FAILED + error.encode()[:60_000])

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
        atexit.unregister(self._abort)
        self._links.close()

    def _abort(self) -> None:
        """End a job that was not closed, with all its processes, whatever they are doing."""
        self.fail("ended before the others")
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_LINE_SECONDS if self.rank == 0 else _RESULTS_SECONDS)
        self._comm.Abort(1)


class _Links:
    """Carries messages between a rank and its neighbours: by socket on its host, else by MPI."""

    # Between two tests of MPI, sleep for this share of the time waited so far: what a test finds
    # is so much late, and a test costs some 15 µs of CPU. Hence the bounds.
    _PAUSE_SHARE = 0.05
    _SHORTEST_PAUSE = 1e-4
    _LONGEST_PAUSE = 1e-3
    # Nothing but a failure can come by MPI while ranks of this host are awaited.
    _LOCAL_PAUSE = 0.05
    # And so that tests take no more than this share of a core, whatever one costs on this host.
    _CPU_SHARE = 0.03

    def __init__(self, comm: "MPI.Intracomm") -> None:
        self._comm = comm
        self._sockets: dict[int, socket.socket] = {}
        self._ranks: dict[int, int] = {}  # by file descriptor
        self._poll = select.epoll()
        self._has_remotes = False
        self._test_seconds = 0.0
        self._sent: list[MPI.Request] = []

    def connect(self, local: list[int]) -> None:
        """Connect the ranks of a host to the first of them. All ranks of all hosts call it."""
        token = self._comm.bcast(os.urandom(16).hex())
        # An abstract name: no file is left. Packets keep messages apart.
        name = f"\0dlemu-{token}-{local[0]}"
        if self._comm.rank == local[0]:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
                server.bind(name)
                server.listen(len(local))
                self._comm.Barrier()
                for _ in local[1:]:
                    peer, _ = server.accept()
                    self._add(int.from_bytes(peer.recv(8), "little"), peer)
        else:
            self._comm.Barrier()
            leader = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            leader.connect(name)
            leader.send(self._comm.rank.to_bytes(8, "little"))
            self._add(local[0], leader)

    def greet(self, leaders: list[int]) -> None:
        """Exchange a first message between rank 0 and the other leaders.

        MPI connects lazily, and that needs both sides to be in MPI: a first "released" could not
        leave rank 0 before its next barrier.
        """
        is_leader = self._comm.rank in leaders
        self._has_remotes = is_leader and len(leaders) > 1
        group = self._comm.Split(0 if is_leader else 1)
        group.gather(None)
        group.bcast(None)
        group.Free()

    def send(self, rank: int, message: bytes) -> None:
        """Send; to a process that has ended, nothing: `receive` tells about it."""
        if rank in self._sockets:
            with contextlib.suppress(ConnectionError):
                self._sockets[rank].send(message)
        elif self._has_remotes:
            self._sent = [request for request in self._sent if not request.test()[0]]
            self._sent.append(self._comm.isend((self._comm.rank, message), rank))

    def receive(
        self, pending: set[int], since: float, deadline: float
    ) -> Iterable[tuple[int, bytes]]:
        """Sleep until neighbours say something; return it, with their ranks.

        Comes back empty at the deadline or before it; how soon depends on who is awaited, and
        since when.
        """
        now, cpu = time.perf_counter(), time.thread_time()
        pause = max(deadline - now, 0.0)
        if self._has_remotes:
            if pending <= self._sockets.keys():
                longest = self._LOCAL_PAUSE
            else:
                longest = min(self._PAUSE_SHARE * (now - since), self._LONGEST_PAUSE)
                if longest == self._LONGEST_PAUSE:
                    longest = max(longest, self._test_seconds / self._CPU_SHARE)
            pause = min(pause, max(longest, self._SHORTEST_PAUSE))
            if pause < self._LOCAL_PAUSE:  # epoll counts in milliseconds, rounded up
                time.sleep(pause)
                pause = 0.0
        ready = self._poll.poll(None if pause == math.inf else pause)
        messages = [(self._ranks[file], self._read(self._ranks[file])) for file, _ in ready]
        # Twice: Open MPI takes in what has arrived only after it has looked, in vain.
        while self._has_remotes and (message := self._comm.improbe() or self._comm.improbe()):
            messages.append(message.recv())
        self._test_seconds = time.thread_time() - cpu
        return messages

    def close(self) -> None:
        self._has_remotes = False
        self._poll.close()
        for peer in self._sockets.values():
            peer.close()
        self._sockets.clear()

    def _add(self, rank: int, peer: socket.socket) -> None:
        self._sockets[rank] = peer
        self._ranks[peer.fileno()] = rank
        self._poll.register(peer, select.EPOLLIN)

    def _read(self, rank: int) -> bytes:
        try:
            return self._sockets[rank].recv(1 << 16)
        except ConnectionResetError:  # it ended with our messages unread; its last are still here
            return self._sockets[rank].recv(1 << 16)


def make_world(environment: Mapping[str, str] | None = None) -> World:
    """Return the world that a launcher made this process a rank of, or Alone.

    `environment` replaces the process's own, which help() would show as the parameter's default.

    Launchers tell their processes by environment variables and in no other way, and MPI, loaded
    just to find out, would cost a second: so this function, alone in dlemu, looks at them.

    Raises:
        RunError: there is a launcher, and no MPI, or one that belongs to another launcher.
    """
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
    return Mpi()


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
            return int(environment[key])
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
