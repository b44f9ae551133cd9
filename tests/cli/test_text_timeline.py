"""The timeline in letters: each column of a rank, compared with runs made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.collective_table import KINDS
from commtrace_cli.text_timeline import LETTERS, OTHER_LETTER, PHASE_LETTERS, cells, timeline_lines
from tests.commtrace.analyze.rows import call, op, run_of, step
from tests.commtrace.analyze.training import training_trace

WIDTH = 24  # rank labels take 8 and the two shares 16; the rest is for columns


def rows(frames: Frames, last_ns: int, num_columns: int = WIDTH) -> dict[str, str]:
    """The timeline's rows from time 0, by label, without the shares."""
    ranks = sorted(frames.ranks["rank"])
    lines = timeline_lines(frames, (0, last_ns), ranks, 8 + num_columns + 16)
    return {line.plain[:8].strip(): line.plain[8 : 8 + num_columns] for line in lines}


def blocked(rank: int, kind: str, at: int, until: int, seq: int = -1, **more: Any) -> Any:
    lasts = until - at
    return call(
        rank=rank, kind=kind, at=at, until=until, seq=seq, call_ns=lasts, blocked_ns=lasts, **more
    )


@pytest.fixture
def late() -> Frames:
    """Rank 0 waits for rank 1 during half of an all-reduce; then rank 1 has short gathers."""
    return run_of(
        [
            blocked(0, "all_reduce", 0, 800, 0),
            blocked(1, "all_reduce", 400, 800, 0),
            blocked(1, "all_gather", 1610, 1620),
            blocked(1, "all_gather", 1710, 1745),
        ]
    )


def test_capitals_are_transfer_and_small_letters_are_waiting(late: Frames) -> None:
    found = rows(late, 2400)
    assert found["rank 0"] == "rrrrRRRR" + 16 * "·"
    assert found["rank 1"] == "····RRRR········▁▃······"


def test_blocked_and_waiting_are_parts_of_the_window(late: Frames) -> None:
    lines = timeline_lines(late, (0, 1600), [0, 1], 60)
    assert [line.plain.split()[-2:] for line in lines[1:]] == [["50%", "25%"], ["25%", "0%"]]
    assert lines[0].plain.split()[-2:] == ["blocked", "waiting"]


def test_no_time_is_lost_between_columns() -> None:
    frames = load(training_trace())
    activity = CATALOG["activity"].function(frames)
    lasts = int(frames.ranks["end_ns"].max()) - frames.start_ns
    busy = activity[activity["activity"] != "working"]
    for num_columns in (7, 60, 1000):
        found = cells(frames, activity, (0, lasts), num_columns)
        for part in ("waiting", "transferring"):
            expected = busy[busy["activity"] == part].groupby("rank")["duration_ns"].sum()
            assert found.groupby("rank")[part].sum().to_dict() == expected.to_dict()
        assert found["column"].between(0, num_columns - 1).all()


def test_a_window_clips_calls_at_its_edges(late: Frames) -> None:
    activity = CATALOG["activity"].function(late)
    found = cells(late, activity, (300, 500), 2)
    assert found[found["rank"] == 0][["column", "waiting", "transferring"]].values.tolist() == [
        [0, 100, 0],
        [1, 0, 100],
    ]


def test_columns_of_a_window_of_decades_lie_in_it(late: Frames) -> None:
    activity = CATALOG["activity"].function(late)
    far = activity.assign(start_ns=late.start_ns + (1 << 61), duration_ns=1000)
    found = cells(late, far, (0, 1 << 62), 137)
    assert set(found["column"]) == {68}
    assert found.groupby("rank")[["waiting", "transferring"]].sum().gt(0).any(axis=1).all()


def test_steps_and_phases_stand_above_the_ranks() -> None:
    ops = [
        op(id=0, at=0, duration_ns=1200, phase="forward"),
        op(id=1, at=1200, duration_ns=600, phase="backward"),
        op(id=2, at=2100, duration_ns=300, phase="optimizer"),
    ]
    frames = run_of(
        [blocked(0, "barrier", 0, 100)],
        ops=ops,
        steps=[step(0, 8, 0, 1200), step(0, 9, 1200, 2400)],
    )
    found = rows(frames, 2400)
    assert found["step"].rstrip() == "|8          |9"
    assert found["phase"] == 12 * "f" + 6 * "b" + "   " + "ooo"
    assert found["time"].startswith("|0 ns")
    steps = frames.steps.assign(start_ns=[-1, frames.steps["start_ns"][1]])
    assert rows(replace(frames, steps=steps), 2400)["step"].strip() == "|9"


def test_every_kind_has_a_letter_of_its_own() -> None:
    assert set(LETTERS) == set(KINDS)
    letters = [*LETTERS.values(), OTHER_LETTER]
    assert len(set(letters)) == len(letters)
    assert len(set(PHASE_LETTERS.values())) == len(PHASE_LETTERS)
    frames = run_of([blocked(0, "made_up", 0, 2400)])
    assert rows(frames, 2400)["rank 0"] == WIDTH * OTHER_LETTER


def test_calls_that_were_not_timed_are_marked_and_have_no_share() -> None:
    calls = [
        call(rank=0, at=0, until=1200),  # of known end, but unknown blocked time
        call(rank=1, id=0, at=1250),
        blocked(1, "all_gather", 0, 400, id=1),
        call(rank=2, at=700, call_ns=20, is_async=True),
    ]
    frames = run_of(calls, num_ranks=4)
    found = rows(frames, 2400)
    assert found["rank 0"] == 12 * "?" + 12 * "·"
    assert found["rank 1"] == "GGGG" + 8 * "·" + "?" + 11 * "·"
    assert found["rank 2"] == 7 * "·" + "?" + 16 * "·"
    lines = timeline_lines(frames, (0, 1600), range(4), 60)
    shares = [line.plain.split()[-2:] for line in lines[1:]]
    # Of rank 1, blocked time is known, but not how much of it is a wait; rank 3 has no calls.
    assert shares == [["–", "–"], ["25%", "–"], ["–", "–"], ["0%", "0%"]]
