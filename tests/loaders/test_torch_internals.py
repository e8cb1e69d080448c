"""What dlemu relies on inside torch's DataLoader, checked with the torch that is installed."""

import signal
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from dlemu.loaders import pipes as torch_internals
from dlemu.loaders.pipes import Requests, lean_context
from tests.lab.waiting import until

WORKERS, PREFETCH = 2, 3
MISSING = f"torch {torch.__version__}: change dlemu/loaders/pipes.py: "


@pytest.fixture(autouse=True)
def handler_of_others() -> Iterator[None]:
    """Leave no handler of torch's to other tests: workers of the main thread install it."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)
    signal_handling._SIGCHLD_handler_set = False


def test_a_dataloader_asks_its_context_and_sends_requests_as_we_know() -> None:
    """One queue to each worker and one back; one more request in the call that returns a batch."""
    processes: list[BaseProcess] = []
    made, puts = {"Queue": 0, "Event": 0}, [0]  # a worker counts in its own copy
    context: Any = lean_context("fork", num_messages=8, requests=Requests(), processes=processes)

    def counted(name: str, make: Any) -> Any:
        made[name] += 1
        one = make()
        put: Any = getattr(one, "put", None)

        def counted_put(*message: object) -> None:
            puts[0] += 1
            put(*message)

        if put is not None:
            one.put = counted_put
        return one

    for name in made:
        setattr(context, name, partial(counted, name, getattr(context, name)))
    iterator: Any = iter(
        DataLoader(
            range(100),  # type: ignore[arg-type]
            batch_size=None,
            num_workers=WORKERS,
            prefetch_factor=PREFETCH,
            multiprocessing_context=context,
        )
    )
    for name in (torch_internals.SHUT_DOWN, torch_internals.IS_SHUT_DOWN, torch_internals.WATCHES):
        assert hasattr(iterator, name), f"{MISSING}a DataLoader's iterator has no {name}"
    assert made == {"Queue": WORKERS + 1, "Event": 1}, f"{MISSING}other queues or events"
    alive = [process for process in processes if process.is_alive()]
    assert len(alive) == WORKERS, f"{MISSING}its workers are not made by context.Process"
    assert puts == [WORKERS * PREFETCH], f"{MISSING}it begins with other requests"
    assert int(next(iterator)) == 0
    assert puts == [WORKERS * PREFETCH + 1], f"{MISSING}next() sends other messages"
    assert [int(each) for each in iterator] == list(range(1, 100))
    for process in processes:
        process.join(60)


@pytest.mark.parametrize("watched", [True, False])
def test_a_worker_that_is_ended_is_no_error_once_nobody_watches(watched: bool) -> None:
    context: Any = lean_context("fork", num_messages=8, requests=Requests(), processes=[])
    loader: Any = DataLoader(
        range(100),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context=context,
    )
    next(iter(loader))
    [worker] = loader._iterator._workers
    if not watched:
        torch_internals.stop_watching(loader)
    with pytest.raises(RuntimeError, match="Killed") if watched else nullcontext():
        worker.kill()
        worker.join(60)
        until(lambda: not watched, "the handler, which raises between two instructions")
    torch_internals.stop_watching(loader)
    assert worker.exitcode == -signal.SIGKILL
