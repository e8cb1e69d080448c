"""What a run is doing now, for another thread that asks. Nothing here is called in a step."""

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from dlemu.config.model import Workload
from dlemu.config.sections import MetricSection
from dlemu.judge.records import Steps
from dlemu.judge.sums import au_of_each, credited_seconds, left_out, step_seconds
from dlemu.run.monitor import RunMonitor

_RECENT_SECONDS = 5.0

Phase = Callable[[], tuple[str, float]]
"""Returns a phase of `Watchdog`, "" between phases, and how long it has lasted."""
_Epoch = tuple[Sequence["StepsSoFar"], int, RunMonitor, int]
"""The sums of each epoch so far, of how many, what watches them, and how many ranks there are."""


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """What is known of a run at one moment; None: not known yet, or not at all.

    The figures of steps are those of rank 0's accelerators, those of the drive those of its host.
    """

    job: str = ""
    """What the run is a part of: "run 3 of about 8 …"; "" if it stands alone."""
    doing: str = ""
    """What it does outside its epochs: "opening the loader"; "" in an epoch."""
    seconds: float = 0.0
    """Time since it began with that."""
    epoch: int = 0
    """From 1 on; 0 outside an epoch."""
    epochs: int = 0
    step: int = 0
    """Steps of this epoch that have ended, of `steps`."""
    steps: int = 0
    au_percentage: float | None = None
    """Of the whole run so far, 0 to 100. At an epoch's end it is what the run's metrics have, but
    for checkpoints inside the epoch: see `StepsSoFar`."""
    samples_per_second: float | None = None
    """Over the last seconds."""
    drive_bytes_per_second: float | None = None
    """What storage delivered over the last seconds."""
    cached_share: float | None = None
    """Share (0-1) of this epoch's bytes that came from memory."""
    checkpoint: str = ""
    """"checkpoint 2: 31%" while it is being written."""
    seconds_left: float | None = None
    """Until the last epoch ends."""
    num_ranks: int = 1
    """Above 1: there are so many ranks, and the figures are those of rank 0 alone."""

    @property
    def share(self) -> float | None:
        """Share (0-1) of the run's steps that have ended; None outside an epoch."""
        if not self.steps:
            return None
        return (self.epoch - 1 + self.step / self.steps) / self.epochs


class Live:
    """Tells what a run is doing: give it to `run_job`, and call `now` from another thread.

        live = Live()
        threading.Thread(target=lambda: print(live.now())).start()
        dlemu.run_job(workload, world=world, live=live)

    The run tells it when a phase or an epoch begins. All figures are computed in `now`.
    """

    def __init__(self) -> None:
        self.job = ""
        """What the next runs are a part of."""
        self.folder: Path | None = None
        """Of the run, or of several; None: not known yet."""
        self.introduced = False
        """Whether workload, dataset, storage and host have been printed."""
        self.checkpoint: Callable[[], str] = lambda: ""
        """Returns which checkpoint is being written, "" if none is."""
        self._doing, self._since = "starting", time.perf_counter()
        self._phase: Phase = lambda: ("", 0.0)
        self._epoch: _Epoch | None = None
        self._sums: list[StepsSoFar] = []
        """Of each epoch so far."""
        self._lock = threading.Lock()

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """Show this text until the `with` ends, except in epochs and in a watchdog's phases."""
        before = self._doing, self._since
        self.does(text)
        try:
            yield
        finally:
            self._doing, self._since = before

    def does(self, text: str) -> None:
        """Show this text from now on."""
        self._doing, self._since = text, time.perf_counter()

    @contextmanager
    def run(self, phase: Phase) -> Iterator[None]:
        """Follow one run, whose watchdog has these phases."""
        self._sums, self._phase = [], phase
        try:
            with self.doing("starting"):
                yield
        finally:
            self._epoch, self._sums, self._phase = None, [], lambda: ("", 0.0)

    @contextmanager
    def epoch(
        self, steps: Steps, workload: Workload, monitor: RunMonitor, num_ranks: int
    ) -> Iterator[None]:
        """Follow the next epoch: `steps` are the records that its replay fills.

        `num_ranks` is above 1 if other ranks have accelerators as well. A rank without any is not
        followed.
        """
        if not steps.shape[1]:
            yield
            return
        self._sums = [*self._sums, StepsSoFar(steps, workload.metric)]
        self._epoch = self._sums, workload.train.epochs, monitor, num_ranks
        try:
            yield
        finally:
            self._epoch = None

    def now(self) -> RunProgress:
        """Return what is known now."""
        with self._lock:
            if (epoch := self._epoch) is not None:
                return self._in_epoch(*epoch)
        phase, seconds = self._phase()
        text = phase.removeprefix("while ").removeprefix("in ").removeprefix("the ")
        if not text:
            text, seconds = self._doing, time.perf_counter() - self._since
        return RunProgress(job=self.job, doing=text, seconds=seconds)

    def _in_epoch(
        self, sums: Sequence["StepsSoFar"], epochs: int, monitor: RunMonitor, num_ranks: int
    ) -> RunProgress:
        """Return the figures of the last epoch, and the AU of all."""
        for each in sums:
            each.look()
        steps = sums[-1]
        rate, share = monitor.delivered(steps.bytes_until)
        left = steps.num_steps * (1 + epochs - len(sums)) - steps.done
        return RunProgress(
            job=self.job,
            epoch=len(sums),
            epochs=epochs,
            step=steps.done,
            steps=steps.num_steps,
            au_percentage=_mean_au(sums),
            samples_per_second=steps.samples_per_second(time.perf_counter()),
            drive_bytes_per_second=rate,
            cached_share=share,
            checkpoint=self.checkpoint(),
            seconds_left=None if steps.step_seconds is None else left * steps.step_seconds,
            num_ranks=num_ranks,
        )


