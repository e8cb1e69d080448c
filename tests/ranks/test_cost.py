"""What a barrier costs."""

from unittest.mock import Mock

import pytest

from dlemu.ranks import cost


def test_processes_meet_and_are_gone() -> None:
    found = cost.barrier_cost(num=3, meetings=4)
    assert found.processes == 3 and 0 < found.median <= found.p99


@pytest.mark.quick
def test_a_barrier_begins_when_the_last_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for others that are late pays for them, and not for the barrier."""
    world = Mock(all_gather=Mock(side_effect=lambda own: [own, [10.5, 19.0]]))
    times = Mock(perf_counter=Mock(side_effect=[10.0, 10.75, 20.0, 20.25]))
    monkeypatch.setattr(cost, "time", times)
    assert cost._meet(world, 2) == [0.25, 0.25]
    assert world.barrier.call_count == times.sleep.call_count == 2
