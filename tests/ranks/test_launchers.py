"""Tests for the launchers: each is recognised, and names the word that it wants."""

import pytest

from dlemu.errors import RunError
from dlemu.ranks.mpi import MANAGERS, MPIS, check_world, launched_ranks

SIZE_KEYS = [launcher.size_key for launcher in (*MPIS, *MANAGERS)]


@pytest.mark.parametrize("value", ["", "x", "0", "-1", "4.0", "²", "1e3"])
@pytest.mark.parametrize("key", SIZE_KEYS)
def test_a_launcher_that_says_no_number_is_named(key: str, value: str) -> None:
    with pytest.raises(RunError) as raised:
        launched_ranks({key: value})
    assert str(raised.value) == (
        f"the launcher's {key} must be the number of ranks, got {value!r}; start dlemu with mpirun "
        f"or srun, or unset {key}"
    )


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script
        {"WORLD_SIZE": "8", "RANK": "3"},  # set by a user, not by torchrun
        {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_one_process_is_one_rank(environment: dict[str, str]) -> None:
    assert launched_ranks(environment) == 1


@pytest.mark.parametrize("key", ["PMIX_RANK", "PALS_RANKID"])
def test_a_launcher_that_names_no_size_is_believed_but_for_a_lonely_rank(key: str) -> None:
    assert launched_ranks({key: "0"}) is None
    check_world({key: "0"}, 1, "MPICH")  # one rank, or nobody can know
    check_world({key: "3"}, 4, "MPICH")
    with pytest.raises(RunError, match="several ranks, but MPICH finds this one only"):
        check_world({key: "3"}, 1, "MPICH")


@pytest.mark.parametrize(
    ("environment", "mpi", "word"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4"}, "Open MPI", "use srun --mpi=pmix or, inside"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "MPICH", "use srun --mpi=pmi2 or, inside"),
        ({"SLURM_STEP_NUM_TASKS": "4", "PMI_SIZE": "4"}, "Open MPI", "use srun --mpi=pmix"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "Intel MPI", "I_MPI_PMI_LIBRARY set to Slurm's"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "MVAPICH2", "pip install --no-binary mpi4py mpi4py"),
        ({"FLUX_JOB_SIZE": "4", "PMI_SIZE": "4"}, "Open MPI", "use flux run -o pmi=pmix"),
        ({"JSM_NAMESPACE_SIZE": "4"}, "Open MPI", "pip install --no-binary mpi4py mpi4py"),
        ({"PMI_SIZE": "4"}, "Open MPI", "use the mpirun of mpi4py's own MPI, or build"),
        # An mpirun inside a step of Slurm starts ranks of its own.
        ({"PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "1"}, "Open MPI", "use the mpirun of mpi4py's"),
    ],
)
def test_ranks_that_do_not_find_each_other_are_told_the_word(
    environment: dict[str, str], mpi: str, word: str
) -> None:
    check_world(environment, 4, mpi)
    with pytest.raises(RunError, match=f"started 4 ranks, but mpi4py's {mpi} finds 1: ") as raised:
        check_world(environment, 1, mpi)
    assert word in str(raised.value)


def test_torchrun_is_told_to_be_mpirun() -> None:
    with pytest.raises(RunError, match=r"torchrun started 8 processes, .*: use mpirun -n 8; a tra"):
        launched_ranks({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8", "RANK": "3"})
