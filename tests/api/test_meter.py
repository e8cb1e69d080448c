"""One's own training loop is measured as a replayed job is.

The last tests are of real loops, on a simulated device whose truth is known: one that runs ahead of
its device and copies on a stream of its own, and one that waits for each step's loss. The truth is
the experiment's own clock, which knows the step's time with its data on the device, and asks the
meter nothing.
"""

import ctypes
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dlemu import Meter
from dlemu import meter as own_loop
from dlemu.config.model import Workload, load_workload
from dlemu.errors import RunError, WorkloadError
from dlemu.findings import weighing
from dlemu.host import faults
from dlemu.host.intervals import IntervalSummary
from dlemu.judge.records import STEP
from dlemu.loaders import Batch
from dlemu.meter import first_step_of, own_workload_yaml
from dlemu.ranks.world import Alone
from dlemu.run.compute import HostStream
from tests.lab.virtual import VirtualClock

WORKLOAD = load_workload("unet3d_h100", {"train.computation_time": 2.0})


class Delayed:
    """An iterable of batches, each of which takes its time."""

    def __init__(self, clock: VirtualClock, *seconds: float) -> None:
        self.clock, self.seconds, self.epochs = clock, seconds, list[int]()

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[str]:
        for number, seconds in enumerate(self.seconds):
            self.clock.time += seconds
            yield f"batch {number}"


