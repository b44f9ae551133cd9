"""Hanging ranks: which of them is the cause, which are victims, and what remains unknown."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames
from commtrace.analyze.consistency import consistency
from commtrace.analyze.consistency.departures import departures
from commtrace.analyze.consistency.ends import ends
from commtrace.analyze.consistency.lost_ranks import lost_ranks
from commtrace.analyze.divergence import divergences, first_verdict, verdict_of
from commtrace.event import HostEventRow
from tests.commtrace.analyze.consistency.runs import Program
from tests.commtrace.analyze.rows import START_NS, rank_row, run_of

SECOND = 10**9
LATE = 12 * SECOND


def event(rank: int, kind: str, at: int = 5_000, **columns: Any) -> Any:
    known = {"rank": rank, "kind": kind, "at_ns": START_NS + at, "thread": 1, "source_line": 33}
    return HostEventRow(**(known | {"source_file": "train.py"} | columns))


def hung(
    program: Program, *events: Any, run: dict[str, Any] | None = None, **of_rank: dict[int, Any]
) -> Frames:
    """A run whose ranks were all killed, unless `complete` says otherwise."""
    known: dict[str, Any] = {"complete": False, "alive_ns": START_NS + LATE}
    ranks = [
        rank_row(rank, **known | {name: by[rank] for name, by in of_rank.items() if rank in by})
        for rank in program.ranks
    ]
    return run_of(
        program.rows, groups=program.groups, ranks=ranks, host_events=list(events), run=run
    )


def faults(frames: Frames) -> list[dict[str, Any]]:
    table = consistency(frames)
    return records(table[table["is_fault"]])


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def waiting(num_ranks: int, *arrived: int, num_before: int = 3) -> Program:
    """Ranks, some of them waiting in one more all-reduce than the others have made."""
    program = Program(num_ranks, num_ranks)
    for _ in range(num_before):
        program.all("all_reduce", "world")
    for rank in arrived:
        program.one(rank, "all_reduce", "world", complete_ns=-1, call_ns=-1, source_line=8)
    return program


def test_one_rank_that_waits_for_most_is_a_victim() -> None:
    stuck = [event(rank, "stuck", text="MainThread") for rank in (0, 1)]
    (fault,) = faults(hung(waiting(3, 2), *stuck))
    assert (fault["problem"], fault["ranks"]) == ("missing call", "0,1")
    assert "Meanwhile each of ranks 0, 1 has been there for" in fault["explanation"]
    assert fault["explanation"].endswith("at train.py:33.")
    (row,) = records(divergences(hung(waiting(3, 2), *stuck)))
    assert verdict_of(fault, row).startswith("Each of ranks 0, 1 has been there for")


def test_one_rank_that_waits_for_ranks_that_have_ended_made_a_call_too_many() -> None:
    complete = {0: True, 1: True}
    (fault,) = faults(hung(waiting(3, 2), complete=complete))
    assert (fault["problem"], fault["ranks"]) == ("extra call", "2")


def test_a_dump_does_not_show_whether_most_are_held_up() -> None:
    run = {"imported_from": "flight recorder"}
    (fault,) = faults(hung(waiting(3, 2, num_before=0), run=run))
    assert (fault["ranks"], fault["is_one_of_ranks"]) == ("", False)
    assert "is unknown" in fault["explanation"]


@pytest.mark.parametrize(
    ("events", "of_rank", "words"),
    [
        ((), {"exit_code": {1: -signal.SIGKILL}}, "was killed by signal 9 (SIGKILL), possibly"),
        ((), {"exit_code": {1: -signal.SIGSEGV}}, "crashed in native code: signal 11"),
        ((event(1, "fatal", text="KeyError: 1"),), {}, "was ended by KeyError: 1 at train.py:33"),
        ((event(1, "data_wait"),), {}, "waits for a batch of its data loader at train.py:33"),
        ((event(1, "store", text="key ready"),), {}, "waits for the store (key ready) at train"),
        ((event(1, "stuck"),), {}, "has been there for"),
        ((), {"alive_ns": {1: START_NS + SECOND}}, "gave no sign of life for the last 11 s"),
        ((), {}, "was outside of communication for 12 s"),
    ],
)
def test_what_a_rank_that_is_missing_was_doing_is_said(
    events: tuple[Any, ...], of_rank: dict[str, Any], words: str
) -> None:
    frames = hung(waiting(3, 0, 2), *events, **of_rank)
    (fault,) = faults(frames)
    assert (fault["problem"], fault["ranks"]) == ("missing call", "1")
    assert f"rank 1 {words}" in fault["explanation"]
    (row,) = records(divergences(frames))
    assert words in row["event"]
    verdict = verdict_of(fault, row)
    assert verdict.startswith(f"Rank 1 {words[:20]}")
    assert verdict.endswith("others wait at train.py:8")


@pytest.mark.parametrize("is_older", [True, False])
def test_the_line_of_a_file_that_was_not_recorded_is_read_if_it_has_not_changed(
    is_older: bool, tmp_path: Path
) -> None:
    path = tmp_path / "vocabulary.py"
    path.write_text("import re\nfor word in words:  # many\n")
    changed = START_NS - SECOND if is_older else START_NS + SECOND
    os.utime(path, ns=(changed, changed))
    stuck = event(1, "stuck", source_file=str(path), source_line=2)
    text = ends(hung(waiting(3, 0, 2), stuck))[1].text
    assert ("`for word in words:`" in text) == is_older


@pytest.mark.parametrize("kind", ["gc_pause", "compile", "data_wait", "not_running"])
def test_what_is_over_explains_nothing(kind: str) -> None:
    frames = hung(waiting(3, 0, 2), event(1, kind, duration_ns=SECOND))
    assert ends(frames)[1].state == "alive"
    (row,) = records(divergences(frames))
    assert row["event"].startswith("was outside of communication")


def test_a_chain_of_waits_is_one_fault_at_its_end() -> None:
    program = Program(4, 2)
    program.all("all_reduce", "world")
    program.one(0, "all_reduce", "tp", complete_ns=-1, call_ns=-1)  # for rank 1
    program.one(1, "all_reduce", "dp", complete_ns=-1, call_ns=-1)  # for rank 3
    program.one(2, "all_reduce", "dp", complete_ns=-1, call_ns=-1)  # for rank 0
    (fault,) = faults(hung(program))
    assert (fault["group"], fault["ranks"]) == ("dp1", "3")


def test_an_asynchronous_call_that_nobody_waits_for_is_no_wait() -> None:
    program = waiting(2)
    program.one(1, "all_reduce", "world", complete_ns=-1, is_async=True, blocked_ns=-1)
    program.one(1, "send", "world", complete_ns=-1, call_ns=-1, peer=0)
    (first, *_) = faults(hung(program))
    assert "all_reduce" in first["explanation"]
    waits = [row for row in faults(hung(program)) if "send to rank 0" in row["explanation"]]
    assert waits


def rounds(num: int) -> Program:
    """Rank 0 sends to rank 1, then both reduce."""
    program = Program(2, 2)
    for _ in range(num):
        program.one(0, "send", "world", peer=1, source_line=12, tag=0)
        program.one(1, "recv", "world", peer=0, source_line=15, tag=0)
        program.all("all_reduce", "world", source_line=16)
    return program


def test_the_rank_that_left_a_usual_receive_out_is_blamed() -> None:
    program = rounds(3)
    in_flight = {"complete_ns": -1, "call_ns": -1}
    program.one(0, "send", "world", peer=1, source_line=12, tag=0, **in_flight)
    program.one(1, "all_reduce", "world", source_line=16, **in_flight)
    frames = hung(program)
    (fault,) = faults(frames)
    assert (fault["problem"], fault["ranks"], fault["is_one_of_ranks"]) == ("deadlock", "1", False)
    assert "Rank 1 left out recv from rank 0 at train.py:15" in fault["explanation"]
    (row,) = records(divergences(frames))
    assert (row["own_source"], row["instead_source"]) == ("train.py:16", "train.py:15")
    assert "Rank 1 went on to train.py:16 instead of train.py:15" in verdict_of(fault, row)


def test_a_call_that_is_new_to_a_rank_blames_nobody() -> None:
    """It may be a part of the program that the other rank has missed."""
    program = rounds(3)
    in_flight = {"complete_ns": -1, "call_ns": -1}
    program.one(0, "send", "world", peer=1, source_line=40, tag=0, **in_flight)
    program.one(1, "recv", "world", peer=0, source_line=15, tag=1, **in_flight)
    (fault,) = faults(hung(program))
    assert (fault["ranks"], fault["is_one_of_ranks"]) == ("0,1", True)


def test_ends_of_a_transfer_with_other_tags_do_not_meet() -> None:
    program = rounds(3)
    in_flight = {"complete_ns": -1, "call_ns": -1}
    program.one(0, "send", "world", peer=1, source_line=12, tag=3, **in_flight)
    program.one(1, "recv", "world", peer=0, source_line=15, tag=4, **in_flight)
    (fault,) = faults(hung(program))
    assert fault["problem"] == "tag"
    assert fault["explanation"].startswith(
        "The tags differ: rank 0 sends with tag 3, and rank 1 receives with tag 4."
    )


@pytest.mark.parametrize("exit_code", [-1, -9])
def test_a_receive_from_a_rank_that_is_gone_is_a_fault(exit_code: int) -> None:
    program = rounds(2)
    program.one(1, "recv", "world", peer=0, complete_ns=-1, call_ns=-1, micro_batch=2, stage=1)
    codes = {0: exit_code} if exit_code < -1 else {}
    (fault,) = faults(hung(program, exit_code=codes))
    assert (fault["problem"], fault["ranks"]) == ("missing call", "0")
    assert "recv from rank 0 (micro-batch 2 of stage 1)" in fault["explanation"]
    assert ("killed by signal 9" in fault["explanation"]) == (exit_code == -9)


def written(path: Path, text: str) -> None:
    """Write a program that has not changed since the run began."""
    path.write_text(text)
    os.utime(path, ns=(START_NS - SECOND, START_NS - SECOND))


def creation(rank: int, number: int, members: str = "0,1", line: int = 30, **columns: Any) -> Any:
    known = {"id": number, "text": f"ranks={members} backend=gloo", "source_line": line}
    return event(rank, "new_group", 100 * number, **{"duration_ns": 50} | known | columns)


def test_ranks_that_wait_in_the_creation_of_a_group_are_victims() -> None:
    """Rank 1 has left it out, and waits in a reduction for the others."""
    made = [creation(rank, 0) for rank in range(3)]
    waits = [creation(rank, 1, line=31, duration_ns=-1) for rank in (0, 2)]
    (fault,) = faults(hung(waiting(3, 1), *made, *waits))
    assert (fault["problem"], fault["ranks"], fault["is_one_of_ranks"]) == ("deadlock", "1", False)
    assert "rank 1 waits in all_reduce 3 of group world at train.py:8" in fault["explanation"]
    assert "waits in new_group of ranks 0, 1 at train.py:31 for rank 1" in fault["explanation"]


def test_a_rank_that_did_not_come_to_the_creation_of_a_group_is_named() -> None:
    waits = [creation(rank, 0, duration_ns=-1) for rank in (0, 2)]
    frames = hung(waiting(3), *waits, event(1, "stuck"))
    (fault,) = faults(frames)
    assert (fault["problem"], fault["ranks"]) == ("missing call", "1")
    assert fault["explanation"].startswith(
        "Ranks 0, 2 wait in new_group of ranks 0, 1: rank 1 has not called it; rank 1 has been"
    )


def test_a_group_that_one_rank_creates_of_others_is_a_fault() -> None:
    made = [creation(rank, 0, "1,2" if rank == 2 else "0,1") for rank in range(3)]
    (fault,) = faults(hung(waiting(3), *made))
    assert (fault["problem"], fault["ranks"]) == ("group order", "2")
    assert "each of ranks 0, 1 passes ranks 0, 1 at train.py:30" in fault["explanation"]
    assert "rank 2 passes ranks 1, 2 at train.py:30" in fault["explanation"]


@pytest.mark.parametrize("num_swapped", [0, 1, 2])
def test_groups_of_equal_ranks_in_another_order_are_a_fault(num_swapped: int) -> None:
    made = [
        creation(rank, number, "0,1,2,3", line=30 + (number ^ (rank < num_swapped)))
        for rank in range(4)
        for number in range(2)
    ]
    found = faults(hung(waiting(4), *made))
    assert [each["problem"] for each in found] == ["group order"] * (num_swapped > 0)
    assert [each["ranks"] for each in found] == [["0", "0,1,2,3"][num_swapped - 1]] * (
        num_swapped > 0
    )


def test_the_branch_by_which_some_ranks_create_a_group_is_named(tmp_path: Path) -> None:
    """Rank 1 creates a group in a later round, when the others do not."""
    path = tmp_path / "train.py"
    text = (
        "for batch in loader:\n    reduce()\n    if rank in members:\n        new_group(members)\n"
    )
    written(path, text)
    program, where = Program(3, 3), {"source_file": str(path), "source_function": "<module>"}
    for at in (0, 1_000, 2_000):
        for rank in program.ranks:
            program.one(rank, "all_reduce", "world", at=at, until=at + 50, source_line=2, **where)
    made = [
        creation(0, 0, "0,2", 4, at_ns=START_NS + 500, **where),
        creation(2, 0, "0,2", 4, at_ns=START_NS + 500, **where),
        creation(1, 0, "1,2", 4, at_ns=START_NS + 1_500, duration_ns=-1, **where),
    ]
    frames = hung(program, *made)
    (row,) = records(divergences(frames))
    assert (row["own"], row["instead"]) == (
        "all_reduce 1 of group world", "new_group of ranks 0, 2",
    )  # fmt: skip
    assert row["branch"] == f"`if rank in members:` ({path}:3)"


@pytest.mark.parametrize("kind", ["new_group", "store"])
@pytest.mark.parametrize("num_waiting", [1, 2])
def test_the_branch_by_which_a_rank_ended_while_others_wait_is_named(
    num_waiting: int, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    written(path, "reduce()\nif not mine:\n    sys.exit(0)\nwait()\n")
    num, where = num_waiting + 1, {"source_file": str(path), "source_function": "<module>"}
    program = Program(num, num)
    for rank in program.ranks:
        program.one(rank, "all_reduce", "world", at=0, until=50, source_line=1, **where)
    left = event(
        num_waiting, "exit", text="SystemExit", stack=f"{path}:3 <module>", source_line=3, **where
    )
    wait = {"source_line": 4, "duration_ns": -1, "stack": f"{path}:4 <module>", **where}
    text = "wait rows/2" if kind == "store" else "ranks= backend=gloo"
    waits = [event(rank, kind, text=text, **wait) for rank in range(num_waiting)]
    frames = hung(program, left, *waits, complete={num_waiting: True})
    (fault,) = faults(frames)
    assert fault["is_one_of_ranks"] == (num_waiting == 1)
    assert fault["ranks"] == ("0,1" if num_waiting == 1 else "2")
    (row,) = records(divergences(frames))
    assert row["branch"] == f"`if not mine:` ({path}:2)"


def test_the_branch_by_which_a_rank_left_creations_out_is_named(tmp_path: Path) -> None:
    """The others wait in the second collective, and the rank in its first."""
    path = tmp_path / "train.py"
    written(path, "if rank < 2:\n    new_group([0, 1])\n    new_group()\nbroadcast()\n")
    program, where = Program(3, 3), {"source_file": str(path), "source_function": "<module>"}
    program.one(2, "broadcast", "world", source_line=4, **where, complete_ns=-1, call_ns=-1)
    made = [creation(rank, 0, "0,1", 2, **where) for rank in (0, 1)]
    made += [creation(rank, 1, "0,1,2", 3, duration_ns=-1, **where) for rank in (0, 1)]
    frames = hung(program, *made)
    (fault,) = faults(frames)
    (row,) = records(divergences(frames))
    assert (fault["ranks"], row["branch"]) == ("2", f"`if rank < 2:` ({path}:1)")
    assert (row["own_source"], row["instead_source"]) == (f"{path}:4", f"{path}:2")


def test_a_deadlock_of_unlike_creations_is_a_part_of_their_fault() -> None:
    """Rank 0 creates a group of its own first, so that it waits in its second creation."""
    made = [creation(0, 0, "0", line=40), creation(0, 1, "0,1,2", duration_ns=-1)]
    made += [creation(rank, 0, "0,1,2") for rank in (1, 2)]
    (fault,) = faults(hung(waiting(3, 1, 2), *made))
    assert (fault["problem"], fault["ranks"]) == ("group order", "0")
    assert "Since then, rank" in fault["explanation"]
    assert "waits in all_reduce 3 of group world at train.py:8 for rank 0" in fault["explanation"]


@pytest.mark.parametrize(("line", "branch"), [(3, ""), (6, "`if batch.is_bad():` (train.py:5)")])
def test_an_exception_is_a_cause_itself_unless_a_condition_raises_it(
    line: int, branch: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    lines = ["while True:", "    reduce()", "    batch = names[key]", "    print(batch)"]
    lines += ["    if batch.is_bad():", "        raise ValueError(batch)", "    gather()"]
    written(path, "\n".join(lines))
    program, where = Program(3, 3), {"source_file": str(path), "source_function": "<module>"}
    program.all("all_reduce", "world", source_line=2, **where)
    for rank in (0, 2):
        program.one(rank, "all_gather", "world", source_line=7, **where, complete_ns=-1, call_ns=-1)
    raised = event(1, "fatal", text="ValueError: 3", stack=f"{path}:{line} <module>")
    (row,) = records(divergences(hung(program, raised, complete={1: True})))
    assert row["branch"].replace(f"{tmp_path}/", "") == branch


def test_one_line_with_other_groups_of_the_same_ranks_is_named() -> None:
    program = Program(4, 4)
    for rank in program.ranks:
        axis = "world" if rank < 2 else "tp"
        program.one(rank, "all_reduce", axis, complete_ns=-1, call_ns=-1)
    (fault,) = faults(hung(program))
    assert fault["problem"] == "group order"
    assert "The groups of train.py:7 differ, though their ranks are the same" in verdict_of(
        fault, None
    )


def test_ranks_may_create_their_groups_at_lines_of_their_own() -> None:
    made = [creation(rank, 0, "0,1,2", line=30 + rank) for rank in range(3)]
    assert faults(hung(waiting(3), *made)) == []


@pytest.mark.parametrize("swapped", [True, False])
def test_threads_that_take_turns_in_another_order_are_named(swapped: bool) -> None:
    """The main thread reduces, another thread gathers; a rank alone may leave the gathering out."""
    program = Program(3, 3)
    for _ in range(3):
        program.all("all_reduce", "world", source_line=12, thread=1)
        program.all("all_gather", "world", source_line=15, thread=2)
    program.all("all_reduce", "world", source_line=12, thread=1)
    in_flight = {"complete_ns": -1, "call_ns": -1}
    for rank in program.ranks:
        calls = [("all_gather", 15, 2), ("all_reduce", 12, 1)]
        calls = calls[::-1] if rank == 2 and swapped else calls[1:] if rank == 2 else calls
        for kind, line, thread in calls:
            program.one(rank, kind, "world", source_line=line, thread=thread, **in_flight)
    (row, *_) = records(divergences(hung(program)))
    assert row["ranks"] == "2"
    assert ("another thread than the call before" in row["event"]) == swapped


def test_lines_that_any_thread_of_a_pool_runs_do_not_depend_on_the_order_of_threads() -> None:
    program = Program(3, 3)
    for number in range(6):
        program.all("all_reduce", "world", source_line=12, thread=1 + number % 2)
        program.all("all_gather", "world", source_line=15, thread=1 + number % 2)
    for rank in program.ranks:
        kind, line = ("all_gather", 15) if rank == 2 else ("all_reduce", 12)
        program.one(rank, kind, "world", source_line=line, thread=3, complete_ns=-1, call_ns=-1)
    (row, *_) = divergences(hung(program)).to_dict("records")
    assert (row["ranks"], row["event"]) == ("2", "")


@pytest.mark.parametrize(
    ("lines", "num_rounds", "blamed"),
    [((7, 7, 8), 3, "3"), ((7, 7, 7), 3, "3"), ((7, 8), 3, "3"), ((7, 8), 1, "")],
)
def test_of_two_ranks_the_one_that_left_its_own_order_is_to_blame(
    lines: tuple[int, ...], num_rounds: int, blamed: str
) -> None:
    """In each round both reduce over `dp` some times; then one does over `tp` at the last line."""
    program = Program(4, 2)
    for _ in range(num_rounds):
        for line in lines:
            program.all("all_reduce", "dp", source_line=line)
        program.all("all_gather", "tp", source_line=9)
    in_flight = {"complete_ns": -1, "call_ns": -1}
    for line in lines[:-1]:
        program.all("all_reduce", "dp", source_line=line)
    last = {"source_line": lines[-1]}
    for rank in program.ranks:
        program.one(
            rank,
            "all_reduce",
            "tp" if rank == 3 else "dp",
            **last,
            **(in_flight if rank in (1, 3) else {}),
        )
    for rank in (0, 2):
        program.one(rank, "all_gather", "tp", source_line=9, **in_flight)
    (fault, *_) = [each for each in faults(hung(program)) if each["problem"] == "kind"]
    assert (fault["ranks"] if not fault["is_one_of_ranks"] else "") == blamed
    made, usual = ("all_reduce of group tp1", "all_reduce of group dp1") if blamed else ("", "")
    assert made in fault["explanation"]
    assert usual in fault["explanation"]


def test_a_rank_that_is_killed_in_what_it_was_in_is_lost() -> None:
    """Its last event may be over: what it recorded since its last flush is gone."""
    store = event(1, "store", 9_000, text="wait 0/1")
    codes = {1: -signal.SIGKILL}
    (fault,) = faults(hung(Program(3, 3), store, exit_code=codes))
    assert (fault["problem"], fault["ranks"]) == ("lost rank", "1")
    assert "until it was killed by signal 9" in fault["explanation"]


@pytest.mark.parametrize(("line", "blamed"), [(33, "1"), (8, "")], ids=["elsewhere", "there"])
def test_a_rank_held_up_by_a_handler_inside_of_a_call_is_in_no_call(line: int, blamed: str) -> None:
    program = Program(3, 3)
    program.all("all_reduce", "world")
    for rank in range(3):
        is_held_up = {"complete_ns": -1, "call_ns": -1} if rank == 1 else {}
        program.one(
            rank, "all_reduce", "world", source_file="train.py", source_line=8, **is_held_up
        )
    for rank in (0, 2):
        program.one(rank, "all_reduce", "world", complete_ns=-1, call_ns=-1, source_line=9)
    stuck = event(1, "stuck", 9_000, text="MainThread", source_line=line)
    (fault,) = faults(hung(program, stuck))
    assert (fault["problem"], fault["ranks"]) == ("missing call", blamed)


def test_lines_of_ranks_that_are_in_no_call_are_said_of_a_lost_rank() -> None:
    fatal = event(1, "fatal", text="KeyError: 3")
    stuck = [event(rank, "stuck", 9_000, text="MainThread", source_line=40) for rank in (0, 2)]
    (fault,) = faults(hung(waiting(3), fatal, *stuck, complete={1: True}))
    assert (fault["problem"], fault["ranks"]) == ("lost rank", "1")
    assert fault["explanation"].endswith("; others are at train.py:40.")


@pytest.mark.parametrize(("kind", "blamed"), [("exit", "2"), ("", "0")])
def test_a_rank_that_waits_for_the_store_waits_for_one_that_has_ended(
    kind: str, blamed: str
) -> None:
    program = waiting(4, 1, 3) if kind else waiting(4, 1, 2, 3)
    ended = [event(2, "exit", text="os._exit", source_line=45)] if kind else []
    store = event(0, "store", 9_000, text="wait trajectory/2", duration_ns=-1)
    (fault,) = faults(hung(program, store, *ended, complete={2: bool(kind)}))
    assert (fault["problem"], fault["ranks"]) == ("missing call", blamed)
    assert "rank 0 waits for the store (wait trajectory/2) at train.py:33" in fault["explanation"]
    by = "rank 2 ended its program by os._exit at train.py:45"
    assert (by in fault["explanation"]) == bool(kind)


@pytest.mark.parametrize(
    ("num_waiting", "blamed", "is_one_of"), [(1, "2", False), (2, "0", False), (None, "0,1", True)]
)
def test_of_ranks_in_a_call_and_ranks_in_the_store_the_fewer_are_to_blame(
    num_waiting: int | None, blamed: str, is_one_of: bool
) -> None:
    num_ranks, num = (2, 1) if num_waiting is None else (3, num_waiting)
    in_call = range(num_ranks - num)
    waits = [
        event(rank, "store", text="wait best/3", duration_ns=-1, source_line=17)
        for rank in range(num_ranks - num, num_ranks)
    ]
    frames = hung(waiting(num_ranks, *in_call), *waits)
    (fault,) = faults(frames)
    assert (fault["ranks"], fault["is_one_of_ranks"]) == (blamed, is_one_of)
    verdict = first_verdict(consistency(frames), divergences(frames))
    assert "for the store (wait best/3) at train.py:17" in verdict


def test_a_rank_that_waits_for_keys_of_several_ranks_waits_for_one_of_the_others() -> None:
    wait = event(0, "store", text="wait part/0, part/1, part/2", duration_ns=-1)
    (fault,) = faults(hung(waiting(3, 1, 2), wait))
    assert (fault["ranks"], fault["is_one_of_ranks"]) == ("1,2", True)


@pytest.mark.parametrize("num_idle", [1, 2])
def test_ranks_that_all_others_wait_for_in_the_store_are_named(num_idle: int) -> None:
    program = waiting(3)
    idle = range(num_idle)
    stuck = [event(rank, "stuck", at=9_000, text="MainThread", source_line=31) for rank in idle]
    waits = [
        event(rank, "store", text="wait index/1", duration_ns=-1, source_line=42)
        for rank in range(num_idle, 3)
    ]
    (fault,) = faults(hung(program, *stuck, *waits))
    assert (fault["problem"], fault["is_one_of_ranks"]) == ("missing call", num_idle > 1)
    assert fault["ranks"] == ",".join(map(str, idle))
    assert "waits for the store (wait index/1) at train.py:42" in fault["explanation"]
    assert "rank 0 has been there" in fault["explanation"].lower()
    # Whoever has closed its recording is waited for by nobody.
    assert faults(hung(program, *stuck, *waits, complete=dict.fromkeys(range(3), True),
                       end_ns=dict.fromkeys(range(3), START_NS + LATE))) == []  # fmt: skip


@pytest.mark.parametrize(
    ("num_ranks", "num_waiting", "blamed"), [(3, 2, "2"), (3, 1, "0"), (2, 1, "0,1")]
)
def test_of_ranks_that_have_ended_and_ranks_in_the_store_the_fewer_are_to_blame(
    num_ranks: int, num_waiting: int, blamed: str
) -> None:
    events = [
        event(rank, "store", text="wait rows/2", duration_ns=-1, source_line=42)
        if rank < num_waiting
        else event(rank, "exit", text="SystemExit", source_line=45)
        for rank in range(num_ranks)
    ]
    (fault,) = faults(hung(waiting(num_ranks), *events))
    assert (fault["problem"], fault["ranks"]) == ("missing call", blamed)
    assert fault["is_one_of_ranks"] == (num_ranks == 2)
    assert "ended its program by SystemExit at train.py:45" in fault["explanation"]
    assert "waits for the store (wait rows/2) at train.py:42" in fault["explanation"]


def pipeline(num_steps: int, num_batches: int = 4) -> Program:
    """Two stages: the first sends and then receives, micro-batch by micro-batch."""
    program = Program(2, 2)
    for _ in range(num_steps):
        for rank, kinds in ((0, ("send", "recv")), (1, ("recv", "send"))):
            for line, kind in enumerate(kinds, 1):
                for _ in range(num_batches):
                    program.one(rank, kind, "world", peer=1 - rank, source_line=line)
    return program


@pytest.mark.parametrize(("num_made", "blamed"), [(3, "1"), (4, "")])
def test_a_stage_that_sends_a_gradient_less_is_to_blame(num_made: int, blamed: str) -> None:
    """It goes on to the next step, where it and the first stage wait for each other."""
    program = pipeline(2)
    in_flight = {"complete_ns": -1, "call_ns": -1}
    for kind, line, num in (("send", 1, 4), ("recv", 2, 3)):
        for _ in range(num):
            program.one(0, kind, "world", peer=1, source_line=line)
    for kind, line, num in (("recv", 1, 4), ("send", 2, num_made)):
        for _ in range(num):
            program.one(1, kind, "world", peer=0, source_line=line)
    for rank, line in ((0, 2), (1, 1)):
        program.one(rank, "recv", "world", peer=1 - rank, source_line=line, **in_flight)
    found = [each for each in faults(hung(program)) if each["problem"] == "deadlock"]
    assert [each["ranks"] for each in found if not each["is_one_of_ranks"]] == [blamed] * bool(
        blamed
    )
    assert all("left out send to rank 0" in each["explanation"] for each in found if blamed)


@pytest.mark.parametrize("num_leaving", [1, 2])
def test_the_only_rank_that_leaves_a_loop_of_transfers_is_to_blame(num_leaving: int) -> None:
    program, in_flight = Program(4, 4), {"complete_ns": -1, "call_ns": -1}
    for _ in range(4):
        for rank in program.ranks:
            program.one(rank, "send", "world", peer=(rank + 1) % 4)
            program.one(rank, "recv", "world", peer=(rank - 1) % 4)
    for rank in program.ranks:
        if rank < num_leaving:
            program.one(rank, "all_reduce", "world", source_line=20, **in_flight)
        else:
            program.one(rank, "send", "world", peer=(rank + 1) % 4, **in_flight)
    (fault,) = [each for each in faults(hung(program)) if each["problem"] == "deadlock"]
    assert (fault["ranks"] == "0") == (num_leaving == 1)
    assert fault["is_one_of_ranks"] == (num_leaving == 2)


def test_a_rank_with_a_shorter_round_is_in_its_order_if_another_made_a_new_call() -> None:
    program, in_flight = Program(4, 4), {"complete_ns": -1, "call_ns": -1}
    for num_sends in (2, 2, 2, 1):
        for rank in program.ranks:
            for _ in range(num_sends if rank == 2 else 1):
                program.one(rank, "send", "world", peer=(rank + 1) % 4)
            program.one(rank, "recv", "world", peer=(rank - 1) % 4)
    program.one(0, "all_reduce", "world", source_line=20, **in_flight)
    for rank in (1, 2, 3):
        program.one(rank, "send", "world", peer=(rank + 1) % 4, **in_flight)
    frames = hung(program)
    assert {rank: each.is_new for rank, each in departures(frames, range(4)).items()} == {
        0: True,
        2: False,
    }
    (fault,) = [each for each in faults(frames) if each["problem"] == "deadlock"]
    assert (fault["ranks"], fault["is_one_of_ranks"]) == ("0", False)
    assert fault["explanation"].endswith("No other rank made a call that is new at its place.")


def test_a_rank_that_left_out_more_than_one_call_of_its_round_is_to_blame() -> None:
    """A node skips the rest of a hierarchical reduction, and goes on to the next call."""
    program, in_flight = Program(3, 3), {"complete_ns": -1, "call_ns": -1}
    for _ in range(4):
        for line in (41, 46, 47, 20):
            program.all("all_reduce", "world", source_line=line)
    program.all("all_reduce", "world", source_line=41)
    program.one(1, "all_reduce", "world", source_line=20, **in_flight)
    for rank in (0, 2):
        program.one(rank, "all_reduce", "world", source_line=46, **in_flight)
    found = departures(hung(program), range(3))
    assert {rank: each.is_left_out for rank, each in found.items()} == {1: True}


@pytest.mark.parametrize(("num_made", "blamed"), [(8, ""), (7, "2")])
def test_the_end_of_a_loop_on_all_members_is_no_departure(num_made: int, blamed: str) -> None:
    """A trial that ended earlier, at which one of two ranks may have been a call behind."""
    program, in_flight = Program(4, 2), {"complete_ns": -1, "call_ns": -1}
    for rank in (0, 1, 2, 3):
        for _ in range(num_made if rank == 2 else 8):
            program.one(rank, "all_reduce", "tp")
    program.all("all_gather", "world", source_line=44)
    for rank in (0, 1, 2, 3):
        for _ in range(9):
            program.one(rank, "all_reduce", "tp")
    program.one(2, "all_reduce", "tp", **in_flight)
    program.one(3, "all_gather", "world", source_line=44, **in_flight)
    found = departures(hung(program), range(4))
    assert ",".join(map(str, {*found} & {2})) == blamed


@pytest.mark.parametrize(("num_made", "is_known"), [(4, True), (5, False)])
def test_a_rank_that_ends_an_epoch_with_fewer_rounds_is_to_blame(
    num_made: int, is_known: bool
) -> None:
    """The other rank sends the last batch of the epoch, as in the epoch before."""
    program, in_flight = Program(2, 2), {"complete_ns": -1, "call_ns": -1}
    for num, is_last in ((5, False), (num_made, True)):
        for _ in range(num):
            program.one(0, "send", "world", peer=1)
            program.one(1, "recv", "world", peer=0)
        if not is_last:
            program.all("all_reduce", "world", source_line=20)
    program.one(0, "send", "world", peer=1, **in_flight)
    program.one(1, "all_reduce", "world", source_line=20, **in_flight)
    frames = hung(program)
    (fault,) = [each for each in faults(frames) if each["problem"] == "deadlock"]
    assert (fault["ranks"], fault["is_one_of_ranks"]) == (
        ("1", False) if is_known else ("0,1", True)
    )
    text = (
        "left out recv from rank 0 at train.py:7: it made it 4 times before all_reduce at "
        "train.py:20, and 5 times in 1 round before"
    )
    assert (text in fault["explanation"]) == is_known


def test_what_each_of_two_roles_always_does_is_no_parting(tmp_path: Path) -> None:
    text = "for batch in batches:\n    if is_last:\n        recv()\n    else:\n        send()\n"
    path = tmp_path / "train.py"
    written(path, f"{text}gather()\n")
    program = Program(2, 2)
    where = {"source_file": str(path), "source_function": "<module>"}
    for _ in range(2):
        program.one(0, "send", "world", peer=1, source_line=5, **where)
        program.one(1, "recv", "world", peer=0, source_line=3, **where)
    program.all("all_reduce", "world", source_line=6, **where)
    program.one(0, "send", "world", peer=1, source_line=5, **where)
    program.one(1, "recv", "world", peer=0, source_line=3, **where)
    in_flight = {"complete_ns": -1, "call_ns": -1}
    program.one(0, "send", "world", peer=1, source_line=5, **where, **in_flight)
    program.one(1, "all_reduce", "world", source_line=6, **where, **in_flight)
    (row,) = records(divergences(hung(program)))
    assert (row["own_source"], row["instead_source"]) == (f"{path}:6", f"{path}:5")
    assert row["branch"] == f"`for batch in batches:` ({path}:1)"


@pytest.mark.parametrize("sizes", [(256, 32, 4), (4, 4, 4)])
def test_a_rank_that_begins_another_round_has_passed_the_call_of_the_others(
    sizes: tuple[int, ...], tmp_path: Path
) -> None:
    """By the sizes of its calls: the next call is the first of a round, not another of the last."""
    path = tmp_path / "train.py"
    lines = ["def average(pending):", "    for batch in pending:"]
    lines += ["        if batch.is_ready():", "            reduce()"]
    lines += ["while True:", "    if tokens.any():", "        exchange()", "    average(pending)"]
    written(path, "\n".join(lines))
    program, in_flight = Program(3, 3), {"complete_ns": -1, "call_ns": -1}
    exchange = {"source_file": str(path), "source_line": 7, "source_function": "<module>"}
    reduce = {"source_file": str(path), "source_line": 4, "source_function": "average"}
    reduce |= {"callers": f"{path}:8 <module>"}
    for _ in range(3):
        program.all("all_to_all", "world", **exchange)
        for size in sizes:
            program.all("all_reduce", "world", payload_bytes=size, **reduce)
    for rank in (0, 2):
        program.one(rank, "all_to_all", "world", **exchange, **in_flight)
    program.one(1, "all_reduce", "world", payload_bytes=sizes[0], **reduce, **in_flight)
    (row,) = records(divergences(hung(program)))
    assert (f"`if tokens.any():` ({path}:6)" == row["branch"]) == (sizes[0] != sizes[-1])


@pytest.mark.parametrize("may_skip", [True, False])
def test_a_loop_that_ended_is_in_doubt_if_a_round_of_it_can_be_skipped(
    may_skip: bool, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    skips = "    if batch.is_bad():\n        continue\n" if may_skip else "    log()\n    log()\n"
    written(path, f"for batch in batches:\n{skips}    recv()\nbarrier()\n")
    program, in_flight = Program(2, 2), {"complete_ns": -1, "call_ns": -1}
    where = {"source_file": str(path), "source_function": "<module>"}
    for _ in range(4):
        program.one(0, "send", "world", peer=1, source_line=9)
        program.one(1, "recv", "world", peer=0, source_line=4, **where)
    program.one(0, "send", "world", peer=1, source_line=9, **in_flight)
    program.one(1, "barrier", "world", source_line=5, **where, **in_flight)
    (row,) = records(divergences(hung(program)))
    skipped = f"`if batch.is_bad():` ({path}:2) or " if may_skip else ""
    assert row["branch"] == f"{skipped}`for batch in batches:` ({path}:1)"


def test_where_ranks_wait_is_said_after_a_fault_in_which_they_do_not() -> None:
    program = Program(3, 3)
    for rank in program.ranks:
        program.one(rank, "all_reduce", "world", reduce_op="sum" if rank == 1 else "max")
    for rank in program.ranks:
        kind, line = ("barrier", 9) if rank == 1 else ("all_reduce", 8)
        program.one(rank, kind, "world", source_line=line, complete_ns=-1, call_ns=-1)
    frames = hung(program)
    verdict = first_verdict(consistency(frames), divergences(frames))
    assert verdict == (
        "Rank 1 differs in the reduction of its call at train.py:7 (rank 1: sum; others: max); "
        "later, rank 1 went on to train.py:9, others to train.py:8"
    )


@pytest.mark.parametrize("kind", ["killed", "raised"])
def test_a_rank_that_is_lost_while_the_others_fail_is_a_fault(kind: str) -> None:
    """The others' call ends, by an error, once the connection is closed."""
    program = waiting(3)
    for rank in (0, 2):
        program.one(rank, "all_reduce", "world", source_line=8)
    error = [event(1, "fatal", text="KeyError: 3")] if kind == "raised" else []
    closed = {"text": "RuntimeError: closed", "source_line": 8}
    others = [event(rank, "fatal", 9_000, **closed) for rank in (0, 2)]
    codes = {1: -9} if kind == "killed" else {}
    (fault,) = faults(hung(program, *error, *others, exit_code=codes))
    assert (fault["problem"], fault["ranks"]) == ("lost rank", "1")
    how = {
        "raised": "ended by KeyError: 3 at train.py:33",
        "killed": "killed by signal 9 (SIGKILL), possibly for lack of memory",
    }
    after = "after all_reduce at train.py:7; others are at train.py:8."
    assert fault["explanation"] == f"Rank 1 was {how[kind]}, {after}"


