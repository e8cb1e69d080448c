"""What is timed: a step of one of dlemu's networks, or of the user's own model."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dlemu.errors import DlemuError, WorkloadError
from dlemu.host.processes import free_memory_bytes
from dlemu.units import format_bytes

NETWORKS = ("unet3d", "resnet50", "cosmoflow")

Step = Callable[[], object]
"""Queues or does one training step."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Which step is timed, and on what."""

    model: str
    device: str
    precision: str = "bf16"
    compiled: bool = False
    graph: bool = False
    side: int | None = None
    waits: bool = False
    """Whether the loop waits for a step's end before the next (`train.loop=rule`)."""


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
    if model in NETWORKS:
        return model
    if names_function(model):
        return model
    known = ", ".join(NETWORKS)
    if not given:
        raise WorkloadError(
            f"workload {workload} names no network that dlemu has; set steptime.model to one of "
            f"{known}, or to PACKAGE.MODULE:FUNCTION"
        )
    raise WorkloadError(
        f"steptime.model must be one of {known}, or PACKAGE.MODULE:FUNCTION, got {given!r}"
    )


def names_function(given: str) -> bool:
    """Return whether a text is PACKAGE.MODULE:FUNCTION."""
    module, colon, function = given.partition(":")
    return bool(colon) and all(name.isidentifier() for name in [*module.split("."), function])


def make_step(job: Job, batch: int, layout: str) -> Step:
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


def _check_memory(job: Job, batch: int) -> None:
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


def _users_step(job: Job, batch: int) -> Step:
    own = UsersFunction("steptime.model", job.model)
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
        self._given, self._module = f"{key}={name}", name.partition(":")[0]
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
            raise WorkloadError(f"{self._given}: {module.__file__} has no function {self._name}")
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
                f"{self._given}: {called} must return a function that {what_it_does}, got "
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
                f"{self._given}: there is no module {error.name}; give it as Python "
                "imports it, in this folder or in PYTHONPATH"
            ) from None
        raise WorkloadError(
            f"{self._given}: {_place(error)}: {type(error).__name__} "
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
