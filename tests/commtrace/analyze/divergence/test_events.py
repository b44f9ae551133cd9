"""Events on the host that explain where ranks part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze.divergence.events import event_of
from tests.commtrace.analyze.rows import run_of

LONG_NS = 10**9


def compilation(rank: int, duration_ns: int) -> dict[str, Any]:
    return {
        "rank": rank, "kind": "compile", "at_ns": 100, "duration_ns": duration_ns, "thread": 1,
        "text": "", "source_file": "train.py", "source_line": 3,
    }  # fmt: skip


@pytest.mark.parametrize("other", [0, 1])
def test_a_long_compilation_of_both_ranks_explains_nothing(other: int) -> None:
    """A rank writes a row while it compiles for long, and another one at the end."""
    both = [compilation(0, -1), compilation(0, LONG_NS), compilation(1, LONG_NS)]
    frames = replace(run_of(), host_events=pd.DataFrame(both))
    assert event_of(frames, 1 - other, 0, -1, (other, 0, -1)) is None


def test_a_compilation_of_one_rank_has_the_duration_that_its_last_row_states() -> None:
    rows = [compilation(0, -1), compilation(0, LONG_NS)]
    frames = replace(run_of(), host_events=pd.DataFrame(rows))
    event = event_of(frames, 0, 0, -1, (1, 0, -1))
    assert event is not None
    assert event["duration_ns"] == LONG_NS
