"""Times what a worker does with a sample after it has read it: decode, crop, augment.

One process alone is faster than one of many: those of a job share caches, memory and cores. So it
is timed in one process, then in as many at once as the job has workers.
"""

import multiprocessing
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from threading import BrokenBarrierError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.config.published import normal
from dlemu.errors import RunError
from dlemu.host.processes import usable_cpus
from dlemu.tools.steptime.steps import UsersFunction

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
