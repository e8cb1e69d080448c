"""Ranks as one world: what they say to each other, how they end, and who launches them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import psutil
import pytest

from dlemu.errors import LostRankError, RunError
from dlemu.ranks import mpi
from dlemu.ranks.links import Word, decode, only_loopback
from dlemu.ranks.mpi import MANAGERS, MPIS, Mpi, check_world, launched_ranks, make_world
from dlemu.ranks.world import Alone, PeerError
from tests.lab.many_hosts import ManyHosts
from tests.lab.mpirun import mpirun
from tests.lab.ranks import values_of
from tests.lab.waiting import LONG, until

# mpirun outlives a rank's process here, so that the ranks have to notice its death themselves.
HIDE_DEATH = ["sh", "-c", '"$@" || sleep 40', "sh"]
HOSTS = "a,b,c,b"
PLACES = [[0, 3, 0, 1], [1, 3, 0, 2], [2, 3, 0, 1], [1, 3, 1, 2]]


def run_ranks(
    folder: Path, hosts: str, case: str, given: object = 0, wrapper: Sequence[str] = ()
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Return how mpirun ended and what each rank kept; fail if it hangs."""
    command = [sys.executable, "-m", "tests.lab.ranks", str(folder), hosts, case, str(given)]
    num_ranks = len(hosts.split(","))
    environment = {key: os.environ[key] for key in os.environ if key != "OMPI_MCA_btl"}
    done = subprocess.run(
        mpirun(num_ranks, *wrapper, *command),
        timeout=LONG,
        capture_output=True,
        text=True,
        env=environment,
    )
    files = [folder / f"{rank}.json" for rank in range(num_ranks)]
    return done, [json.loads(file.read_text()) if file.exists() else {} for file in files]


def check_values(found: list[dict[str, Any]], hosts: list[str], places: list[list[int]]) -> None:
    """Check what ranks got from each other: the contract of every World."""
    num = len(hosts)
    for rank, (values, place) in enumerate(zip(found, places, strict=True)):
        assert values == {
            "place": place,
            "gathered": [10 * each for each in range(num)] if rank == 0 else None,
            "reduced": "".join(map(str, range(num))) if rank == 0 else None,
            "all_gathered": hosts,
            "broadcast": {"from": 0},
            "on_first": 0,
        }


def test_alone_is_a_world_of_one() -> None:
    with Alone() as world:
        world.barrier(timeout=0.0)
        check_values([values_of(world)], [socket.gethostname()], [[0, 1, 0, 1]])


def test_simulated_ranks_are_a_world() -> None:
    places = [[host, 3, rank, 2] for host in range(3) for rank in range(2)]
    hosts = [f"h{host}" for host, *_ in places]
    check_values(ManyHosts(3, 2).run(values_of), hosts, places)


UNREACHED = (
    "rank 1 on host b and rank 2 on host c cannot be reached over TCP: there and on ranks 0, 1 "
    "the barrier tests for messages of MPI, and may end a few ms late"
)


@pytest.mark.mpi
@pytest.mark.parametrize(("how", "notes"), [(">", []), ("!>", [UNREACHED])])
def test_no_rank_passes_before_the_last_arrives(tmp_path: Path, how: str, notes: list[str]) -> None:
    """One host below another (">"), and ranks that cannot reach each other ("!"), too."""
    done, ranks = run_ranks(tmp_path, HOSTS + how, "meet")

    assert done.returncode == 0, done
    for times in zip(*(rank["times"] for rank in ranks), strict=True):
        arrived, released = zip(*times, strict=True)
        assert max(arrived) <= min(released)
    check_values([rank["values"] for rank in ranks], HOSTS.split(","), PLACES)
    assert [rank["notes"] for rank in ranks] == [notes, [], [], []]
    # It would leave its file where a rank is killed.
    assert not any(rank["maps_shared_memory"] for rank in ranks)


