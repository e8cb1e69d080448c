"""Traces: the format's rules, what the events say, and that memory stays small."""

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dlemu.errors import RunError, WorkloadError
from dlemu.judge.records import STEP, Steps
from dlemu.report import trace
from dlemu.report.trace import TracedRun, write_trace
from tests.lab.commands import Printed
from tests.lab.stored import observation, store_runs, write_host

Event = dict[str, Any]


def steps_of(num_steps: int = 5, accelerators: int = 2, begin: float = 100.0) -> Steps:
    """Return a rank's records: 10 ms a step, of which 2 are waited for."""
    steps = np.zeros((num_steps, accelerators), STEP)
    steps["step"] = np.arange(num_steps)[:, None]
    steps["accelerator"] = np.arange(accelerators)
    steps["start"] = begin + 0.01 * np.arange(num_steps)[:, None]
    steps["wait"], steps["compute"], steps["barrier"] = 0.002, 0.007, 0.001
    steps["num_bytes"], steps["read"] = 1000, 0.0015
    return steps.ravel()


def written(path: Path, *runs: TracedRun) -> list[Event]:
    """Return the events of a trace."""
    number = write_trace(path, runs)
    content = path.read_bytes()
    tree = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    events: list[Event] = tree["traceEvents"]
    assert len(events) == number
    return events


def check_form(events: list[Event]) -> None:
    """Check what Chrome's Trace Event Format asks for, and that no slice overlaps another."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int)
        assert event["ph"] in ("X", "C", "M")
        if event["ph"] != "M":
            assert event["ts"] >= -0.001
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["cat"]
            tracks[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    for slices in tracks.values():
        slices.sort()
        for (ts, dur), (after, _) in pairwise(slices):
            assert ts + dur <= after + 1e-6


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_step_is_its_wait_its_compute_and_its_barrier(name: str, tmp_path: Path) -> None:
    events = written(tmp_path / name, TracedRun("", [(0, steps_of())]))
    check_form(events)
    slices = [event for event in events if event["ph"] == "X" and event["pid"] == 0]
    parts = ["IO wait", "COMPUTE", "BARRIER"]
    assert Counter(event["cat"] for event in slices) == dict.fromkeys(parts, 10)
    own = sorted((e["ts"], e["cat"], e["dur"]) for e in slices if e["tid"] == 1)[3:6]
    assert [cat for _, cat, _ in own] == parts
    assert [ts for ts, _, _ in own] == pytest.approx([10_000, 12_000, 19_000], abs=0.01)
    assert [dur for _, _, dur in own] == pytest.approx([2000, 7000, 1000], abs=0.01)
    told = next(event["args"] for event in slices)
    assert (told["epoch"], told["step"], told["bytes"], told["read_ms"]) == (1, 1, 1000, 1.5)
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert names == {"rank 0", "epochs", "accelerator 0", "accelerator 1"}


def test_neighbours_never_overlap_however_they_are_rounded(tmp_path: Path) -> None:
    """Perfetto drops a slice that overlaps the one before by a nanosecond."""
    steps = steps_of(num_steps=300, accelerators=1)
    steps["wait"] += 5e-10
    steps["start"] = 100.0 + 0.0100000005 * np.arange(300)
    check_form(written(tmp_path / "t.json", TracedRun("", [(0, steps)])))


def test_epochs_span_all_ranks_and_hosts_with_other_clocks_are_set_right(tmp_path: Path) -> None:
    near, far = steps_of(begin=100.0), steps_of(begin=7.5)
    near["wait"][:2] += 0.05  # the barrier ends for both at once
    near["start"][2:] += 0.05
    events = written(tmp_path / "t.json", TracedRun("", [(0, near), (1, far)]))
    barriers = [event for event in events if event.get("cat") == "BARRIER"]
    one, two = (min(e["ts"] + e["dur"] for e in barriers if e["pid"] == pid) for pid in (0, 1))
    assert one == pytest.approx(two, abs=0.01)
    (epoch,) = (event for event in events if event.get("cat") == "EPOCH")
    assert epoch["name"] == "epoch 1"
    assert (epoch["ts"], epoch["dur"]) == pytest.approx((0, 100_000), abs=0.1)


def test_events_are_made_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """So memory does not grow with the steps: a million of them took 20 MB more than none."""
    made: list[int] = []
    edges = trace._edges

    def count(steps: Steps, shift: float) -> NDArray[np.int64]:
        made.append(len(steps))
        return edges(steps, shift)

    monkeypatch.setattr(trace, "_CHUNK", 100)
    monkeypatch.setattr(trace, "_edges", count)
    events = trace._events([TracedRun("", [(0, steps_of(num_steps=500))])])
    begun = [next(events) for _ in range(20)]
    assert made == [100] and any("IO wait" in event for event in begun)
    assert len(list(events)) + 20 == 3 * 1000 + 7
    assert made == [100] * 10


def test_times_that_are_no_numbers_make_no_trace(tmp_path: Path) -> None:
    steps = steps_of()
    steps["wait"][3] = np.nan
    with pytest.raises(RunError, match=r"a time is no number; restore .* or run again"):
        write_trace(tmp_path / "t.json", [TracedRun("", [(0, steps)])])
    assert list(tmp_path.iterdir()) == [], "no half of a trace stays"
    with pytest.raises(WorkloadError, match=r"--trace /nosuch/t.json cannot be written"):
        write_trace(Path("/nosuch/t.json"), [TracedRun("", [(0, steps_of())])])


def test_stored_runs_are_traced_with_their_hosts_counters(tmp_path: Path, printed: Printed) -> None:
    store_runs(tmp_path / "runs")
    for name in ("warmup.1", "run.1"):
        seen = [observation(99.0 + seconds, 10 * seconds, 0) for seconds in range(3)]
        write_host(tmp_path / "runs" / name, 0, seen, 0.0)
    trace = tmp_path / "trace.json.gz"
    said = printed("report", tmp_path / "runs", "--json", "--trace", trace, status=2)
    assert said.splitlines()[-1].startswith(f"trace: {trace}, ")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    named = [event["pid"] for event in events if event["name"] == "process_name"]
    assert len(named) == len(set(named)) + 1, "the host's once for each of two runs"
    epochs = [event["name"] for event in events if event.get("cat") == "EPOCH"]
    names = ["warmup.1", "run.1", "run.2", "run.3"]
    assert epochs == [f"{name} epoch {number}" for name in names for number in (1, 2)]
    assert sum(event.get("cat") == "COMPUTE" for event in events) == 4 * 2 * 12 * 4
    drive = [event for event in events if event["name"] == "drive_read_MB_per_s sda"]
    assert [event["args"]["value"] for event in drive] == [10.0] * 4
    first = min(event["ts"] for event in events if event.get("cat") == "IO wait")
    assert drive[0]["ts"] == pytest.approx(first - 1e6), "a second before the first step"
    assert "process_cpu_percent" in {event["name"] for event in events if event["ph"] == "C"}