class Slow(Alone):
    """A world in which the others are late."""

    def __init__(self, clock: VirtualClock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def barrier(self, timeout: float | None = None) -> None:
        self.clock.time += self.seconds


def loaded(folder: Path, text: str) -> Workload:
    """Return the workload of a file with this text."""
    (folder / "own.yaml").write_text(text)
    return load_workload(folder / "own.yaml")


def test_an_emulated_loop_is_a_replayed_job() -> None:
    clock = VirtualClock()
    meter = Meter(WORKLOAD, clock=clock, world=Slow(clock, 0.5))
    loader = Delayed(clock, 8.0, 0.0, 1.5)
    taken = []
    for epoch in range(2):
        for batch in meter.epoch(loader, epoch):
            taken.append(batch)
            meter.compute(batch)
    assert taken == ["batch 0", "batch 1", "batch 2"] * 2
    assert loader.epochs == [0, 1], "the loader is told the epoch"
    steps = meter.steps
    assert steps["wait"].tolist() == [8, 0, 1.5] * 2
    assert steps["compute"].tolist() == steps["computation_time"].tolist() == [2] * 6
    assert steps["barrier"].tolist() == [0.5] * 6
    assert steps["start"].tolist() == [0, 10.5, 13, 17, 27.5, 30]
    assert steps["num_samples"].tolist() == [7] * 6, "reader.batch_size, if the batch says nothing"
    metrics = meter.metrics()
    assert metrics is not None
    assert metrics.au_percentage == pytest.approx(100 * 4 / (2.5 + 4))
    assert meter.report().splitlines()[1] == (
        "unet3d_h100: 1 emulated accelerator, 2 epochs of 3 steps, batches of 7"
    )


def test_a_loop_may_emulate_some_of_its_steps_and_leave_one() -> None:
    clock = VirtualClock()
    keys = {"train.computation_time": {"mean": 2.0, "stdev": 0.5}, "metric.edition": "v2.0"}
    meter = Meter(WORKLOAD.with_keys(keys), clock=clock)
    batch = Batch(0, 0, 0, np.arange(5), 4096, 0.0, 0.25, 0.5, 0.125)
    for number, taken in enumerate(meter.epoch([batch] * 6, 0)):
        if number == 4:
            break
        if number > 1:
            meter.compute(taken)
        clock.time += 1
    steps = meter.steps
    assert steps["compute"].tolist() == (steps["computation_time"] + [0, 0, 1, 1]).tolist()
    assert steps["computation_time"][:2].tolist() == [1, 1]
    assert len({*steps["computation_time"].tolist()}) == 3, "drawn as the workload says"
    names = ["num_samples", "num_bytes", "read", "decode", "hand_over"]
    assert steps[names].tolist() == [(5, 4096, 0.25, 0.5, 0.125)] * 4
    metrics = meter.metrics()
    assert metrics is not None and metrics.edition == "v2.0"


@pytest.mark.parametrize("num_steps", [0, 1])
def test_too_few_steps_are_an_error(num_steps: int) -> None:
    meter = Meter(WORKLOAD, clock=VirtualClock())
    for batch in meter.epoch(range(num_steps), 0):
        meter.compute(batch)
    with pytest.raises(WorkloadError):
        meter.report()


def test_a_real_loop_becomes_a_workload(tmp_path: Path) -> None:
    clock = VirtualClock()
    meter = Meter(WORKLOAD, clock=clock)
    for batch in meter.epoch(Delayed(clock, 9.0, 1.0, 1.0, 1.0), 0):
        with meter.computing():
            clock.time += 50.0 if batch == "batch 0" else 3.0
    text = meter.workload_yaml("own")
    found = loaded(tmp_path, text)
    time = found.train.computation_time
    assert (found.name, time.mean, time.stdev) == ("own", 3.0, 0.0), "without the first step"
    assert found.train.first_step_time == 50.0, "which is emulated by itself"
    again = Meter(found, clock=clock)
    for epoch in range(2):
        for batch in again.epoch(["batch"] * 2, epoch):
            again.compute(batch)
    assert again.steps["computation_time"].tolist() == [50.0, 3.0, 3.0, 3.0]
    assert found.dataset == WORKLOAD.dataset
    assert "waiting for batches: 25.0 %" in text
    assert "the loader does not tell its bytes" in text and "batch_size:" not in text
    assert "batch size: that of unet3d_h100; Meter(batch_size=)" in text
    told = meter.report()
    for unknown in ("read, nominal", "read, really", "samples/s", "batches of"):
        assert unknown not in told, "what is not known is left out"


def test_the_bytes_of_samples_are_in_the_workload(tmp_path: Path) -> None:
    names: dict[str, Any] = {"name": "own", "timed_by": ["a clock"]}
    steps = np.zeros(4, STEP)
    steps["step"] = range(4)
    steps["num_samples"], steps["compute"], steps["overhead"] = 4, [9, 1, 2, 3], 0.5
    steps["num_bytes"] = [0, 36, 40, 44]
    found = loaded(tmp_path, own_workload_yaml(WORKLOAD, steps, **names))
    assert (found.reader.batch_size, found.dataset.record_length_bytes) == (4, 10)
    assert found.train.computation_time.mean == 2.5, "the loop's own work is part of a step"
    # Means of 4 samples deviate by sqrt(2/3); the samples by twice that.
    assert found.dataset.record_length_bytes_stdev == pytest.approx(2 * (2 / 3) ** 0.5, rel=1e-4)
    streams = WORKLOAD.with_keys({"reader.data_loader": "tensorflow"})
    found = loaded(tmp_path, own_workload_yaml(streams, steps, **names))
    assert found.dataset.record_length_bytes == 10
    usual = WORKLOAD.dataset.record_length_bytes_stdev
    assert found.dataset.record_length_bytes_stdev == usual, "read ahead: no deviation of samples"
    with pytest.raises(WorkloadError, match="at least two steps"):
        own_workload_yaml(WORKLOAD, steps[:1], **names)


def test_a_job_of_several_ranks_shares_its_steps_and_its_workers_cost_what_they_cost(
    tmp_path: Path,
) -> None:
    names: dict[str, Any] = {"name": "own", "timed_by": ["a clock"]}
    steps = np.zeros(4, STEP)
    steps["step"], steps["num_samples"], steps["compute"] = range(4), 4, [9, 1, 2, 3]
    found = loaded(tmp_path, own_workload_yaml(WORKLOAD, steps, **names))
    assert (found.train.step_spread, found.reader.cost) == ("own", "lean")
    found = loaded(
        tmp_path, own_workload_yaml(WORKLOAD, steps, spread="shared", by_dlemu=False, **names)
    )
    assert (found.train.step_spread, found.reader.cost) == ("shared", "dataloader")
    found = loaded(tmp_path, own_workload_yaml(WORKLOAD, steps, spread=0.9, **names))
    assert found.train.step_spread == found.train.shared_spread == 0.9
    direct = WORKLOAD.with_keys({"reader.odirect": True})
    found = loaded(tmp_path, own_workload_yaml(direct, steps, by_dlemu=False, **names))
    assert found.reader.cost == "lean", "no Dataset reads so"


@pytest.mark.parametrize("kept", [False, True])
def test_the_start_of_a_loader_s_workers_is_in_the_workload(tmp_path: Path, kept: bool) -> None:
    """The median of epochs; where workers last, they start in the first one alone."""

    class Starting(Delayed):
        num_workers, persistent_workers = 4, kept

        def __iter__(self) -> Iterator[str]:
            self.clock.time += 1.0 if len(self.epochs) == 1 else 0.4
            return super().__iter__()

    clock = VirtualClock()
    meter, loader = Meter(WORKLOAD, clock=clock), Starting(clock, 1.0, 1.0, 1.0)
    for epoch in range(3):
        for _ in meter.epoch(loader, epoch):
            clock.time += 3.0
    found = loaded(tmp_path, meter.workload_yaml("own")).reader
    assert found.worker_start_time == (0.25 if kept else 0.1)
    assert found.persistent_workers is kept


@pytest.mark.parametrize(
    ("pins", "device", "found"),
    [(True, "a GPU", 0.5), (False, "a GPU", 0.0), (True, "the host", 0.0), (True, "none", 0.0)],
)
def test_what_page_locked_memory_takes_is_in_the_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pins: bool, device: str, found: float
) -> None:
    def seconds() -> float:
        if device == "none":
            raise RunError("no GPU")
        return 0.5

    class Pinning(Delayed):
        num_workers, pin_memory = 4, pins

    monkeypatch.setattr("dlemu.meter.page_lock_time", seconds)
    clock = VirtualClock()
    stream = HostStream(clock)
    stream.name = "the host" if device == "the host" else "a GPU"
    meter = Meter(WORKLOAD, clock=clock)
    for _ in meter.epoch(Pinning(clock, 1.0, 1.0, 1.0), 0, device=stream):
        clock.time += 3.0
    assert loaded(tmp_path, meter.workload_yaml("own")).reader.page_lock_time == found


