from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import CATALOG
from commtrace.figures import waits
from commtrace.figures.theme import DARK, LIGHT
from commtrace.figures.waits import MAX_RANKS, PATTERNS, wait_parts
from tests.commtrace.analyze.rows import call, run_of

MILLI = 1_000_000


def met(kind: str, seq: int, comes: tuple[int, ...], leaves: int, root: int = -1) -> list[Any]:
    """A collective with the ranks' arrival times and their common end, in milliseconds."""
    return [
        call(
            rank=rank,
            id=seq,
            seq=seq,
            kind=kind,
            root=root,
            at=at * MILLI,
            until=leaves * MILLI,
            call_ns=(leaves - at) * MILLI,
            blocked_ns=(leaves - at) * MILLI,
        )
        for rank, at in enumerate(comes)
    ]


@pytest.fixture
def table() -> Any:
    """Rank 0 waits 3 ms at an all-reduce, rank 1 2 ms for a root; one call is rank 0's alone."""
    calls = [*met("all_reduce", 0, (1, 4), 5), *met("broadcast", 1, (12, 10), 13, root=0)]
    alone = met("all_reduce", 2, (20,), 26)
    return CATALOG["rank_waits"].function(run_of([*calls, *alone]))


def bars(figure: Any) -> dict[str, dict[int, float]]:
    return {trace.meta["part"]: dict(zip(trace.y, trace.x, strict=True)) for trace in figure.data}


def test_a_rank_s_bar_is_made_of_its_waits_by_name_and_of_transfer(table: Any) -> None:
    assert bars(waits(table)) == {
        "Wait at N x N": {0: 0.003},
        "Late Broadcast": {1: 0.002},
        "transfer": {0: 0.002, 1: 0.002},
        "not known": {0: 0.006},
    }


def test_waits_are_hatched_each_in_its_own_way_and_transfer_is_not(table: Any) -> None:
    shapes = {trace.meta["part"]: trace.marker.pattern.shape for trace in waits(table).data}
    assert shapes == {
        "Wait at N x N": "/",
        "Late Broadcast": "\\",
        "transfer": None,
        "not known": None,
    }
    assert len(set(PATTERNS.values())) == len(PATTERNS)


def test_the_hover_text_says_how_often_and_how_much_of_the_rank_s_time(table: Any) -> None:
    texts = {trace.meta["part"]: trace.hovertext[0] for trace in waits(table).data}
    assert texts["Wait at N x N"] == (
        "<b>Wait at N x N on rank 0</b><br>3 ms of 11 ms blocked<br>in 1 of 2 calls"
    )
    assert texts["transfer"] == "<b>transfer on rank 0</b><br>2 ms of 11 ms blocked<br>3 calls"


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_parts_have_their_colours(table: Any, theme: Any) -> None:
    for trace in waits(table, theme=theme).data:
        assert trace.marker.color == theme.uses[trace.meta["part"]]


def test_of_very_many_ranks_those_blocked_longest_are_drawn() -> None:
    calls = [
        call(rank=rank, at=0, until=10, call_ns=10, blocked_ns=10 + rank) for rank in range(200)
    ]
    figure = waits(CATALOG["rank_waits"].function(run_of(calls, num_ranks=200)))
    assert len(figure.data[0].x) == MAX_RANKS
    assert figure.layout.yaxis.ticktext[0] == "rank 72"
    assert figure.layout.xaxis.title.text == (
        "time blocked; 128 of 200 ranks, those blocked longest"
    )


def test_a_state_that_takes_no_time_has_no_part(table: Any) -> None:
    assert (wait_parts(table)["lasts_ns"] > 0).all()


def test_without_any_blocked_time_it_says_so() -> None:
    figure = waits(CATALOG["rank_waits"].function(run_of([call(blocked_ns=0)])))
    assert not figure.data
    assert figure.layout.annotations[0].text == "No rank is blocked in this trace."


def test_ranks_whose_calls_were_not_timed_say_so_in_place_of_a_bar() -> None:
    timed = met("all_reduce", 0, (1, 4, 2), 5)
    calls = [*timed, call(rank=0, id=1, at=9 * MILLI), call(rank=3, id=0), call(rank=3, id=1)]
    figure = waits(CATALOG["rank_waits"].function(run_of(calls, num_ranks=4)))
    (note,) = figure.layout.annotations
    assert (note.text, note.y) == ("not known for 2 of 2 calls", 3)
    assert list(figure.layout.yaxis.ticktext) == [f"rank {rank}" for rank in range(4)]
    texts = {text for trace in figure.data for text in trace.hovertext}
    assert {"blocked time known for 1 of 2 calls" in text for text in texts} == {True, False}


def test_without_any_timed_call_it_does_not_say_that_no_rank_is_blocked() -> None:
    calls = [call(rank=rank, id=n) for rank in range(2) for n in range(3)]
    figure = waits(CATALOG["rank_waits"].function(run_of(calls)), because="A reason.")
    assert figure.layout.annotations[0].text == (
        "The blocked time is not known for 6 of 6 calls: A reason."
    )
    idle = waits(CATALOG["rank_waits"].function(run_of([call(at=0, until=5, blocked_ns=0)])))
    assert idle.layout.annotations[0].text == "No rank is blocked in this trace."
