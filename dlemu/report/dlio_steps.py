"""Steps from DLIO's output.json files, as records of dlemu's own.

    <rank>_output.json          per epoch and block: `load`, `proc`, `compute`: seconds of steps,
                                and the block's `au` in percent
    per_epoch_stats.json        times of day; from MLPerf Storage v2.0 on one a rank

`proc` is the time from the request for a batch to the end of its compute; `load` is its part until
the batch was there. The barrier after each step is not recorded: here it lasts until the slowest
rank is ready. What a block takes beside its steps (logging, the barrier's own time) follows from
its AU, since DLIO computes AU = compute / window. It is spread over the steps as `overhead`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.errors import RunError
from dlemu.host.devices import total
from dlemu.judge.records import STEP, Steps, read_object
from dlemu.judge.sums import step_seconds

_OUTPUT = re.compile(r"(\d+)_output\.json")
_BLOCK = re.compile(r"block(\d+)")


@dataclass(frozen=True)
class DlioSteps:
    """The steps of all ranks, and what cannot be told of them."""

    steps: Steps
    """(steps,) of all ranks; a rank is an accelerator. `num_bytes` is 0: nobody counted."""
    num_blocks: int
    """Most blocks of an epoch; DLIO leaves the first step of each block out."""
    all_known: bool
    """Whether the time beside the steps is known in all blocks."""


class _Epoch(NamedTuple):
    """One rank's epoch: seconds of each step, and of all blocks together."""

    load: NDArray[np.float64]
    proc: NDArray[np.float64]
    compute: NDArray[np.float64]
    seconds: float | None
    num_blocks: int


def read_output(folder: Path) -> Mapping[int, Mapping[str, Any]]:
    """Return the content of each <rank>_output.json by its rank.

    Raises:
        RunError: one is no JSON object.
    """
    found = ((path, _OUTPUT.fullmatch(path.name)) for path in folder.iterdir())
    return {int(match[1]): read_object(path) for path, match in sorted(found) if match}


def steps_of(
    folder: Path,
    outputs: Mapping[int, Mapping[str, Any]],
    num_ranks: int,
    workload: Workload | None,
) -> DlioSteps:
    """Return the records of all ranks; without a `workload` batches count as one sample.

    Raises:
        RunError: the steps of a rank are missing, ranks have other epochs or steps than each other,
            or there is no step.
        LookupError, TypeError, ValueError: a file does not hold what DLIO writes.
    """
    if missing := sorted(set(range(num_ranks)) - outputs.keys()):
        names = ", ".join(f"{rank}_output.json" for rank in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise RunError(f"{names}{more} missing")
    # `compute` is the measured time from MLPerf Storage v2.0 on, else what was asked for.
    measured = not (folder / "per_epoch_stats.json").exists()
    left_out = 1, 0  # at begin and end of each block, for DLIO's AU
    if workload is not None and measured:
        left_out = workload.metric.exclude_start_steps, workload.metric.exclude_end_steps
    ranks = [
        {int(key): _epoch(tree, left_out) for key, tree in output.items() if key.isdigit()}
        for _, output in sorted(outputs.items())
    ]
    if any(rank.keys() != ranks[0].keys() for rank in ranks):
        raise RunError("not every rank has steps of the same epochs")
    parts = []
    begin = 0.0
    for number in sorted(ranks[0]):
        epochs = [rank[number] for rank in ranks]
        if len(lengths := {len(epoch.proc) for epoch in epochs}) > 1 or 0 in lengths:
            raise RunError(f"not every rank has the same steps in epoch {number}")
        records = _records(epochs, measured=measured)
        records["epoch"] = number - 1
        records["num_samples"] = 1 if workload is None else workload.reader.batch_size
        if workload is not None and (time := workload.train.computation_time).stdev == 0:
            records["computation_time"] = time.mean
        records["start"] += begin
        begin += step_seconds(records).sum(axis=1).max()
        parts.append(records.ravel())
    if not parts:
        raise RunError("no epoch ended")
    every = [epoch for rank in ranks for epoch in rank.values()]
    return DlioSteps(
        np.concatenate(parts),
        max(epoch.num_blocks for epoch in every),
        all(epoch.seconds is not None for epoch in every),
    )


def _records(epochs: Sequence[_Epoch], *, measured: bool) -> Steps:
    """Return the (ranks, steps) records of an epoch of all ranks."""
    load, proc, compute = (
        np.stack([getattr(epoch, name) for epoch in epochs]) for name in ("load", "proc", "compute")
    )
    num_ranks, num_steps = proc.shape
    records = np.zeros(proc.shape, STEP)
    slowest = proc.max(axis=0)
    records["accelerator"] = np.arange(num_ranks)[:, None]
    records["step"] = np.arange(num_steps)
    records["wait"] = load
    records["compute"] = np.minimum(compute, proc - load) if measured else proc - load
    records["computation_time"] = compute
    records["barrier"] = slowest - proc
    known = [epoch.seconds for epoch in epochs if epoch.seconds is not None]
    beside = max(0.0, float(np.mean(known)) - slowest.sum()) if known else 0.0
    records["overhead"] = beside / num_steps + proc - load - records["compute"]
    seconds = step_seconds(records)
    records["start"] = seconds.cumsum(axis=1) - seconds
    return records


def _epoch(tree: Mapping[str, Any], left_out: tuple[int, int]) -> _Epoch:
    """Return one rank's epoch from its part of output.json."""
    names = sorted(filter(_BLOCK.fullmatch, tree["proc"]), key=lambda name: int(name[5:]))
    blocks = [_block(tree, name) for name in names]
    seconds = [
        _block_seconds(proc, compute, tree["au"].get(name), left_out)
        for name, (_, proc, compute) in zip(names, blocks, strict=True)
    ]
    load, proc, compute = map(np.concatenate, zip(*blocks, strict=True))
    return _Epoch(load, proc, compute, total(seconds), len(blocks))


def _block(tree: Mapping[str, Any], name: str) -> tuple[NDArray[np.float64], ...]:
    """Return a block's load, proc and compute seconds; a batch that was not processed is left."""
    load, proc, compute = (
        np.asarray(tree[field][name], np.float64) for field in ("load", "proc", "compute")
    )
    load = load[: len(proc)]
    if not (proc.shape == load.shape == compute.shape and proc.ndim == 1):
        raise ValueError(f"{name} has other numbers of load, proc and compute times")
    if not np.isfinite([proc, load, compute]).all() or (load > proc).any() or (load < 0).any():
        raise ValueError(f"{name} has times that cannot be")
    return load, proc, compute


def _block_seconds(
    proc: NDArray[np.float64], compute: NDArray[np.float64], au: object, left_out: tuple[int, int]
) -> float | None:
    """Return a block's whole time from its AU; None where that does not tell."""
    window = slice(left_out[0], len(proc) - left_out[1])
    if not isinstance(au, (int, float)) or au <= 0 or not compute[window].sum():
        return None
    outside = proc[: window.start].sum() + proc[window.stop :].sum()
    return float(100 * compute[window].sum() / au + outside)
