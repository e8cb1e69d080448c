"""A Meter in real loops, on a simulated device whose truth is known.

The loops are those that people write: one that runs ahead of its device and copies on a stream of
its own, and one that waits for each step's loss. The truth is the experiment's own clock, which
knows the step's time with its data on the device, and asks the meter nothing.
"""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dlemu import Meter
from dlemu.config.model import load_workload
from dlemu.errors import WorkloadError
from tests.lab.virtual import VirtualClock

WORKLOAD = load_workload("unet3d_h100")
NUM_STEPS = 60


@dataclass
class Stream:
    """Work of a simulated device, in order; to the meter, a StreamClock.

    A mark is the time at which the work before it is done. It counts how often it was waited for.
    """

    clock: VirtualClock
    name: str = "a simulated device"
    free: float = 0.0
    """When all that was queued is done."""
    num_waits: int = 0

    def launch(self, seconds: float, *, host: float = 0.0) -> None:
        """Queue work; the host needs its own time for that."""
        self.clock.time += host
        self.free = max(self.free, self.clock.time) + seconds

    def wait_for(self, mark: float) -> None:
        """Have the device go on no earlier than another stream's mark."""
        self.free = max(self.free, mark)

    def record(self) -> float:
        return max(self.free, self.clock.time)

    def passed(self, mark: float) -> bool:
        return mark <= self.clock.time

    def seconds(self, begin: float, end: float) -> float:
        assert self.passed(begin) and self.passed(end)
        return end - begin

    def wait(self, mark: float) -> None:
        """Have the host wait."""
        if mark > self.clock.time:
            self.clock.time = mark
            self.num_waits += 1


# Seconds of one step of the loops, but for LAUNCH: of the host, for each launch.
COMPUTE, LAUNCH, STACK, COPY = 0.090, 0.00002, 0.0019, 0.0014
AHEAD = 4
"""Batches that the loader reads ahead of the loop."""


@dataclass
class Job:
    """A loop, what the meter says of it, and what is true; percentages."""

    read: float
    """Seconds that the storage needs for a batch."""
    num_launches: int = 100
    told: bool = True
    """Whether the meter is told the device, and where the model runs."""

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.stream = Stream(self.clock)
        self.meter = Meter(WORKLOAD, clock=self.clock)
        self.ends: list[float] = []
        """Of each step."""

    def arriving(self) -> Iterator[int]:
        """Yield batches as storage of one speed gives them to a loader that reads ahead."""
        ready, taken = self.clock.time, [self.clock.time] * AHEAD
        for number in range(NUM_STEPS):
            ready = max(ready, taken[number]) + self.read
            self.clock.time = max(self.clock.time, ready)
            taken.append(self.clock.time)
            yield number

    def batches(self) -> Iterator[int]:
        return self.meter.epoch(self.arriving(), 0, device=self.stream if self.told else None)

    def launch_model(self) -> None:
        with self.meter.computing() if self.told else nullcontext():
            for _ in range(self.num_launches):
                self.stream.launch(COMPUTE / self.num_launches, host=LAUNCH)

    @property
    def step_time(self) -> float:
        """Of a step with its data on the device: launches may be what takes longest."""
        return max(COMPUTE, self.num_launches * LAUNCH)

    @property
    def true_au(self) -> float:
        return 100 * (NUM_STEPS - 1) * self.step_time / (self.ends[-1] - self.ends[0])

    @property
    def metrics(self) -> Any:
        metrics = self.meter.metrics()
        assert metrics is not None
        return metrics.epochs[0]


def run_pipelined(job: Job) -> Job:
    """Pinned memory, copies on a stream of their own, the host at most one step ahead."""
    copies = Stream(job.clock)
    for _ in job.batches():
        copies.launch(COPY)
        job.stream.wait_for(copies.record())
        job.launch_model()
        job.ends.append(job.stream.record())
        if len(job.ends) > 1:
            job.clock.time = max(job.clock.time, job.ends[-2])
    return job


def run_synchronous(job: Job) -> Job:
    """Stacked and copied by the training thread, which takes the loss of each step."""
    clock, stream = job.clock, job.stream
    for _ in job.batches():
        clock.time += STACK
        stream.launch(COPY)
        clock.time = max(clock.time, stream.free)  # memory that is not pinned: the host waits
        job.launch_model()
        clock.time = max(clock.time, stream.free)  # loss.item()
        job.ends.append(clock.time)
        clock.time += 0.0002  # what a loop logs
    return job


LOOPS = {"pipelined": run_pipelined, "synchronous": run_synchronous}


