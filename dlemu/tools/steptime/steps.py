"""What is timed: a step of a network, dlemu's or the user's own, and their preprocessing."""

import importlib
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dlemu.config.published import normal
from dlemu.errors import DlemuError, RunError, WorkloadError
from dlemu.host.processes import free_memory_bytes, usable_cpus
from dlemu.units import format_bytes

NETWORKS = ("unet3d", "resnet50", "cosmoflow")

Step = Callable[[], object]
"""Queues or does one training step."""


@dataclass(frozen=True, kw_only=True)
class StepTask:
    """A step to be timed: network, device, precision, and how it is launched."""

    model: str
    device: str
    precision: str = "bf16"
    compiled: bool = False
    graph: bool = False
    side: int | None = None
    waits: bool = False
    """Whether the loop waits for a step's end before the next (`train.loop=rule`)."""
    key: str = "steptime.model"
    """The key that names the model, for errors."""


def find_torch(device: str) -> Any:
    """Return PyTorch.

    Raises:
        WorkloadError: it is missing, or it sees no GPU and one was asked for.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise WorkloadError("dlemu steptime needs torch: pip install 'dlemu[torch]'") from None
    if device == "cuda" and not torch.cuda.is_available():
        raise WorkloadError(
            f"steptime.device=cuda: this PyTorch ({torch.__version__}) sees no GPU; install one "
            "made for the driver's CUDA, or set steptime.device=cpu to try the command"
        )
    return torch


def model_of(given: str | None, workload: str) -> str:
    """Return the model's name: the one given, else the one that the workload's name begins with.

    Raises:
        WorkloadError: it is neither a network nor PACKAGE.MODULE:FUNCTION.
    """
    model = given or next((name for name in NETWORKS if workload.startswith(name)), "")
    if given or model:
        return checked_model("steptime.model", model)
    raise WorkloadError(
        f"workload {workload} names no network that dlemu has; set steptime.model to one of "
        f"{', '.join(NETWORKS)}, or to PACKAGE.MODULE:FUNCTION"
    )


def checked_model(key: str, model: str) -> str:
    """Return the model that a key names.

    Raises:
        WorkloadError: it is neither a network nor PACKAGE.MODULE:FUNCTION.
    """
    if model in NETWORKS or names_function(model):
        return model
    known = ", ".join(NETWORKS)
    raise WorkloadError(f"{key} must be one of {known}, or PACKAGE.MODULE:FUNCTION, got {model!r}")


def names_function(given: str) -> bool:
    """Return whether a text is PACKAGE.MODULE:FUNCTION."""
    module, colon, function = given.partition(":")
    return bool(colon) and all(name.isidentifier() for name in [*module.split("."), function])


def make_step(job: StepTask, batch: int, layout: str) -> Step:
    """Return one step for a batch size.

    Raises:
        WorkloadError: the user's function cannot be found, raises, or returns no function.
        MemoryError: on a CPU, the step needs more than is free.
    """
    if ":" in job.model:
        return _users_step(job, batch)
    _check_memory(job, batch)
    from dlemu.tools.steptime.networks import Training, network

    training = Training(
        network(job.model, job.side),
        job.device,
        layout=layout,
        compiled=job.compiled,
        precision=job.precision,
    )
    data, target = training.data(batch), training.net.target(batch, job.device)
    if job.graph:
        return training.graph(data, target)
    return lambda: training.step(data, target)


def _check_memory(job: StepTask, batch: int) -> None:
    """Refuse a step of dlemu's networks that this host's memory cannot hold.

    On a GPU PyTorch says so; on a host the kernel ends the process.

    Raises:
        MemoryError: it needs more than is free.
    """
    if job.device != "cpu":
        return
    from dlemu.tools.steptime.networks import memory_bytes, network

    needed = memory_bytes(network(job.model, job.side), batch)
    free = free_memory_bytes()
    if needed > free:
        raise MemoryError(f"needs {format_bytes(needed)} of memory, {format_bytes(free)} are free")


def _users_step(job: StepTask, batch: int) -> Step:
    own = UsersFunction(job.key, job.model)
    made = own.made("does one step", batch, job.device)

    def guarded() -> object:
        with own:
            return made()

    return guarded


class UsersFunction:
    """A function of the user's, PACKAGE.MODULE:FUNCTION, as a key names it.

    As a context manager it turns what the user's code raises into one line with its file and line.
    Out of memory passes through: `measure` skips that batch.
    """

    def __init__(self, key: str, name: str) -> None:
        self._asked, self._module = f"{key}={name}", name.partition(":")[0]
        self._name = name.partition(":")[2]

    def find(self) -> Callable[..., object]:
        """Import the user's module and return the function.

        Raises:
            WorkloadError: it cannot be found.
        """
        here = os.getcwd()
        if here not in sys.path:
            sys.path.insert(0, here)  # as `python -m` does
        with self:
            module = importlib.import_module(self._module)
        function = getattr(module, self._name, None)
        if not callable(function):
            raise WorkloadError(f"{self._asked}: {module.__file__} has no function {self._name}")
        return cast("Callable[..., object]", function)

    def made(self, what_it_does: str, *args: object) -> Callable[..., object]:
        """Call the user's function, and return the function that it returns.

        Raises:
            WorkloadError: it cannot be found, raises, or returns no function.
        """
        function = self.find()
        with self:
            made = function(*args)
        if not callable(made):
            called = f"{self._name}({', '.join(map(repr, args))})"
            raise WorkloadError(
                f"{self._asked}: {called} must return a function that {what_it_does}, got "
                f"{type(made).__name__}"
            )
        return cast("Callable[..., object]", made)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if (
            not isinstance(error, Exception)
            or isinstance(error, DlemuError)
            or out_of_memory(error)
        ):
            return
        if isinstance(error, ModuleNotFoundError) and self._module.startswith(str(error.name)):
            raise WorkloadError(
                f"{self._asked}: there is no module {error.name}; give it as Python "
                "imports it, in this folder or in PYTHONPATH"
            ) from None
        raise WorkloadError(
            f"{self._asked}: {_place(error)}: {type(error).__name__} "
            f"{' '.join(str(error).split())[:120]}".rstrip()
        ) from error


def _place(error: Exception) -> str:
    """Return "file:line" of the last line of the user's own code, or else of any."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[1])
    theirs = [f for f in frames if not f.filename.startswith((ours, "<")) and _is_own(f.filename)]
    frame = (theirs or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _is_own(file: str) -> bool:
    """Return whether a file is neither Python's nor an installed package's."""
    return "site-packages" not in file and not file.startswith(os.path.dirname(os.__file__))


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory is short, on the GPU or on the host."""
    names = {each.__name__ for each in type(error).__mro__}
    return bool(names & {"OutOfMemoryError", "MemoryError"}) or (
        isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
    )


_KEY = "steptime.preprocess"
_MOST_KEPT = 100_000
"""Times that a process keeps: a function of microseconds would fill the memory."""
_LONGEST_IMPORT = 600.0
"""Seconds after which a process that has not begun is taken for stuck."""
_all_ready: Any = None
"""The barrier of the processes, in each of them."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The seconds of each sample, timed in one process and in `workers` processes at once."""

    function: str
    workers: int
    alone: NDArray[np.float64]
    together: NDArray[np.float64]
    on_core: NDArray[np.float64]
    """CPU seconds of those in `together`: without waiting for a core."""

    def key(self) -> Mapping[str, object]:
        """Return `reader.preprocess_time` for a workload file.

        Where workers are more than CPUs, they wait for each other: so they will in a run, and the
        time has no waiting in it.
        """
        return normal(self.on_core if self.workers > usable_cpus() else self.together)

    def evidence(self) -> dict[str, Any]:
        """Return the figures for a JSON file."""
        return {
            "function": self.function,
            "workers": self.workers,
            **{f"{name}_alone": value for name, value in _figures(self.alone).items()},
            **{f"{name}_together": value for name, value in _figures(self.together).items()},
            **{f"{name}_on_core": value for name, value in _figures(self.on_core).items()},
        }


def time_preprocessing(function: str, workers: int, seconds: float) -> Preprocessing:
    """Time a user's function: alone, then in `workers` processes at once, `seconds` each.

    One process alone is faster than one of many: those of a job share caches, memory and cores.
    `function` is PACKAGE.MODULE:FUNCTION. It is called without arguments, once in each process, and
    returns a function that prepares one sample, given its number.

    Raises:
        WorkloadError: there is no such function, or it raises.
        RunError: a process was killed.
    """
    alone = _timed(function, 1, seconds)
    together, on_core = _timed(function, workers, seconds) if workers > 1 else alone
    return Preprocessing(
        function=function, workers=workers, alone=alone[0], together=together, on_core=on_core
    )


def _timed(function: str, workers: int, seconds: float) -> NDArray[np.float64]:
    """Return (2, samples): seconds by the clock, and of the CPU."""
    # spawn: this process may hold CUDA, which a fork would not survive.
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(workers)
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(barrier, list(sys.path))
    ) as pool:
        calls = [
            pool.submit(_time_in_process, function, number, seconds) for number in range(workers)
        ]
        errors = [error for call in calls if (error := call.exception()) is not None]
    # Where one process fails, the others only report that they waited for it in vain.
    for error in sorted(errors, key=lambda each: isinstance(each, BrokenBarrierError)):
        if isinstance(error, BrokenProcessPool):
            raise RunError(f"{_KEY}={function}: a process was killed; see `dmesg` for the reason")
        raise error
    return np.concatenate([call.result() for call in calls], axis=1)


