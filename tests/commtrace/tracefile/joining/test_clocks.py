"""Clocks of several systems: the error of the estimate is within the reported bound."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from commtrace.event import CommEvent, GroupRow
from commtrace.tracefile import SpoolWriter, join, parse_spool, spool_name
from commtrace.tracefile.joining.clocks import Alignment, align
from tests.commtrace.synthetic import synthetic_facts

MS = 1_000_000
START = 1_000_000 * MS


def spool(rank: int, boot: str, events: list[Any], ranks: str = "0,1", **facts: Any) -> Any:
    stream = io.BytesIO()
    facts = {"boot": boot, "epoch_ns": 0, **facts}
    writer = SpoolWriter(stream, synthetic_facts(rank, 2) | facts)
    writer.write({"comm": events, "groups": [GroupRow("g", ranks=ranks, size=2)]})
    return parse_spool(stream.getvalue(), Path(spool_name(rank)))


def call(rank: int, seq: int, issue: int, complete: int, kind: str = "all_reduce") -> Any:
    return CommEvent(
        rank=rank, id=seq, kind=kind, group="g", seq=seq, issue_ns=issue, complete_ns=complete
    )


def run_on(
    behind: list[int], *, seed: int, late_ns: int, num_calls: int = 50, first: int = 0
) -> list[Any]:
    """Ranks from `first` on, each on a system `behind` true time, arriving within `late_ns`."""
    chance = random.Random(seed)
    rows: list[list[Any]] = [[] for _ in behind]
    now = START
    names = range(first, first + len(behind))
    for seq in range(num_calls):
        issued = [now + chance.randrange(late_ns) for _ in behind]
        for mine, rank, issue, lag in zip(rows, names, issued, behind, strict=True):
            complete = max(issued) + 10_000 + chance.randrange(20_000)
            mine.append(call(rank, seq, issue - lag, complete - lag))
        now = max(issued) + MS
    ranks = ",".join(map(str, names))
    return [spool(rank, f"host{rank}", mine, ranks) for rank, mine in zip(names, rows, strict=True)]


@given(
    st.lists(st.integers(-50 * MS, 50 * MS), min_size=2, max_size=4),
    st.integers(0, 1000),
    st.sampled_from([1_000, 100_000, 3 * MS]),
)
def test_what_is_added_is_right_within_the_error_that_is_reported(
    behind: list[int], seed: int, late_ns: int
) -> None:
    behind[0] = 0
    for lag, found in zip(behind, align(run_on(behind, seed=seed, late_ns=late_ns)), strict=True):
        assert abs(found.offset_ns - lag) <= found.error_ns


def test_collectives_that_hardly_wait_align_clocks_to_microseconds() -> None:
    _, found = align(run_on([0, 30 * MS], seed=1, late_ns=1_000))
    assert abs(found.offset_ns - 30 * MS) < 15_000
    assert found.error_ns < 30_000


def test_wall_clocks_that_agree_are_believed_where_collectives_say_little() -> None:
    _, found = align(run_on([0, 100_000], seed=1, late_ns=500 * MS, num_calls=2))
    assert found.offset_ns == 0
    assert found.error_ns > MS


def test_a_system_is_aligned_over_another_one() -> None:
    pair = run_on([0, 7 * MS], seed=1, late_ns=1_000)
    other_pair = run_on([7 * MS, -9 * MS], seed=2, late_ns=1_000, first=2)
    other_pair[0].facts["boot"] = "host1"
    _, near, same, far = align([*pair, *other_pair])
    assert near == same
    assert abs(near.offset_ns - 7 * MS) < 20_000
    assert abs(far.offset_ns + 9 * MS) < 40_000
    assert far.error_ns > near.error_ns


def test_ranks_that_share_no_collective_keep_their_time_and_say_so() -> None:
    own = spool(0, "host0", [call(0, 0, 5, 9)])
    other = spool(1, "host1", [call(1, 0, 5, 9, kind="broadcast")])
    assert align([own, other]) == [Alignment(0, 0), Alignment(0, -1)]


def test_hosts_that_do_not_see_completion_give_no_bounds() -> None:
    own, other = run_on([0, 30 * MS], seed=1, late_ns=1_000)
    other.facts["device"] = "cuda"
    assert align([own, other])[1] == Alignment(0, -1)


def test_a_merged_run_has_one_clock_and_its_error() -> None:
    trace = join(run_on([0, 30 * MS], seed=1, late_ns=1_000))
    issued = dict(zip(trace.tables["comm"]["rank"], trace.tables["comm"]["issue_ns"], strict=True))
    assert abs(issued[0] - issued[1]) < 30_000
    assert trace.run["clock"].startswith("clocks of several hosts, aligned to ")
    assert trace.tables["ranks"]["clock_offset_ns"][0] == 0
    assert 0 < trace.tables["ranks"]["clock_error_ns"][1] < 30_000


def test_transfers_that_one_rank_makes_do_not_shift_the_collectives() -> None:
    # Rank 0 sends to a rank 2 between two collectives: its second one is call 2, theirs call 1.
    own = [call(0, 0, 100, 110), call(0, 1, 120, 121, kind="send"), call(0, 2, 9_000, 9_010)]
    other = [call(1, 0, 102 - 5 * MS, 111 - 5 * MS), call(1, 1, 9_001 - 5 * MS, 9_011 - 5 * MS)]
    _, found = align([spool(0, "host0", own, "0,1,2"), spool(1, "host1", other, "0,1,2")])
    assert abs(found.offset_ns - 5 * MS) <= found.error_ns <= 10


def test_collectives_after_a_loss_among_transfers_give_no_bounds() -> None:
    own = [call(0, 0, 100, 110, kind="send"), call(0, 3, 200, 210)]
    other = [call(1, 3, 200, 210)]
    spools = [spool(0, "host0", own), spool(1, "host1", other)]
    assert align(spools)[1] == Alignment(0, -1)