@pytest.mark.mpi
def test_a_waiting_rank_leaves_the_core_to_others(tmp_path: Path) -> None:
    """It looks once a message."""
    _, ranks = run_ranks(tmp_path, HOSTS, "wait")
    assert all(rank["looks"] <= 4 for rank in ranks), ranks


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("hosts", "culprit", "witnesses"),
    [
        ("a,a,b,b", 3, [0, 1, 2]),
        ("a,a,b,b", 0, [1, 2, 3]),
        # Where hosts cannot reach each other, only its own host hears of a first rank, and ends.
        ("a,a,b,b!", 2, [3]),
    ],
)
def test_a_killed_rank_is_noticed_and_named(
    tmp_path: Path, hosts: str, culprit: int, witnesses: list[int]
) -> None:
    done, ranks = run_ranks(tmp_path, hosts, "kill", culprit, HIDE_DEATH)

    assert done.returncode != 0
    for rank in witnesses:
        named = f": rank {culprit} on host {hosts[2 * culprit]} ended without a word"
        assert named in ranks[rank]["error"]


@pytest.mark.mpi
@pytest.mark.parametrize("culprit", [0, 1])
def test_rank_0_is_the_last_to_leave(tmp_path: Path, culprit: int) -> None:
    """Else the launcher complains at length that it had to end the others."""
    done, _ = run_ranks(tmp_path, "a,a,b", "slow", culprit)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.mpi
def test_a_rank_that_is_stuck_may_end_from_another_thread(tmp_path: Path) -> None:
    """As the watchdog does; the launcher has nothing to complain of."""
    done, ranks = run_ranks(tmp_path, "a,a,b", "watchdog", 1)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    told = {"error": "PeerError: rank 1 on host a: no step has finished"}
    assert [ranks[0], ranks[2]] == [told] * 2


@pytest.mark.parametrize(
    ("met", "raised"),
    [
        (None, KeyboardInterrupt),
        (LostRankError("rank 1 on host a ended without a word"), LostRankError),
        (PeerError("rank 1 on host a: /data/img_1.npz: is gone"), PeerError),
        (PeerError("rank 1 on host a: interrupted"), KeyboardInterrupt),
        (RunError("waited 0 s at a barrier for rank 1 on host a"), KeyboardInterrupt),
    ],
)
def test_an_interrupt_because_of_another_rank_names_that_rank(
    met: RunError | None, raised: type[BaseException]
) -> None:
    world = Alone()
    barrier = world.barrier = Mock(side_effect=met)  # type: ignore[method-assign]
    fail = world.fail = Mock()  # type: ignore[method-assign]
    with pytest.raises((KeyboardInterrupt, RunError)) as ended, world:
        raise KeyboardInterrupt
    assert ended.type is raised
    said = str(met) if raised is not KeyboardInterrupt else "interrupted"
    assert (barrier.call_args_list, fail.call_args_list) == ([call(timeout=0)], [call(said)])
    with pytest.raises(ZeroDivisionError), world:
        raise ZeroDivisionError("1/0")
    assert fail.call_args_list[1:] == [call("ZeroDivisionError('1/0')")]


@pytest.mark.quick
def test_a_rank_that_has_left_a_barrier_may_end_at_once() -> None:
    """A rank that is slow to leave hears of both, and the end does not matter here."""
    links = Mock(arrive=Mock(return_value=False), receive=Mock(return_value=[(1, b"")]))
    links.here.side_effect = [set(), {1}]
    world = Mpi.__new__(Mpi)
    vars(world).update(_links=links, _failure=None, _children=[1], _parent=None, _unread=[])
    vars(world).update(_gone=set(), _hosts=["a", "a"])
    world.barrier()
    links.here.side_effect = [set(), set()]
    with pytest.raises(LostRankError, match="rank 1 on host a ended without a word"):
        world.barrier()


