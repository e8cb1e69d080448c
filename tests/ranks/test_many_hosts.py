"""Hosts by the thousand, between which messages are simulated: see tests/lab/many_hosts.py."""

import pickle
from collections.abc import Callable

import pytest

from dlemu.config.model import Workload, load_workload
from dlemu.errors import RunError
from dlemu.judge.metrics import find_losses, measure_sums
from dlemu.judge.records import STEP, Steps
from dlemu.judge.sums import RankName, Rule, Sums, sum_all
from dlemu.ranks.world import PeerError
from dlemu.run.gather import gather_sums
from tests.lab.many_hosts import ManyHosts, SimulatedRank, replay_on

NUM_HOSTS = 300
"""As many levels of the tree as thousands have."""


def test_no_rank_of_300_hosts_passes_before_the_last_arrives() -> None:
    def meet(world: SimulatedRank) -> list[tuple[float, float]]:
        times = []
        for turn in range(3):
            world.hosts.sleep_until(world.hosts.now() + (world.rank * 7919 + turn) % 97 * 1e-5)
            arrived = world.hosts.now()
            world.barrier(timeout=30)
            times.append((arrived, world.hosts.now()))
        return times

    hosts = ManyHosts(NUM_HOSTS)
    for times in zip(*hosts.run(meet), strict=True):
        arrived, released = zip(*times, strict=True)
        assert max(arrived) <= min(released)
        assert max(released) - max(arrived) < 2e-3, "few levels: rank 0 alone would take 20 ms"


def told(
    num_hosts: int, culprit: int, act: Callable[[SimulatedRank], None], error: type[RunError]
) -> list[str]:
    """Return what each rank is told at a barrier, "" on the one that acts instead of coming."""

    def wait(world: SimulatedRank) -> str:
        if world.rank == culprit:
            act(world)
            return ""
        with pytest.raises(error) as caught:
            world.barrier(timeout=30)
        return str(caught.value)

    return ManyHosts(num_hosts).run(wait)


@pytest.mark.parametrize("missing", [0, 277])
def test_a_host_that_does_not_come_is_named_from_afar(missing: int) -> None:
    def sleep(world: SimulatedRank) -> None:
        world.hosts.pause(world.rank, 100.0)
        while world.hosts.now() < 100:
            world.hosts.pause(world.rank)

    lines = told(NUM_HOSTS, missing, sleep, RunError)
    named = f"at a barrier for rank {missing} on host h{missing}"
    assert sum(named in line for line in lines) == NUM_HOSTS - 1
    assert {line[:11] for line in lines if line} == {"waited 31 s"}


def test_an_error_reaches_all() -> None:
    lines = told(NUM_HOSTS, 250, lambda world: world.fail("/data/img_1.npz: is gone"), PeerError)
    assert set(lines) == {"", "rank 250 on host h250: /data/img_1.npz: is gone"}


def test_what_no_rank_says_is_an_error() -> None:
    line = "rank 3 on host h3 sent what no rank sends at a barrier: b'\\xffnoise'"
    lines = told(4, 3, lambda world: world._links.send(0, b"\xffnoise"), RunError)
    assert lines == [line, line, line, ""]


def test_a_start_takes_rank_0_few_messages() -> None:
    """Ten times the ranks: a few messages more, and no conversation with each of them."""
    starts = []
    for num_hosts in (17, 170):
        hosts = ManyHosts(num_hosts, 2)
        hosts.run(lambda world: world.all_gather((world.host_index, 4242)))
        starts.append(hosts.nodes[0].received)
        most = max(node.received for node in hosts.nodes)
        assert most <= starts[-1] + 1, "and nobody else has more, but for its parent's"
    assert starts[1] - starts[0] < 40 < 170


def gathered(
    num_hosts: int, workload: Workload, *, accelerators: int, checkpoints_on: int | None = None
) -> tuple[list[Sums | None], Sums]:
    """Replay, barrier and gather as a run does.

    Return what each rank gets, and the sums of all records.
    """
    steps: dict[int, Steps] = {}

    def run(world: SimulatedRank) -> Sums | None:
        steps[world.rank] = replay_on(world, accelerators=accelerators, num_steps=10)
        steps[world.rank]["stall"][4] = world.rank == checkpoints_on
        return gather_sums(workload, world, [steps[world.rank]])

    found = ManyHosts(num_hosts).run(run)
    parts = [(RankName(rank, f"h{rank}"), steps[rank]) for rank in range(num_hosts)]
    return found, sum_all(parts, Rule.of(workload))


def test_a_checkpoint_of_one_rank_ends_a_block_of_all() -> None:
    workload = load_workload("unet3d_h100", {"workflow.checkpoint": True})
    [found, *_], whole = gathered(3, workload, accelerators=2, checkpoints_on=2)
    assert found is not None and repr(measure_sums(found)) == repr(measure_sums(whole))


def test_thousands_of_accelerators_have_the_metrics_of_all_their_records() -> None:
    [sums, *others], whole = gathered(NUM_HOSTS, load_workload("unet3d_h100"), accelerators=8)
    assert sums is not None and others == [None] * (NUM_HOSTS - 1)
    metrics, expected = measure_sums(sums), measure_sums(whole)
    assert metrics.num_accelerators == 8 * NUM_HOSTS
    assert metrics.au_percentage == expected.au_percentage
    assert metrics.samples_per_second == expected.samples_per_second
    assert find_losses(sums).parts.total == pytest.approx(find_losses(whole).parts.total)
    # All wait for the slowest of 2,400, whose compute takes 2 % longer; then for the barrier.
    assert metrics.au_percentage == pytest.approx(100 * 1.01 / 1.02, abs=0.1)
    assert len(pickle.dumps(sums)) < 10 * metrics.num_accelerators * STEP.itemsize / 5
