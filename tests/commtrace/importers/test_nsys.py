"""SQLite exports of Nsight Systems: calls by NCCL's ranges and kernels, ranks by processes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.errors import NotATraceError, TraceError
from commtrace.importers import import_trace
from tests.commtrace.importers.nsys_exports import (
    EPOCH_NS,
    GEMM,
    Call,
    Process,
    add_waits,
    write_export,
)

CALLS = [Call(ts=0), Call(ts=500, function="AllGather", size=64)]


def imported(folder: Path, *processes: Process, payload: bool = True) -> Frames:
    return load(import_trace([write_export(folder / "report.sqlite", *processes, payload=payload)]))


def test_calls_are_nccls_ranges_with_the_times_of_their_kernels(tmp_path: Path) -> None:
    frames = imported(tmp_path, Process(4711, 0, CALLS, 0), Process(4712, 1, CALLS, 1))
    first, second = frames.comm[frames.comm["rank"] == 1].to_dict("records")
    assert (first["kind"], first["payload_bytes"], first["seq"]) == ("all_reduce", 4096, 0)
    assert (second["kind"], second["payload_bytes"], second["seq"]) == ("all_gather", 128, 1)
    assert (first["algorithm"], first["channels"], first["stream"]) == ("RING", 8, 20)
    assert (first["issue_ns"], first["complete_ns"]) == (EPOCH_NS + 90_003, EPOCH_NS + 190_003)
    assert (first["device"], first["device_ns"]) == ("cuda:1", 100_000)
    assert (first["dtype"], first["group"]) == ("", "0x9c1e")
    assert frames.ranks["pid"].tolist() == [4711, 4712]
    assert frames.groups["ranks"].tolist() == ["0,1"]
    assert CATALOG["consistency"].function(frames).empty


def test_kernels_that_compute_are_no_communication(tmp_path: Path) -> None:
    frames = imported(tmp_path, Process(4711, 0, CALLS))
    names = frames.kernels.groupby("category", observed=True)["name"].agg(set).to_dict()
    assert names["compute"] == {GEMM}
    gpu = CATALOG["gpu_time"].function(frames)
    whole = gpu[gpu["stream"] == -1].iloc[0]
    assert whole["compute_ns"] == 100_000


@pytest.mark.parametrize("are_recorded", [True, False])
def test_waits_for_events_and_streams_have_the_kernels_that_they_wait_for(
    are_recorded: bool, tmp_path: Path
) -> None:
    process = Process(4711, 1, CALLS)
    path = write_export(tmp_path / "report.sqlite", process)
    add_waits(path, process, are_recorded=are_recorded)
    frames = load(import_trace([path]))
    names = frames.kernels.set_index("id")["name"].str.partition("(")[0]
    gemms, collectives = (names[names.str.startswith(n)].index.tolist() for n in (GEMM, "nccl"))
    kernels = [gemms[0], gemms[0], gemms[1], gemms[1], collectives[1], collectives[1]]
    syncs = frames.syncs
    assert syncs["kind"].tolist() == [
        *("event_record", "stream_wait") * 2, "stream_sync", "device_sync",
    ]  # fmt: skip
    at = [200_000, 210_000, 600_000, 610_000, 900_000, 950_000]
    assert syncs["at_ns"].tolist() == [EPOCH_NS + each for each in at]
    assert set(syncs["thread"]) == {4711}
    if are_recorded:
        assert syncs["stream"].tolist() == [7, 20, 7, 20, 20, -1]
        assert syncs["kernel_id"].tolist() == kernels
        assert set(syncs["device"]) == {"cuda:1"}
    else:
        assert set(syncs["stream"]) == {-1}
        assert syncs["kernel_id"].tolist() == [-1] * 5 + kernels[5:]
        (said,) = [each for each in frames.run["lacks"] if "cuda-event-trace" in each]
        assert said.endswith("3 of 4")


def test_without_payloads_and_tables_values_are_unknown(tmp_path: Path) -> None:
    path = write_export(tmp_path / "report.sqlite", Process(4711, 0, CALLS), payload=False)
    with closing(sqlite3.connect(path)) as database, database:
        for table in ("TARGET_INFO_SESSION_START_TIME", "CUPTI_ACTIVITY_KIND_RUNTIME"):
            database.execute(f"DROP TABLE {table}")
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN gridX")
    comm = load(import_trace([path])).comm
    assert set(comm["payload_bytes"]) == {-1}
    assert set(comm["channels"]) == {-1}
    assert sorted(comm["kind"]) == ["all_gather", "all_gather", "all_reduce", "all_reduce"]


def test_processes_without_stated_ranks_are_numbered_in_order(tmp_path: Path) -> None:
    frames = imported(tmp_path, Process(99, 1, CALLS), Process(42, 0, CALLS))
    assert dict(zip(frames.ranks["rank"], frames.ranks["pid"], strict=True)) == {0: 42, 1: 99}
    assert frames.run["ranks_from"].startswith("processes are numbered in the order of")


def test_files_of_a_rank_each_have_the_ranks_in_their_names(tmp_path: Path) -> None:
    paths = [
        write_export(tmp_path / f"report_rank{rank}.sqlite", Process(50 - rank, 0, CALLS))
        for rank in range(2)
    ]
    ranks = load(import_trace(paths)).ranks
    assert ranks["pid"].tolist() == [50, 49]


def test_a_database_of_something_else_is_refused_by_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "fruit.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE apples (id INT)")
    with pytest.raises(NotATraceError, match="a database of SQLite with the tables apples"):
        import_trace([path])


def test_views_and_texts_in_the_place_of_numbers_do_no_harm(tmp_path: Path) -> None:
    path = write_export(tmp_path / "report.sqlite", Process(4711, 0, CALLS))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE NVTX_EVENTS SET start = 'x' WHERE textId = 1")
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = 1.5, end = -1")
        database.execute("DROP TABLE StringIds")
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n)"
        database.execute(f"CREATE VIEW StringIds AS {endless} SELECT i AS id, i AS value FROM n")
    assert load(import_trace([path])).comm.empty


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = write_export(tmp_path / "report.sqlite", Process(4711, 0, CALLS))
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(TraceError, match="cannot import"):
        import_trace([path])
