"""Snapshots of NCCL RAS: counts and states of the members, and the faults that `check` finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.errors import EmptyTraceError, NotATraceError, TraceError
from commtrace.importers import import_trace
from commtrace.schema import MEMBER_STATES
from commtrace.tracefile import read_trace, write_trace
from tests.commtrace.importers.device_times.exported import rows
from tests.commtrace.importers.ras.layouts import (
    FUNCTIONS,
    LAYOUTS,
    RasLayout,
    communicator,
    missing,
    rank,
    snapshot,
    write,
)

NAME = "0xae94423cfbb2ef4a"


def counts(all_reduces: list[int], **more: Any) -> dict[str, Any]:
    return communicator([rank(n, AllReduce=num) for n, num in enumerate(all_reduces)], **more)


def problems(folder: Path) -> list[tuple[Any, ...]]:
    table = CATALOG["consistency"].function(load(import_trace([folder])))
    return list(table[["problem", "is_fault", "ranks", "found"]].itertuples(index=False, name=None))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.version)
def test_counts_and_states_of_each_member_are_rows(layout: RasLayout, tmp_path: Path) -> None:
    ranks = [rank(0, AllReduce=7, AllGather=2), rank(1, AllReduce=6)]
    text = snapshot(communicator(ranks, [missing(2, dead=True)]), layout=layout)
    assert ('"cuda_dev": 2\n' in text) == layout.lacks_comma
    trace = import_trace([write(tmp_path / "ras", text)])
    found = {(c.rank, c.kind): (c.state, c.num_calls) for c in rows(trace, "communicators")}
    assert found[0, "all_reduce"] == ("running", 7)
    assert found[0, "all_gather"] == ("running", 2)
    assert found[1, "all_reduce"] == ("running", 6)
    assert found[2, ""] == ("dead", -1)
    assert len(found) == 2 * len(FUNCTIONS) + 1
    (group,) = rows(trace, "groups")
    assert (group.name, group.ranks, group.size) == (NAME, "0,1,2", 3)
    assert trace.num_rows("comm") == 0
    assert trace.run["nccl_version"] == layout.version
    again = read_trace(write_trace(trace, tmp_path / "run.json"))
    assert rows(again, "communicators") == rows(trace, "communicators")


@pytest.mark.parametrize("greeting", ["SERVER PROTOCOL 2\nOK\n", "OK\r\n", ""])
def test_what_a_socket_answers_before_the_snapshot_is_left_out(
    greeting: str, tmp_path: Path
) -> None:
    """The snapshot is from NCCL 2.28.9 on an H200, as its socket gave it."""
    text = (Path(__file__).parent / "ras_of_one_gpu.json").read_text()
    trace = import_trace([write(tmp_path / "ras.json", greeting + text)])
    (group,) = rows(trace, "groups")
    assert (group.ranks, group.size) == ("0", 1)
    counted = {(c.kind, c.state, c.num_calls) for c in rows(trace, "communicators")}
    assert counted == {
        (kind, "running", 0)
        for kind in ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
    }
    assert trace.run["nccl_version"] == "2.28.9"


def test_every_state_follows_from_the_flags_of_a_rank(tmp_path: Path) -> None:
    def status(number: int, **flags: Any) -> dict[str, Any]:
        own = rank(number)
        return own | {"status": own["status"] | flags}

    present = [
        status(0), status(1, init_state=7), status(2, finalize_called=True),
        status(3, finalize_called=True, abort_flag=True),
    ]  # fmt: skip
    absent = [missing(4), missing(5, unresponsive=True), missing(6, unresponsive=True, dead=True)]
    trace = import_trace([write(tmp_path / "ras", snapshot(communicator(present, absent)))])
    states = {c.rank: c.state for c in rows(trace, "communicators")}
    assert tuple(states[n] for n in range(7)) == MEMBER_STATES
    assert {c.error for c in rows(trace, "communicators")} == {0}


def test_a_rank_that_stays_behind_is_blamed(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "ras",
        snapshot(counts([40, 41, 40, 41])),
        snapshot(counts([42, 42, 40, 42]), second=30),
    )
    assert problems(folder) == [("missing call", True, "2", "40 of 42 all_reduce calls")]


def test_a_job_that_runs_has_no_fault(tmp_path: Path) -> None:
    before, after = snapshot(counts([40, 41, 40])), snapshot(counts([52, 50, 51]), second=9)
    assert problems(write(tmp_path / "alone", before))[0][:3] == ("behind", False, "0,2")
    assert [row[1] for row in problems(write(tmp_path / "both", before, after))] == [False]
    equal = snapshot(counts([40, 40, 40]))
    assert problems(write(tmp_path / "equal", equal)) == []


def test_dead_silent_aborted_and_failed_ranks_are_faults(tmp_path: Path) -> None:
    own = rank(1, AllReduce=4)
    failed = own | {"status": own["status"] | {"async_error": 6, "abort_flag": True}}
    absent = [missing(2, unresponsive=True), missing(3, unresponsive=True, dead=True), missing(4)]
    text = snapshot(communicator([rank(0, AllReduce=4), failed], absent))
    assert sorted(problems(write(tmp_path / "ras", text))) == [
        ("aborted rank", True, "1", "aborted"),
        ("dead rank", True, "3", "dead"),
        ("failed rank", True, "1", "error 6"),
        ("missing rank", False, "4", "no member"),
        ("unresponsive rank", True, "2", "unresponsive"),
    ]


def test_an_explanation_names_ranks_and_group(tmp_path: Path) -> None:
    absent = [missing(1, dead=True), missing(2, dead=True)]
    folder = write(tmp_path / "ras", snapshot(communicator([rank(0)], absent)))
    table = CATALOG["consistency"].function(load(import_trace([folder])))
    assert table["explanation"].tolist() == [f"Ranks 1, 2 of group {NAME}: considered dead by RAS."]


def test_ranks_of_other_communicators_are_those_of_the_largest(tmp_path: Path) -> None:
    half = [rank(1, AllGather=3) | {"rank": 0}, rank(3, AllGather=2) | {"rank": 1}]
    text = snapshot(communicator(half, hash="0x1", secondary_hash="0x1:0x2"), counts([5, 5, 5, 5]))
    trace = import_trace([write(tmp_path / "ras", text)])
    groups = {row.name: row.ranks for row in rows(trace, "groups")}
    assert groups == {NAME: "0,1,2,3", "0x1": "1,3"}
    assert problems(tmp_path / "ras") == [("behind", False, "3", "2 of 3 all_gather calls")]


def test_communicators_of_one_hash_are_distinguished_by_the_second(tmp_path: Path) -> None:
    text = snapshot(counts([5, 5]), counts([6, 6], secondary_hash="0x1:0x2"))
    names = {row.name for row in rows(import_trace([write(tmp_path / "r", text)]), "groups")}
    assert names == {
        f"{NAME}:0xb7e7187447156001:0xb8242ed28a71381e", f"{NAME}:0x1:0x2",
    }  # fmt: skip


def changed(path: str, value: Any) -> str:
    document = json.loads(snapshot(communicator([rank(0)], [missing(1)])))
    *places, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target: Any = document
    for place in places:
        target = target[place]
    target[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("timestamp", "yesterday", "timestamp"),
        ("timestamp", None, "timestamp"),
        ("communicators.0", 3, "communicators[0]"),
        ("communicators.0.hash", "ae94", "communicators[0].hash"),
        ("communicators.0.size", 1 << 31, "communicators[0].size"),
        ("communicators.0.size", 0, "communicators[0].size"),
        ("communicators.0.ranks", {}, "communicators[0].ranks[0]"),
        ("communicators.0.ranks.0.rank", 2, "communicators[0].ranks[0].rank"),
        ("communicators.0.ranks.0.rank", True, "communicators[0].ranks[0].rank"),
        ("communicators.0.ranks.0.status", [], "communicators[0].ranks[0]"),
        ("communicators.0.missing_ranks.0.rank", 0, "communicators[0].missing_ranks[0].rank"),
    ],
)
def test_an_impossible_field_is_named(path: str, value: Any, place: str, tmp_path: Path) -> None:
    if path == "communicators.0.ranks":
        value, place = [3], "communicators[0].ranks[0]"
    with pytest.raises(NotATraceError) as error:
        import_trace([write(tmp_path / "ras", changed(path, value))])
    assert f"at: {place}\n" in str(error.value)


def test_the_text_output_is_refused_with_the_way_to_json(tmp_path: Path) -> None:
    text = "NCCL version 2.29.1 compiled with CUDA 13.0\n\nJob summary\n"
    with pytest.raises(NotATraceError, match="the text output of NCCL RAS") as error:
        import_trace([write(tmp_path / "ras", text)])
    assert "try: `ncclras -f json`" in str(error.value)


def test_a_snapshot_without_communicators_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmptyTraceError, match="no communicator with a process"):
        import_trace([write(tmp_path / "ras", snapshot())])


def test_two_snapshots_of_one_time_are_refused(tmp_path: Path) -> None:
    text = snapshot(counts([1, 1]))
    with pytest.raises(TraceError, match="two of the same time"):
        import_trace([write(tmp_path / "ras", text, text)])
