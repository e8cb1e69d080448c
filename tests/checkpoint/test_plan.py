"""Who plays which accelerator, on one host and on several."""

import pytest

from dlemu.checkpoint.plan import Plan, Share, planned, share_of
from dlemu.config.model import load_model
from dlemu.ranks.world import Alone


class Ranks(Alone):
    """One of several ranks; `places` has host and local rank of each."""

    share: Share
    """What rank 0 says."""

    def __init__(self, rank: int, places: list[tuple[int, int]]) -> None:
        super().__init__()
        self.rank, self.num_ranks, self._places = rank, len(places), places
        self.host_index, self.local_rank = places[rank]
        self.num_hosts = len({host for host, _ in places})

    def broadcast(self, value: object) -> object:  # type: ignore[override]
        return value or self.share

    def all_gather(self, value: object) -> list[object]:  # type: ignore[override]
        return list(self._places)


def plans(places: list[tuple[int, int]], name: str = "llama3_8b", **keys: object) -> list[Plan]:
    workload = load_model(name, keys)
    Ranks.share = share_of(workload.model, None, "default")
    return [Plan.of(workload, Ranks(rank, places)) for rank in range(len(places))]


@pytest.mark.parametrize(
    "places", [[(0, 0), (0, 1), (1, 0), (1, 1)], [(0, 0), (1, 0), (0, 1), (1, 1)]]
)
def test_hosts_are_filled_one_after_the_other(places: list[tuple[int, int]]) -> None:
    found = plans(places)
    assert found[0].hosts == (0, 0, 0, 0, 1, 1, 1, 1)
    parts = {place: plan.accelerators for place, plan in zip(places, found, strict=True)}
    assert parts == {
        (0, 0): range(2),
        (0, 1): range(2, 4),
        (1, 0): range(4, 6),
        (1, 1): range(6, 8),
    }
    assert found[0].shift == 4 and found[0].foreign_share == 1
    read = [file for plan in found for a in plan.accelerators for file in plan.read_by(a, 2)]
    written = [file for plan in found for a in plan.accelerators for file in plan.written_by(a, 2)]
    assert sorted(read) == sorted(written) and read != written
    assert found[0].on_own_hosts().read_by(0, 2) == found[0].written_by(0, 2)


@pytest.mark.parametrize(
    ("ranks", "foreign"),
    [([1, 2, 1], 1.0), ([2, 1, 1], 1.0), ([1, 1, 2], 1.0), ([3, 1], 0.5), ([1, 3], 0.5)],
)
def test_uneven_hosts_read_as_much_of_others_as_there_is(ranks: list[int], foreign: float) -> None:
    places = [(host, local) for host, number in enumerate(ranks) for local in range(number)]
    assert {plan.foreign_share for plan in plans(places)} == {foreign}


def test_no_two_files_share_their_bytes() -> None:
    [plan] = plans([(0, 0)], "llama3_405b", **{"checkpoint.scale": 1e-6})
    samples = [
        sample
        for step in (1, 2)
        for a in plan.accelerators
        for _, _, sample in plan.written_by(a, step)
    ]
    assert len(set(samples)) == len(samples) == 2 * 1544


def test_uneven_hosts_are_told() -> None:
    """The table of hosts for llama3_405b: 8 hosts of 64 accelerators."""
    places = [(host, 0) for host in range(8)]
    told = planned(load_model("llama3_405b"), plans(places, "llama3_405b")[0])["checkpoint"]
    gib = [round(num_bytes / 2**30) for num_bytes in told["num_bytes_of_hosts"]]
    assert gib == [761, 757, 757, 749, 567, 567, 567, 567]
    assert told["num_bytes_of_accelerators"] == (9_513_171_840, 13_226_441_600)


def test_more_ranks_than_accelerators() -> None:
    found = plans([(0, n) for n in range(3)], "unet3d")
    assert [len(plan.accelerators) for plan in found] == [1, 0, 0]
