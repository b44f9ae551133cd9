"""Rank of an imported file: from its content, or else from its name."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import TraceError
from commtrace.importers import import_trace
from commtrace.importers.input_files import Document
from commtrace.importers.kineto.arguments import ranks_in
from commtrace.tracefile.reading import DamageError
from tests.commtrace.importers.flight_recorder.dumps import Dump, healthy, write_dumps
from tests.commtrace.importers.kineto.profiles import training, write_profiles


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3", 3), ("rank-3", 3), ("rank_3.json", 3), ("trace_rank_3.json.gz", 3),
        ("nccl_trace_rank_3", 3), ("comm_lib_trace_rank_3", 3), ("rank3_of_8.json", 3),
        ("global_rank_4.gz", 4), ("node_rank_0_rank_6", 6), ("local_rank_1_rank_6", 6),
        ("trace_20261122.json", -1), ("trace-2026-11-22.json", -1), ("dump.4711", -1),
        ("host_4711.1732262400123456789.pt.trace.json", -1), ("rank_20261122.json", -1),
        ("rank_99999999999999999999", -1), ("local_rank_1.json", -1), ("frank_3", -1),
        ("rank1_rank2", -1), ("trace.json", -1),
    ],
)  # fmt: skip
def test_a_name_tells_a_rank_only_where_it_says_rank(name: str, rank: int) -> None:
    assert Document(Path(name), "", None).rank_in_name == rank


def one_dump(**fields: Any) -> dict[str, Any]:
    return Dump(0).call("all_reduce").document() | fields


@pytest.mark.parametrize("name", ["trace_20261122.json", "host_4711.1732262400123456789.json"])
def test_a_single_file_without_a_rank_is_rank_0_and_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(json.dumps(one_dump()))
    trace = import_trace([tmp_path / name])
    assert (list(trace.tables["ranks"]["rank"]), trace.run["world_size"]) == ([0], 4)
    assert trace.run["ranks_from"] == "a single file without a rank is imported as rank 0"


def test_what_a_dump_states_wins_over_its_name_and_the_contradiction_is_said(
    tmp_path: Path,
) -> None:
    (tmp_path / "trace_rank_3.json").write_text(json.dumps(one_dump(rank=1)))
    trace = import_trace([tmp_path])
    assert list(trace.tables["ranks"]["rank"]) == [1]
    assert trace.run["ranks_from"] == (
        "read from the files; trace_rank_3.json states rank 1, unlike its name"
    )


def test_the_transfers_of_a_dump_tell_its_rank(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path, healthy(1))
    for rank in range(4):
        (folder / f"nccl_trace_rank_{rank}").rename(folder / f"{'abcd'[rank]}.pickle")
    trace = import_trace([folder])
    assert list(trace.tables["ranks"]["rank"]) == [0, 1, 2, 3]
    assert trace.run["ranks_from"] == "read from the files"


def test_profiles_tell_their_ranks_whatever_their_names(tmp_path: Path) -> None:
    folder = write_profiles(tmp_path, training())
    for rank in range(2):
        path = folder / f"trace_rank{rank}.json"
        path.rename(folder / f"host_{100 + rank}.173226240012345678{rank}.pt.trace.json")
    trace = import_trace([folder])
    assert (list(trace.tables["ranks"]["rank"]), trace.run["world_size"]) == ([0, 1], 2)


def test_several_files_without_ranks_are_refused(tmp_path: Path) -> None:
    for day in (21, 22):
        (tmp_path / f"trace_202611{day}.json").write_text(json.dumps(one_dump()))
    with pytest.raises(TraceError, match="no rank, neither in the file nor in its name"):
        import_trace([tmp_path])


def test_a_rank_that_is_no_member_of_the_groups_it_calls_on_is_said(tmp_path: Path) -> None:
    (tmp_path / "trace_rank_9.json").write_text(json.dumps(one_dump()))
    reported = import_trace([tmp_path]).run["ranks_from"]
    assert "rank 9, but has calls on group 0, which does not contain that rank" in reported


def absurd_dumps() -> list[dict[str, Any]]:
    group = {"name": "0", "desc": "default_pg"}
    return [
        one_dump(rank=999_999_999),
        one_dump(pg_config={"0": {**group, "ranks": "[0, 999999999]"}}),
        one_dump(pg_config={"0": {**group, "ranks": [0, -1]}}),
        one_dump(pg_config={"0": {**group, "ranks": "[" * 10_000}}),
    ]


@pytest.mark.parametrize("number", range(len(absurd_dumps())))
def test_nothing_is_sized_by_a_rank(tmp_path: Path, number: int) -> None:
    (tmp_path / "rank0").write_bytes(pickle.dumps(absurd_dumps()[number]))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError):
            import_trace([tmp_path / "rank0"])
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_a_group_of_a_billion_ranks_is_refused_before_they_are_counted() -> None:
    about = {"Global rank start": 0, "Global rank stride": 1, "Group size": 1_000_000_000}
    with pytest.raises(DamageError, match="a group of 1,000,000,000 ranks"):
        ranks_in("", about)
    assert ranks_in("[0, 1, ..., 7]", about | {"Group size": 8}) == list(range(8))


@pytest.mark.parametrize("about", [{"rank": 10**9}, {"rank": 5, "world_size": 4}, {"rank": "x"},
                                   {"rank": 0, "world_size": 10**9}])  # fmt: skip
def test_a_profile_of_a_world_that_cannot_be_is_refused(
    tmp_path: Path, about: dict[str, Any]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"distributedInfo": about, "traceEvents": []}))
    with pytest.raises(TraceError):
        import_trace([path])
