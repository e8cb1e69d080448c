"""What the hosts of a job have together: accelerators and memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.dataset import settle
from dlemu.dataset.settle import accelerators_of, measure_memory, num_accelerators, settle_size
from dlemu.workload.model import Workload, load_workload
from dlemu.world.world import Alone

GIB = 1 << 30


class Hosts(Alone):
    """Ranks of several hosts, of which rank 0 asks; each host has the memory that it names."""

    def __init__(self, *memory_of_ranks: tuple[int, int]) -> None:
        super().__init__()
        self._told = list(memory_of_ranks)
        self.num_ranks = len(memory_of_ranks)
        self.num_hosts = len({host for host, _ in memory_of_ranks})

    def all_gather(self, value: object) -> list:  # type: ignore[type-arg]
        assert value == self._told[0]
        return self._told


@pytest.fixture(autouse=True)
def own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "host_memory_bytes", lambda: (64 * GIB, "MemTotal"))


def job(**keys: object) -> Workload:
    return load_workload("unet3d_h100", keys)


def test_memory_is_added_up_over_hosts_and_counted_once_a_host() -> None:
    ranks = (0, 64 * GIB), (0, 64 * GIB), (1, 32 * GIB)
    memory = measure_memory(job(), Hosts(*ranks))
    assert (memory.num_bytes, memory.text) == (96 * GIB, "96.0 GiB (of 2 hosts)")


def test_one_host_stands_for_as_many_as_are_named() -> None:
    alone = Hosts((0, 64 * GIB))
    assert measure_memory(job(), alone).num_bytes == 64 * GIB
    memory = measure_memory(job(num_hosts=3), alone)
    assert (memory.num_bytes, memory.text) == (192 * GIB, "3 x 64.0 GiB (MemTotal)")
    two = Hosts((0, 64 * GIB), (1, 64 * GIB))
    assert measure_memory(job(num_hosts=3), two).num_bytes == 128 * GIB, "the hosts are there"


@pytest.mark.parametrize(("named", "hosts"), [(1, 2), (5, 5)])
def test_memory_that_is_given_is_that_of_each_host(named: int, hosts: int) -> None:
    two = Hosts((0, 64 * GIB), (1, 64 * GIB))
    memory = measure_memory(job(host_memory=8 * GIB, num_hosts=named), two)
    assert memory.num_bytes == hosts * 8 * GIB
    assert memory.text == f"{hosts} x 8.0 GiB (host_memory, as given)"


def test_accelerators_are_those_of_all_ranks_unless_told() -> None:
    ranks = Hosts((0, 64 * GIB), (0, 64 * GIB), (1, 64 * GIB))
    assert num_accelerators(job(accelerators_per_rank=4), ranks) == 12
    assert num_accelerators(job(num_accelerators=5), ranks) == 5


@given(st.integers(1, 40), st.integers(0, 100))
def test_ranks_share_accelerators_evenly_and_rank_0_has_some(num_ranks: int, total: int) -> None:
    shares = [accelerators_of(rank, num_ranks, total) for rank in range(num_ranks)]
    assert [number for share in shares for number in share] == list(range(total))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert lengths[0] == max(lengths)


def test_auto_is_what_the_rule_asks_for() -> None:
    alone = Hosts((0, 64 * GIB))
    auto = job(**{"dataset.num_files_train": "auto"})
    settled, size, memory = settle_size(auto, alone, accelerators=1)
    assert memory.num_bytes == 64 * GIB
    assert settled.num_files == size.num_files == max(500 * 7, -(-5 * 64 * GIB // 146_600_628))
    given_files = job(**{"dataset.num_files_train": 9})
    assert settle_size(given_files, alone, accelerators=1)[0].num_files == 9
