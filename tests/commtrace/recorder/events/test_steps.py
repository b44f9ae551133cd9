"""Steps are found from the calls of a single source."""

from __future__ import annotations

from commtrace.recorder.events.steps import OPTIMIZER, SCHEDULER, FoundSteps, StepFinder


class Thing:
    """An object that steps."""


def test_a_step_ends_before_a_call_repeats() -> None:
    a, b, c = Thing(), Thing(), Thing()
    finder = StepFinder(begin=0)
    ticks = [(a, 10), (b, 12), (a, 20), (b, 22), (c, 23), (a, 30), (a, 40)]
    found = [finder.tick(thing, at, begin=3) for thing, at in ticks]
    assert found == [None, None, (3, 12), None, None, (12, 23), (23, 30)]
    assert finder.rest() == (30, 40)
    assert finder.rest() is None


def test_a_recording_that_goes_on_goes_on_counting() -> None:
    thing, steps = Thing(), FoundSteps(0, 0)
    for at in (1, 2):
        steps.tick(OPTIMIZER, thing, at, 0)
    steps.end()
    assert steps.in_progress == 2
    for at in (3, 4):
        steps.tick(OPTIMIZER, thing, at, 0)
    steps.end()
    assert [number for _, _, number, _, _ in steps.new] == [0, 1, 2, 3]


def test_the_step_in_progress_is_that_of_the_best_source() -> None:
    things, steps = [Thing(), Thing()], FoundSteps(0, 0)
    assert steps.in_progress == 0
    predicted = []
    for at in range(4):
        for each in things:
            steps.tick(OPTIMIZER, each, 10 * at, 0)
            steps.tick(SCHEDULER, Thing(), 10 * at + 1, 0)
            predicted.append(steps.in_progress)
    # The end of the first is certain only once the second has begun.
    assert predicted == [0, 0, 1, 2, 2, 3, 3, 4]