def _begin(barrier: Any, path: list[str]) -> None:
    global _all_ready
    _all_ready = barrier
    sys.path[:] = path


def _time_in_process(function: str, number: int, seconds: float) -> NDArray[np.float64]:
    """Return (2, samples) seconds, taken while all processes work: by the clock, of the CPU."""
    own = UsersFunction(_KEY, function)
    try:
        # A worker of a DataLoader has torch loaded, which changes how memory is allocated, and
        # leaves it one thread.
        import torch

        torch.set_num_threads(1)
        prepare = own.made("prepares one sample")
        with own:
            prepare(number)
        _all_ready.wait(_LONGEST_IMPORT)
        with own:
            _times(prepare, number, 0.2 * seconds)  # to warm up
            return np.array(_times(prepare, number, seconds)).T
    except BaseException:
        with suppress(OSError):
            _all_ready.abort()
        raise


def _times(prepare: Any, number: int, seconds: float) -> list[tuple[float, float]]:
    end = time.perf_counter() + seconds
    found: list[tuple[float, float]] = []
    while (begin := time.perf_counter()) < end or len(found) < 2:
        on_core = time.process_time()
        prepare(number)
        number += 1
        if len(found) < _MOST_KEPT:
            found.append((time.perf_counter() - begin, time.process_time() - on_core))
    return found


def _figures(times: NDArray[np.float64]) -> dict[str, float]:
    return {
        "mean_seconds": float(times.mean()),
        "median_seconds": float(np.median(times)),
        "stdev_seconds": float(times.std()),
        "samples": len(times),
    }
