"""The ranks that mpirun or srun started, and make_world, which finds out whether there are any."""

import atexit
import math
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

from dlemu.errors import LostRankError, RunError, reason_of
from dlemu.ranks.ending import say_launcher_waits
from dlemu.ranks.links import Links, Tree, Word, decode, encode, only_loopback
from dlemu.ranks.world import Alone, PeerError, World


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks."""

    name: str
    size_key: str
    """The environment variable with the number of ranks."""
    words: Mapping[str, str]
    """What to write so that an MPI finds all ranks, by the MPI's name; "" is any other MPI."""


_BUILD = "build mpi4py with the launcher's MPI: pip install --no-binary mpi4py mpi4py"
_BESIDE = f"use the mpirun of mpi4py's own MPI, or {_BUILD}"
_IN_ALLOCATION = "or, inside the allocation, mpirun"

MANAGERS = (
    Launcher(
        "srun",
        "SLURM_STEP_NUM_TASKS",  # Slurm's other variables are also set in batch scripts
        {
            "Open MPI": f"use srun --mpi=pmix {_IN_ALLOCATION}",
            "MPICH": f"use srun --mpi=pmi2 {_IN_ALLOCATION}",
            "Intel MPI": "use srun --mpi=pmi2, with I_MPI_PMI_LIBRARY set to Slurm's libpmi2.so, "
            + _IN_ALLOCATION,
            "": _BUILD,
        },
    ),
    Launcher(
        "flux run",
        "FLUX_JOB_SIZE",
        {"Open MPI": "use flux run -o pmi=pmix (the flux-pmix plugin)", "": _BUILD},
    ),
    Launcher("jsrun", "JSM_NAMESPACE_SIZE", {"": _BUILD}),
)
"""Resource managers that start ranks themselves."""

MPIS = (
    Launcher("mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE", {"": _BESIDE}),
    Launcher("mpiexec of MPICH or Intel MPI", "PMI_SIZE", {"": _BESIDE}),
    Launcher("mpirun of MVAPICH", "MV2_COMM_WORLD_SIZE", {"": _BESIDE}),
    Launcher("mpiexec of PALS", "PALS_SIZE", {"": _BUILD}),
)
"""The launchers of MPIs. Resource managers set their variables, too."""

_UNKNOWN_SIZE = ("PMIX_RANK", "PALS_RANKID")
"""Set by launchers that do not say how many ranks there are: PMIx's own, and HPE's PALS."""