@pytest.mark.parametrize("rate", [2.0, 0.9, 0.6])
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("launches", [100, 6000], ids=["", "launch-bound"])
def test_au_is_that_of_the_experiments_own_clock(loop: str, rate: float, launches: int) -> None:
    job = Job(read=0.0, num_launches=launches)
    job.read = job.step_time / rate
    LOOPS[loop](job)
    assert job.stream.num_waits == 0, "no synchronization in the step"
    # The device waits for a copy while the host launches; no more is gained without that wait.
    hidden = 100 * COPY / job.step_time if loop == "pipelined" and launches == 6000 else 0.0
    assert job.true_au - 0.3 - hidden <= job.metrics.au_percentage <= job.true_au + 0.3
    steps = job.meter.steps
    parts = [steps[name].sum() for name in ("wait", "overhead", "compute", "barrier")]
    assert sum(parts) == pytest.approx(job.ends[-1], abs=0.001), "the steps are the whole time"
    assert (np.diff(steps["start"]) > 0).all()


def test_a_synchronous_loops_own_work_is_no_wait_and_no_compute() -> None:
    found = run_synchronous(Job(read=0.030))
    assert found.metrics.wait_share == pytest.approx(0, abs=1e-9)
    assert found.true_au < 97
    assert found.metrics.overhead_share == pytest.approx(0.0035 / 0.0935, abs=0.001)
    shares = "compute 60.0%, waiting for batches 37.7%, the loop's own work 2.3%, barrier 0.0%"
    report = run_synchronous(Job(read=0.150)).meter.report()
    assert f"\ntime: {shares}; timed by a simulated device\n" in report


@pytest.mark.parametrize(
    ("loop", "read", "off"), [("pipelined", 0.150, -58), ("synchronous", 0.045, 3.7)]
)
def test_the_hosts_view_is_off_and_the_report_says_so(loop: str, read: float, off: float) -> None:
    """Launches are all that a host sees of a loop that runs ahead; of the other, copies as well."""
    found = LOOPS[loop](Job(read, told=False))
    assert found.metrics.au_percentage - found.true_au == pytest.approx(off, abs=1)
    told = found.meter.report().splitlines()
    assert any(line.startswith("note: compute is the host's view: ") for line in told)
    assert any('device="cuda"' in line for line in told)
    if loop == "synchronous":
        assert "with meter.computing():" in "".join(told)


def test_a_step_may_compute_in_several_parts() -> None:
    clock = VirtualClock()
    stream = Stream(clock)
    meter = Meter(WORKLOAD, clock=clock)
    for _ in meter.epoch(range(3), 0, device=stream):
        for seconds in (2.0, 3.0):
            stream.launch(1.0)
            with meter.computing():
                stream.launch(seconds)
    assert meter.steps["compute"].tolist() == [5.0] * 3
    assert meter.steps["overhead"].tolist() == [2.0] * 3
    assert meter.steps["wait"].tolist() == [0.0] * 3
    assert meter.steps["computation_time"].tolist() == [5.0] * 3


def test_two_epochs_each_begin_where_they_began() -> None:
    job = Job(read=0.030)
    stream, meter = job.stream, job.meter
    for epoch in range(2):
        for _ in meter.epoch(job.arriving(), epoch, device=stream):
            with meter.computing():
                stream.launch(0.090)
        stream.wait(stream.free)
        job.clock.time += 5.0  # a validation that is no step
    assert meter.steps["start"][NUM_STEPS] == pytest.approx(5.0 + 0.030 + 0.090 * NUM_STEPS)
    metrics = meter.metrics()
    assert metrics is not None
    assert [e.first_step_seconds for e in metrics.epochs] == pytest.approx([0.120, 0.120])
    with pytest.raises(WorkloadError, match="epoch 1 was recorded already"):
        meter.epoch(job.arriving(), 1)


def test_compute_is_timed_inside_the_loop_and_not_inside_itself() -> None:
    meter = Meter(WORKLOAD, clock=VirtualClock())
    for _ in meter.epoch(range(1), 0):
        with meter.computing(), pytest.raises(WorkloadError, match="inside itself"):
            meter.computing().__enter__()
    with pytest.raises(WorkloadError, match=r"^meter\.compute works only inside the loop over"):
        meter.compute(None)
    with pytest.raises(WorkloadError, match=r"^meter\.computing works only inside the loop over"):
        meter.computing().__enter__()


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cpu", r"^device must be cuda or cuda:<number>, got cpu; leave it out"),
        ("cuda:99", r"^device=cuda:99: this PyTorch \(.*\) sees \d+ GPUs; install one made for"),
        ("", r"^device=cuda needs torch: pip install 'dlemu\[torch"),
    ],
)
def test_a_device_that_cannot_be_timed_is_one_line(
    device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name there is no torch."""
    pytest.importorskip("torch", reason="pip install 'dlemu[torch]'")
    if not device:
        monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(WorkloadError, match=message):
        Meter(WORKLOAD, clock=VirtualClock()).epoch(range(3), 0, device=device or "cuda")
