"""All ranks take their steps from the same source, also from truncated spools."""

from __future__ import annotations

import io
from array import array
from dataclasses import replace
from typing import Any

import pytest

from commtrace.event import CommEvent, StepRow
from commtrace.tracefile import FOUND_STEPS, STEPS_FROM, SpoolWriter, Trace, join, parse_spool
from commtrace.tracefile.joining.steps import _steps_at
from tests.commtrace.synthetic import START_NS, synthetic_facts


def spool(
    rank: int,
    *,
    marked: int = 0,
    found: dict[str, int] | None = None,
    facts: dict[str, Any] | None = None,
) -> Any:
    """Six calls, 10 ns apart; steps of 20 ns; the first begins 10 ns after the start."""
    stream = io.BytesIO()
    writer = SpoolWriter(stream, synthetic_facts(rank, 2))
    writer.write(
        {
            "comm": [
                CommEvent(rank=rank, id=n, step=-1, issue_ns=START_NS + 10 * n) for n in range(6)
            ],
            "steps": [StepRow(rank, n, START_NS, START_NS + 9) for n in range(marked)],
            FOUND_STEPS: [
                (source, -1, n, START_NS + 10 + 20 * n, START_NS + 30 + 20 * n)
                for source, num in (found or {}).items()
                for n in range(num)
            ],
        },
        facts,
    )
    return parse_spool(stream.getvalue())


def steps_of(trace: Trace, rank: int) -> list[int]:
    comm = trace.tables["comm"]
    return [step for step, each in zip(comm["step"], comm["rank"], strict=True) if each == rank]


def test_calls_are_in_the_step_of_their_time() -> None:
    trace = join([spool(0, found={"optimizer": 2}), spool(1, found={"optimizer": 1})])
    assert trace.run[STEPS_FROM] == "optimizer"
    assert steps_of(trace, 0) == [-1, 0, 0, 1, 1, -1]
    assert steps_of(trace, 1) == [-1, 0, 0, -1, -1, -1]
    assert list(trace.tables["steps"]["rank"]) == [0, 0, 1]


def test_an_instant_between_steps_is_in_none() -> None:
    steps = {
        "step": array("q", [0, 3, 6]),
        "start_ns": array("q", [10, 40, 60]),
        "end_ns": array("q", [20, 50, 70]),
    }
    instants = [9, 10, 19, 20, 39, 40, 49, 50, 59, 60, 69, 70]
    assert list(_steps_at(instants, steps)) == [-1, 0, 0, -1, -1, 3, 3, -1, -1, 6, 6, -1]
    assert list(_steps_at(instants, {name: array("q") for name in steps})) == [-1] * 12


def gapped(**facts: Any) -> Any:
    """Six calls, 10 ns apart; the steps 0 and 5, with a call between them."""
    spoken = spool(0, found={"optimizer": 3}, facts=facts)
    found = spoken.tables[FOUND_STEPS]
    rows = {
        name: [*values[:1], *values[2:]] if name == "source" else array("q", values[::2])
        for name, values in found.items()
    }
    rows["step"] = array("q", [0, 5])
    return replace(spoken, tables={**spoken.tables, FOUND_STEPS: rows})


def test_what_a_run_of_every_nth_step_has_between_steps_is_dropped() -> None:
    facts = synthetic_facts(0, 2)["run"]
    assert steps_of(join([gapped()]), 0) == [-1, 0, 0, -1, -1, 5]
    assert steps_of(join([gapped(run={**facts, "every": 5})]), 0) == [-1, 0, 0, 5]


@pytest.mark.parametrize(
    ("first", "second", "source", "num_steps"),
    [
        ({"found": {"optimizer": 2}}, {"marked": 2}, "marked", 2),
        ({"found": {"scheduler": 2, "profiler": 1}}, {}, "profiler", 1),
        ({"found": {"scheduler": 2}}, {"found": {"optimizer": 1}}, "optimizer", 1),
        ({"marked": 1}, {}, "marked", 1),
        ({"marked": 1, "facts": {"is_one_step": True}}, {}, "recording", 1),
        (
            {"marked": 1, "facts": {"is_one_step": True}, "found": {"optimizer": 2}},
            {},
            "optimizer",
            2,
        ),
        ({}, {}, "none", 0),
    ],
)
def test_the_source_is_the_same_on_all_ranks(
    first: dict[str, Any], second: dict[str, Any], source: str, num_steps: int
) -> None:
    trace = join([spool(0, **first), spool(1, **second)])
    assert trace.run[STEPS_FROM] == source
    assert trace.num_rows("steps") == num_steps


def test_without_steps_nothing_is_in_one() -> None:
    assert set(steps_of(join([spool(0), spool(1)]), 0)) == {-1}
