"""Perfetto export: slices nest, arrows start and end in calls, names are right."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter, defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.large_run import Plan, large_trace
from commtrace.analyze import Frames, load
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.event import OpEvent
from commtrace.exporters.perfetto import COMMUNICATION, HOST, STEPS, write_perfetto
from tests.commtrace.analyze.rows import call, rank_row, run_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.synthetic import write_synthetic_run

Event = dict[str, Any]


def exported(frames: Frames, folder: Path, name: str = "run.json") -> dict[str, Any]:
    """Export and load the document; times are exact fractions of µs."""
    path = folder / name
    write_perfetto(frames, path)
    text = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    return json.loads(text, parse_float=Decimal)


def slices_by_track(document: dict[str, Any]) -> dict[tuple[int, int], list[Event]]:
    tracks = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def overlapping(document: dict[str, Any]) -> list[tuple[Event, Event]]:
    """Pairs of slices of a track that overlap partially: Perfetto would drop one of them."""
    found = []
    for events in slices_by_track(document).values():
        around: list[Event] = []
        for event in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
            while around and around[-1]["ts"] + around[-1]["dur"] <= event["ts"]:
                around.pop()
            if around and event["ts"] + event["dur"] > around[-1]["ts"] + around[-1]["dur"]:
                found.append((around[-1], event))
            around.append(event)
    return found


def check(document: dict[str, Any]) -> None:
    """Check what a viewer requires of any trace."""
    assert overlapping(document) == []
    named = {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["name"] == "thread_name"}
    tracks = slices_by_track(document)
    assert set(tracks) <= named
    flows: dict[int, list[Event]] = defaultdict(list)
    starts = {(*track, event["ts"]) for track, events in tracks.items() for event in events}
    for event in document["traceEvents"]:
        if event["ph"] in "XstfC":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
            track = event["pid"], event["tid"]
            assert (*track, event["ts"]) in starts or any(
                each["ts"] <= event["ts"] <= each["ts"] + each["dur"] for each in tracks[track]
            ), "an arrow begins and ends in a slice"
    for chain in flows.values():
        assert "".join(event["ph"] for event in chain).replace("t", "") == "sf"
        assert all(a["ts"] <= b["ts"] for a, b in pairwise(chain))
        assert chain[-1]["bp"] == "e"


def made_up(seed: int) -> Frames:
    """Two ranks with overlapping calls, and operators on two threads that overlap partially."""
    chance = random.Random(seed)
    rows, ops = [], []
    for rank in range(2):
        for number in range(40):
            at = chance.randrange(0, 2000)
            rows.append(
                call(
                    rank=rank,
                    id=number,
                    seq=number,
                    at=at,
                    until=at + chance.choice([0, 1, 50, 400]),
                    call_ns=5,
                    blocked_ns=chance.choice([-1, 0, 40]),
                    is_async=True,
                    kind=chance.choice(["all_reduce", "send"]),
                    peer=1 - rank,
                )
            )
        for number in range(60):
            ops.append(
                OpEvent(
                    rank=rank,
                    id=number,
                    op=f"aten.{number % 3}",
                    start_ns=rows[0].issue_ns + chance.randrange(0, 500),
                    duration_ns=chance.choice([0, 1, 30, 200]),
                    thread=chance.choice([1, 2]),
                    module=chance.choice(["", "a", "a.b", "a.b.c", "d"]),
                    module_call=chance.choice([0, 1]),
                    phase=chance.choice(["forward", ""]),
                )
            )
    return run_of(rows, ops=ops)


@pytest.mark.parametrize("seed", range(8))
def test_no_slice_is_dropped_whatever_overlaps(seed: int, tmp_path: Path) -> None:
    frames = made_up(seed)
    document = exported(frames, tmp_path)
    check(document)
    calls = [e for e in document["traceEvents"] if "id" in e.get("args", {}) and e["ph"] == "X"]
    assert len(calls) == len(frames.comm)
    assert len({e["tid"] for e in calls}) > 2


def test_the_check_for_overlap_can_fail() -> None:
    events = [
        {"ph": "X", "pid": 0, "tid": 1, "ts": 0, "dur": 10},
        {"ph": "X", "pid": 0, "tid": 1, "ts": 5, "dur": 10},
    ]
    assert len(overlapping({"traceEvents": events})) == 1


def test_a_training_is_exported_completely(tmp_path: Path) -> None:
    frames = load(write_synthetic_run(tmp_path / "run.json"))
    document = exported(frames, tmp_path, "out.json")
    check(document)
    tracks = slices_by_track(document)
    assert {pid for pid, _ in tracks} == {0, 1, 2, 3}
    assert [e["name"] for e in tracks[0, STEPS]] == ["step 0", "step 1", "step 2"]
    categories = Counter(event["cat"] for event in tracks[0, HOST])
    assert categories["dtensor op"] == (frames.ops["rank"] == 0).sum()
    assert categories["module"] > 0
    assert categories["phase"] > 0
    names = {event["name"] for event in tracks[0, COMMUNICATION]}
    assert {"all_reduce tp", "all_gather tp", "reduce_scatter tp"} <= names
    args = tracks[0, COMMUNICATION][0]["args"]
    row = frames.comm[frames.comm["rank"] == 0].iloc[0]
    for name in ("payload_bytes", "wire_bytes", "reason", "source_file", "source_line", "module"):
        assert args[name] == row[name]
    assert (args["mesh_axis"], args["id"], args["seq"]) == ("tp", 0, 0)
    meta = {e["pid"]: e["args"]["name"] for e in document["traceEvents"]
            if e["name"] == "process_name"}  # fmt: skip
    assert meta[3] == "rank 3 on node0"
    assert document["otherData"]["run"]["command"] == "train.py --steps 3"


def test_times_are_exact(tmp_path: Path) -> None:
    frames = load(training_trace())
    document = exported(frames, tmp_path)
    check(document)
    comm = frames.comm
    for (pid, tid), events in slices_by_track(document).items():
        for event in events if tid >= COMMUNICATION else []:
            if "id" in event["args"]:
                row = comm[(comm["rank"] == pid) & (comm["id"] == event["args"]["id"])].iloc[0]
                assert int(event["ts"] * 1000) == row["issue_ns"] - frames.start_ns
                assert int(event["dur"] * 1000) == row["complete_ns"] - row["issue_ns"]


def test_waits_lie_in_their_calls_and_name_the_late_rank(tmp_path: Path) -> None:
    frames = load(large_trace(Plan(num_ranks=8, num_calls=400, num_layers=2)))
    document = exported(frames, tmp_path, "run.json.gz")
    check(document)
    waits = [e for e in document["traceEvents"] if e.get("cat") == "wait"]
    assert len(waits) == (arrivals(frames)["wait_ns"] > 0).sum()
    late = Counter(event["name"] for event in waits)
    assert late.most_common(1)[0][0] == "wait for rank 5"


def test_an_arrow_follows_the_order_of_arrival(tmp_path: Path) -> None:
    rows = [call(rank=rank, at=at, until=100, seq=0) for rank, at in ((0, 30), (1, 10), (2, 20))]
    document = exported(run_of(rows, num_ranks=3), tmp_path)
    arrows = [(e["ph"], e["pid"]) for e in document["traceEvents"] if e["ph"] in "stf"]
    assert arrows == [("s", 1), ("t", 2), ("f", 0)]


@pytest.mark.parametrize("recv_at", [5, 40])
def test_a_send_points_at_its_recv(recv_at: int, tmp_path: Path) -> None:
    rows = [
        call(rank=0, kind="send", peer=1, at=20, until=60, seq=-1),
        call(rank=1, kind="recv", peer=0, at=recv_at, until=60, seq=-1),
    ]
    document = exported(run_of(rows), tmp_path)
    check(document)
    arrows = [(e["ph"], e["pid"]) for e in document["traceEvents"] if e["ph"] in "stf"]
    assert arrows == [("s", 0), ("f", 1)]


def test_bytes_in_flight_rise_and_fall_to_nothing(tmp_path: Path) -> None:
    rows = [
        call(id=0, seq=0, at=0, until=30, payload_bytes=100),
        call(id=1, seq=1, at=10, until=20, payload_bytes=40),
        call(id=2, seq=2, at=20, until=40, payload_bytes=40),
    ]
    document = exported(run_of(rows, num_ranks=1), tmp_path)
    counted = [
        (int(e["ts"] * 1000), e["args"]["bytes"]) for e in document["traceEvents"] if e["ph"] == "C"
    ]
    start = counted[0][0]
    assert [(at - start, value) for at, value in counted] == [
        (0, 100),
        (10, 140),
        (30, 40),
        (40, 0),
    ]


def test_a_call_that_never_ended_reaches_the_end_of_the_recording(tmp_path: Path) -> None:
    row = call(at=10)._replace(complete_ns=-1, call_ns=-1, blocked_ns=-1)
    about = rank_row(0, complete=False)
    frames = run_of([row], ranks=[about])
    (event,) = slices_by_track(exported(frames, tmp_path))[0, COMMUNICATION]
    assert event["args"]["completed"] is False
    assert event["ts"] * 1000 + event["dur"] * 1000 == about.end_ns - frames.start_ns


def test_names_from_the_trace_stay_names(tmp_path: Path) -> None:
    row = call(module='"</script>\\', source_file="ä\n.py", kind="all_reduce", at=1)
    document = exported(run_of([row]), tmp_path)
    args = slices_by_track(document)[0, COMMUNICATION][0]["args"]
    assert (args["module"], args["source_file"]) == ('"</script>\\', "ä\n.py")


def test_a_run_without_anything_is_an_empty_trace(tmp_path: Path) -> None:
    assert slices_by_track(exported(run_of(), tmp_path)) == {}
