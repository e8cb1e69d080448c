"""`dlemu size` on a drive that a cgroup holds to a rate, so that the true answer is known.

Samples and computation times of the workloads are scaled down together, so that a step takes 25 to
45 ms and a slow device feeds 3 to 12 accelerators. benchmarks/sizing_truth.py has the arithmetic.
"""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import warm
from tests.lab.cgroups import throttled_reads
from tests.lab.drives import own_drive

NUM_STEPS = 160
MOST = 13
_IMAGE_BYTES = 3 << 30


@dataclass(frozen=True)
class Scaled:
    """A workload, made small."""

    workload: str
    record_length_bytes: float
    computation_time: float
    samples_per_step: int
    keys: Mapping[str, object]

    def overrides(self, folder: Path, *, num_steps: int, most: int) -> list[str]:
        """Return the words of a command line, with a dataset for so many accelerators."""
        samples = num_steps * self.samples_per_step * most
        per_file = 1251 if self.workload.startswith("resnet50") else 1
        keys = {
            "workload": self.workload,
            "dataset.data_folder": folder / self.workload,
            "dataset.num_files_train": -(-samples // per_file) + (per_file > 1) * 2 * most,
            "dataset.record_length_bytes": self.record_length_bytes,
            "train.computation_time": self.computation_time,
            "train.epochs": 1,
            "train.total_training_steps": num_steps,
            "reader.data_loader": "threads",
            "reader.read_threads": 2,
            "reader.odirect": "true",
            **self.keys,
        }
        return [f"{key}={value}" for key, value in keys.items()]


WORKLOADS = {
    # A tenth of the time; samples a 2000th, 7 of them a batch.
    "unet3d": Scaled(
        "unet3d_h100",
        73_300,
        0.0323,
        7,
        {"dataset.record_length_bytes_stdev": 34_171, "dataset.record_length_bytes_resize": 1_048},
    ),
    # A fifth of the time; samples a 100th, 400 of them a batch, read as streams.
    "resnet50": Scaled(
        "resnet50_h100", 1_146.6, 0.0448, 400, {"dataset.record_length_bytes_resize": 1_505}
    ),
    # Ten times the time: at 3.5 ms two cores are the limit. Samples a 20th.
    "cosmoflow": Scaled(
        "cosmoflow_h100", 141_424, 0.035, 1, {"dataset.record_length_bytes_stdev": 3_565}
    ),
}


def dlemu(
    *words: str,
    enter: Callable[[int], None] | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command of dlemu, in a cgroup if told so."""
    done = warm.run([*warm.COMMAND, *words], enter=enter)
    if check and done.returncode not in (0, 2):
        raise RuntimeError(f"dlemu {' '.join(words)}: {done.stderr}{done.stdout}")
    return done


@contextlib.contextmanager
def dataset(
    scaled: Scaled, *, num_steps: int = NUM_STEPS, most: int = MOST, image: int = _IMAGE_BYTES
) -> Iterator[tuple[Path, list[str]]]:
    """Give a drive with the dataset, and the words that describe the job."""
    with own_drive(image) as folder:
        words = scaled.overrides(folder, num_steps=num_steps, most=most)
        dlemu("datagen", *words)
        yield folder, words


def bytes_per_step(words: list[str], folder: Path) -> float:
    """Return the bytes that the drive reads for an accelerator's step."""
    dlemu("run", *words, "num_accelerators=1", f"output.folder={folder}")
    summary = json.loads((folder / "summary.json").read_text())
    steps = next(word.partition("=")[2] for word in words if "total_training_steps" in word)
    return float(summary["measured"]["device_read_bytes"]) / int(steps)


def threshold_of(scaled: Scaled) -> float:
    """Return the AU asked for, 0 to 1."""
    return 0.7 if scaled.workload.startswith("cosmoflow") else 0.9


def rate_for(scaled: Scaled, step_bytes: float, feeds: float) -> int:
    """Return the bytes per second that feed so many accelerators."""
    return round(feeds * threshold_of(scaled) * step_bytes / scaled.computation_time)


def search(words: list[str], rate: int, drive: Path, results: Path) -> dict[str, Any]:
    """Size the drive, held to a rate; return the answer in sizing.json."""
    with throttled_reads(drive, rate) as group:
        dlemu("size", *words, "size.quick=true", f"output.folder={results}", enter=group.enter)
    found: dict[str, Any]
    (found,) = json.loads((results / "sizing.json").read_text())["answers"]
    return found
