"""Steps from DLIO's output.json files, as records of dlemu's own.

    <rank>_output.json          per epoch and block: `load`, `proc`, `compute`: seconds of steps,
                                and the block's `au` in percent
    per_epoch_stats.json        times of day; from MLPerf Storage v2.0 on one a rank

`proc` is the time from the request for a batch to the end of its compute; `load` is its part until
the batch was there. The barrier after each step is not recorded: here it lasts until the slowest
rank is ready. What a block takes beside its steps (logging, the barrier's own time) follows from
its AU, since DLIO computes AU = compute / window. It is spread over the steps as `overhead`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import DAMAGE, RunError, in_short
from dlemu.results.records import STEP, Steps
from dlemu.results.sums import step_seconds
from dlemu.storage.regular import read_regular

_OUTPUT = re.compile(r"(\d+)_output\.json")
_BLOCK = re.compile(r"block(\d+)")


@dataclass(frozen=True)
class Definition:
    """How DLIO has computed what its files hold."""

    start: int = 1
    """Steps of each block that are left out of the AU, at its begin and its end."""
    end: int = 0
    measured: bool = False
    """`compute` is the measured time (MLPerf Storage v2.0 on), else what was asked for."""


@dataclass(frozen=True)
class DlioSteps:
    """The steps of all ranks, and what cannot be told of them."""

    steps: Steps
    """(steps,) of all ranks; a rank is an accelerator. `num_bytes` is 0: nobody counted."""
    num_blocks: int
    """Most blocks of an epoch; DLIO leaves the first step of each block out."""
    all_known: bool
    """Whether the time beside the steps is known in all blocks."""


@dataclass(frozen=True)
class _Epoch:
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


def read_object(path: Path) -> Mapping[str, Any]:
    """Return a JSON file's object.

    Raises:
        RunError: it is missing, or holds none.
    """
    try:
        tree = json.loads(read_regular(path, error=RunError))
    except DAMAGE as error:
        raise RunError(f"{path} is damaged: {in_short(error)}") from None
    if not isinstance(tree, dict):
        raise RunError(f"{path} is damaged: it holds no object")
    return tree


def steps_of(
    outputs: Mapping[int, Mapping[str, Any]],
    *,
    definition: Definition,
    batch_size: int,
    nominal: float | None,
) -> DlioSteps:
    """Return the records of all ranks; `nominal` is the compute time that was asked for.

    Raises:
        RunError: ranks have other epochs or steps than each other, or there is no step.
        LookupError, TypeError, ValueError: a file does not hold what DLIO writes.
    """
    ranks = {
        rank: {int(key): _epoch(tree, definition) for key, tree in output.items() if key.isdigit()}
        for rank, output in outputs.items()
    }
    first = next(iter(ranks.values()))
    parts = []
    begin = 0.0
    for number in sorted(first):
        try:
            epochs = [ranks[rank][number] for rank in sorted(ranks)]
            # (ranks, steps)
            load, proc, compute = (
                np.stack([getattr(epoch, name) for epoch in epochs])
                for name in ("load", "proc", "compute")
            )
        except (KeyError, ValueError):
            raise RunError(f"not every rank has the same steps in epoch {number}") from None
        if any(other.keys() != first.keys() for other in ranks.values()) or proc.shape[1] == 0:
            raise RunError("not every rank has steps of the same epochs")
        measured = compute if definition.measured else proc - load
        records = _records(load, proc, measured, epochs)
        records["epoch"] = number - 1
        records["num_samples"] = batch_size
        records["computation_time"] = compute if nominal is None else nominal
        records["start"] += begin
        begin += step_seconds(records).sum(axis=1).max()
        parts.append(records.ravel())
    if not parts:
        raise RunError("no epoch ended")
    every = [epoch for rank in ranks.values() for epoch in rank.values()]
    return DlioSteps(
        np.concatenate(parts),
        max(epoch.num_blocks for epoch in every),
        all(epoch.seconds is not None for epoch in every),
    )


def _records(
    load: NDArray[np.float64],
    proc: NDArray[np.float64],
    compute: NDArray[np.float64],
    epochs: Sequence[_Epoch],
) -> Steps:
    """Return the (ranks, steps) records of an epoch, from seconds of that shape, all measured."""
    num_ranks, num_steps = proc.shape
    records = np.zeros(proc.shape, STEP)
    slowest = proc.max(axis=0)
    records["accelerator"] = np.arange(num_ranks)[:, None]
    records["step"] = np.arange(num_steps)
    records["wait"] = load
    records["compute"] = np.minimum(compute, proc - load)
    records["barrier"] = slowest - proc
    known = [epoch.seconds for epoch in epochs if epoch.seconds is not None]
    beside = max(0.0, float(np.mean(known)) - slowest.sum()) if known else 0.0
    records["overhead"] = beside / num_steps + proc - load - records["compute"]
    seconds = step_seconds(records)
    records["start"] = seconds.cumsum(axis=1) - seconds
    return records


def _epoch(tree: Mapping[str, Any], definition: Definition) -> _Epoch:
    """Return one rank's epoch from its part of output.json."""
    names = sorted(
        (name for name in tree["proc"] if _BLOCK.fullmatch(name)),
        key=lambda name: int(name.removeprefix("block")),
    )
    blocks = [_block(tree, name) for name in names]
    seconds = [_block_seconds(block, tree["au"].get(name), definition) for name, block in blocks]
    columns = zip(*(block for _, block in blocks), strict=True)
    load, proc, compute = (np.concatenate(column) for column in columns)
    known = [each for each in seconds if each is not None]
    return _Epoch(
        load, proc, compute, sum(known) if len(known) == len(blocks) else None, len(blocks)
    )


def _block(
    tree: Mapping[str, Any], name: str
) -> tuple[str, tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]:
    """Return a block's load, proc and compute seconds; a batch that was not processed is left."""
    proc = np.asarray(tree["proc"][name], np.float64)
    load = np.asarray(tree["load"][name], np.float64)[: len(proc)]
    compute = np.asarray(tree["compute"][name], np.float64)
    if not (proc.shape == load.shape == compute.shape and proc.ndim == 1):
        raise ValueError(f"{name} has other numbers of load, proc and compute times")
    if not np.isfinite([proc, load, compute]).all() or (load > proc).any() or (load < 0).any():
        raise ValueError(f"{name} has times that cannot be")
    return name, (load, proc, compute)


def _block_seconds(
    block: Sequence[NDArray[np.float64]], au: object, definition: Definition
) -> float | None:
    """Return a block's whole time from its AU; None where that does not tell."""
    _, proc, compute = block
    window = slice(definition.start, len(proc) - definition.end)
    if not isinstance(au, (int, float)) or au <= 0 or not compute[window].sum():
        return None
    outside = proc[: window.start].sum() + proc[window.stop :].sum()
    return float(100 * compute[window].sum() / au + outside)
