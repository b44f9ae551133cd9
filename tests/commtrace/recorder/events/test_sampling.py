"""Ends of found steps are predicted from counts, so that every Nth step is kept as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from commtrace.recorder.events.sampling import SampledSteps
from commtrace.recorder.events.steps import OPTIMIZER, PROFILER, SCHEDULER, FoundSteps


class Thing:
    """An object that steps."""


def rows(steps: SampledSteps | FoundSteps, source: str = OPTIMIZER) -> list[tuple[int, int, int]]:
    return [(number, begin, end) for each, _, number, begin, end in steps.new if each == source]


@pytest.mark.parametrize(
    ("every", "calls", "kept", "numbers"),
    [
        (1, "AAAAAA", "xxxxxx", [0, 1, 2, 3, 4, 5]),
        (2, "AAAAAA", "xx.x.x", [0, 1, 2, 4]),
        (3, "AAAAAAAA", "x.x..x..", [0, 1, 3, 6]),
        (4, "ABABABABABAB", "xxx....xx...", [0, 1, 4]),
        (3, "ABCABCABCABC", "xxxxx...xxx.", [0, 1, 3]),
    ],
)
def test_steps_are_kept_from_the_call_before_to_their_last_one(
    every: int, calls: str, kept: str, numbers: Sequence[int]
) -> None:
    steps, found = SampledSteps(0, 0, every), FoundSteps(0, 0)
    things = {name: Thing() for name in calls}
    decided = ""
    for number, name in enumerate(calls, start=1):
        for each in (steps, found):
            each.tick(OPTIMIZER, things[name], 10 * number, 0)
        decided += "x" if steps.is_kept else "."
    steps.end()
    found.end()
    assert [number for number, _, _ in rows(steps)] == numbers
    assert {*rows(steps)} <= {*rows(found)}
    assert decided == kept


@pytest.mark.parametrize(
    "calls", ["AAAAABAAAAABAAAAAB" * 3, "ABABAABABABAABAB" * 3, "ABCABACBACABC" * 4]
)
@pytest.mark.parametrize("every", [2, 3, 5])
def test_wrong_predictions_lose_steps_and_never_shift_them(calls: str, every: int) -> None:
    steps, found = SampledSteps(0, 0, every), FoundSteps(0, 0)
    things = {name: Thing() for name in calls}
    kept_at = [False] * len(calls)
    for number, name in enumerate(calls):
        for each in (steps, found):
            each.tick(OPTIMIZER, things[name], number, -1)
        kept_at[number] = steps.is_kept
    for each in (steps, found):
        each.end()
    assert {*rows(steps)} <= {*rows(found)}
    assert len(rows(steps)) > 2
    for number, begin, end in rows(steps)[2:]:
        assert number % every == 0
        assert all(kept_at[begin:end])


def test_the_best_source_decides_and_is_alone_from_the_first_skipped_step_on() -> None:
    steps = SampledSteps(0, 0, 3)
    optimizer, scheduler, profiler = Thing(), Thing(), Thing()
    for at in range(10, 90, 10):
        steps.tick(SCHEDULER, scheduler, at - 1, 0)
        steps.tick(OPTIMIZER, optimizer, at, 0)
        steps.tick(PROFILER, profiler, at + 1, 0)
    steps.end()
    assert rows(steps) == [(0, 0, 10), (1, 10, 20), (3, 30, 40), (6, 60, 70)]
    # They had ended before.
    assert rows(steps, SCHEDULER) == [(0, 0, 9)]
    assert rows(steps, PROFILER) == []
