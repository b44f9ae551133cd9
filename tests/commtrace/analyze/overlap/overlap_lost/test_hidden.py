"""By how much calls could be hidden, in random programs, compared with their overlapped form.

That issues each call where its data is ready, and waits for it where its result is used.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.findings import findings
from commtrace.analyze.overlap.overlap_lost.chances import chances
from commtrace.analyze.overlap.overlap_lost.reasons import LOST
from commtrace.analyze.overlap.overlap_lost.table import overlap_lost
from commtrace.analyze.replay import basis
from tests.commtrace.analyze.overlap.overlap_lost import lossy
from tests.commtrace.analyze.replay.simulated import (
    MS,
    Call,
    Program,
    Ready,
    Step,
    Use,
    Wait,
    Work,
    simulated,
)
from tests.commtrace.analyze.split_run import SplitRun

SEEDS = range(60)
NUM_STEPS = 3


def made_by(seed: int) -> list[Program]:
    """Ranks with the same calls in a row, and other work before and after each of them."""
    chance = random.Random(seed)
    num_ranks, num_calls = chance.randint(2, 4), chance.randint(1, 4)
    transfers = [chance.randint(1, 100) for _ in range(num_calls)]
    works = [[chance.choice([0, 1, 60]) for _ in range(2)] for _ in range(num_calls)]
    return [list(_steps(chance, transfers, works)) for _ in range(num_ranks)]


def even(seed: int) -> list[Program]:
    """Ranks that all do what the first of the random program does."""
    first, *others = made_by(seed)
    return [first for _ in [first, *others]]


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


def overlapped(programs: Sequence[Program]) -> list[Program]:
    """The programs whose calls are issued, and waited for, elsewhere."""
    found = []
    for program in programs:
        calls = {each.name: each for each in program if isinstance(each, Call)}
        changed: list[Any] = []
        for each in program:
            if isinstance(each, Ready):
                changed += [each, replace(calls[each.name], issue=0)]
            elif isinstance(each, Use):
                changed += [Wait(each.name), each]
            elif not isinstance(each, Call):
                changed.append(each)
        found.append(changed)
    return found


def lasted_ns(run: Frames) -> float:
    """Time of the run, mean over ranks."""
    steps = run.steps.groupby("rank")
    return (steps["end_ns"].max() - steps["start_ns"].min()).mean()


def loses_overlap(run: Frames) -> bool:
    return bool(chances(run)["reason"].isin([*LOST]).any())


LOSSY = [seed for seed in SEEDS if loses_overlap(load(simulated(made_by(seed))))]


@pytest.mark.parametrize("seed", LOSSY)
def test_a_call_could_be_hidden_by_what_its_overlapped_form_is_less_exposed(seed: int) -> None:
    programs = made_by(seed)
    run, then = load(simulated(programs)), load(simulated(overlapped(programs)))
    less = run.comm["blocked_ns"] - then.comm["blocked_ns"]
    transfers = (MS * call.transfer for each in programs for call in each if isinstance(call, Call))
    assert chances(run)["could"].tolist() == [
        max(min(least, most), 0) for least, most in zip(less, transfers, strict=True)
    ]


@pytest.mark.parametrize("seed", LOSSY)
def test_the_overlapped_program_of_even_ranks_takes_as_much_less_as_could_be_hidden(
    seed: int,
) -> None:
    programs = even(seed)
    run, then = load(simulated(programs)), load(simulated(overlapped(programs)))
    gained = lasted_ns(run) - lasted_ns(then)
    assert overlap_lost(run)["could_hide_ns"].sum() == (gained if loses_overlap(run) else 0)


@pytest.mark.parametrize("seed", LOSSY)
def test_more_could_be_hidden_than_the_overlapped_program_gains_only_by_waits_that_grow(
    seed: int,
) -> None:
    programs = made_by(seed)
    run, then = load(simulated(programs)), load(simulated(overlapped(programs)))
    grown = (then.comm["blocked_ns"] - run.comm["blocked_ns"]).clip(lower=0).sum()
    gained = lasted_ns(run) - lasted_ns(then)
    assert overlap_lost(run)["could_hide_ns"].sum() <= gained + grown / run.num_ranks


def test_most_random_programs_lose_overlap_and_some_waits_grow_without_it() -> None:
    assert len(LOSSY) > 40
    grown = 0
    for seed in LOSSY:
        programs = made_by(seed)
        run, then = load(simulated(programs)), load(simulated(overlapped(programs)))
        grown += (then.comm["blocked_ns"] > run.comm["blocked_ns"]).any()
    assert 0 < grown < len(LOSSY)


@pytest.mark.parametrize("program", [lossy.issued_late, lossy.wrong_bucket_order, lossy.overlapped])
def test_of_a_large_run_some_steps_are_replayed_and_stand_for_the_others(
    program: Callable[[], lossy.Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = program().run(num_steps=12)
    monkeypatch.setattr(basis, "MOST_CALLS", len(run.comm) // 4)
    large = SplitRun(run)
    assert 0 < len(basis.basis_of(large).comm) <= len(run.comm) // 4
    pd.testing.assert_frame_equal(overlap_lost(large), overlap_lost(run))
    pd.testing.assert_frame_equal(
        findings(SplitRun(run))[["rule", "cost_ns"]], findings(run)[["rule", "cost_ns"]]
    )


def test_a_large_run_without_steps_has_all_but_the_time_that_could_be_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = lossy.issued_late().run()
    run = replace(run, steps=run.steps[:0], comm=run.comm.assign(step=-1))
    monkeypatch.setattr(basis, "MOST_CALLS", 1)
    (found,), (known,) = (overlap_lost(each).to_dict("records") for each in (SplitRun(run), run))
    assert math.isnan(found["could_hide_ns"])
    assert known["could_hide_ns"] > 0
    same = known.keys() - {"could_hide_ns", "num_steps", "share_of_steps"}
    assert {name: found[name] for name in same} == {name: known[name] for name in same}