class Samples:
    """Of 66 kB each, in 20 batches of 64."""

    def __len__(self) -> int:
        return 20 * 64

    def __getitem__(self, number: int) -> Any:
        return np.full(66_000, number % 256, np.uint8)


def _mallopt(options: dict[int, int], worker: int) -> None:
    library = ctypes.CDLL(None)
    for option, value in options.items():
        assert library.mallopt(option, value) == 1
    library.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: each page is a fault


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({-3: 4096}, "returned", id="each array is mapped alone"),
        pytest.param({-3: 32 << 20, -1: -1}, "kept", id="nothing is returned"),
    ],
)
def test_what_workers_do_with_memory_is_in_the_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[int, int], expected: str
) -> None:
    """A real DataLoader, of whose worker the kernel counts the page faults."""
    from torch.utils.data import DataLoader

    monkeypatch.setattr(faults, "_HUGE_PAGES", tmp_path / "none")
    samples: Any = Samples()
    loader: Any = DataLoader(
        samples,
        batch_size=64,
        num_workers=1,
        multiprocessing_context="fork",
        worker_init_fn=partial(_mallopt, options),
    )
    meter = Meter("own")
    for _ in meter.epoch(loader, 0):
        pass
    if not any(each.number for each in meter._faults.found):
        pytest.skip("this kernel counts no page faults")
    assert loaded(tmp_path, meter.workload_yaml()).reader.worker_memory == expected


