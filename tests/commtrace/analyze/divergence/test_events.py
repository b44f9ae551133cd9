"""Events on the host that explain where ranks part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze.divergence.events import event_of
from tests.commtrace.analyze.rows import run_of


def row(rank: int, kind: str, text: str = "", at_ns: int = 100) -> dict[str, Any]:
    return {
        "rank": rank, "kind": kind, "at_ns": at_ns, "duration_ns": -1, "thread": 1,
        "text": text, "source_file": "train.py", "source_line": 3,
    }  # fmt: skip


def found(*rows: dict[str, Any]) -> Any:
    frames = replace(run_of(), host_events=pd.DataFrame([*rows]))
    return event_of(frames, 0, 50, 200, (1, 50, 200))


@pytest.mark.parametrize("kind", ["compile", "recompile", "data_wait", "gc_pause", "not_running"])
def test_what_only_takes_time_makes_no_rank_go_on_elsewhere(kind: str) -> None:
    assert found(row(0, kind)) is None


@pytest.mark.parametrize("kind", ["exception", "data_end", "thread_died"])
def test_what_one_rank_alone_met_is_the_cause(kind: str) -> None:
    assert found(row(0, kind, "KeyError: 1"))["text"] == "KeyError: 1"
    assert found(row(0, kind), row(1, kind)) is None
    assert found(row(0, kind, at_ns=300)) is None