@pytest.mark.quick
@pytest.mark.parametrize(("timeout", "told"), [(0, []), (1e-9, [Word.FAILED])])
def test_who_only_looks_whether_others_come_tells_them_no_failure(
    timeout: float, told: list[Word], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted rank does, and then it is the interrupt that the others are to hear of."""
    monkeypatch.setattr(mpi, "_PONG_SECONDS", 0.0)
    links = Mock(arrive=Mock(return_value=False), receive=Mock(return_value=[]))
    links.here.return_value = set()
    world = Mpi.__new__(Mpi)
    vars(world).update(_links=links, _failure=None, _children=[1], _parent=None, _unread=[])
    vars(world).update(_gone=set(), _hosts=["a", "a"])
    with pytest.raises(RunError, match=r"waited .* at a barrier for rank 1 on host a"):
        world.barrier(timeout=timeout)
    sent = [decode(each.args[1])[0] for each in links.send.call_args_list]
    assert [word for word in sent if word is not Word.PING] == told


def test_one_process_needs_no_mpi() -> None:
    assert isinstance(make_world({"PMI_SIZE": "1"}), Alone)
    assert "mpi4py.MPI" not in sys.modules


def make_world_apart(*options: str) -> str:
    """Return what a process that no mpirun started says when told of 4 ranks."""
    code = (
        "from dlemu.errors import RunError\n"
        "from dlemu.ranks.mpi import make_world\n"
        "try: make_world({'OMPI_COMM_WORLD_SIZE': '4'})\n"
        "except RunError as error: print(error)\n"
    )
    return subprocess.check_output([sys.executable, *options, "-c", code], text=True, timeout=LONG)


def test_a_launcher_without_mpi_is_told_what_to_install() -> None:
    error = make_world_apart("-S")  # no site-packages, so no mpi4py
    assert error == (
        "started as one of several ranks, but MPI cannot be loaded (No module named 'mpi4py'); "
        "pip install 'dlemu[mpi]'\n"
    )


@pytest.mark.mpi
def test_a_launcher_of_another_mpi_is_refused() -> None:
    pytest.importorskip("mpi4py")
    error = make_world_apart()
    assert error.startswith(
        "mpirun of Open MPI started 4 ranks, but mpi4py's Open MPI finds 1: use the mpirun of "
    )


@pytest.mark.parametrize("value", ["", "0", "-1", "4.0", "²"])
@pytest.mark.parametrize("launcher", [*MPIS, *MANAGERS], ids=lambda one: one.size_key)
def test_a_launcher_that_says_no_number_is_named(launcher: Any, value: str) -> None:
    with pytest.raises(RunError) as raised:
        launched_ranks({launcher.size_key: value})
    assert str(raised.value) == (
        f"the launcher's {launcher.size_key} must be the number of ranks, got {value!r}; start "
        f"dlemu with mpirun or srun, or unset {launcher.size_key}"
    )


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script
        {"WORLD_SIZE": "8", "RANK": "3"},  # set by a user, not by torchrun
        {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_one_process_is_one_rank(environment: dict[str, str]) -> None:
    assert launched_ranks(environment) == 1


@pytest.mark.parametrize("key", ["PMIX_RANK", "PALS_RANKID"])
def test_a_launcher_that_names_no_size_is_believed_but_for_a_lonely_rank(key: str) -> None:
    assert launched_ranks({key: "0"}) is None
    check_world({key: "0"}, 1, "MPICH")  # one rank, or nobody can know
    check_world({key: "3"}, 4, "MPICH")
    with pytest.raises(RunError, match="several ranks, but MPICH finds this one only"):
        check_world({key: "3"}, 1, "MPICH")


@pytest.mark.parametrize(
    ("environment", "mpi", "word"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4"}, "Open MPI", "use srun --mpi=pmix or, inside"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "MPICH", "use srun --mpi=pmi2 or, inside"),
        ({"SLURM_STEP_NUM_TASKS": "4", "PMI_SIZE": "4"}, "Open MPI", "use srun --mpi=pmix"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "Intel MPI", "I_MPI_PMI_LIBRARY set to Slurm's"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "MVAPICH2", "pip install --no-binary mpi4py mpi4py"),
        ({"FLUX_JOB_SIZE": "4", "PMI_SIZE": "4"}, "Open MPI", "use flux run -o pmi=pmix"),
        ({"JSM_NAMESPACE_SIZE": "4"}, "Open MPI", "pip install --no-binary mpi4py mpi4py"),
        ({"PMI_SIZE": "4"}, "Open MPI", "use the mpirun of mpi4py's own MPI, or build"),
        # An mpirun inside a step of Slurm starts ranks of its own.
        ({"PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "1"}, "Open MPI", "use the mpirun of mpi4py's"),
    ],
)
def test_ranks_that_do_not_find_each_other_are_told_the_word(
    environment: dict[str, str], mpi: str, word: str
) -> None:
    check_world(environment, 4, mpi)
    with pytest.raises(RunError, match=f"started 4 ranks, but mpi4py's {mpi} finds 1: ") as raised:
        check_world(environment, 1, mpi)
    assert word in str(raised.value)


# Each rank writes itself: a launcher that hangs passes nothing on.
_JOINS = """
import os, sys
said = os.open(os.environ["SAID"], os.O_WRONLY | os.O_APPEND)
os.dup2(said, 1)
os.dup2(said, 2)
with open(os.environ["PIDS"], "a") as pids:
    print(os.environ["OMPI_COMM_WORLD_RANK"], os.getpid(), file=pids, flush=True)
from dlemu.__main__ import main
from dlemu.ranks import mpi

def interrupted(*_):
    raise KeyboardInterrupt

if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    mpi.STAGE = interrupted
sys.exit(main())
"""


@pytest.mark.mpi
@pytest.mark.parametrize("stage", ["_mpi_world", "check_world", "Links"])
def test_an_interrupt_of_one_that_joins_ends_it_and_so_the_job(stage: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", _JOINS.replace("STAGE", stage)]
    pids, said = tmp_path / "pids", tmp_path / "said"
    said.touch()
    launcher = subprocess.Popen(
        mpirun(2, *program, "datasize", "workload=unet3d_h100"),
        env=os.environ | {"PIDS": str(pids), "SAID": str(said)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def started() -> dict[str, int]:
        lines = pids.read_text().splitlines() if pids.exists() else []
        return {rank: int(pid) for rank, pid in map(str.split, lines)}

    def interrupted_has_ended() -> bool:
        return "1" in started() and _has_ended(started()["1"])

    # To end the others is the launcher's part, once one of its ranks has ended with a failure. Open
    # MPI's mpirun does that, but for once in some hundred times: then it waits on for ever, and
    # does not even take the exit status of the rank that ended.
    try:
        until(lambda: launcher.poll() is not None or interrupted_has_ended(), "the rank's end")
        with suppress(subprocess.TimeoutExpired):
            assert launcher.wait(timeout=30) != 0
    finally:
        launcher.kill()
        launcher.wait()
        for pid in started().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert "dlemu: interrupted\n" in said.read_text() and "Traceback" not in said.read_text()


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for its parent to take its exit status."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.mpi
def test_ranks_meet_where_there_is_no_network_but_the_loopback() -> None:
    """A container with --network=none."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root, and ip: apt-get install iproute2 util-linux")
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    program = "from dlemu.ranks.mpi import make_world; print(make_world().all_gather(7))"
    done = subprocess.run(
        [*alone, *mpirun(2, sys.executable, "-c", program)],
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.stdout.splitlines() == ["[7, 7]"] * 2, done.stderr


@pytest.mark.parametrize(
    ("up", "name"),
    [
        ({"lo": "up,loopback,running"}, "lo"),
        ({"lo": "up,loopback,running", "eth0": "up,broadcast"}, None),
        ({}, None),
    ],
)
def test_the_loopback_is_named_where_nothing_else_is_up(
    up: dict[str, str], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {each: Mock(isup=True, flags=flags) for each, flags in up.items()}
    states["eth9"] = Mock(isup=False, flags="broadcast")
    monkeypatch.setattr("psutil.net_if_stats", lambda: states)
    assert only_loopback() == name


def test_torchrun_is_told_to_be_mpirun() -> None:
    with pytest.raises(RunError, match=r"torchrun started 8 processes, .*: use mpirun -n 8; a tra"):
        launched_ranks({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8", "RANK": "3"})
