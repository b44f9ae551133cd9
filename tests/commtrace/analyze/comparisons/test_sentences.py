from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze.comparisons.sentences import bound_ns, sentences
from tests.commtrace.analyze.rows import call, run_of, step

FEW, MANY = 64, 4096
MS = 1_000_000


def run(
    *of_a_step: tuple[str, int, int], lasts: tuple[int, ...] = (10, 10, 10, 10), **columns: Any
) -> Any:
    """A run of one rank; in each step it makes the calls `(kind, payload, sent)`."""
    calls, steps, at = [], [], 0
    for number, ms in enumerate(lasts):
        steps.append(step(0, number, at, at + ms * MS))
        for kind, payload, sent in of_a_step:
            known = {"payload_bytes": payload, "wire_bytes": sent, "blocked_ns": ms * MS // 4}
            calls.append(
                call(id=len(calls), kind=kind, step=number, at=at, until=at + 1, **known | columns)
            )
        at += ms * MS
    return run_of(calls, steps=steps, num_ranks=1)


REDUCED = [("all_reduce", MANY, 6144)] * 3
SCATTERED = [("reduce_scatter", MANY, 3072), ("all_gather", MANY, 3072)] * 3


def test_a_kind_that_became_others_of_the_same_payload_is_said_as_such() -> None:
    assert (
        "Each all_reduce (3 in all) became a reduce_scatter and an all_gather of the same bytes"
        in sentences(run(*REDUCED), run(*SCATTERED))
    )
    assert (
        "A reduce_scatter and an all_gather (3 of each) became an all_reduce of the same bytes"
        in sentences(run(*SCATTERED), run(*REDUCED))
    )


def test_what_changed_besides_is_said_too() -> None:
    found = sentences(run(*REDUCED), run(*SCATTERED, ("all_reduce", FEW, 96)))
    assert "1 more all_reduce in a step besides" in found
    assert "A rank sends 18.5 kB in a step, instead of 18.4 kB (+1%)" in found


def test_calls_of_other_payloads_or_in_other_numbers_did_not_become_each_other() -> None:
    for after in (
        [("reduce_scatter", FEW, 3072), ("all_gather", FEW, 3072)] * 3,
        SCATTERED[:4],
    ):
        assert not any("became" in text for text in sentences(run(*REDUCED), run(*after)))


def test_bytes_that_a_run_does_not_know_are_not_the_same() -> None:
    found = sentences(run(*REDUCED), run(*SCATTERED, wire_bytes=-1))
    (became,) = (text for text in found if "became" in text)
    assert became.endswith("all_gather of the same payload")
    assert not any(text.startswith("A rank sends") for text in found)


def test_a_time_that_differs_no_more_than_steps_do_is_noise() -> None:
    before, after = run(*REDUCED, lasts=(10, 12, 8, 10)), run(*REDUCED, lasts=(11, 12, 8, 10))
    first, *_ = sentences(before, after)
    assert first.startswith("A step takes 10.2 ± 0.9 ms, before 10.0 ± 0.8 ms: no more than noise")
    assert bound_ns(before, after, "duration_ns") == pytest.approx(2 * 1.190e6, rel=1e-2)
    slower, *_ = sentences(before, run(*REDUCED, lasts=(20, 22, 18, 20)))
    assert slower == "A step takes 20.0 ± 0.8 ms instead of 10.0 ± 0.8 ms (+100%)"


def test_of_runs_without_steps_or_calls_nothing_is_said_of_steps() -> None:
    silent = run_of([])
    assert sentences(silent, silent) == []
    (text,) = sentences(run_of([call(payload_bytes=8, wire_bytes=8)], num_ranks=1), silent)[-1:]
    assert text == "A rank sends 0 B in all, instead of 8 B (-100%)"