def launched_ranks(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks were launched; None if there is a launcher that does not say.

    Raises:
        RunError: the number is none, or a launcher was used whose processes cannot meet over MPI.
    """
    # An mpirun inside a step of Slurm or Flux starts ranks of its own: what it says holds.
    for launcher in (*MPIS, *MANAGERS):
        if launcher.size_key in environment:
            return _number(environment, launcher.size_key)
    if any(key in environment for key in _UNKNOWN_SIZE):
        return None
    if "TORCHELASTIC_RUN_ID" in environment:  # torchrun; WORLD_SIZE alone is set by many others
        num_processes = _number(environment, "WORLD_SIZE")
        if num_processes > 1:
            raise RunError(
                f"torchrun started {num_processes} processes, but the ranks of dlemu meet over "
                f"MPI: use mpirun -n {num_processes}; a training loop of your own gives "
                "make_loader its rank and num_ranks instead"
            )
    return 1


def check_world(environment: Mapping[str, str], size: int, mpi: str) -> None:
    """Raise an error unless MPI has found as many ranks as the launcher started.

    Args:
        environment: this process's environment variables.
        size: the number of ranks that MPI found.
        mpi: the name of the MPI library, as mpi4py's get_vendor() says it.
    """
    started = launched_ranks(environment)
    if started == size:
        return
    if started is None:
        if size > 1 or all(environment.get(key, "0") == "0" for key in _UNKNOWN_SIZE):
            return
        raise RunError(
            f"the launcher started several ranks, but {mpi} finds this one only: {_BESIDE}"
        )
    launcher = next(
        each for each in (*MANAGERS, *MPIS) if environment.get(each.size_key) == str(started)
    )
    word = launcher.words.get(mpi, launcher.words[""])
    raise RunError(
        f"{launcher.name} started {started} ranks, but mpi4py's {mpi} finds {size}: {word}"
    )


def _number(environment: Mapping[str, str], key: str) -> int:
    value = environment.get(key, "")
    if not (value.isascii() and value.isdecimal() and int(value) > 0):
        raise RunError(
            f"the launcher's {key} must be the number of ranks, got {value!r}; start dlemu with "
            f"mpirun or srun, or unset {key}"
        )
    return int(value)


if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

_PONG_SECONDS = 1.0
"""Time for a neighbour to answer a ping."""
_LINE_SECONDS = 0.5
"""Time for a rank's last line to reach the terminal, before an abort."""
_END_SECONDS = 3.0
"""Time that rank 0 waits for the others before it aborts the job. The others wait 1.5 times that,
because rank 0 may still write results."""
_LAST_SECONDS = 10.0
"""Time that rank 0 waits for the others to exit, after all have agreed to end."""
_EXIT_SECONDS = 30
"""A rank that hangs in MPI_Finalize or MPI_Abort is killed by SIGALRM after this time."""


class Mpi(World):
    """The ranks that mpirun or srun started.

    MPI's own barrier polls, and takes CPU time from the readers that are measured. Here the ranks
    form a tree (see `Tree`), connected by sockets on which they sleep. At a barrier ARRIVED goes up
    the tree and RELEASED comes down: as messages between hosts, as bytes in shared memory inside a
    host (`Meeting`). A socket also tells at once when a process dies.

    If a host cannot be reached over TCP, its leader and rank 0 poll MPI for messages, with short
    sleeps between. Only the launcher, or a barrier's timeout, notices the death of such a leader.

    Not thread-safe: one thread at a time may call it.
    """

    def __init__(self, host: str | None = None) -> None:
        """Join the others. `host` replaces the host's name, to test several hosts on one."""
        comm = _mpi_world().Dup()
        # MPI_Finalize, at exit, waits for all ranks; after a failure some may be stuck.
        atexit.register(self._end_unclosed)
        os.register_at_fork(after_in_child=self._drop_links)
        self._join(comm, host or socket.gethostname(), Links(comm))

    def _join(self, comm: "MPI.Intracomm", host: str, links: Links) -> None:
        """Find this rank's place, and connect it."""
        self._comm, self.host, self._links = comm, host, links
        self.rank, self.num_ranks = comm.rank, comm.size
        self._failure: str | None = None
        self._unread: list[tuple[int, bytes]] = []
        self._gone: set[int] = set()
        self._silent: set[int] = set()  # neighbours that did not agree to end
        self._parent: int | None = None
        self._children: list[int] = []
        self._hosts: list[str] = comm.allgather(host)
        tree = Tree.of(self.rank, self._hosts)
        self._parent, self._children = tree.parent, tree.children
        self.host_index, self.num_hosts = tree.leaders.index(tree.local[0]), len(tree.leaders)
        self.local_rank, self.num_local_ranks = tree.local.index(self.rank), len(tree.local)
        try:
            links.connect(tree)
        except OSError as error:
            raise RunError(
                f"the ranks on host {self.host} cannot reach each other ({reason_of(error)}); if "
                "these are several machines or containers, give each a host name of its own"
            ) from error
        if self.rank == 0 and links.unreached:
            above = {tree.above(tree.leaders, rank) or 0 for rank in links.unreached}
            numbers = ", ".join(map(str, sorted(above)))
            self.notes = (
                f"{self._ranks_by_host(links.unreached)} cannot be reached over TCP: there and on "
                f"{'rank' if len(above) == 1 else 'ranks'} {numbers} the barrier tests for "
                "messages of MPI, and may end a few ms late",
            )

    def barrier(self, timeout: float | None = None) -> None:
        begin = time.perf_counter()
        deadline = math.inf if timeout is None else begin + timeout
        self._go_on()
        if not self._links.arrive():
            self._wait_for(self._children, begin, deadline)
            if self._parent is not None:
                self._links.up(self._parent)
                self._wait_for([self._parent], begin, deadline)
            self._links.down(self._children)
        self.opened = self._links.opened

    def gather(self, value: T) -> list[T] | None:
        self.barrier()  # so that MPI polls only while it copies
        return self._comm.gather(value)

    def reduce(self, value: T, combine: Callable[[T, T], T]) -> T | None:
        self.barrier()
        # mpi4py combines along a binomial tree, and keeps the order of ranks.
        return self._comm.reduce(value, op=combine)

    def all_gather(self, value: T) -> list[T]:
        self.barrier()
        return self._comm.allgather(value)

    def broadcast(self, value: T) -> T:
        self.barrier()
        received: T = self._comm.bcast(value)
        return received

    def fail(self, error: str) -> None:
        self._fail_others(f"{self._ranks_by_host([self.rank])}: {error}")

    def close(self) -> None:
        self.barrier()
        atexit.unregister(self._end_unclosed)

    def end(self, status: int) -> int:
        atexit.unregister(self._end_unclosed)
        with suppress(OSError):  # the reader of our output may have ended
            sys.stdout.flush()
            sys.stderr.flush()
        agreed = self._agree_to_end(status)
        if agreed is None:
            # Some rank is dead or stuck, and MPI_Finalize would wait for it. Wait first: what a
            # launcher prints about an abort may appear before the ranks' own last lines.
            time.sleep(_LINE_SECONDS)
            self._say_launcher_waits()
            _abort(self._comm, status or 1)
        elif agreed == 0:
            self._drop_links()
        else:
            signal.alarm(_EXIT_SECONDS)
            from mpi4py import MPI

            MPI.Finalize()
            self._links.outlast(self._children, _LAST_SECONDS)
        return (agreed or 0) if self.rank == 0 else 0

    def _say_launcher_waits(self) -> None:
        """Say how to end the launcher, if another host neither answered nor ended."""
        silent = {self._hosts[rank] for rank in self._silent if self.rank == 0} - {self.host}
        if silent:
            say_launcher_waits(sorted(silent))

    def _agree_to_end(self, status: int) -> int | None:
        """Return the job's exit status once all ranks are ready to end; None if a rank is not."""
        # Up the tree goes the first status other than 0; rank 0's result comes down.
        patience = _END_SECONDS if self.rank == 0 else 1.5 * _END_SECONDS
        deadline = time.perf_counter() + patience
        below = self._statuses(self._children, Word.ENDING, deadline)
        agreed = None if below is None else next((each for each in (status, *below) if each), 0)
        if self._parent is not None:
            if agreed is not None:
                self._send(self._parent, Word.ENDING, str(agreed))
            from_parent = self._statuses([self._parent], Word.END, deadline)
            agreed = from_parent[0] if from_parent else None
            if agreed is None:
                # Other ranks may still have results to write or an error to show.
                time.sleep(max(deadline - time.perf_counter(), 0.0))
        if agreed is not None:
            for rank in self._children:
                self._send(rank, Word.END, str(agreed))
        return agreed

    def _statuses(self, ranks: Iterable[int], word: Word, deadline: float) -> list[int] | None:
        """Return the exit statuses that these neighbours send with a word; None if one does not."""
        begin = time.perf_counter()
        pending = set(ranks)
        statuses = []
        while pending - self._gone:
            if time.perf_counter() > deadline:
                self._silent = pending - self._gone
                return None
            self._listen(pending, begin, deadline)
            for rank, message in self._messages():
                match decode(message):
                    case (said, text) if said is word and text.isdecimal() and len(text) <= 3:
                        pending.discard(rank)
                        statuses.append(int(text))
                    case (Word.FAILED, text):  # it failed after the last barrier
                        self._fail_others(text, but=rank)
        return None if pending else statuses

    def _wait_for(self, ranks: Iterable[int], begin: float, deadline: float) -> None:
        """Return when these children have arrived, or this parent has released us.

        At the deadline, ask who is really missing: ping the neighbours that are still awaited. One
        that answers is itself waiting for a rank further away, and will report that one.
        """
        self._go_on()
        only_looks = deadline <= begin  # then it is no fault of the others that they do not come
        pending = set(ranks)
        pinged = False
        silent: set[int] = set()
        since = time.perf_counter()
        while pending := pending - self._links.here(pending):
            self._listen(pending, since, deadline)
            if not (pending := pending - self._links.here(pending)):
                break  # who has left the barrier may say more, or have ended: that is for later
            for rank, message in self._messages():
                match decode(message)[0]:
                    case Word.ARRIVED | Word.RELEASED:
                        pending.discard(rank)
                    case Word.PONG:
                        silent.discard(rank)
                    case Word.PING if rank in pending:
                        pass  # no answer: our ARRIVED or RELEASED is on its way to that rank
                    case Word.PING:
                        self._send(rank, Word.PONG)
                        if not pinged:  # now it is on us to find the missing rank
                            deadline = min(deadline, time.perf_counter())
                    case _:
                        self._cannot_go_on(rank, message)
            if time.perf_counter() < deadline:
                continue
            if not pinged:
                pinged, silent = True, set(pending)
                for rank in silent:
                    self._send(rank, Word.PING)
                deadline = time.perf_counter() + _PONG_SECONDS
            elif silent & pending:
                waited = time.perf_counter() - begin
                late = self._ranks_by_host(silent & pending)
                error = f"waited {waited:.3g} s at a barrier for {late}"
                if not only_looks:
                    self._fail_others(error)
                raise RunError(error)
            else:
                deadline = math.inf

    def _go_on(self) -> None:
        """Raise the failure of the job, if there is one."""
        if self._failure is not None:
            raise PeerError(self._failure)

    def _send(self, rank: int, word: Word, text: str = "") -> None:
        self._links.send(rank, encode(word, text))

    def _listen(self, pending: set[int], since: float, deadline: float) -> None:
        """Wait for messages, as `Links.receive` does; not if some are left unread."""
        if not self._unread:
            self._unread = self._links.receive(pending, since, deadline)

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield the messages that have come; those left unread by an error come again first."""
        while self._unread:
            rank, message = self._unread.pop(0)
            if message == Word.GONE.value:
                self._gone.add(rank)
            yield rank, message

    def _cannot_go_on(self, rank: int, message: bytes) -> NoReturn:
        """Tell the other neighbours why the job cannot go on, and raise that as an error."""
        word, text = decode(message)
        match word:
            case Word.FAILED:
                error = text
            case Word.GONE:
                error = (
                    f"{self._ranks_by_host([rank])} ended without a word (killed? out of memory?)"
                )
            case _:
                name = self._ranks_by_host([rank])
                error = f"{name} sent what no rank sends at a barrier: {message[:20]!r}"
        self._fail_others(error, but=rank)
        raise PeerError(error) if word is Word.FAILED else LostRankError(error)

    def _fail_others(self, error: str, but: int | None = None) -> None:
        """Keep the first error of the job, and send it to all neighbours except `but`."""
        if self._failure is None:
            self._failure = error
            for rank in [self._parent, *self._children]:
                if rank is not None and rank != but:
                    self._send(rank, Word.FAILED, error)

    def _ranks_by_host(self, ranks: Iterable[int]) -> str:
        """Return "ranks 3, 5 on host a and rank 7 on host b"."""
        by_host: dict[str, list[str]] = {}
        for rank in sorted(ranks):
            by_host.setdefault(self._hosts[rank], []).append(str(rank))
        return " and ".join(
            f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(numbers)} on host {host}"
            for host, numbers in by_host.items()
        )

    def _drop_links(self) -> None:
        """Close the connections: at the end, or in a forked child, which would hide our death."""
        atexit.unregister(self._end_unclosed)
        self._links.close()

    def _end_unclosed(self) -> None:
        """End a job that was not closed, for instance because of an exception."""
        self.fail("ended before the others")
        self.end(1)


def make_world(environment: Mapping[str, str] | None = None) -> World:
    """Return the world of all ranks if a launcher started this process, else Alone.

    Launchers announce themselves in environment variables only, and loading MPI to find out takes a
    second. So this function reads the environment; nothing else in dlemu does. `environment`
    replaces the process's own.

    Raises:
        RunError: there is a launcher, but MPI is missing or belongs to another launcher, or the
            number of ranks is not a number.
    """
    global _joined
    environment = os.environ if environment is None else environment
    if launched_ranks(environment) == 1:
        return Alone()
    try:
        size = _mpi_world().size  # says what is missing, if MPI cannot be loaded
        from mpi4py import MPI

        check_world(environment, size, MPI.get_vendor()[0])
        _joined = Mpi()
    except KeyboardInterrupt:
        _joined = _Joining()
        raise
    return _joined


class _Joining(World):
    """The world of a rank that was interrupted while it joined the others, who wait for it."""

    def end(self, status: int) -> int:
        with suppress(OSError):  # the reader of our output may have ended
            sys.stdout.flush()
            sys.stderr.flush()
        # MPI's own end, at exit, would wait for those who wait.
        if (mpi := sys.modules.get("mpi4py.MPI")) is not None:
            _abort(mpi.COMM_WORLD, status)
        os._exit(status)


def _abort(comm: "MPI.Intracomm", status: int) -> None:
    """End all ranks, and this one also where the launcher, which is asked to, does not answer."""
    signal.alarm(_EXIT_SECONDS)
    comm.Abort(status)
    signal.alarm(0)


_joined: World = Alone()


def leave(status: int) -> int:
    """End the world that `make_world` returned; return this process's exit status."""
    return _joined.end(status)


def _mpi_world() -> "MPI.Intracomm":
    # No shared memory: Open MPI leaves its files in /dev/shm when a rank is killed. The ranks of a
    # host talk over sockets, and few messages are left for MPI.
    os.environ.setdefault("OMPI_MCA_btl", "^sm")
    try:
        with warnings.catch_warnings():
            # mpi4py warns of a launcher of another MPI; check_world says what to do.
            warnings.simplefilter("ignore", RuntimeWarning)
            import mpi4py  # noqa: F401  # if that is missing, psutil may be as well

            if "OMPI_MCA_btl_tcp_if_exclude" not in os.environ and (loopback := only_loopback()):
                # Open MPI leaves it out, and has no way at all in a container without a network.
                os.environ.setdefault("OMPI_MCA_btl_tcp_if_include", loopback)
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: it finds no MPI library
        raise RunError(
            f"started as one of several ranks, but MPI cannot be loaded ({error}); "
            "pip install 'dlemu[mpi]'"
        ) from error
    return MPI.COMM_WORLD
