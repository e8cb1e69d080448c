"""A Meter in real loops, on a simulated device whose truth is known.

The loops are those that people write: one that runs ahead of its device and copies on a stream of
its own, and one that waits for each step's loss. The truth is the experiment's own clock, which
knows the step's time with its data on the device, and asks the meter nothing.
"""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
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


@dataclass
class Job:
    """What one loop is made of, in seconds."""

    read: float
    """The storage needs for a batch."""
    compute: float = 0.090
    num_launches: int = 100
    launch: float = 0.00002
    """Of the host, for each."""
    stack: float = 0.0019
    copy: float = 0.0014
    ahead: int = 4
    """Batches that the loader reads ahead of the loop."""
    clock: VirtualClock = field(default_factory=VirtualClock)

    def batches(self) -> Iterator[int]:
        """Yield batches as storage of one speed gives them to a loader that reads ahead."""
        ready, taken = self.clock.time, [self.clock.time] * self.ahead
        for number in range(NUM_STEPS):
            ready = max(ready, taken[number]) + self.read
            self.clock.time = max(self.clock.time, ready)
            taken.append(self.clock.time)
            yield number

    @property
    def step_time(self) -> float:
        """Of a step with its data on the device: launches may be what takes longest."""
        return max(self.compute, self.num_launches * self.launch)


def launch_model(job: Job, stream: Stream) -> None:
    for _ in range(job.num_launches):
        stream.launch(job.compute / job.num_launches, host=job.launch)


@dataclass
class Found:
    """What the meter says, and what is true; percentages."""

    meter: Meter
    job: Job
    ends: list[float]
    """Of each step."""
    num_waits: int
    """How often the meter waited for the device while the loop ran."""

    @property
    def true_au(self) -> float:
        busy = (NUM_STEPS - 1) * self.job.step_time
        return 100 * busy / (self.ends[-1] - self.ends[0])

    @property
    def metrics(self) -> Any:
        metrics = self.meter.metrics()
        assert metrics is not None
        return metrics.epochs[0]


def run_pipelined(job: Job, *, timed: bool = True, marked: bool = True) -> Found:
    """Pinned memory, copies on a stream of their own, the host at most one step ahead."""
    clock = job.clock
    compute, copies = Stream(clock), Stream(clock)
    meter = Meter(WORKLOAD, clock=clock)
    ends: list[float] = []
    for _ in meter.epoch(job.batches(), 0, device=compute if timed else None):
        copies.launch(job.copy)
        compute.wait_for(copies.record())
        with meter.computing() if marked else nullcontext():
            launch_model(job, compute)
        ends.append(compute.record())
        if len(ends) > 1:
            clock.time = max(clock.time, ends[-2])
    return Found(meter, job, ends, compute.num_waits)


def run_synchronous(job: Job, *, timed: bool = True, marked: bool = True) -> Found:
    """Stacked and copied by the training thread, which takes the loss of each step."""
    clock = job.clock
    compute = Stream(clock)
    meter = Meter(WORKLOAD, clock=clock)
    ends: list[float] = []
    for _ in meter.epoch(job.batches(), 0, device=compute if timed else None):
        clock.time += job.stack
        compute.launch(job.copy)
        clock.time = max(clock.time, compute.free)  # memory that is not pinned: the host waits
        with meter.computing() if marked else nullcontext():
            launch_model(job, compute)
        clock.time = max(clock.time, compute.free)  # loss.item()
        ends.append(clock.time)
        clock.time += 0.0002  # what a loop logs
    return Found(meter, job, ends, compute.num_waits)


LOOPS = {"pipelined": run_pipelined, "synchronous": run_synchronous}


@pytest.mark.parametrize("rate", [2.0, 0.9, 0.6])
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("launches", [100, 6000], ids=["", "launch-bound"])
def test_au_is_that_of_the_experiments_own_clock(loop: str, rate: float, launches: int) -> None:
    job = Job(read=0.0, num_launches=launches)
    job.read = job.step_time / rate
    found = LOOPS[loop](job)
    steps = found.meter.steps
    # The device waits for a copy while the host launches; no more is gained without that wait.
    hidden = 100 * job.copy / job.step_time if loop == "pipelined" and launches == 6000 else 0.0
    assert found.true_au - 0.3 - hidden <= found.metrics.au_percentage <= found.true_au + 0.3
    assert found.num_waits == 0, "no synchronization in the step"
    parts = [steps[name].sum() for name in ("wait", "overhead", "compute", "barrier")]
    assert sum(parts) == pytest.approx(found.ends[-1], abs=0.001), "the steps are the whole time"
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
    found = LOOPS[loop](Job(read), timed=False, marked=False)
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
    stream = Stream(job.clock)
    meter = Meter(WORKLOAD, clock=job.clock)
    for epoch in range(2):
        for _ in meter.epoch(job.batches(), epoch, device=stream):
            with meter.computing():
                stream.launch(0.090)
        stream.wait(stream.free)
        job.clock.time += 5.0  # a validation that is no step
    steps = meter.steps
    assert steps["start"][NUM_STEPS] == pytest.approx(5.0 + 0.030 + 0.090 * NUM_STEPS)
    metrics = meter.metrics()
    assert metrics is not None
    assert [e.first_step_seconds for e in metrics.epochs] == pytest.approx([0.120, 0.120])
    with pytest.raises(WorkloadError, match="epoch 1 was recorded already"):
        meter.epoch(job.batches(), 1)


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
    ],
)
def test_a_device_that_cannot_be_timed_is_one_line(device: str, message: str) -> None:
    pytest.importorskip("torch", reason="pip install 'dlemu[torch]'")
    with pytest.raises(WorkloadError, match=message):
        Meter(WORKLOAD, clock=VirtualClock()).epoch(range(3), 0, device=device)


def test_without_torch_a_device_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    meter = Meter(WORKLOAD, clock=VirtualClock())
    with pytest.raises(WorkloadError, match=r"^device=cuda needs torch: pip install 'dlemu\[torch"):
        meter.epoch(range(3), 0, device="cuda")
