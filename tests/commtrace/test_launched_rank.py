"""The rank of a process, from the variables of its launcher."""

from __future__ import annotations

import pytest

from commtrace.errors import UsageError
from commtrace.launched_rank import LaunchedRank, attempt, launched_rank, run_id
from commtrace.schema import MAX_RANKS

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "job"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "77"}
PMI = {"PMI_RANK": "2", "PMI_SIZE": "4"}
SLURM = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, ("torchrun", 3, 8)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, ("a launcher that sets RANK", 3, 8)),
        (OPEN_MPI, ("Open MPI", 1, 2)),
        (PMI, ("MPI", 2, 4)),
        (SLURM, ("Slurm", 5, 6)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, ("Slurm", 1, 2)),
        # A step of fewer tasks than its job.
        (SLURM | {"SLURM_STEP_NUM_TASKS": "7"}, ("Slurm", 5, 7)),
        # The innermost of nested launchers has started the process.
        (SLURM | TORCHRUN, ("torchrun", 3, 8)),
        (SLURM | OPEN_MPI, ("Open MPI", 1, 2)),
        (SLURM | PMI, ("MPI", 2, 4)),
        # Only those variables count of which there are both.
        (SLURM | {"RANK": "0"}, ("Slurm", 5, 6)),
    ],
)
def test_the_rank_is_that_of_the_innermost_launcher(
    environment: dict[str, str], expected: tuple[str, int, int]
) -> None:
    found = launched_rank(environment)
    assert found is not None
    assert (found.launcher, found.rank, found.num_ranks) == expected


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0"},
        {"WORLD_SIZE": "4"},
        {"RANK": "", "WORLD_SIZE": "4"},
        # A batch script of Slurm belongs to no step.
        {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"},
    ],
)
def test_a_process_without_a_launcher_has_no_rank(environment: dict[str, str]) -> None:
    assert launched_rank(environment) is None


@pytest.mark.parametrize(
    ("rank", "num_ranks"),
    [("4", "4"), ("-1", "4"), ("x", "4"), ("0", "0"), ("0", str(MAX_RANKS + 1)), ("٣", "4"),
     ("0", "9" * 5000)],
)  # fmt: skip
def test_numbers_that_can_not_be_are_refused(rank: str, num_ranks: str) -> None:
    with pytest.raises(UsageError, match="a rank is a number from 0 to WORLD_SIZE - 1") as error:
        launched_rank({"RANK": rank, "WORLD_SIZE": num_ranks})
    assert f"found: RANK={rank}, " in str(error.value) or not rank.isascii()


def test_the_largest_world_is_accepted() -> None:
    environment = {"RANK": str(MAX_RANKS - 1), "WORLD_SIZE": str(MAX_RANKS)}
    found = LaunchedRank("a launcher that sets RANK", "RANK", MAX_RANKS - 1, MAX_RANKS)
    assert launched_rank(environment) == found


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN | SLURM, "job"),
        (TORCHRUN | SLURM | {"TORCHELASTIC_RUN_ID": "none"}, "9.0"),
        (OPEN_MPI, "77"),
        ({"SLURM_JOB_ID": "9"}, ""),
        ({}, ""),
    ],
)
def test_the_identity_of_a_run_is_the_first_that_is_one(
    environment: dict[str, str], expected: str
) -> None:
    assert run_id(environment) == expected


def test_restarts_are_counted_by_the_launcher() -> None:
    assert attempt({"TORCHELASTIC_RESTART_COUNT": "2", "SLURM_RESTART_COUNT": "1"}) == 2
    assert attempt({"TORCHELASTIC_RESTART_COUNT": "x", "SLURM_RESTART_COUNT": "1"}) == 1
    assert attempt({}) == 0
