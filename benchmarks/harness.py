"""What all benchmarks share: arguments, rounds in turn, goals, the machine, the table and JSON.

`python -m benchmarks.harness MODULE FUNCTION ARGUMENTS` is what `apart` runs.
"""

import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

from dlemu.host.place import find_host
from tests.lab.mpirun import mpirun

Lines = Iterator[dict[str, str]]
"""Lines of a table, by their columns."""
Found = TypeVar("Found")
Value = TypeVar("Value", int, float, str)


class Rate(NamedTuple):
    """What reading or writing so many bytes took."""

    num_bytes: float
    seconds: float
    cpu_seconds: float

    @property
    def cost(self) -> float:
        """CPU seconds per GB."""
        return self.cpu_seconds / self.num_bytes * 1e9

    @property
    def speed(self) -> float:
        """GB/s."""
        return self.num_bytes / self.seconds / 1e9


class Wanted(NamedTuple):
    """A bound of the median of a side's figure; of its ratio to another side's, if one is named."""

    name: str
    figure: str
    """"cost" or "speed"."""
    over: str = ""
    most: float | None = None
    least: float | None = None

    def goal(self, own: Sequence[Rate], found: Mapping[str, Sequence[Rate]]) -> str:
        """Return the goal of a side's rounds, and whether it is met."""
        figure = attrgetter(self.figure)
        values = ratios(own, found[self.over], figure) if self.over else [*map(figure, own)]
        return f"{self.name} {goal(values, most=self.most, least=self.least)}"


def compare(
    case: str,
    sides: Mapping[str, Callable[[], Rate]],
    rounds: int,
    wanted: Mapping[str, Sequence[Wanted]] | None = None,
    *,
    pause: float = 0.0,
) -> Lines:
    """Measure all sides in turn; yield a line of each.

    The first side is the base. A ratio is of one round, so that a busy host weighs on both. The
    base's row says how far its own rounds lie apart: where that is more than a goal asks for, the
    drive is too noisy to tell.
    """
    found = in_turn(sides, rounds, pause=pause)
    base = found[next(iter(sides))]
    for side, own in found.items():
        goals = [each.goal(own, found) for each in (wanted or {}).get(side, ())]
        if own is base and rounds > 1:
            low, middle, high = quantiles([each.speed for each in own], n=4)
            goals.append(f"middle half of its rounds: {(high - low) / middle:.0%}")
        shown = {"case": case, "side": side}
        for figure, name, form in (("cost", "CPU-s/GB", ".3f"), ("speed", "GB/s", ".2f")):
            of = attrgetter(figure)
            shown[name] = spread([*map(of, own)], form)
            shown[f"{name.partition('-')[0]}, × base"] = spread(ratios(own, base, of))
        yield tell(shown | {"goal": "; ".join(goals)})


def timed(move: Callable[[], float], cpu: Callable[[], float] = time.process_time) -> Rate:
    """Return what it took to move so many bytes; `cpu` tells the CPU seconds so far."""
    begin, before = time.perf_counter(), cpu()
    num_bytes = move()
    return Rate(num_bytes, time.perf_counter() - begin, cpu() - before)


def apart(function: Callable[..., Any], *arguments: object, ranks: int = 1) -> Any:
    """Return, as JSON has it, what a function of a benchmark returns in a process of its own.

    Of several ranks it is what the first one returns; the others return None.
    """
    main = sys.modules["__main__"].__spec__
    module = main.name if function.__module__ == "__main__" and main else function.__module__
    words = [sys.executable, "-m", "benchmarks.harness", module, function.__name__]
    words.append(json.dumps(arguments))
    words = mpirun(ranks, *words) if ranks > 1 else words
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
    return json.loads(done.stdout)


def rate_apart(function: Callable[..., object], *arguments: object, ranks: int = 1) -> Rate:
    """Return the rate that a function of a benchmark returns in a process of its own."""
    return Rate(*apart(function, *arguments, ranks=ranks))


class Asked:
    """The words of a command line: KEY=VALUE, each with a default.

    `json=FILE` stores the table as well. Raises SystemExit with one line for a key that the
    benchmark does not have.
    """

    def __init__(self, words: Sequence[str], *keys: str) -> None:
        keys = *keys, "json"
        self._given = dict(word.partition("=")[::2] for word in words)
        for key in self._given:
            if key not in keys:
                raise SystemExit(f"{key}: not a key of this benchmark; it has {', '.join(keys)}")

    def value(self, key: str, default: Value) -> Value:
        """Return what was given, of the default's type."""
        return type(default)(self._given.get(key, default))

    def names(self, key: str, default: Iterable[str]) -> list[str]:
        """Return what was given, split at commas."""
        return self._given[key].split(",") if key in self._given else list(default)

    def show(self, rows: Iterable[Mapping[str, str]]) -> None:
        """Print the machine and the table of lines; store both if a file is named."""
        machine, rows = describe_machine(), [*rows]
        print(f"{machine}\n\n{lined(rows)}")
        if file := self.value("json", ""):
            Path(file).write_text(json.dumps({"machine": machine, "rows": rows}))