class StepsSoFar:
    """Running sums over the steps of an epoch that have ended; `look` adds those that are new.

    `steps` are the (steps, accelerators) records of the whole epoch, which another thread fills. A
    record is whole once its `start` is set. Only new records are read: an epoch may have millions.
    """

    def __init__(self, steps: Steps, metric: MetricSection) -> None:
        self.num_steps = len(steps)
        self.done = self.counted = 0
        """Steps that have ended, and those of them that AU counts."""
        self._steps, self._edition = steps, metric.edition
        # Only single values are taken, and those beyond `done` are not in memory yet.
        self._starts = cast(Sequence[float], steps["start"][:, 0])
        self._left_out, at_end = left_out(metric)
        self._stop = len(steps) - at_end
        self._num_bytes = 0
        self._inside, self._credited = np.zeros((2, steps.shape[1]))

    def look(self) -> None:
        """Take in the steps that have ended since the last look."""
        begun, starts = self.done, self._starts
        rows = range(self.num_steps)
        self.done = bisect_left(rows, True, begun, key=lambda row: bool(starts[row] == 0))
        self._num_bytes += int(self._steps["num_bytes"][begun : self.done].sum())
        first, end = max(begun, self._left_out), min(self.done, self._stop)
        if first < end:
            inside = self._steps[first:end]
            self._inside += step_seconds(inside).sum(axis=0)
            self._credited += credited_seconds(inside, self._edition).sum(axis=0)
            self.counted += end - first

    @property
    def au_percentage(self) -> float | None:
        """AU of the steps so far, by the edition's rule; None before the first that counts.

        The steps behind a checkpoint count as well, which the AU of the run leaves out.
        """
        if not self.counted:
            return None
        return float(au_of_each(self._credited, self._inside).mean())

    @property
    def step_seconds(self) -> float | None:
        """Mean time of a step, the first left out; None before the second."""
        if self.done < 2:
            return None
        return (self._end - self._starts[1]) / (self.done - 1)

    def samples_per_second(self, now: float) -> float | None:
        """Return the rate of the last seconds; it falls while no step ends. None before the first.

        `now` is a time of the clock that the records use.
        """
        if not self.done:
            return None
        end, starts = self._end, self._starts
        first = min(bisect_left(starts, end - _RECENT_SECONDS, 0, self.done), self.done - 1)
        samples = int(self._steps["num_samples"][first : self.done].sum())
        return samples / max(end - starts[first], now - end, 1e-9)

    def bytes_until(self, moment: float) -> int:
        """Return the bytes read for the batches of the steps that had ended at a moment."""
        if self.done and moment >= self._end:
            return self._num_bytes
        ended = max(0, bisect_right(self._starts, moment, 0, self.done) - 1)
        return self._num_bytes - int(self._steps["num_bytes"][ended : self.done].sum())

    @property
    def _end(self) -> float:
        last: Any = self._steps[self.done - 1, :1]
        return float(last["start"][0] + step_seconds(last)[0])


def _mean_au(epochs: Sequence[StepsSoFar]) -> float | None:
    """Return the mean over epochs; one that has not ended weighs as much as its steps."""
    counted = [(each.au_percentage, each.counted) for each in epochs]
    steps = sum(num for _, num in counted)
    return sum(au * num for au, num in counted if au is not None) / steps if steps else None