def test_ends_of_ranks_are_not_searched_in_a_run_without_signals_and_exceptions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(frames: Frames) -> Any:
        raise AssertionError("a pass over all calls")

    monkeypatch.setattr("commtrace.analyze.consistency.lost_ranks.ends", refused)
    assert [*lost_ranks(hung(waiting(3)))] == []
    with pytest.raises(AssertionError, match="a pass"):
        list(lost_ranks(hung(waiting(3), exit_code={1: -9})))


def test_an_exception_that_all_ranks_raise_at_one_line_is_no_fault() -> None:
    errors = [event(rank, "fatal", text="KeyError: 3") for rank in range(3)]
    assert faults(hung(waiting(3), *errors)) == []


@pytest.mark.parametrize(
    ("waited_s", "device", "is_fault"), [(20, "cpu", False), (40, "cpu", True), (40, "cuda", False)]
)
def test_a_call_that_all_have_made_and_that_does_not_end_is_a_fault_after_a_while(
    waited_s: int, device: str, is_fault: bool
) -> None:
    """On an accelerator, the end of a rank's last call may be unknown."""
    program = waiting(3, 0, 1, 2)
    alive = dict.fromkeys(range(3), START_NS + waited_s * SECOND)
    found = faults(hung(program, alive_ns=alive, device=dict.fromkeys(range(3), device)))
    assert [(each["problem"], each["ranks"]) for each in found] == (
        [("hanging call", "")] if is_fault else []
    )
    assert not found or "No rank is missing" in found[0]["explanation"]


