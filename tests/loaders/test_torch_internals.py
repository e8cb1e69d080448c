"""What dlemu relies on inside torch's DataLoader, checked with the torch that is installed."""

import gc
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

from dlemu.loaders import torch_internals
from dlemu.loaders.torch_internals import Requests, lean_context
from tests.lab.waiting import until

WORKERS, PREFETCH = 2, 3
MISSING = f"torch {torch.__version__}: change dlemu/loaders/torch_internals.py: "


class Opened:
    """A DataLoader over our context, and a count of what it asked the context for."""

    def __init__(self) -> None:
        self.processes: list[BaseProcess] = []
        self.made = {"Queue": 0, "Event": 0}
        self.num_puts = 0
        context: Any = lean_context(
            "fork", num_messages=8, requests=Requests(), processes=self.processes
        )
        for name in self.made:
            setattr(context, name, self._counted(name, getattr(context, name)))
        self.loader: Any = DataLoader(
            range(100),  # type: ignore[arg-type]
            batch_size=None,
            num_workers=WORKERS,
            prefetch_factor=PREFETCH,
            multiprocessing_context=context,
        )

    def _counted(self, name: str, make: Any) -> Any:
        def counted() -> Any:
            self.made[name] += 1
            made = make()
            if name == "Queue":
                made.put = partial(self._put, made.put)
            return made

        return counted

    def _put(self, put: Any, *message: Any, **how: Any) -> None:
        self.num_puts += 1  # a worker counts in its own copy
        put(*message, **how)


@pytest.fixture(autouse=True)
def handler_of_others() -> Iterator[None]:
    """Leave no handler of torch's to other tests: workers of the main thread install it."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)
    signal_handling._SIGCHLD_handler_set = False


@pytest.fixture
def opened() -> Iterator[Opened]:
    one = Opened()
    yield one
    one.loader = None
    gc.collect()
    for process in one.processes:
        process.join(60)


@pytest.mark.parametrize(
    "name", [torch_internals.SHUT_DOWN, torch_internals.IS_SHUT_DOWN, torch_internals.WATCHES]
)
def test_the_iterator_has_the_private_names(opened: Opened, name: str) -> None:
    iterator = iter(opened.loader)
    assert hasattr(iterator, name), f"{MISSING}a DataLoader's iterator has no {name}"


def test_queues_events_and_workers_come_from_the_context(opened: Opened) -> None:
    """One queue to each worker and one back; and we know the workers."""
    iterator = iter(opened.loader)
    assert opened.made == {"Queue": WORKERS + 1, "Event": 1}, f"{MISSING}other queues or events"
    alive = [process for process in opened.processes if process.is_alive()]
    assert len(alive) == WORKERS, f"{MISSING}its workers are not made by context.Process"
    assert [int(next(iterator)) for _ in range(100)] == list(range(100))


def test_one_request_is_put_into_a_queue_in_the_call_that_returns_a_batch(opened: Opened) -> None:
    iterator = iter(opened.loader)
    assert opened.num_puts == WORKERS * PREFETCH, f"{MISSING}it begins with other requests"
    assert int(next(iterator)) == 0
    assert opened.num_puts == WORKERS * PREFETCH + 1, f"{MISSING}next() sends other messages"


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
