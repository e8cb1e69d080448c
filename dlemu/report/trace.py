"""Stored steps as a trace that Perfetto and chrome://tracing open.

The format is Chrome's "Trace Event Format", JSON: complete events (ph "X") with `ts` and `dur` in
µs, counters (ph "C"), names (ph "M"). A rank is a process (`pid`), an accelerator a thread (`tid`).
Events are written in a stream, so memory does not grow with the number of steps.
"""

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import RunError, WorkloadError
from dlemu.judge.records import STEP, Steps, map_steps
from dlemu.judge.series import HostSeries, series_of
from dlemu.judge.sums import epoch_spans, step_seconds
from dlemu.report.foreign import read_leaf
from dlemu.report.stored import Stored
from dlemu.storage.files import create, replacing

_CHUNK = 8192
"""Steps that are turned into text at once."""
_LEAST_SECONDS = 0.01
"""Between two values of a host's counters."""
_OTHER_CLOCK = 0.1
"""Ranks of one host leave a barrier within milliseconds. If more seconds lie between, their hosts
have other clocks, and the records are shifted until the first barrier is at one time."""
_PHASES = (
    ("wait for a batch", "IO wait", "wait"),
    ("host work", "OVERHEAD", "overhead"),
    ("compute", "COMPUTE", "compute"),
    ("barrier", "BARRIER", "barrier"),
)
"""Name, category and field of the parts of a step, in their order."""


@dataclass(frozen=True)
class TracedRun:
    """One run in a trace."""

    name: str
    """Of several runs; "" for the only one."""
    ranks: Sequence[tuple[int, Steps]]
    """Each rank's number and records."""
    hosts: Iterable[HostSeries] = ()
    """What each host did, on the clock of the first rank's host."""


def traced(result: Stored) -> list[TracedRun]:
    """Return what a trace shows of a result.

    Raises:
        RunError: it has no steps, or its runs have no common time.
    """
    if "tool" not in result.document:
        runs = [
            TracedRun(name, map_steps(path), series_of(path, least=_LEAST_SECONDS))
            for name in result.runs
            for path in [result.folder / name]
        ]
    else:
        _, dlio = read_leaf(result.folder, {}) if "" in result.runs else ({}, None)
        steps = np.empty(0, STEP) if dlio is None else dlio.steps
        ranks = np.unique(steps["accelerator"]).tolist()
        runs = [TracedRun("", [(r, steps[steps["accelerator"] == r]) for r in ranks])]
    if not runs or not runs[0].ranks:
        raise RunError(
            f"{result.folder}: --trace shows runs with steps; name the folder of one run"
        )
    return runs


def write_trace(path: Path, runs: Sequence[TracedRun]) -> int:
    """Write a trace, compressed if the name ends with .gz; return the number of its events.

    Raises:
        RunError: a file of a run is damaged.
        WorkloadError: the trace cannot be written.
    """
    number = 0
    try:
        with (
            replacing(path) as partial,
            open(partial, "wb", opener=create) as written,
            closing(
                cast(IO[str], gzip.open(written, "wt", compresslevel=5, encoding="utf-8"))
                if path.name.endswith(".gz")
                else io.TextIOWrapper(written, encoding="utf-8")
            ) as file,
        ):
            file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            for number, event in enumerate(_events(runs), 1):
                file.write(event if number == 1 else f",\n{event}")
            file.write("\n]}\n")
    except OSError as error:
        raise WorkloadError.of_system(
            error, f"--trace {path}", "cannot be written", "name another file"
        ) from None
    return number


def _events(runs: Sequence[TracedRun]) -> Iterator[str]:
    ranks = sorted({rank for run in runs for rank, _ in run.ranks})
    of_epochs = ranks[-1] + 1
    for rank in ranks:
        yield _name("process_name", rank, 0, f"rank {rank}")
        yield _name("process_sort_index", rank, 0, rank + 1)
    yield _name("process_name", of_epochs, 0, "epochs")
    yield _name("process_sort_index", of_epochs, 0, 0)
    first = {rank: _shift(runs[0], rank) for rank, _ in runs[0].ranks}
    zero = min(float(part["start"].min()) + first[rank] for rank, part in runs[0].ranks)
    named: set[tuple[int, int]] = set()
    for run in runs:
        shifts = {rank: _shift(run, rank) - zero for rank, _ in run.ranks}
        for rank, steps in run.ranks:
            for accelerator in np.unique(steps["accelerator"]).tolist():
                if (rank, accelerator) not in named:
                    named.add((rank, accelerator))
                    yield _name("thread_name", rank, accelerator, f"accelerator {accelerator}")
            yield from _steps(rank, steps, shifts[rank])
        yield from _epochs(run, shifts, of_epochs)
        for index, host in enumerate(run.hosts, of_epochs + 1):
            yield _name("process_name", index, 0, f"host of rank {host.rank}")
            for each in host.intervals:  # a rate holds from its interval's start on
                event = {
                    "ph": "C",
                    "pid": index,
                    "tid": 0,
                    "ts": round(1e6 * (each.begin - zero), 3),
                }
                for name, value in each.rates.items():
                    if value is not None:
                        shown = {"name": name, "args": {"value": round(value, 3)}}
                        yield json.dumps(event | shown)


