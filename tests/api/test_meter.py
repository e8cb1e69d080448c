"""One's own training loop is measured as a replayed job is."""

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dlemu import Meter
from dlemu import meter as own_loop
from dlemu.config.model import Workload, load_workload
from dlemu.errors import WorkloadError
from dlemu.host.intervals import IntervalSummary
from dlemu.judge.records import STEP
from dlemu.loaders import Batch
from dlemu.meter import own_workload_yaml
from dlemu.ranks.world import Alone
from tests.api.test_real_loops import Stream
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
    assert found.dataset == WORKLOAD.dataset
    assert "waiting for batches: 25.0 %" in text
    assert "the loader does not tell its bytes" in text and "reader:" not in text
    assert "batch size: that of unet3d_h100; Meter(batch_size=)" in text
    told = meter.report()
    for unknown in ("read, nominal", "read, really", "samples/s", "batches of"):
        assert unknown not in told, "what is not known is left out"


def test_the_bytes_of_samples_are_in_the_workload(tmp_path: Path) -> None:
    names = {"name": "own", "timed_by": "a clock"}
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
        assert loaded(tmp_path, meter.workload_yaml("own")).reader.batch_size == samples
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
        assert document["unlike"] == "", "a loop of one's own is like no published row"
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


def test_a_loop_over_files_in_memory_has_no_verdict() -> None:
    """Counted by the real kernel."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        meter = Meter(WORKLOAD, folder=folder, sample_bytes=1000)
        for _ in meter.epoch(files(Path(folder)), 0):
            pass
        document = meter.document()
    assert document is not None and document["verdict"] == "NO VERDICT"
    assert document["measured"]["page_cache_share"] == 1
    assert "this one lies in memory" in meter.report().splitlines()[0]
    with pytest.raises(WorkloadError, match=r"^Meter: folder /nowhere is no folder; name"):
        Meter(WORKLOAD, folder="/nowhere")


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
