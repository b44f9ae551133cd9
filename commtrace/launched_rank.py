"""Rank of a process as the environment variables of its launcher state it.

    launched_rank(os.environ)    # LaunchedRank(launcher="Slurm", rank=3, num_ranks=8, ...)

A variable is believed if the launcher has set all that it sets: with nested launchers, such as
torchrun under `srun`, the innermost has started the process. Once a default process group exists,
its rank replaces the rank stated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commtrace.errors import UsageError
from commtrace.schema import MAX_RANKS

# A default value of torchrun, which every run without an id has.
_NO_ID = "none"


@dataclass(frozen=True, slots=True)
class Launcher:
    """Names of the variables by which a launcher states a process's rank.

    Attributes:
        num_ranks: variables with the number of ranks; the first that is set counts.
        step: if `job` is set, one of these must be set too: otherwise the process is a script of
            the batch system itself.
        mark: a variable of this launcher alone, and how its value begins.
    """

    name: str
    rank: str
    num_ranks: tuple[str, ...]
    job: str = ""
    step: tuple[str, ...] = ()
    mark: tuple[str, str] = ("", "")


TORCHRUN = "torchrun"
RUN_ID_PREFIX = "commtrace-"
"""Beginning of the id of a run that commtrace has started itself."""

LAUNCHERS = (
    Launcher(
        "commtrace", "RANK", ("WORLD_SIZE",), mark=("TORCHELASTIC_RUN_ID", RUN_ID_PREFIX)
    ),
    Launcher(TORCHRUN, "RANK", ("WORLD_SIZE",), mark=("TORCHELASTIC_RUN_ID", "")),
    Launcher("a launcher that sets RANK", "RANK", ("WORLD_SIZE",)),
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    Launcher("MPI", "PMI_RANK", ("PMI_SIZE",)),
    Launcher(
        "Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        "SLURM_JOB_ID", ("SLURM_STEP_ID", "SLURM_STEPID"),
    ),
)  # fmt: skip
"""Launchers, innermost first."""

RUN_IDS = (
    ("TORCHELASTIC_RUN_ID",),
    ("PMIX_NAMESPACE",),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
)
"""Variables that together identify a run, equal on all of its ranks."""

ATTEMPTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""Variables that count the restarts of a run."""


@dataclass(frozen=True, slots=True)
class LaunchedRank:
    """A rank as its launcher states it.

    Attributes:
        launcher: name of the launcher.
        variable: the variable that states the rank.
    """

    launcher: str
    variable: str
    rank: int
    num_ranks: int


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Return the rank that the launcher of this process states; None without a launcher.

    Raises:
        UsageError: the variables contradict each other.
    """
    for launcher in LAUNCHERS:
        number = environment.get(launcher.rank, "")
        size = next((name for name in launcher.num_ranks if environment.get(name)), "")
        if number and size and _is_of(launcher, environment):
            return _checked(launcher, size, environment)
    return None


def _is_of(launcher: Launcher, environment: Mapping[str, str]) -> bool:
    variable, beginning = launcher.mark
    is_marked = not variable or (
        variable in environment and environment[variable].startswith(beginning)
    )
    return is_marked and not _is_batch_script(launcher, environment)


def _is_batch_script(launcher: Launcher, environment: Mapping[str, str]) -> bool:
    in_job = bool(launcher.job) and launcher.job in environment
    return in_job and not any(name in environment for name in launcher.step)


def _checked(launcher: Launcher, size: str, environment: Mapping[str, str]) -> LaunchedRank:
    rank, num_ranks = _number(environment[launcher.rank]), _number(environment[size])
    if not 0 <= rank < num_ranks <= MAX_RANKS:
        found = f"{launcher.rank}={environment[launcher.rank]}, {size}={environment[size]}"
        raise UsageError(
            "cannot find out the rank of this process",
            found=found,
            why=f"a rank is a number from 0 to {size} - 1, and there are at most {MAX_RANKS:,}",
            attempt="set both variables as torchrun does, or neither",
        )
    return LaunchedRank(launcher.name, launcher.rank, rank, num_ranks)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def run_id(environment: Mapping[str, str]) -> str:
    """Return the identity that the launcher gave to the run; empty if it gave none."""
    for names in RUN_IDS:
        values = [environment.get(name, "") for name in names]
        if all(values) and values != [_NO_ID]:
            return ".".join(values)
    return ""


def attempt(environment: Mapping[str, str]) -> int:
    """Return how often the launcher has restarted the run; 0 if it does not say."""
    return next((n for name in ATTEMPTS if (n := _number(environment.get(name, ""))) >= 0), 0)