def _name(kind: str, pid: int, tid: int, value: str | int) -> str:
    argument = "name" if isinstance(value, str) else "sort_index"
    return json.dumps({"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {argument: value}})


def _shift(run: TracedRun, rank: int) -> float:
    """Return the seconds that a rank's clock is behind that of the first one."""
    ends = [
        float((steps["start"][:1] + step_seconds(steps[:1]))[0])
        for each, steps in (run.ranks[0], *(pair for pair in run.ranks if pair[0] == rank))
    ]
    behind = ends[0] - ends[-1]
    return behind if abs(behind) > _OTHER_CLOCK else 0.0


def _steps(rank: int, steps: Steps, shift: float) -> Iterator[str]:
    """Yield the parts of each step; the first that takes time tells what was read."""
    for begin in range(0, len(steps), _CHUNK):
        chunk = steps[begin : begin + _CHUNK]
        if not np.isfinite([chunk["start"], step_seconds(chunk)]).all():
            raise RunError(
                f"the steps of rank {rank} are damaged: a time is no number",
                remedy="restore steps.<rank>.npy from a copy, or run again",
            )
        rows = zip(
            *(chunk[name].tolist() for name in ("epoch", "step", "num_samples", "num_bytes")),
            *((1e3 * chunk[name]).tolist() for name in ("read", "decode", "hand_over")),
            strict=True,
        )
        arguments = [
            f', "args": {{"epoch": {epoch + 1}, "step": {step + 1}, "samples": {samples}, '
            f'"bytes": {num_bytes}, "read_ms": {read:.3f}, "decode_ms": {decode:.3f}, '
            f'"hand_over_ms": {hand_over:.3f}}}}}'
            for epoch, step, samples, num_bytes, read, decode, hand_over in rows
        ]
        threads = chunk["accelerator"].tolist()
        edges = _edges(chunk, shift)
        shown = edges[1] > edges[0]
        for number, (name, category, _) in enumerate(_PHASES):
            head = f'{{"name": "{name}", "cat": "{category}", "ph": "X", "pid": {rank}, "tid": '
            begins, ends = edges[number].tolist(), edges[number + 1].tolist()
            tells = {"wait": shown, "compute": ~shown}.get(_PHASES[number][2])
            tells = [False] * len(chunk) if tells is None else tells.tolist()
            for tid, ts, end, tell, argument in zip(
                threads, begins, ends, tells, arguments, strict=True
            ):
                if end > ts or tell:
                    rest = argument if tell else "}"
                    yield f'{head}{tid}, "ts": {ts / 1e3:.3f}, "dur": {(end - ts) / 1e3:.3f}{rest}'


def _edges(steps: Steps, shift: float) -> NDArray[np.int64]:
    """Return (phases + 1, steps) times in ns at which the parts of steps begin and end.

    Perfetto drops an event that overlaps the one before. Neighbours share their edge here; a step
    ends 2 ns early, since its end and the next one's start are rounded apart.
    """
    times = [steps["start"] + shift]
    for _, _, field in _PHASES:
        times.append(times[-1] + steps[field])
    edges: NDArray[np.int64] = np.rint(1e9 * np.stack(times)).astype(np.int64)
    edges = np.maximum(edges[0], np.minimum(edges, edges[-1] - 2))
    return edges


def _epochs(run: TracedRun, shifts: dict[int, float], pid: int) -> Iterator[str]:
    """Yield an event an epoch, from its first step's start to its last step's end, on any rank."""
    spans: dict[int, tuple[float, float]] = {}
    for rank, steps in run.ranks:
        for epoch, (begin, end) in epoch_spans(steps).items():
            low, high = spans.get(epoch, (np.inf, -np.inf))
            spans[epoch] = min(low, begin + shifts[rank]), max(high, end + shifts[rank])
    for epoch, (begin, end) in spans.items():
        name = f"{run.name} epoch {epoch + 1}".strip()
        yield (
            f'{{"name": {json.dumps(name)}, "cat": "EPOCH", "ph": "X", "pid": {pid}, "tid": 0, '
            f'"ts": {1e6 * begin:.3f}, "dur": {1e6 * (end - begin):.3f}}}'
        )
