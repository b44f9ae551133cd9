"""Cached results belong to a single run, and are freed with it."""

from __future__ import annotations

import gc
import weakref

from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from tests.commtrace.analyze.rows import call, run_of


def test_a_result_is_computed_per_run_even_for_equal_runs() -> None:
    calls: list[Frames] = []

    @cached_per_run
    def number(frames: Frames) -> int:
        calls.append(frames)
        return len(calls)

    first, second = run_of([call()]), run_of([call()])
    assert [number(run) for run in (first, second, first, second)] == [1, 2, 1, 2]


def test_a_result_is_freed_with_its_run() -> None:
    answers = []

    @cached_per_run
    def rows(frames: Frames) -> set[int]:
        answers.append({len(frames.comm)})
        return answers[0]

    run = run_of([call()])
    reference = weakref.ref(rows(run))
    answers.clear()
    assert reference() is not None
    del run
    gc.collect()
    assert reference() is None