def test_a_loader_of_ones_own_is_counted_by_its_batches(tmp_path: Path) -> None:
    """Batches of 16 samples of 64 KiB, one a second: 16 samples/s, 1 MB/s."""
    arrays = {"x": np.zeros((16, 65_536), np.uint8)}
    cases: list[tuple[object, dict[str, Any], int, str | None]] = [
        (arrays, {}, 16, "1.0"),
        ([arrays["x"], [np.zeros(16, np.int64)]], {}, 16, "1.0"),
        (["a", "b", "c"], {}, 3, None),
        ("one text", {"batch_size": 5, "sample_bytes": 10**6}, 5, "5.0"),
        (arrays, {"sample_bytes": 10**6}, 16, "16.0"),
    ]
    for batch, given, samples, rate in cases:
        clock = VirtualClock()
        meter = Meter(WORKLOAD, clock=clock, **given)
        for _ in meter.epoch([batch] * 5, 0):
            clock.time += 1.0
        told = meter.report()
        assert f"batches of {samples}" in told
        assert re.search(rf"^samples/s +{samples}\.00", told, re.MULTILINE), told
        assert ("read, nominal" in told) is (rate is not None)
        assert rate is None or re.search(rf"^read, nominal \(MB/s\) +{rate} ", told, re.MULTILINE)
        reader = loaded(tmp_path, meter.workload_yaml("own")).reader
        assert (reader.batch_size, reader.cost) == (samples, "dataloader")
    with pytest.raises(WorkloadError, match="batch_size must be above 0, got 0"):
        Meter(WORKLOAD, batch_size=0)


def files(folder: Path) -> Iterator[NDArray[np.uint8]]:
    """Yield batches as a loader of one's own does: each is one file."""
    for name in "abc":
        (folder / name).write_bytes(bytes(3000))
        yield np.fromfile(folder / name, np.uint8).reshape(3, 1000)


def test_the_folder_of_ones_own_loop_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drive gave 9,000 of 12,000 bytes in the two epochs, by simulated counters."""
    counts = (1.5, {"sim0": 0.5}, 4500, None, 4500, None, None, None, 2.0, *(None,) * 4)
    seen = IntervalSummary(*counts, device_reads={"sim0": 4500})
    monkeypatch.setattr(own_loop, "summarize_interval", lambda observations: seen)
    monkeypatch.setattr(own_loop, "mount_under", lambda folder: None)
    lines: dict[float | None, list[str]] = {}
    for sample_bytes in (2000 / 3, None):
        clock = VirtualClock()
        meter = Meter(WORKLOAD, clock=clock, folder=tmp_path, sample_bytes=sample_bytes)
        for epoch in (3, 4):  # any numbers
            for _ in meter.epoch(files(tmp_path), epoch):
                clock.time += 1.0
        document = meter.document()
        assert document is not None and document["measured"]["device_read_bytes"] == 9000
        assert all(row["lost"] == {} for row in document["per_epoch"]), "why is not known"
        assert not weighing(document, "note"), "a loop of one's own is like no published row"
        share = document["measured"]["page_cache_share"]
        assert share == (0.25 if sample_bytes else None)
        lines[sample_bytes] = meter.report().splitlines()
    with_share, without = lines.values()
    told = "storage: gave 8.8 KiB while epochs ran, 3 kB/s; sim0 of host "
    assert any(line.startswith(told) and "busy 50% of the time" in line for line in without)
    assert any(line.endswith("; 25% of the bytes came from memory") for line in with_share)
    assert with_share[0].startswith("NO VERDICT: ") and "25.0% of the bytes" in with_share[0]
    assert "or drop the page cache before the loop" in with_share[0], "no key of a run's"
    assert any("Meter(sample_bytes=) gives those" in line for line in without)


@pytest.mark.parametrize(
    ("num_workers", "cpu_seconds", "limit", "advice"),
    [
        pytest.param(2, 0.6, "storage", [], id="workers wait for the drive"),
        pytest.param(2, 17.4, "loader", ["num_workers", "prefetch_factor"], id="workers decode"),
        pytest.param(0, 0.5, "storage", [], id="the loop waits for the drive"),
        pytest.param(0, 17.5, "loader", ["num_workers"], id="the loop decodes"),
    ],
)
def test_a_loop_with_a_folder_names_its_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
    cpu_seconds: float,
    limit: str,
    advice: list[str],
) -> None:
    """Six steps wait 3 s each; so much CPU time was used, by workers or in the loop's waits."""
    counts = (24.0, {"sim0": 0.9}, 6000, None, 6000, 6000, 0.3, 0.0, 4.0, cpu_seconds, 0.0, 0.0)
    seen = IntervalSummary(*counts, None, device_reads={"sim0": 6000})
    monkeypatch.setattr(own_loop, "summarize_interval", lambda observations: seen)
    monkeypatch.setattr(own_loop, "mount_under", lambda folder: None)
    clock = VirtualClock()
    used = [0.0]
    monkeypatch.setattr(own_loop, "process_time", lambda: 0.0)
    monkeypatch.setattr(own_loop, "thread_time", lambda: used[0])

    class Loader:
        prefetch_factor = 2

        def __init__(self) -> None:
            self.num_workers = num_workers

        def __iter__(self) -> Iterator[NDArray[np.uint8]]:
            for _ in range(6):
                clock.time += 3.0
                used[0] += 0.0 if num_workers else cpu_seconds / 6
                yield np.zeros((4, 100), np.uint8)

    meter = Meter("own", clock=clock, folder=tmp_path)
    for _ in meter.epoch(Loader(), 0):
        clock.time += 1.0
        used[0] += 1.0  # of the model
    document = meter.document()
    assert document is not None and document["limit"] is not None
    assert document["limit"]["name"] == limit, document["limit"]
    own = [each["figures"].get("argument") for each in document["limit"]["advice"]]
    assert [each for each in own if each] == advice
    assert f"limit: {limit}" in meter.report()


