"""Groups of calls where only the stream is known: ranks whose calls end together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from commtrace.event import CommEvent
from commtrace.importers.rank_record import RankRecord
from commtrace.importers.stream_groups import stream_groups

US = 1000
STREAM = "stream 20"


def records(
    ends: Sequence[Sequence[float]], *, kind: str = "all_reduce", host: str = ""
) -> list[RankRecord]:
    """Ranks whose calls of 300 µs end at these times, in µs."""
    found = []
    for rank, of_rank in enumerate(ends):
        record = RankRecord(rank, Path(f"rank{rank}"), backend="nccl", host=host)
        for number, end in enumerate(of_rank):
            times = {"issue_ns": round((end - 300) * US), "complete_ns": round(end * US)}
            call = CommEvent(rank=rank, id=number, kind=kind, group=STREAM, **times)
            record.comm.append(call._replace(payload_bytes=64))
        found.append(record)
    return found


def members(of_ranks: list[RankRecord]) -> list[str]:
    return [record.groups[STREAM].ranks for record in of_ranks]


def said_of(of_ranks: list[RankRecord]) -> str:
    (said,) = stream_groups(of_ranks, len(of_ranks))
    return said


PAIRS = [[1000, 2000, 3000], [1003, 2001, 3000], [1100, 1900, 3200], [1100, 1902, 3201]]


def test_ranks_whose_calls_end_together_are_groups() -> None:
    ranks = records(PAIRS)
    assert said_of(ranks) == (
        "the groups of the calls on stream 20: taken for 2 groups of ranks (0,1; 2,3), whose calls "
        "agree in number, kind, size and order, and end together"
    )
    assert members(ranks) == ["0,1", "0,1", "2,3", "2,3"]
    assert {record.groups[STREAM].size for record in ranks} == {2}


def test_many_groups_are_not_all_named() -> None:
    ends = [[1000 + 100 * (rank // 2), 2000 - 100 * (rank // 2)] for rank in range(12)]
    assert "6 groups of ranks (0,1; 2,3; 4,5; ...)" in said_of(records(ends))


def test_ranks_that_differ_by_a_constant_may_have_other_clocks() -> None:
    apart = [[1000, 2000], [1000, 2000], [1100, 2100], [1100, 2100]]
    ranks = records(apart)
    assert said_of(ranks).endswith("since they end at different times on different ranks")
    assert members(ranks) == [""] * 4
    assert {record.groups[STREAM].size for record in ranks} == {-1}


def test_on_a_named_host_all_ranks_have_one_clock() -> None:
    apart = [[1000, 2000], [1000, 2000], [1100, 2100], [1100, 2100]]
    ranks = records(apart, host="node0")
    assert "2 groups of ranks (0,1; 2,3)" in said_of(ranks)


def test_a_rank_without_company_leaves_all_unknown() -> None:
    ranks = records([*PAIRS, [1150, 1950, 3300]])
    assert said_of(ranks).endswith("since they end at different times on different ranks")


def test_one_exception_in_ten_does_not_separate_ranks() -> None:
    ends = [1000.0 * number for number in range(1, 21)]
    late = [end + (150 if number in (3, 7) else 0) for number, end in enumerate(ends)]
    ranks = records([ends, late])
    assert "taken for all ranks" in said_of(ranks)
    later = [end + (150 if number in (3, 7, 9) else 0) for number, end in enumerate(ends)]
    assert "end at different times" in said_of(records([ends, later]))


def test_long_kernels_may_end_further_apart() -> None:
    ranks = records([[1000], [1080]])
    for record in ranks:
        record.comm = [call._replace(issue_ns=0) for call in record.comm]
    assert "taken for all ranks" in said_of(ranks)


@pytest.mark.parametrize("kind", ["all_to_all", "broadcast", "unknown"])
def test_ends_of_kinds_that_do_not_end_together_are_not_compared(kind: str) -> None:
    ranks = records([[1000, 2000], [1200, 2100]], kind=kind)
    assert "taken for all ranks" in said_of(ranks)


def test_ranks_on_other_hosts_are_not_compared_in_time() -> None:
    ranks = records([*PAIRS[:1], [end + 5000 for end in PAIRS[0]]])
    for record in ranks:
        record.host = f"node{record.rank}"
    assert said_of(ranks).endswith("agree in number, kind, size and order")


def test_groups_may_make_different_calls() -> None:
    """The stages of a pipeline do."""
    ranks = records([[1000, 2000], [1000, 2000], [1500], [1500]], host="node0")
    assert "2 groups of ranks (0,1; 2,3)" in said_of(ranks)


def test_sizes_must_agree_in_each_group() -> None:
    ranks = records(PAIRS)
    ranks[3].comm[1] = ranks[3].comm[1]._replace(payload_bytes=128)
    assert said_of(ranks).endswith("since the sizes of call 1 differ between ranks")
    assert members(ranks) == [""] * 4
