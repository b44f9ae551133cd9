"""Faults that the check finds in flight-recorder dumps, and the ranks that it blames."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.analyze.story import find_call
from commtrace.importers import import_trace
from tests.commtrace.importers.flight_recorder.dumps import (
    ALL,
    LEFT,
    Dump,
    faults,
    healthy,
    problems,
    write_dumps,
)


def test_a_healthy_run_has_no_problem(tmp_path: Path) -> None:
    assert problems(write_dumps(tmp_path, healthy())) == []


def _replaced(dumps: list[Dump], rank: int, which: int, **fields: Any) -> list[Dump]:
    """Change an entry of a rank; no call completes from there on."""
    entry = dumps[rank].entries[which]
    entry.update(fields)
    for dump in dumps:
        for later in dump.entries[which:]:
            later.update(state="scheduled", time_discovered_completed_ns=None)
    return dumps


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"profiling_name": "nccl:all_reduce"}, "kind"),
        ({"input_sizes": [[8, 17]], "output_sizes": [[8, 17]]}, "size"),
        ({"input_dtypes": ["Half"], "output_dtypes": ["Half"]}, "dtype"),
    ],
)
def test_a_call_that_differs_is_blamed_on_its_rank_whatever_the_order_of_files(
    rank: int, fields: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    dumps = _replaced(healthy(), rank, 12, **fields)  # the second step's broadcast on all ranks
    assert dumps[rank].entries[12]["profiling_name"] != dumps[2].entries[11]["profiling_name"]
    files = sorted(write_dumps(tmp_path, dumps).iterdir())
    for order in itertools.islice(itertools.permutations(files), 0, 24, 7):
        frames = load(import_trace(order))
        rows = CATALOG["consistency"].function(frames)
        assert rows.loc[rows["is_fault"], ["problem", "ranks"]].to_numpy().tolist() == [
            [problem, str(rank)]
        ]


@pytest.mark.parametrize("missing", [0, 2])
def test_a_rank_that_never_came_is_named(missing: int, tmp_path: Path) -> None:
    dumps = healthy()
    for dump in dumps:
        if dump.rank != missing:
            dump.call("all_reduce", state="started")
    assert faults(write_dumps(tmp_path, dumps)) == [("missing call", str(missing))]


def test_a_call_that_went_through_is_held_against_nobody(tmp_path: Path) -> None:
    dumps = healthy()
    for dump in dumps[1:]:  # rank 0 was dumped a moment earlier
        dump.call("all_reduce", state="completed")
    (found,) = problems(write_dumps(tmp_path, dumps))
    assert (found["problem"], found["is_fault"], found["ranks"]) == ("lost calls", False, "0")
    assert "its dump was written before the other ranks wrote theirs" in found["explanation"]


@pytest.mark.parametrize("retained", [[9, 14, 20, 23], [3, 30, 30, 30]])
def test_what_a_ring_has_lost_is_no_fault(retained: list[int], tmp_path: Path) -> None:
    dumps = healthy()
    for dump, last in zip(dumps, retained, strict=True):
        write_dumps(tmp_path, [dump], last=last)
    found = problems(tmp_path)
    assert {row["problem"] for row in found} == {"lost calls"}
    assert not any(row["is_fault"] for row in found)
    assert "its ring buffer holds only the latest calls" in found[0]["explanation"]


@pytest.mark.parametrize("culprit", [0, 3])
def test_a_fault_is_found_behind_what_a_ring_has_lost(culprit: int, tmp_path: Path) -> None:
    dumps = healthy()
    for dump in dumps:
        name = "all_reduce" if dump.rank == culprit else "reduce_scatter"
        dump.call(name, state="started")
        write_dumps(tmp_path, [dump], last=5 + dump.rank)
    assert faults(tmp_path) == [("kind", str(culprit))]


def test_two_groups_in_opposite_orders_are_a_deadlock(tmp_path: Path) -> None:
    both = {ALL: [0, 1], LEFT: [0, 1]}
    first, second = (Dump(rank, ranks=both) for rank in (0, 1))
    first.call("all_reduce", ALL, state="started").call("all_reduce", LEFT, state="scheduled")
    second.call("all_reduce", LEFT, state="started").call("all_reduce", ALL, state="scheduled")
    assert ("order", "") in faults(write_dumps(tmp_path, [first, second]))


def test_a_send_that_nobody_receives_is_found(tmp_path: Path) -> None:
    dumps = healthy()
    dumps[0].call("send 0->1", LEFT, state="started")
    assert faults(write_dumps(tmp_path, dumps)) == [("missing call", "0,1")]


def test_a_rank_without_a_dump_is_told_and_not_blamed(tmp_path: Path) -> None:
    (found,) = problems(write_dumps(tmp_path, healthy()[:3]))
    assert (found["problem"], found["is_fault"], found["ranks"]) == ("missing rank", False, "")
    assert "Rank 3 left no recording" in found["explanation"]


def test_the_call_in_which_the_others_may_wait_for_it_is_named(tmp_path: Path) -> None:
    dumps = healthy()[:3]
    for dump in dumps:
        dump.call("broadcast", state="started")
    stuck, problem = problems(write_dumps(tmp_path, dumps))
    assert (stuck["problem"], stuck["is_fault"], stuck["ranks"]) == ("in flight", True, "")
    assert "all ranks with a dump arrived; rank 3 left none" in stuck["explanation"]
    assert (problem["problem"], problem["ranks"]) == ("missing rank", "")
    line = dumps[0].entries[-1]["frames"][1]["line"]
    assert problem["source"] == f"/home/user/train.py:{line}"
    assert "may wait in broadcast" in problem["explanation"]


def waiting(in_flight: list[int], **how: Any) -> list[Dump]:
    """Four ranks whose calls are in flight from a number of their own on, of eight."""
    dumps = [Dump(rank, **how) for rank in range(4)]
    for dump, first in zip(dumps, in_flight, strict=True):
        for number in range(1, 9):
            dump.call("all_reduce", state="completed" if number < first else "started")
    return dumps


@pytest.mark.parametrize("only_active", [False, True])
@pytest.mark.parametrize(
    ("in_flight", "number", "blamed"),
    [([8, 8, 8, 8], 8, ""), ([8, 8, 6, 8], 6, "2"), ([6, 6, 8, 8], 6, ""), ([7, 8, 8, 8], 7, "0")],
)
def test_a_call_in_flight_that_all_ranks_have_issued_is_no_desync(
    in_flight: list[int], number: int, blamed: str, only_active: bool, tmp_path: Path
) -> None:
    folder = write_dumps(tmp_path, waiting(in_flight), only_active=only_active)
    (found,) = [row for row in problems(folder) if row["is_fault"]]
    facts = [found[name] for name in ("problem", "number", "ranks")]
    assert facts == ["in flight", number, blamed]
    assert f"all_reduce {number} of default_pg (group 0) at " in found["explanation"]
    assert "all ranks arrived: not a desync" in found["explanation"]


def test_ranks_that_are_still_in_a_broadcast_lack_no_later_call(tmp_path: Path) -> None:
    """Rank 0, which may be the root, has completed it alone and went on."""
    dumps = [Dump(rank) for rank in range(4)]
    for dump in dumps:
        dump.call("broadcast", state="started" if dump.rank else "completed")
    dumps[0].call("all_reduce", state="started")
    assert faults(write_dumps(tmp_path, dumps)) == [("in flight", "")]


@pytest.mark.parametrize("group", [ALL, LEFT])
def test_a_rank_without_entries_is_proved_missing_by_its_status(group: str, tmp_path: Path) -> None:
    dumps = [Dump(rank) for rank in range(4)]
    for dump in dumps:
        if dump.rank in dump.ranks[group]:
            dump.call("broadcast", group)
            if dump.rank != 1:
                dump.call("all_reduce", group, state="started")
    folder = write_dumps(tmp_path, dumps, only_active=True)
    blamed = "0,1" if group == LEFT else "1"  # of two ranks, none is the majority
    assert faults(folder) == [("missing call", blamed)]
    (found,) = [row for row in problems(folder) if row["is_fault"]]
    assert found["number"] == 2  # the SeqNum of the watchdog


def test_explain_longest_is_the_first_call_in_flight(tmp_path: Path) -> None:
    frames = load(import_trace([write_dumps(tmp_path, waiting([8, 8, 6, 8]))]))
    call = find_call(frames, "longest")
    assert (call["rank"], call["seq"]) == (2, 6)