def in_turn(
    sides: Mapping[str, Callable[[], Found]], rounds: int, *, pause: float = 0.0
) -> dict[str, list[Found]]:
    """Measure all sides, round after round, each round in the other order than the last.

    Rented drives save up credit while idle: `pause` seconds before each measurement make it equal.
    """
    found: dict[str, list[Found]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in sides if number % 2 == 0 else reversed(list(sides)):
            time.sleep(pause)
            found[name].append(sides[name]())
    return found


def ratios(
    own: Iterable[Found], other: Iterable[Found], figure: Callable[[Found], float]
) -> list[float]:
    """Return each round's figure of one side over that of another."""
    return [figure(a) / figure(b) for a, b in zip(own, other, strict=True)]


def dlemu(
    command: str,
    keys: Mapping[str, object],
    *words: str,
    ranks: int = 1,
    enter: Callable[[], None] | None = None,
) -> None:
    """Run a dlemu command with these overrides; no verdict, or a FAIL, is no error here.

    `enter` is called in its process before it begins: that of a cgroup.
    """
    own = [sys.executable, "-m", "dlemu", command, *words, *(f"{k}={v}" for k, v in keys.items())]
    if ranks > 1:
        own = mpirun(ranks, "--bind-to", "none", *own)
    done = subprocess.run(own, capture_output=True, text=True, preexec_fn=enter)
    if done.returncode not in (0, 2) and "\nNO VERDICT: " not in done.stdout:
        raise SystemExit(f"{' '.join(own)}\n{done.stderr}")


@contextmanager
def scratch(above: Path = Path("/dev/shm")) -> Iterator[Path]:
    """Yield a new folder, in memory if no other is named, that is removed afterwards."""
    above.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="dlemu-bench.", dir=above) as name:
        yield Path(name)


def goal(values: Sequence[float], *, most: float | None = None, least: float | None = None) -> str:
    """Return the goal for a median, and whether it is met: "≤ 0.6: yes"."""
    middle, words = median(values), {True: "yes", False: "NO"}
    if most is not None:
        return f"≤ {most:g}: {words[middle <= most]}"
    return "" if least is None else f"≥ {least:g}: {words[middle >= least]}"


class Measured(NamedTuple):
    """A claim's bound, what was measured, and whether that holds."""

    bound: str
    found: str
    holds: bool


def within(what: str, found: float, low: float, high: float) -> Measured:
    return Measured(f"{what} {low:.4g} to {high:.4g}", f"{found:.4g}", low <= found <= high)


def near(what: str, found: float, truth: float, off: float) -> Measured:
    return within(what, found, truth - off, truth + off)


def at_most(what: str, found: float, most: float) -> Measured:
    return Measured(f"{what} ≤ {most:g}", f"{found:.3g}", found <= most)


def named(what: str, found: object, truth: object) -> Measured:
    return Measured(f"{what} {truth}", str(found), found == truth)


def all_of(*parts: Measured) -> Measured:
    bounds, found, held = zip(*parts, strict=True)
    return Measured("; ".join(bounds), "; ".join(found), all(held))


def tell(line: dict[str, str]) -> dict[str, str]:
    """Show a line while the others are measured; return it."""
    print("  ".join(line.values()), file=sys.stderr, flush=True)
    return line


def describe_machine() -> str:
    """Return CPU, cores, memory, kernel and load in a line."""
    host = find_host(Path())
    return (
        f"{host['cpu']}, {host['cpus']:g} of {os.cpu_count()} cores, "
        f"{host['memory_bytes'] / 2**30:.0f} GiB, Linux {host['kernel']}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return "median (min–max)"; of one value, just that."""
    middle = median(values)
    if len(values) == 1:
        return f"{middle:{form}}"
    return f"{middle:{form}} ({min(values):{form}}–{max(values):{form}})"


def lined(rows: Iterable[Mapping[str, str]]) -> str:
    """Return the Markdown table of lines that name their columns; "" without lines."""
    if not (rows := [*rows]):
        return ""
    lines = ["| " + " | ".join(row) + " |" for row in (rows[0], *(row.values() for row in rows))]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


Store = Callable[[Sequence[Mapping[str, Any]]], None]


def gpu_program(
    words: Sequence[str],
    about: str | None,
    prints: Mapping[str, Callable[[list[str], Asked], str]],
    experiment: Callable[[Path, Asked, Store], str],
    *keys: str,
) -> None:
    """Run a program that measures on GPUs, or print what it has stored before.

        NAME JSON… [key=value …]    what `prints` makes of files
        FOLDER [key=value …]        the experiment, which returns its tables

    The experiment is given what stores its runs so far in the file of the key `json`.
    """
    if not words:
        raise SystemExit(about)
    what, *paths = [word for word in words if "=" not in word]
    asked = Asked([word for word in words if "=" in word], *keys)
    if what in prints:
        print(prints[what](paths, asked))
        return
    if paths:
        raise SystemExit(f"{what} {paths[0]}: give one folder, or {' or '.join(prints)} and files")
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    machine = f"{describe_machine()}; torch {torch.__version__}, {', '.join(gpus) or 'no GPU'}"
    print(machine, flush=True)

    def store(runs: Sequence[Mapping[str, Any]]) -> None:
        stored = {"machine": machine, "runs": runs}
        Path(asked.value("json", "found.json")).write_text(json.dumps(stored))

    Path(what).mkdir(parents=True, exist_ok=True)
    print(f"\n{experiment(Path(what), asked, store)}")


def stored_runs(paths: Iterable[str]) -> list[list[dict[str, Any]]]:
    """Return the runs of each file that an experiment has stored."""
    return [json.loads(Path(path).read_text())["runs"] for path in paths]


if __name__ == "__main__":
    module, name, arguments = sys.argv[1:]
    found = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    if found is not None:
        print(json.dumps(found))
