"""By how much calls could be hidden, in random programs, compared with their overlapped form.

That issues each call that lost overlap where its data is ready, and waits where its result is used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.overlap.overlap_lost.chances import chances
from commtrace.analyze.overlap.overlap_lost.reasons import LOST
from commtrace.analyze.overlap.overlap_lost.table import overlap_lost
from tests.commtrace.analyze.replay.simulated import (
    Call,
    Program,
    Ready,
    Step,
    Use,
    Wait,
    Work,
    simulated,
)

SEEDS = range(60)
NUM_STEPS = 3


def made_by(seed: int) -> list[Program]:
    """Ranks with the same calls in a row, and other work before and after each of them."""
    chance = random.Random(seed)
    num_ranks, num_calls = chance.randint(2, 4), chance.randint(1, 4)
    transfers = [chance.randint(1, 100) for _ in range(num_calls)]
    works = [[chance.choice([0, 1, 60]) for _ in range(2)] for _ in range(num_calls)]
    return [list(_steps(chance, transfers, works)) for _ in range(num_ranks)]


def _steps(
    chance: random.Random, transfers: Sequence[int], works: Sequence[Sequence[int]]
) -> Iterator[Any]:
    for number in range(NUM_STEPS):
        yield from (Step(), Work(chance.randint(1, 30), "mm"))
        for line, (transfer, (before, after)) in enumerate(zip(transfers, works, strict=True)):
            name = f"{number}.{line}"
            yield from (Ready(name), Work(before * chance.randint(0, 2), "mm"))
            yield from (Call(name, transfer, line=line), Work(after * chance.randint(0, 2), "mm"))
            yield from (Use(name), Work(chance.randint(1, 30), "mm"))


def overlapped(programs: Sequence[Program], run: Frames) -> list[Program]:
    """The programs whose calls that lost overlap are issued, and waited for, elsewhere."""
    reasons = chances(run)["reason"]
    found = []
    for rank, program in enumerate(programs):
        calls = {each.name: each for each in program if isinstance(each, Call)}
        own = reasons[run.comm["rank"] == rank]
        lost = {name for name, reason in zip(calls, own, strict=True) if reason in LOST}
        changed: list[Any] = []
        for each in program:
            if getattr(each, "name", None) not in lost:
                changed.append(each)
            elif isinstance(each, Ready):
                changed += [each, replace(calls[each.name], issue=0)]
            elif isinstance(each, Use):
                changed += [Wait(each.name), each]
        found.append(changed)
    return found


def lasted_ns(run: Frames) -> pd.Series:
    """Time of each rank's steps."""
    steps = run.steps.groupby("rank")
    return steps["end_ns"].max() - steps["start_ns"].min()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_call_could_be_hidden_by_what_its_overlapped_form_is_less_exposed(seed: int) -> None:
    programs = made_by(seed)
    run = load(simulated(programs))
    then = load(simulated(overlapped(programs, run)))
    before, after = run.comm["blocked_ns"], then.comm["blocked_ns"]
    assert chances(run)["could"].tolist() == (before - after).clip(lower=0).tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_overlapped_program_gains_the_hidden_time_without_what_other_waits_grow(
    seed: int,
) -> None:
    programs = made_by(seed)
    run = load(simulated(programs))
    then = load(simulated(overlapped(programs, run)))
    gained = (lasted_ns(run) - lasted_ns(then)).mean()
    grown = (then.comm["blocked_ns"] - run.comm["blocked_ns"]).clip(lower=0).sum() / run.num_ranks
    assert overlap_lost(run)["could_hide_ns"].sum() == pytest.approx(gained + grown)


def test_programs_lose_overlap_and_some_of_their_waits_grow_without_it() -> None:
    could, grown = 0, 0
    for seed in SEEDS:
        programs = made_by(seed)
        run = load(simulated(programs))
        then = load(simulated(overlapped(programs, run)))
        could += (chances(run)["could"] > 0).sum()
        grown += (then.comm["blocked_ns"] > run.comm["blocked_ns"]).any()
    assert could > 300
    assert 0 < grown < len(SEEDS)
