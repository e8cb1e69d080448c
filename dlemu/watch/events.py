"""What the processes of a watched job have written down, read while the job runs or afterwards.

`watch.hook` says what each line means. A file whose last line is incomplete, as that of a killed
process, is read up to there.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NS = 1e-9
"""Seconds of one unit of the hook's times."""


@dataclass
class Iteration:
    """One pass of the job over a loader; times are seconds of the host's monotonic clock."""

    loader: int
    number: int
    begun: float
    asked: list[float] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    with_grad: list[bool] = field(default_factory=list)
    on_gpu: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By the number of a batch: seconds that the GPU had nothing to do while the job waited for
    it, and seconds from then to the next question. Below 0: the first is not told, and in the
    second; the second is not known."""
    exhausted: float | None = None
    """When the loader said that it has no more batches."""
    gone: float | None = None
    """When the job dropped the iterator."""
    opened: float | None = None
    """When the loader had started its workers."""

    @property
    def last_sign(self) -> float:
        """The latest time at which the job used this iterator."""
        last = self.taken[-1] if self.taken else self.begun
        return last if self.exhausted is None else max(last, self.exhausted)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that the job saved."""

    begun: float
    ended: float
    num_bytes: int
    path: str


@dataclass
class Process:
    """One process of the job: a rank, a worker of its loader, or a launcher."""

    info: dict[str, Any] = field(default_factory=dict)
    loaders: dict[int, dict[str, Any]] = field(default_factory=dict)
    iterations: dict[tuple[int, int], Iteration] = field(default_factory=dict)
    made: list[tuple[float, float, float, int]] = field(default_factory=list)
    """Batches that this process made: begin, end, CPU seconds, samples."""
    optimizer_steps: list[float] = field(default_factory=list)
    saves: list[Saved] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ended: float | None = None

    def take(self, line: str) -> None:
        """Add a line of the journal.

        Raises:
            ValueError: the line is damaged.
        """
        kind, _, rest = line.partition(" ")
        if kind == "P":
            self.info = dict(json.loads(rest))
        elif kind == "L":
            loader, _, text = rest.partition(" ")
            self.loaders[int(loader)] = dict(json.loads(text))
        elif kind == "N":
            self.notes.append(rest)
        elif kind == "C":
            begun, ended, size, path = rest.split(" ", 3)
            self.saves.append(
                Saved(int(begun) * NS, int(ended) * NS, int(size), str(json.loads(path)))
            )
        else:
            self._take_numbers(kind, [int(word) for word in rest.split()])

    def _take_numbers(self, kind: str, numbers: list[int]) -> None:
        match kind, numbers:
            case "E", [loader, iteration, time]:
                key = (loader, iteration)
                self.iterations[key] = Iteration(loader, iteration, time * NS)
            case "I", [loader, iteration, time]:
                self.iterations[loader, iteration].opened = time * NS
            case "B", [loader, iteration, asked, taken, samples, grad]:
                of = self.iterations[loader, iteration]
                of.asked.append(asked * NS)
                of.taken.append(taken * NS)
                of.samples.append(samples)
                of.with_grad.append(bool(grad))
            case "G", [loader, iteration, number, wait, body]:
                self.iterations[loader, iteration].on_gpu[number] = (wait * NS, body * NS)
            case "X", [loader, iteration, time]:
                self.iterations[loader, iteration].exhausted = time * NS
            case "D", [loader, iteration, time]:
                self.iterations[loader, iteration].gone = time * NS
            case "F", [begun, ended, cpu, samples]:
                self.made.append((begun * NS, ended * NS, cpu * NS, samples))
            case "O", [time]:
                self.optimizer_steps.append(time * NS)
            case "Z", [time]:
                self.ended = time * NS
            case "S", [_]:
                pass
            case _:
                raise ValueError(f"a line of kind {kind!a} with {len(numbers)} numbers")


class Journals:
    """The files of all processes of a job, each read on from where the last look ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.processes: dict[str, Process] = {}
        """By the name of their file."""
        self.damaged: list[str] = []

    def look(self) -> bool:
        """Read what is new; return whether there was anything."""
        new = False
        for path in sorted(self._folder.glob("job.*")):
            at = self._read.get(path, 0)
            if path.stat().st_size <= at:
                continue
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            whole = data.rpartition(b"\n")[0]
            self._read[path] = at + len(whole) + 1 if whole else at
            process = self.processes.setdefault(path.name, Process())
            for line in whole.decode("utf-8", "replace").splitlines():
                new = True
                try:
                    process.take(line)
                except (ValueError, KeyError) as error:
                    self.damaged.append(f"{path.name}: {error}")
        return new
