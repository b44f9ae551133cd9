from __future__ import annotations

import pytest

from commtrace.analyze.traffic.sizes import sizes
from tests.commtrace.analyze.rows import call, run_of


@pytest.mark.parametrize(
    ("payload", "row"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 4), (1023, 512), (1024, 1024)]
)
def test_a_row_begins_at_a_power_of_two(payload: int, row: int) -> None:
    assert sizes(run_of([call(payload_bytes=payload)]))["from_bytes"].tolist() == [row]


def test_calls_of_all_ranks_are_added_up_by_kind_and_group() -> None:
    calls = [
        call(payload_bytes=5, blocked_ns=1),
        call(rank=1, payload_bytes=7, blocked_ns=2),
        call(payload_bytes=8),
        call(payload_bytes=-1),
        call(kind="send", payload_bytes=5),
    ]
    table = sizes(run_of(calls))
    assert table["num_calls"].tolist() == [2, 1, 1]
    assert table["payload_bytes"].tolist() == [12, 8, 5]
    assert table["blocked_ns"].tolist() == [3, -1, -1]
    assert table["num_untimed"].tolist() == [0, 1, 1]
    assert table["mesh_axis"].tolist() == ["tp"] * 3
