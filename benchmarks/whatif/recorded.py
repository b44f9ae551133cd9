"""Recordings of the claims' programs, with a cost and without it, in turn.

    FOLDER/barriers/before-0.json    with the cost
    FOLDER/barriers/after-0.json     without it
    FOLDER/barriers/before-1.json    again

All programs of a number of ranks run on the same processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import groupby
from pathlib import Path

import torch

import commtrace
from benchmarks.whatif.claims import Claim
from benchmarks.whatif.programs import PROGRAMS, Place
from dtensor_core.testing import run_processes

NUM_STEPS = 14
TIMEOUT_S = 900.0
BEFORE, AFTER = "before", "after"


def path_of(folder: Path, claim: Claim, variant: str, number: int) -> Path:
    """Return the path of a recording."""
    return folder / claim.name.replace(": ", "-").replace(" ", "_") / f"{variant}-{number}.json"


def record_claims(claims: Iterable[Claim], folder: Path, num_rounds: int) -> None:
    """Record the programs of claims `num_rounds` times, with and without their costs in turn."""
    by_size = sorted(claims, key=lambda claim: claim.num_ranks)
    for num_ranks, own in groupby(by_size, key=lambda claim: claim.num_ranks):
        run_processes(_record, num_ranks, list(own), str(folder), num_rounds, timeout_s=TIMEOUT_S)


def _record(claims: list[Claim], folder: str, num_rounds: int) -> None:
    torch.set_num_threads(1)
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    for claim in claims:
        variants: Mapping[str, Set[str]] = {BEFORE: claim.before, AFTER: claim.after}
        for number in range(num_rounds):
            for variant, costs in variants.items():
                path = path_of(Path(folder), claim, variant, number)
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.distributed.barrier()
                with commtrace.record(path, detail="op") as recording:
                    step = PROGRAMS[claim.program](Place(rank, size, recording))
                    for _ in range(NUM_STEPS):
                        step(costs)
                        recording.step()
