"""Steps are found from the calls of a single source."""

from __future__ import annotations

from commtrace.recorder.events.steps import StepFinder


def test_a_step_ends_before_a_call_repeats() -> None:
    class Thing:
        pass

    a, b, c = Thing(), Thing(), Thing()
    finder = StepFinder(begin=0)
    ticks = [(a, 10), (b, 12), (a, 20), (b, 22), (c, 23), (a, 30), (a, 40)]
    found = [finder.tick(thing, at, begin=3) for thing, at in ticks]
    assert found == [None, None, (3, 12), None, None, (12, 23), (23, 30)]
    assert finder.rest() == (30, 40)
    assert finder.rest() is None
