"""Text logs: lines of torch's watchdog and of NCCL, of one rank or of many, among other output."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.errors import NotATraceError
from commtrace.importers import import_trace
from commtrace.importers.log_lines import NcclCall, NcclInit, TimedOutWork, WorkStatus, log_lines
from tests.commtrace.importers.text_logs import (
    RELEASES,
    Stuck,
    hang,
    nccl_call,
    nccl_init,
    watchdog_log,
)

STATING = [release for release in RELEASES if release != "1.13"]
"""Releases whose watchdog prints the last enqueued and completed work."""


def imported(folder: Path, *texts: str) -> Frames:
    for number, text in enumerate(texts):
        (folder / f"part{number}.log").write_text(text)
    return load(import_trace([folder]))


def faults(frames: Frames) -> list[dict[str, Any]]:
    return [row for row in problems(frames) if row["is_fault"]]


def problems(frames: Frames) -> list[dict[str, Any]]:
    return CATALOG["consistency"].function(frames).to_dict("records")


@pytest.mark.parametrize("release", STATING)
def test_the_rank_that_has_not_issued_what_others_wait_in_is_blamed(
    release: str, tmp_path: Path
) -> None:
    (fault,) = faults(imported(tmp_path, watchdog_log(*hang(), release=release)))
    assert (fault["problem"], fault["ranks"], fault["number"]) == ("missing call", "2", 7)
    assert fault["explanation"].startswith("Rank 2 has not issued all_reduce SeqNum 8 of group ")
    assert fault["explanation"].endswith(", in which ranks 0, 1, 3 wait: last issued 7.")


@pytest.mark.parametrize("release", RELEASES)
def test_ranks_that_time_out_in_different_operations_are_named(
    release: str, tmp_path: Path
) -> None:
    ranks = [Stuck(rank, 8, 9, 7, "BROADCAST" if rank == 1 else "ALLREDUCE") for rank in range(4)]
    (fault,) = faults(imported(tmp_path, watchdog_log(*ranks, release=release)))
    assert (fault["problem"], fault["ranks"]) == ("kind", "1")
    assert "rank 1: broadcast; the other 3: all_reduce" in fault["explanation"]
    assert fault["explanation"].endswith("its number is SeqNum 8.")


@pytest.mark.parametrize("release", STATING)
def test_if_all_ranks_have_issued_the_call_no_rank_is_blamed(release: str, tmp_path: Path) -> None:
    text = watchdog_log(*[Stuck(rank, 8, 9, 7) for rank in range(4)], release=release)
    (fault,) = faults(imported(tmp_path, text))
    assert (fault["problem"], fault["ranks"]) == ("hanging call", "")
    text = "Ranks 0-3 issued all_reduce SeqNum 8 of group "
    assert fault["explanation"].startswith(text)
    assert "No desync among the 4 ranks with lines; another" in fault["explanation"]


def test_the_rank_whose_device_completed_less_is_named(tmp_path: Path) -> None:
    ranks = [Stuck(0, 9, 9, 8), Stuck(1, 8, 9, 7), Stuck(2, 9, 9, 8)]
    (fault,) = faults(imported(tmp_path, watchdog_log(*ranks)))
    assert (fault["problem"], fault["ranks"], fault["number"]) == ("hanging call", "1", 7)
    assert "completed on ranks 0, 2, but not on rank 1" in fault["explanation"]


def test_ranks_without_lines_are_unknown_not_missing(tmp_path: Path) -> None:
    text = watchdog_log(Stuck(0, 8, 9, 7), Stuck(3, 8, 9, 7))
    frames = imported(tmp_path, text)
    (fault,) = faults(frames)
    assert (fault["ranks"], fault["problem"]) == ("", "hanging call")
    assert "Ranks 1, 2 wrote nothing: progress unknown." in fault["explanation"]
    assert "No desync among the 2 ranks with lines" in fault["explanation"]
    assert not [row for row in problems(frames) if row["ranks"] == "1,2" and row["is_fault"]]


def test_numbers_of_elements_that_differ_are_a_fault_of_the_minority(tmp_path: Path) -> None:
    ranks = [Stuck(rank, 8, 9, 7, sent=7 if rank == 3 else 8) for rank in range(4)]
    (fault,) = faults(imported(tmp_path, watchdog_log(*ranks)))
    assert (fault["problem"], fault["ranks"], fault["found"]) == ("size", "3", "[7]")


def test_groups_are_told_apart_by_their_names(tmp_path: Path) -> None:
    tp = {"group": "3", "description": "mesh_tp", "id": 1}
    ranks = [
        Stuck(4, 5, 5, 4, own=0, **tp), Stuck(5, 0, 4, 4, own=1, **tp),
        Stuck(6, 0, 9, 9, own=0, **{**tp, "group": "4"}),
        Stuck(5, 20, 20, 19), Stuck(4, 0, 19, 19),
    ]  # fmt: skip
    frames = imported(tmp_path, watchdog_log(*ranks))
    found = {(row["group"], row["problem"], row["ranks"]) for row in faults(frames)}
    assert found == {("3", "missing call", ""), ("0", "missing call", "")}
    texts = " ".join(row["explanation"] for row in faults(frames))
    assert "Rank 5 has not issued all_reduce SeqNum 5 of group 3" in texts
    assert "Rank 4 has not issued all_reduce SeqNum 20 of group 0" in texts
    groups = dict(zip(frames.groups["name"], frames.groups["ranks"], strict=True))
    assert (groups["3"], groups["4"]) == ("4,5", "6")


def test_numbers_of_groups_that_each_process_counts_are_not_compared(tmp_path: Path) -> None:
    local = {"group": "1", "description": "tp", "own": 0}
    ranks = [Stuck(0, 8, 8, 7, **local), Stuck(2, 3, 3, 2, "BROADCAST", **local)]
    frames = imported(tmp_path, watchdog_log(*ranks, release="2.3"))
    assert {row["problem"] for row in faults(frames)} == {"hanging call"}
    assert all(row["ranks"] == "" for row in faults(frames))
    assert any("several groups have that number" in each for each in frames.run["lacks"])


def test_calls_of_unknown_groups_are_not_compared(tmp_path: Path) -> None:
    ranks = [Stuck(0, 8, 9, 7), Stuck(0, 3, 9, 7, "BROADCAST"), Stuck(1, 8, 9, 7)]
    frames = imported(tmp_path, watchdog_log(*ranks, release="1.13"))
    assert faults(frames) == []
    assert frames.comm["seq"].tolist() == [-1, -1, -1]


def test_one_file_of_each_rank_is_the_same_as_one_of_all(tmp_path: Path) -> None:
    for stuck in hang():
        path = tmp_path / "each" / f"rank_{stuck.rank}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(watchdog_log(stuck).replace(f"[rank{stuck.rank}]:", ""))
    mixed = imported(tmp_path, watchdog_log(*hang()))
    each = load(import_trace([tmp_path / "each"]))
    assert faults(mixed) == faults(each)
    assert mixed.comm["rank"].tolist() == each.comm["rank"].tolist() == [0, 1, 3]


def test_unknown_values_are_unknown(tmp_path: Path) -> None:
    frames = imported(tmp_path, watchdog_log(*hang()))
    unknown = ["payload_bytes", "wire_bytes", "issue_ns", "complete_ns", "blocked_ns", "device_ns"]
    assert (frames.comm[unknown] == -1).all(axis=None)
    assert set(frames.communicators["num_started"]) == {-1}
    assert frames.communicators["num_enqueued"].tolist() == [9, 9, 7, 9]


def nccl_log(ranks: int, calls: int) -> list[str]:
    inits = [nccl_init(rank, ranks) for rank in range(ranks)]
    return [*inits, *[nccl_call(rank, n, ranks) for n in range(calls) for rank in range(ranks)]]


def test_calls_of_nccl_have_their_ranks_kinds_and_bytes(tmp_path: Path) -> None:
    lines = nccl_log(2, 1)
    lines += [nccl_call(r, 1, 2, function="AllGather", count=8, datatype=9) for r in range(2)]
    lines += [nccl_call(0, 2, 2, function="Send", root=1), nccl_call(1, 2, 2, function="Recv")]
    lines += [nccl_call(r, 3, 2, function="Broadcast", root=1, count=5) for r in range(2)]
    frames = imported(tmp_path, "\n".join(lines))
    assert problems(frames) == []
    own = frames.comm[frames.comm["rank"] == 0].to_dict("records")
    assert [(each["kind"], each["payload_bytes"], each["seq"]) for each in own] == [
        ("all_reduce", 1024, 0), ("all_gather", 32, 1), ("send", 1024, -1), ("broadcast", 20, 2),
    ]  # fmt: skip
    assert (own[0]["reduce_op"], own[1]["dtype"], own[2]["peer"], own[3]["root"]) == (
        "sum", "bfloat16", 1, 1,
    )  # fmt: skip
    assert frames.ranks["pid"].tolist() == [4711, 4712]


def test_a_rank_without_the_call_of_others_is_blamed(tmp_path: Path) -> None:
    lines = nccl_log(4, 5)
    lines.remove(nccl_call(2, 4, 4))
    (fault,) = faults(imported(tmp_path, "\n".join(lines)))
    assert (fault["problem"], fault["ranks"], fault["number"]) == ("missing call", "2", 4)


def test_parts_of_a_communicator_are_those_of_their_split(tmp_path: Path) -> None:
    lines = [nccl_init(rank, 4) for rank in range(4)]
    lines += [
        nccl_init(r, 2, 0x9000, f"parent {0x55D0 + r:#x} splitCount 1 color {r // 2} key 0", r % 2)
        for r in range(4)
    ]
    lines += [nccl_call(rank, 0, 2, 0x9000) for rank in range(4)]
    groups = imported(tmp_path, "\n".join(lines)).groups
    named = dict(zip(groups["name"], groups["ranks"], strict=True))
    assert sorted(named.values()) == ["0,1", "0,1,2,3", "2,3"]


def test_calls_without_the_creation_of_their_communicator_have_no_number(tmp_path: Path) -> None:
    lines = [nccl_call(rank, n, 2) for n in range(2) for rank in range(2)]
    frames = imported(tmp_path, "\n".join(lines))
    assert frames.comm["seq"].tolist() == [-1] * 4
    assert faults(frames) == []


def test_lines_of_both_count_a_call_once(tmp_path: Path) -> None:
    text = "\n".join(nccl_log(2, 8)) + "\n" + watchdog_log(Stuck(0, 8, 8, 7), Stuck(1, 8, 8, 7))
    frames = imported(tmp_path, text)
    assert len(frames.comm) == 16
    assert [fault["problem"] for fault in faults(frames)] == ["hanging call"]


def test_a_log_without_such_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="Epoch 1: loss"):
        imported(tmp_path, "Epoch 1: loss 2.5\nlast enqueued nothing\n")


def test_lines_are_found_among_others_on_one_line() -> None:
    text = watchdog_log(*hang()).replace("\n", " ") + "".join(nccl_log(1, 1))
    kinds = {type(line) for line in log_lines(text)}
    assert kinds == {TimedOutWork, WorkStatus, NcclCall, NcclInit}


@pytest.mark.parametrize(
    "piece",
    [
        "WorkNCCL(SeqNum=", "WorkNCCL(OpType=A, ", "last enqueued work: 1, ", "[PG ID 0 PG GUID 0(",
        "NCCL INFO AllReduce: opCount 1 sendbuff ", "NCCL INFO comm 0x1 rank 1 nranks 2 ",
        "at work: ", "[rank1", "a:1:1 [0] NCCL INFO ",
    ],
)  # fmt: skip
def test_reading_takes_time_in_proportion_to_the_text(piece: str) -> None:
    def seconds(num: int) -> float:
        text = piece * num
        begin = time.thread_time()
        assert len([*log_lines(text)]) <= num
        return time.thread_time() - begin

    seconds(100)
    assert seconds(40_000) < 12 * max(seconds(10_000), 0.02)