def test_a_loop_over_files_in_memory_has_no_verdict() -> None:
    """Counted by the real kernel."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        meter = Meter(WORKLOAD, folder=folder, sample_bytes=1000)
        for _ in meter.epoch(files(Path(folder)), 0):
            pass
        document = meter.document()
    assert document is not None and document["verdict"] == "NO VERDICT"
    assert document["measured"]["page_cache_share"] == 1
    assert document["measured"]["hosts"][0]["process_rchar"] >= 9000, "of this process"
    assert "this one lies in memory" in meter.report().splitlines()[0]
    with pytest.raises(WorkloadError, match=r"^Meter: folder /nowhere is no folder; name"):
        Meter(WORKLOAD, folder="/nowhere")


@pytest.mark.parametrize(
    ("first", "told"),
    [
        pytest.param([9.0, 7.0], 8.0, id="the mean of the ranks"),
        pytest.param([1.2, 1.2], None, id="about as long as the others"),
        pytest.param([3.0, 3.0], None, id="another step is longer"),
    ],
)
def test_a_first_step_is_told_where_it_is_longer_than_all(
    first: list[float], told: float | None
) -> None:
    """Each rank has two epochs of three steps; the second one's first step is no warm-up."""
    steps = np.zeros((2, 2, 3), STEP)
    steps["epoch"], steps["step"] = np.arange(2)[:, None], np.arange(3)
    steps["compute"], steps["overhead"] = 0.75, 0.25
    steps["compute"][:, 1, 0], steps["compute"][1, 1, 2] = 20.0, 3.0
    steps["compute"][:, 0, 0] = np.array(first) - 0.25
    assert first_step_of(steps.ravel()) == told
    assert first_step_of(steps[:, :, :1].ravel()) is first_step_of(steps[:0].ravel()) is None


def test_the_threads_time_to_queue_a_step_is_in_the_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it is CPU time: the rest the thread waits, for Python's lock or its core."""
    clock = VirtualClock()
    monkeypatch.setattr("dlemu.meter.thread_time", lambda: clock.time / 2)
    meter = Meter(WORKLOAD, clock=clock)
    for number, _ in enumerate(meter.epoch([np.zeros((2, 8))] * 4, 0, device=Stream(clock))):
        with meter.computing():
            clock.time += 9.0 if number == 0 else 0.25
        clock.time += 0.5
    train = loaded(tmp_path, meter.workload_yaml("own")).train
    assert (train.launch_time, train.computation_time.mean) == (0.125, 0.75)


def test_what_is_waited_for_others_is_only_what_the_device_waited() -> None:
    clock = VirtualClock()
    stream, meter = Stream(clock), Meter(WORKLOAD, clock=clock, world=Slow(clock, 1.0))
    for number in meter.epoch(range(4), 0, device=stream):
        stream.launch(0.25 if number < 3 else 3.0)
    assert meter.steps["barrier"].tolist() == [0.75, 0.75, 0.75, 0.0]
    assert meter.steps["compute"].tolist() == [0.25, 0.25, 0.25, 3.0]


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
    names = ["compute", "computation_time", "overhead", "wait"]
    assert meter.steps[names].tolist() == [(5.0, 5.0, 2.0, 0.0)] * 3


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
