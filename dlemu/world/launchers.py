"""Launchers by the environment variables that they set: how many ranks one has started.

A launcher and an MPI that do not fit each other start N processes that each believe to be alone:
N runs of one rank. Such a start is refused, with the word that the launcher wants.

Sources: the manuals of Open MPI 5, MPICH 4, Intel MPI, MVAPICH2, Slurm 22.05, flux-core, IBM's
jsrun and torchrun.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dlemu.errors import RunError


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks."""

    name: str
    size_key: str
    """The environment variable with the number of ranks."""
    words: Mapping[str, str]
    """What to write so that an MPI finds all ranks, by the MPI's name; "" is any other MPI."""


_BUILD = "build mpi4py with the launcher's MPI: pip install --no-binary mpi4py mpi4py"
_BESIDE = f"use the mpirun of mpi4py's own MPI, or {_BUILD}"
_IN_ALLOCATION = "or, inside the allocation, mpirun"

MANAGERS = (
    Launcher(
        "srun",
        "SLURM_STEP_NUM_TASKS",  # Slurm's other variables are also set in batch scripts
        {
            "Open MPI": f"use srun --mpi=pmix {_IN_ALLOCATION}",
            "MPICH": f"use srun --mpi=pmi2 {_IN_ALLOCATION}",
            "Intel MPI": "use srun --mpi=pmi2, with I_MPI_PMI_LIBRARY set to Slurm's libpmi2.so, "
            + _IN_ALLOCATION,
            "": _BUILD,
        },
    ),
    Launcher(
        "flux run",
        "FLUX_JOB_SIZE",
        {"Open MPI": "use flux run -o pmi=pmix (the flux-pmix plugin)", "": _BUILD},
    ),
    Launcher("jsrun", "JSM_NAMESPACE_SIZE", {"": _BUILD}),
)
"""Resource managers that start ranks themselves."""

MPIS = (
    Launcher("mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE", {"": _BESIDE}),
    Launcher("mpiexec of MPICH or Intel MPI", "PMI_SIZE", {"": _BESIDE}),
    Launcher("mpirun of MVAPICH", "MV2_COMM_WORLD_SIZE", {"": _BESIDE}),
    Launcher("mpiexec of PALS", "PALS_SIZE", {"": _BUILD}),
)
"""The launchers of MPIs. Resource managers set their variables, too."""

_UNKNOWN_SIZE = ("PMIX_RANK", "PALS_RANKID")
"""Set by launchers that do not say how many ranks there are: PMIx's own, and HPE's PALS."""


def launched_ranks(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks were launched; None if there is a launcher that does not say.

    Raises:
        RunError: the number is none, or a launcher was used whose processes cannot meet over MPI.
    """
    # An mpirun inside a step of Slurm or Flux starts ranks of its own: what it says holds.
    for launcher in (*MPIS, *MANAGERS):
        if launcher.size_key in environment:
            return _number(environment, launcher.size_key)
    if any(key in environment for key in _UNKNOWN_SIZE):
        return None
    if "TORCHELASTIC_RUN_ID" in environment:  # torchrun; WORLD_SIZE alone is set by many others
        num_processes = _number(environment, "WORLD_SIZE")
        if num_processes > 1:
            raise RunError(
                f"torchrun started {num_processes} processes, but the ranks of dlemu meet over "
                f"MPI: use mpirun -n {num_processes}; a training loop of your own gives "
                "make_loader its rank and num_ranks instead"
            )
    return 1


def check_world(environment: Mapping[str, str], size: int, mpi: str) -> None:
    """Raise an error unless MPI has found as many ranks as the launcher started.

    Args:
        environment: this process's environment variables.
        size: the number of ranks that MPI found.
        mpi: the name of the MPI library, as mpi4py's get_vendor() says it.
    """
    started = launched_ranks(environment)
    if started == size:
        return
    if started is None:
        if size > 1 or all(environment.get(key, "0") == "0" for key in _UNKNOWN_SIZE):
            return
        raise RunError(
            f"the launcher started several ranks, but {mpi} finds this one only: {_BESIDE}"
        )
    launcher = next(
        each for each in (*MANAGERS, *MPIS) if environment.get(each.size_key) == str(started)
    )
    word = launcher.words.get(mpi, launcher.words[""])
    raise RunError(
        f"{launcher.name} started {started} ranks, but mpi4py's {mpi} finds {size}: {word}"
    )


def _number(environment: Mapping[str, str], key: str) -> int:
    value = environment.get(key, "")
    if not (value.isascii() and value.isdecimal() and int(value) > 0):
        raise RunError(
            f"the launcher's {key} must be the number of ranks, got {value!r}; start dlemu with "
            f"mpirun or srun, or unset {key}"
        )
    return int(value)
