"""Text logs: lines of torch's watchdog and of NCCL, of a rank or of many, among other output."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.findings.table_rows import savings
from commtrace.errors import NotATraceError
from commtrace.importers import import_trace
from commtrace.importers.log_lines import NcclCall, NcclInit, TimedOutWork, WorkStatus, log_lines
from tests.commtrace.importers.logs.text_logs import (
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
    assert (fault["problem"], fault["ranks"], fault["number"]) == ("missing call", "2", 8)
    assert fault["explanation"].startswith("Rank 2 has not issued all_reduce SeqNum 8 of ")
    assert fault["explanation"].endswith(", in which ranks 0, 1, 3 wait: last issued 7.")


@pytest.mark.parametrize("release", RELEASES)
def test_ranks_that_time_out_in_different_operations_are_named(
    release: str, tmp_path: Path
) -> None:
    ranks = [Stuck(rank, 8, 9, 7, "BROADCAST" if rank == 1 else "ALLREDUCE") for rank in range(4)]
    (fault,) = faults(imported(tmp_path, watchdog_log(*ranks, release=release)))
    assert (fault["problem"], fault["ranks"]) == ("kind", "1")
    assert "rank 1: broadcast; the other 3: all_reduce" in fault["explanation"]
    assert fault["number"] == 8


@pytest.mark.parametrize("release", STATING)
def test_if_all_ranks_have_issued_the_call_no_rank_is_blamed(release: str, tmp_path: Path) -> None:
    text = watchdog_log(*[Stuck(rank, 8, 9, 7) for rank in range(4)], release=release)
    (fault,) = faults(imported(tmp_path, text))
    assert (fault["problem"], fault["ranks"]) == ("hanging call", "")
    text = "Ranks 0-3 issued all_reduce SeqNum 8 of "
    assert fault["explanation"].startswith(text)
    assert "No desync among the 4 ranks with lines; another" in fault["explanation"]


def test_the_rank_whose_device_completed_less_is_named(tmp_path: Path) -> None:
    ranks = [Stuck(0, 9, 9, 8), Stuck(1, 8, 9, 7), Stuck(2, 9, 9, 8)]
    (fault,) = faults(imported(tmp_path, watchdog_log(*ranks)))
    assert (fault["problem"], fault["ranks"], fault["number"]) == ("hanging call", "1", 8)
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


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_deadlock(tmp_path: Path) -> None:
    tp = {"group": "3", "description": "mesh_tp", "id": 1}
    ranks = [
        Stuck(4, 5, 5, 4, own=0, **tp), Stuck(5, 0, 4, 4, own=1, **tp),
        Stuck(6, 0, 9, 9, own=0, **{**tp, "group": "4"}),
        Stuck(5, 20, 20, 19), Stuck(4, 0, 19, 19),
    ]  # fmt: skip
    frames = imported(tmp_path, watchdog_log(*ranks))
    found = {(row["group"], row["problem"], row["ranks"]) for row in faults(frames)}
    assert found == {("3", "deadlock", "4,5")}
    (fault,) = faults(frames)
    assert fault["explanation"] == (
        "Deadlock cycle: rank 4 waits in all_reduce SeqNum 5 of tp (group 3) for rank 5; rank 5 "
        "waits in all_reduce SeqNum 20 of default_pg (group 0) for rank 4. Which of the two ranks "
        "is wrong is unknown."
    )
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
    unknown = ["payload_bytes", "wire_bytes", "complete_ns", "blocked_ns", "device_ns"]
    assert (frames.comm[unknown] == -1).all(axis=None)
    assert set(frames.communicators["num_started"]) == {-1}
    assert frames.communicators["num_enqueued"].tolist() == [9, 9, 7, 9]


def test_a_call_was_issued_as_long_before_its_line_as_it_ran(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(watchdog_log(*hang()))  # of June 26th, 06:24:44.9
    os.utime(tmp_path / "train.log", (1_770_000_000, 1_770_000_000))  # February 2026
    frames = load(import_trace([tmp_path]))
    ended = datetime(2025, 6, 26, 6, 24, 44, tzinfo=timezone.utc).timestamp() * 10**9 + 903_881_913
    issued = frames.comm["issue_ns"]
    assert (abs(issued - (ended - 1_800_044 * 10**6)) < 1000).all()
    (fault,) = faults(frames)
    assert fault["at_ns"] == issued.min()
    assert any("year and the time zone" in each for each in frames.run["lacks"])


def test_if_a_rank_has_no_times_no_rank_has(tmp_path: Path) -> None:
    texts = [watchdog_log(each) for each in hang()]
    texts[1] = re.sub(r"E\d+ [\d:.]+ ", "E ", texts[1])
    frames = imported(tmp_path, *texts)
    assert set(frames.comm["issue_ns"]) == {-1}


def test_the_group_that_was_stuck_first_is_first(tmp_path: Path) -> None:
    dp = {"group": "1", "description": "dp", "id": 1}
    text = watchdog_log(
        *hang(), *[Stuck(rank, 5, 5, 4, **dp) for rank in (0, 1, 3)], Stuck(2, 0, 4, 4, **dp)
    )
    lines = text.splitlines()
    later = [line.replace("06:24:44", "06:21:00") if "SeqNum=5" in line else line for line in lines]
    found = faults(imported(tmp_path, "\n".join(later)))
    assert [fault["group"] for fault in found] == ["1", "0"]


def test_transfers_that_time_out_are_blamed_on_nobody(tmp_path: Path) -> None:
    pp = {"group": "2", "description": "pp", "id": 2}
    ranks = [
        Stuck(0, 9, 9, 8, "SEND", **pp),
        Stuck(1, 4, 4, 3, "RECV", **pp),
        Stuck(2, 0, 2, 2, **pp),
    ]
    (fault,) = faults(imported(tmp_path, watchdog_log(*ranks)))
    assert (fault["problem"], fault["ranks"]) == ("hanging call", "")
    assert fault["explanation"].startswith("Ranks 0, 1 wait in recv or send of pp (group 2).")


def test_where_ranks_parted_is_not_read_from_calls_that_timed_out_alone(tmp_path: Path) -> None:
    frames = imported(tmp_path, watchdog_log(*hang()))
    assert CATALOG["divergences"].function(frames).empty


def test_a_rank_of_a_log_of_nccl_printed_no_later_call(tmp_path: Path) -> None:
    lines = nccl_log(4, 5)
    lines.remove(nccl_call(2, 4, 4))
    (row,) = (
        CATALOG["divergences"].function(imported(tmp_path, "\n".join(lines))).to_dict("records")
    )
    assert row["event"] == "printed no later call"


def test_the_call_in_which_ranks_wait_is_a_finding(tmp_path: Path) -> None:
    findings = CATALOG["findings"].function(imported(tmp_path, watchdog_log(*hang())))
    assert findings["rule"].tolist() == ["hang"]
    assert findings["title"].item().startswith("Rank 2 has not issued all_reduce SeqNum 8 of ")
    (row,) = findings.to_dict("records")
    assert (row["concerns"], row["cost_ns"], row["cost_bytes"]) == ("fault", 0, 0)
    assert savings(row, 4) == ""  # a hang is not what could be saved


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
        ("all_reduce", 1024, 1), ("all_gather", 32, 2), ("send", 1024, -1), ("broadcast", 20, 3),
    ]  # fmt: skip
    assert (own[0]["reduce_op"], own[1]["dtype"], own[2]["peer"], own[3]["root"]) == (
        "sum", "bfloat16", 1, 1,
    )  # fmt: skip
    assert frames.ranks["pid"].tolist() == [4711, 4712]


def test_a_rank_without_the_call_of_others_is_blamed(tmp_path: Path) -> None:
    lines = nccl_log(4, 5)
    lines.remove(nccl_call(2, 4, 4))
    (fault,) = faults(imported(tmp_path, "\n".join(lines)))
    assert (fault["problem"], fault["ranks"], fault["number"]) == ("missing call", "2", 5)


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
