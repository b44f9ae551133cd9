"""Dumps of torchcomms, which number all calls of a process in a single sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.importers import import_trace
from tests.commtrace.importers.flight_recorder.torchcomms_dumps import (
    DURATION_MS,
    Comms,
    write_comms,
)

GROUPS = {"world": range(4), "left": (0, 1), "right": (2, 3)}


def program(num_steps: int = 3, **fields: Any) -> list[Comms]:
    """Four ranks on two communicators each; ranks 0 and 1 make transfers, too."""
    dumps = [Comms(rank, GROUPS, **fields) for rank in range(4)]
    for dump in dumps:
        half = "left" if dump.rank < 2 else "right"
        dump.call("split", "world", sizes=(), out=())
        for _ in range(num_steps):
            dump.call("broadcast", "world")
            dump.call("all_gather_single", half, sizes=[[3]], out=[[6]])
            if dump.rank < 2:
                sends = dump.rank == 0
                dump.call("send" if sends else "recv", "world", sizes=[[5]] if sends else (),
                          out=[[5]])  # fmt: skip
            dump.call(
                "reduce_scatter_v", "world", sizes=[[1], [2], [3], [4]], out=[[1 + dump.rank]]
            )
            dump.call("all_reduce", half)
            dump.call("barrier", "world", sizes=())
    return dumps


def imported(folder: Path, dumps: list[Comms], **how: Any) -> Frames:
    return load(import_trace([write_comms(folder, dumps, **how)]))


def problems(frames: Frames) -> list[dict[str, Any]]:
    return CATALOG["consistency"].function(frames).to_dict("records")


def faults(frames: Frames) -> list[tuple[str, str, str, int]]:
    return [
        (row["problem"], row["ranks"], row["group"], row["number"])
        for row in problems(frames)
        if row["is_fault"]
    ]


@pytest.mark.parametrize("in_json", [False, True])
@pytest.mark.parametrize("backend", ["nccl", "ncclx", "rcclx", "gloo"])
def test_calls_are_numbered_on_their_group(backend: str, in_json: bool, tmp_path: Path) -> None:
    frames = imported(tmp_path, program(2, backend=backend), in_json=in_json)
    for rank in range(4):
        half = "left" if rank < 2 else "right"
        transfer = [["send" if rank == 0 else "recv", "world", -1, 20]] if rank < 2 else []
        expected = []
        for number in range(2):
            expected += [["broadcast", "world", 3 * number, 16]]
            expected += [["all_gather", half, 2 * number, 24], *transfer]
            expected += [["reduce_scatter", "world", 3 * number + 1, 40]]
            expected += [["all_reduce", half, 2 * number + 1, 16]]
            expected += [["barrier", "world", 3 * number + 2, 0]]
        rows = frames.comm[frames.comm["rank"] == rank]
        assert rows[["kind", "group", "seq", "payload_bytes"]].to_numpy().tolist() == expected
        assert rows["id"].tolist() == list(range(len(expected)))
    assert set(frames.comm["peer"]) == {-1}
    groups = frames.groups.set_index("name")
    assert groups["ranks"].to_dict() == {"world": "0,1,2,3", "left": "0,1", "right": "2,3"}
    assert set(groups["backend"]) == {backend}
    assert problems(frames) == []


def test_an_end_is_that_of_the_device_or_else_the_issue_and_the_wall_time(tmp_path: Path) -> None:
    dump = Comms(0, {"world": [0]})
    for end in ("completed", "retired", "none"):
        dump.call("all_reduce", "world", end=end)
    comm = imported(tmp_path, [dump]).comm
    lasted = (comm["complete_ns"] - comm["issue_ns"]).tolist()
    assert lasted[:2] == [100 + DURATION_MS * 1e6, DURATION_MS * 1e6]
    assert comm["complete_ns"].tolist()[2] == -1


@pytest.mark.parametrize("end", ["completed", "retired"])
def test_a_rank_that_did_not_issue_a_collective_is_named(end: str, tmp_path: Path) -> None:
    dumps = program()
    for dump in dumps:
        for entry in dump.entries:
            if end == "retired":
                entry |= {"time_discovered_completed_ns": None, "state": "scheduled"}
        if dump.rank != 2:
            dump.call("all_reduce", "world", end="none")
    assert faults(imported(tmp_path, dumps)) == [("missing call", "2", "world", 9)]


def test_a_rank_behind_a_call_that_went_through_is_not_blamed(tmp_path: Path) -> None:
    dumps = program()
    for dump in dumps[1:]:
        dump.call("all_reduce", "world", end="retired")
    assert faults(imported(tmp_path, dumps)) == []


@pytest.mark.parametrize("last", [1, 3, 6, 11])
def test_numbers_behind_lost_calls_are_unknown_and_accuse_nobody(last: int, tmp_path: Path) -> None:
    dumps = program()
    for dump in dumps[:3]:
        dump.call("all_reduce", "world", end="none")
    for dump in dumps:
        write_comms(tmp_path, [dump], last=last + dump.rank)
    frames = load(import_trace([tmp_path]))
    assert faults(frames) == []
    assert set(frames.comm["seq"]) == {-1}
    (lack,) = [each for each in frames.run["lacks"] if "the numbers of the collectives" in each]
    assert "world" in lack
    assert "not compared" in {row["problem"] for row in problems(frames)}


def test_one_sequence_counts_the_calls_of_a_single_group(tmp_path: Path) -> None:
    dumps = [Comms(rank, {"world": range(4)}) for rank in range(4)]
    for dump in dumps:
        for _ in range(30):
            dump.call("all_reduce", "world")
        if dump.rank != 1:
            dump.call("all_reduce", "world", end="none")
    assert faults(imported(tmp_path, dumps, last=10)) == [("missing call", "1", "world", 30)]


def test_a_sequence_that_differs_between_ranks_counts_no_calls(tmp_path: Path) -> None:
    """Rank 0 had another call on another communicator, which its ring buffer has lost."""
    dumps = [Comms(rank, {"world": range(4)}) for rank in range(4)]
    dumps[0].call("barrier", "world")
    for dump in dumps:
        for _ in range(30):
            dump.call("all_reduce", "world").call("broadcast", "world")
    frames = imported(tmp_path, dumps, last=10)
    assert set(frames.comm["seq"]) == {-1}
    assert faults(frames) == []


@pytest.mark.parametrize("in_json", [False, True])
def test_calls_in_flight_alone_accuse_nobody(in_json: bool, tmp_path: Path) -> None:
    dumps = program()
    for dump in dumps[1:]:
        dump.call("all_reduce", "world", end="none")
    frames = imported(tmp_path, dumps, only_active=True, in_json=in_json)
    assert frames.comm["kind"].tolist() == ["all_reduce"] * 3
    assert faults(frames) == []
    assert frames.run["partial_dumps"] == [0, 1, 2, 3]


def test_the_first_version_counts_ranks_within_a_communicator(tmp_path: Path) -> None:
    frames = imported(tmp_path, program(first_version=True, backend="gloo"))
    ranks = frames.groups.set_index("name")["ranks"]
    assert ranks.to_dict() == {"world": "0,1,2,3", "left": "0,1", "right": "2,3"}
    assert faults(frames) == []
    assert any("the ranks of group left, right" in each for each in frames.run["lacks"])


def test_groups_of_one_name_that_cannot_be_told_apart_are_not_compared(tmp_path: Path) -> None:
    dumps = []
    for rank in range(4):
        groups = {"world": range(4), "tp": (0, 1) if rank < 2 else (2, 3)}
        dump = Comms(rank, groups, first_version=True).call("all_reduce", "world")
        dumps.append(dump.call("all_reduce", "tp", sizes=[[1 + rank // 2]]))
    frames = imported(tmp_path, dumps)
    assert faults(frames) == []
    numbers = frames.comm.groupby("group", observed=True)["seq"].unique()
    assert {name: list(each) for name, each in numbers.items()} == {"world": [0], "tp": [-1]}


def test_a_batch_of_transfers_is_a_call_of_unknown_kind_and_no_collective(tmp_path: Path) -> None:
    dumps = program()
    for dump in dumps[:2]:
        dump.call("batch_op_issue", "world", sizes=())
    for dump in dumps:
        dump.call("all_reduce", "world")
    frames = imported(tmp_path, dumps)
    last = frames.comm.groupby("rank").tail(2)[["kind", "seq"]].to_numpy().tolist()
    assert last[:2] == [["unknown", -1], ["all_reduce", 9]]
    assert last[6:] == [["barrier", 8], ["all_reduce", 9]]
    assert faults(frames) == []
