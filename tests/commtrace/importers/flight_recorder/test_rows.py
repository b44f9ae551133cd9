"""Tensors, roots and ends of calls in dumps of NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.importers import import_trace
from tests.commtrace.importers.flight_recorder.dumps import Dump, write_dumps

UNKNOWN = -1


@pytest.mark.parametrize(
    ("started", "completed", "duration_ms", "end"),
    [
        (100, 500_000, 0.2, 200_100),  # noticed late: it ended within 0.2 ms of its start
        (100, 500_000, 3.0, 500_000),  # noticed late that it started
        (100, 500_000, None, 500_000),
        (None, 500_000, 0.2, 500_000),
        (100, None, None, UNKNOWN),
        (None, -700, None, 0),  # the clock was set back
    ],
)
def test_a_call_ends_at_the_latest_time_that_all_fields_allow(
    started: int | None, completed: int | None, duration_ms: float | None, end: int, tmp_path: Path
) -> None:
    dump = Dump(0).call("all_reduce", duration_ms=duration_ms)
    (entry,) = dump.entries
    issued = entry["time_created_ns"]
    entry["time_discovered_started_ns"] = None if started is None else issued + started
    entry["time_discovered_completed_ns"] = None if completed is None else issued + completed
    comm = load(import_trace([write_dumps(tmp_path, [dump])])).comm
    assert comm["complete_ns"].item() == (issued + end if end >= 0 else UNKNOWN)


def test_lists_of_an_all_to_all_are_its_splits(tmp_path: Path) -> None:
    dump = Dump(1).all_to_all([[1], [0], [3], [4]], [[2], [2], [2], [2]])
    dump.all_to_all([[2]] * 4, [[2]] * 4).all_to_all([[1], [2]], [[2], [1]])
    comm = load(import_trace([write_dumps(tmp_path, [dump])])).comm
    assert comm["input_splits"].tolist() == ["2,0,6,8", "", ""]
    assert comm["output_splits"].tolist() == ["4,4,4,4", "", ""]
    assert comm["wire_bytes"].tolist()[:2] == [16, 12]


def test_the_list_of_a_gather_or_scatter_is_at_its_root(tmp_path: Path) -> None:
    dumps = [Dump(rank).rooted("gather", [2], root=1).rooted("scatter", [3], root=1)
             for rank in range(4)]  # fmt: skip
    comm = load(import_trace([write_dumps(tmp_path, dumps)])).comm
    shapes = comm[["rank", "root", "input_shapes", "output_shapes"]].to_numpy().tolist()
    for rank in range(4):
        root, four = (1, 4) if rank == 1 else (UNKNOWN, 0)
        gathered, scattered = ";".join(["[2]"] * four), ";".join(["[3]"] * four)
        assert shapes[2 * rank] == [rank, root, "[2]", gathered]
        assert shapes[2 * rank + 1] == [rank, root, scattered, "[3]"]
    assert set(comm["dtype"]) == {"bfloat16"}


def test_a_member_with_a_part_of_another_size_is_found(tmp_path: Path) -> None:
    dumps = [Dump(rank).rooted("gather", [2], root=1, state="started") for rank in range(4)]
    dumps[3].entries[0] |= {"input_sizes": [[7]]}
    frames = load(import_trace([write_dumps(tmp_path, dumps)]))
    (problem,) = CATALOG["consistency"].function(frames).to_dict("records")
    assert (problem["problem"], problem["ranks"], problem["is_fault"]) == ("size", "3", True)


def test_a_sparse_all_reduce_has_no_known_payload(tmp_path: Path) -> None:
    comm = load(import_trace([write_dumps(tmp_path, [Dump(0).call("all_reduce_sparse")])])).comm
    assert (comm["kind"].item(), comm["payload_bytes"].item()) == ("all_reduce", UNKNOWN)