def test_ranks_that_all_wait_to_find_each_other_are_a_fault_without_blame() -> None:
    program = waiting(2)
    alive = dict.fromkeys(range(2), START_NS + 60 * SECOND)
    begun = [event(rank, "init_process_group", at=SECOND, duration_ns=-1) for rank in range(2)]
    (found,) = faults(hung(program, *begun, alive_ns=alive))
    assert (found["problem"], found["ranks"], found["source"]) == (
        "hanging call",
        "",
        "train.py:33",
    )
    assert "All ranks still wait in init_process_group 59 s after" in found["explanation"]
    elsewhere = [begun[0], begun[1]._replace(kind="compile")]
    unlike = faults(hung(program, *elsewhere, alive_ns=alive))
    assert not [each for each in unlike if each["problem"] == "hanging call"]


def test_a_broadcast_that_one_rank_has_left_does_not_show_that_all_have_come() -> None:
    """Its root waits, in a broadcast that the others did not reach, for what they send to it."""
    program = Program(3, 3)
    program.one(0, "broadcast", "world", root=0, complete_ns=-1)
    program.one(1, "broadcast", "world", root=0)
    program.one(2, "send", "world", peer=0, complete_ns=-1)
    (found,) = faults(hung(program, complete={1: True}, end_ns={1: START_NS + 500}))
    assert found["problem"] == "deadlock"
    assert "rank 2 waits in send to rank 0" in found["explanation"]


@pytest.mark.parametrize(("num_actors", "blamed", "is_one_of"), [(2, "0", False), (1, "0,1", True)])
def test_ranks_that_are_waited_for_and_wait_for_the_store_are_victims(
    num_actors: int, blamed: str, is_one_of: bool
) -> None:
    """Rank 0 receives from rank 1, which waits for a key, as the other actors do."""
    program = Program(num_actors + 1, num_actors + 1)
    program.one(0, "recv", "world", peer=1, complete_ns=-1)
    actors = range(1, num_actors + 1)
    waits = [event(rank, "store", text="get v2", duration_ns=-1) for rank in actors]
    (fault,) = faults(hung(program, *waits))
    assert (fault["ranks"], fault["is_one_of_ranks"]) == (blamed, is_one_of)
    assert "rank 1 waits for the store (get v2) at train.py:33" in fault["explanation"]
