"""Measures a training loop of one's own: the same records and metrics as a replayed job."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from dlemu.clock import Clock, WallClock
from dlemu.metrics import Metrics, measure
from dlemu.records import STEP, Steps
from dlemu.workload import Workload
from dlemu.world import Alone, World

B = TypeVar("B")


class Meter:
    """Times the steps of one accelerator's loop.

        for epoch in range(2):
            for batch in meter.epoch(loader, epoch):    # times the wait
                meter.compute(batch)                    # sleeps; or run a model here
        print(meter.report())

    `world` joins the loops of several ranks: a barrier ends every step, as gradients are exchanged.
    """

    def __init__(
        self, workload: Workload, *, world: World | None = None, clock: Clock | None = None
    ) -> None:
        self.workload = workload
        self._world = world or Alone()
        self._clock = clock or WallClock.calibrate()
        self._rows: list[tuple[Any, ...]] = []
        self._loaded = 0.0
        self._asked: float | None = None
        self._generator = np.random.default_rng((workload.train.seed, 0, self._world.rank))

    def epoch(self, batches: Iterable[B], epoch: int) -> Iterator[B]:
        """Yield an epoch's batches and record each step: wait, compute, barrier in seconds.

        Any iterable will do; one with `set_epoch` is told the epoch first, as PyTorch's samplers
        are. What happens between two batches is compute.
        """
        set_epoch = getattr(batches, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        start = self._clock.now()
        for step, batch in enumerate(batches):
            self._loaded = self._clock.now()
            self._asked = None
            yield batch
            computed = self._clock.now()
            self._world.barrier()
            met = self._clock.now()
            compute = computed - self._loaded
            samples = getattr(batch, "samples", None)
            self._rows.append(
                (
                    epoch,
                    step,
                    self._world.rank,
                    self.workload.reader.batch_size if samples is None else len(samples),
                    getattr(batch, "num_bytes", 0),
                    start,
                    self._loaded - start,
                    compute,
                    met - computed,
                    compute if self._asked is None else self._asked,
                    getattr(batch, "read_seconds", 0.0),
                    getattr(batch, "decode_seconds", 0.0),
                    getattr(batch, "hand_over_seconds", 0.0),
                )
            )
            start = met

    def compute(self, batch: object) -> None:
        """Emulate the accelerator: return `train.computation_time` after the batch was taken."""
        self._asked = self.workload.train.computation_time.draw(self._generator)
        self._clock.sleep_until(self._loaded + self._asked)

    @property
    def steps(self) -> Steps:
        """The records so far, (steps,) of `records.STEP`."""
        return np.array(self._rows, STEP)

    def metrics(self) -> Metrics | None:
        """Return the metrics over all ranks on rank 0, None elsewhere.

        Raises:
            WorkloadError: fewer than two steps were taken.
        """
        parts = self._world.gather(self.steps)
        if parts is None:
            return None
        metric = self.workload.metric
        return measure(
            parts,
            edition=metric.edition,
            exclude_start_steps=metric.exclude_start_steps,
            exclude_end_steps=metric.exclude_end_steps,
        )

    def report(self) -> str:
        """Return the report's table and verdict as text; empty on ranks other than 0."""
        from dlemu.report import render_metrics

        metrics = self.metrics()
        return "" if metrics is None else render_metrics(self.workload, metrics)
