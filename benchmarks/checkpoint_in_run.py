"""What checkpoints cost a run on drives of known rates: python -m benchmarks.truth checkpoint."""

from typing import NamedTuple

from benchmarks.known import job
from benchmarks.serial_drive import serial_drive
from tests.lab.bench import start

_MIB = 1 << 20
_DIRECT = ("workflow.checkpoint=true", "checkpoint.odirect=true", "model.name=flat")


class Held(NamedTuple):
    """What a run said, beside the truth."""

    what: str
    found: float
    truth: float
    within: float
    """How far it may be from the truth."""


def synchronous(
    *, loader: str, num_bytes: int = 40 * _MIB, read: int = 40_000_000, write: int = 10_000_000
) -> list[Held]:
    """Write a checkpoint to a drive that reads and writes at set rates: a stall of bytes / rate."""
    with serial_drive(4 * num_bytes, read, write) as drive:
        workload = job(drive, loader, 0.01, (8, 100_000), 1, reader__odirect=True)
        words = (
            *_DIRECT,
            f"checkpoint.checkpoint_folder={drive}/checkpoints",
            f"model.model_size_bytes={num_bytes}",
            "checkpoint.steps_between_checkpoints=4",
            "train.total_training_steps=6",
        )
        with start(workload, *words) as run:
            run.completes()
        stall, truth = run.summary["checkpoints"]["stall_seconds"][0], num_bytes / write
    return [Held("stall of a synchronous checkpoint", stall, truth, 0.01 * truth)]


def asynchronous(*, loader: str, rate: int = 20_000_000, num_steps: int = 50) -> list[Held]:
    """Write a checkpoint while a drive that serves one request after the other is read from.

    The drive gives 0.8 of the demand, so nothing is read ahead. One worker reads and one thread
    writes, each one request at a time. So they take turns: a step takes the time of a batch and of
    a piece. The checkpoint is begun between two epochs, and outlasts the second one.
    """
    with serial_drive(4 * num_steps * _MIB, rate, rate) as drive:
        seconds = 0.8 * 1_003_520 / rate
        workload = job(drive, loader, seconds, (num_steps, 1_000_000), 1, reader__odirect=True)
        words = (
            *_DIRECT,
            f"checkpoint.checkpoint_folder={drive}/checkpoints",
            f"model.model_size_bytes={num_steps * 5 // 4 * _MIB}",
            "checkpoint.epochs_between_checkpoints=2",
            "train.epochs=2",
            "checkpoint.asynchronous=true",
        )
        file = next((drive / "data" / "train").iterdir()).stat().st_size
        with start(workload, *words) as run:
            run.completes()
        told = run.summary["checkpoints"]
    batch = -(-file // 4096) * 4096
    return [
        Held(f"AU {when}", told[f"au_{key}_percentage"], 100 * seconds * rate / taken, 1.0)
        for when, key, taken in (
            ("while a checkpoint is written", "while_writing", batch + _MIB),
            ("in the other steps", "otherwise", batch),
        )
    ]
