"""Data that is used before an asynchronous call is complete is a fault."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import CATALOG
from tests.commtrace.analyze.rows import START_NS, call, run_of


def faults(**columns: Any) -> list[dict[str, Any]]:
    """Problems of calls of two ranks from 0 to 100, whose result is used at 40."""
    known = {"is_async": True, "at": 0, "until": 100, "source_file": "train.py", "source_line": 7}
    known |= {"used_shard": 0, "blocked_ns": -1, "used_at": 40, **columns}
    known["result_used_ns"] = START_NS + known.pop("used_at")
    calls = [call(rank=rank, id=n, seq=n, **known) for rank in range(2) for n in range(2)]
    return CATALOG["consistency"].function(run_of(calls, num_ranks=2)).to_dict("records")


def test_a_result_that_is_used_before_its_call_is_complete_is_a_race() -> None:
    (one,) = faults()
    assert (one["problem"], one["is_fault"], one["ranks"]) == ("race", True, "0,1")
    assert one["source"] == "train.py:7"
    assert "all_reduce 0 of tp (group g)" in one["explanation"]
    assert "60 ns before the call was complete" in one["explanation"]
    assert "4 calls at this line, on ranks 0, 1" in one["explanation"]


@pytest.mark.parametrize(
    "columns", [{"used_at": 100}, {"is_async": False}, {"until": 30}, {"used_shard": -1}]
)
def test_a_use_that_may_be_in_time_is_no_race(columns: dict[str, Any]) -> None:
    assert [one for one in faults(**columns) if one["problem"] == "race"] == []
