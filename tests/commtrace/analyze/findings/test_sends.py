"""Sends behind receives that they do not depend on."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.findings import findings
from tests.commtrace.analyze.each_step_rows import shifted
from tests.commtrace.analyze.split_run import SplitRun


def found(**columns: Any) -> list[dict[Any, Any]]:
    table = findings(load(shifted(**columns)))
    return table[table["rule"] == "serial_sends"].to_dict("records")


def test_a_ring_whose_ranks_send_after_they_have_received_is_found() -> None:
    (row,) = found()
    assert row["title"].startswith(
        "Sends wait for receives that they do not depend on, at train.py:7"
    )
    # Ranks 2, 3 and 0 wait for 10, 20 and 20 ms (rank 0 after its own send) in each of five rounds.
    assert "wait 250 ms for it" in row["title"]
    # All transfers of the first round end after 10 ms, but that to rank 0 after 20, behind which
    # ranks work for 60 (rank 0), 80, 70 and 60 ms; then all wait for rank 1, which takes 90.
    assert row["cost_ns"] == (100 - (80 + 90 + 80 + 80) / 4 + 4 * (100 - 90)) * 1_000_000
    assert (row["num_calls"] * 4, row["num_untimed"] * 4) == (30, 15)  # receives: no times of data


@pytest.mark.parametrize("columns", [{"is_dependent": True}, {"is_together": True}])
def test_sends_of_what_was_received_and_those_issued_with_it_are_none(
    columns: dict[str, bool],
) -> None:
    assert found(**columns) == []


def test_parts_of_a_run_have_the_finding_of_the_whole() -> None:
    whole = load(shifted())
    assert findings(SplitRun(whole)).equals(findings(whole))
