"""Logs of NCCL Inspector in the layouts of its releases, against the operations in them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.consistency import coverage
from commtrace.collective_table import busbw_factor
from commtrace.errors import NotATraceError, TraceError
from commtrace.importers import import_trace, input_files
from commtrace.tracefile import Trace
from tests.commtrace.importers.device_times.exported import rows
from tests.commtrace.importers.inspector.layouts import (
    DUMPED_US,
    LAYOUTS,
    Communicator,
    InspectorLayout,
    Operation,
    log_of,
    write_log,
)

WORLD, HALF = "0x7f8c496ae9f661", "0x11"
SIZE = 16384
OLD, NEW = LAYOUTS[0], LAYOUTS[-2]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def operations(rank: int) -> list[Operation]:
    other = rank ^ 1
    return [
        Operation("AllReduce", 3, SIZE, 100 + rank, at_us=0),
        Operation("AllGather", 0, SIZE, 200 + rank, at_us=1000),
        Operation("ReduceScatter", 7, SIZE, 300 + rank, at_us=2000),
        Operation("Broadcast", 1, SIZE, 400 + rank, at_us=3000),
        Operation("Send" if rank % 2 else "Recv", 1, SIZE, 50, peer=other, at_us=4000),
    ]


def write_world(folder: Path, layout: InspectorLayout, num_ranks: int = 4) -> Path:
    for rank in range(num_ranks):
        own = [Communicator(WORLD, rank, num_ranks, operations(rank), name="dp")]
        write_log(folder, layout, own, pid=100 + rank, host=f"node{rank // 2}")
    return folder


def problems(trace: Trace | Frames) -> list[tuple[Any, ...]]:
    table = CATALOG["consistency"].function(load(trace))
    return list(table[["problem", "is_fault"]].itertuples(index=False, name=None))


@each_layout
def test_each_operation_is_a_call_with_its_time(layout: InspectorLayout, tmp_path: Path) -> None:
    trace = import_trace([write_world(tmp_path / "logs", layout)])
    found = {(c.rank, c.kind): c for c in rows(trace, "comm")}
    assert len(found) == trace.num_rows("comm") == (20 if layout.has_p2p else 16)
    for rank in range(4):
        for kind, lasts, payload, wire in (
            ("all_reduce", 100, SIZE, SIZE * 3 // 2),
            ("all_gather", 200, 4 * SIZE, 3 * SIZE),
            ("reduce_scatter", 300, 4 * SIZE, 3 * SIZE),
            ("broadcast", 400, SIZE, -1),
        ):
            call = found[rank, kind]
            assert call.device_ns == 1000 * (lasts + rank)
            assert (call.payload_bytes, call.wire_bytes) == (payload, wire)
            assert call.algorithm == ("RING" if layout.has_algorithm else "")
            assert call.group == WORLD
        if layout.has_p2p:
            call = found[rank, "send" if rank % 2 else "recv"]
            assert (call.peer, call.payload_bytes, call.seq) == (rank ^ 1, SIZE, -1)
    (group,) = rows(trace, "groups")
    assert (group.ranks, group.size, group.backend) == ("0,1,2,3", 4, "nccl")
    assert group.description == ("dp" if layout.has_name else "")
    assert {(r.rank, r.host, r.pid) for r in rows(trace, "ranks")} == {
        (rank, f"node{rank // 2}", 100 + rank) for rank in range(4)
    }
    assert [is_fault for _, is_fault in problems(trace)] == [False]


@each_layout
def test_times_are_those_of_kernels_or_that_of_the_dump(
    layout: InspectorLayout, tmp_path: Path
) -> None:
    trace = import_trace([write_world(tmp_path / "logs", layout)])
    call = next(c for c in rows(trace, "comm") if (c.rank, c.kind) == (1, "all_gather"))
    kernels = [k for k in rows(trace, "kernels") if (k.rank, k.call_id) == (1, call.id)]
    if not layout.is_verbose:
        assert (call.issue_ns, call.complete_ns, call.channels) == (-1, DUMPED_US * 1000, -1)
        assert kernels == []
        return
    at = (DUMPED_US + 1000) * 1000
    assert (call.issue_ns, call.complete_ns) == (at + 5_000, at + 5_000 + 202_000)
    assert call.channels == 2
    (kernel,) = kernels
    assert (kernel.start_ns, kernel.duration_ns, kernel.launch_ns) == (at + 5_000, 201_000, at)


@each_layout
def test_every_table_can_be_computed(layout: InspectorLayout, tmp_path: Path) -> None:
    frames = load(import_trace([write_world(tmp_path / "logs", layout)]))
    for analysis in CATALOG.values():
        analysis.function(frames)
    row = CATALOG["bandwidth"].function(frames).set_index("kind").loc["all_reduce"]
    lasts = 406e-6 if not layout.is_verbose else 410e-6  # of the kernels, or of all channels
    expected = 4 * SIZE / lasts * busbw_factor("all_reduce", 4)
    assert row["busbw_bytes_per_s"] == pytest.approx(expected)


def test_the_check_knows_the_source_by_its_name() -> None:
    assert coverage.INSPECTOR == input_files.INSPECTOR


def test_numbers_are_equal_on_all_ranks_and_unique_in_the_group(tmp_path: Path) -> None:
    trace = import_trace([write_world(tmp_path / "logs", NEW)])
    calls = [c for c in rows(trace, "comm") if c.seq >= 0]
    by_number: dict[int, set[str]] = {}
    for call in calls:
        by_number.setdefault(call.seq, set()).add(call.kind)
    # Number of the operation * 4 functions + place among AllGather, AllReduce, Broadcast, ...
    assert {number: kinds.pop() for number, kinds in by_number.items()} == {
        0: "all_gather",
        3 * 4 + 1: "all_reduce",
        1 * 4 + 2: "broadcast",
        7 * 4 + 3: "reduce_scatter",
    }
    assert len(calls) == 16


def test_ranks_of_other_communicators_follow_from_the_processes(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    for rank, place in ((0, 1), (1, -1), (2, 0), (3, -1)):
        own = [Communicator(WORLD, rank, 4, operations(rank))]
        if place >= 0:
            own.append(Communicator(HALF, place, 2, [Operation("AllReduce", 0, SIZE, 9)]))
        write_log(folder, OLD, own, pid=200 - rank)
    trace = import_trace([folder])
    assert {g.name: g.ranks for g in rows(trace, "groups")} == {WORLD: "0,1,2,3", HALF: "2,0"}
    assert {r.rank: r.pid for r in rows(trace, "ranks")} == {n: 200 - n for n in range(4)}
    assert WORLD in trace.run["ranks_from"]


def test_ranks_without_a_communicator_of_all_are_named_or_ordered(tmp_path: Path) -> None:
    def write(folder: Path) -> list[Path]:
        return [
            write_log(
                folder, OLD, [Communicator(f"0x{n // 2 + 1}", n % 2, 2, operations(n))],
                pid=100 + n, host=f"node{3 - n}",
            )
            for n in range(4)
        ]  # fmt: skip

    paths = write(tmp_path / "ordered")
    ordered = import_trace(paths)
    assert {r.host: r.rank for r in rows(ordered, "ranks")} == {f"node{n}": n for n in range(4)}
    assert "numbered by host and process" in ordered.run["ranks_from"]
    named = [path.rename(path.with_name(f"rank{5 + n}.log")) for n, path in enumerate(paths)]
    trace = import_trace(named)
    assert {r.host: r.rank for r in rows(trace, "ranks")} == {
        f"node{3 - n}": 5 + n for n in range(4)
    }
    assert trace.run["ranks_from"] == "read from the file names"


def test_a_process_of_several_ranks_has_those_of_the_largest_communicator(tmp_path: Path) -> None:
    own = [Communicator(WORLD, rank, 4, operations(rank)) for rank in range(4)]
    own.append(Communicator(HALF, 0, 2, [Operation("AllReduce", 0, SIZE, 9)]))
    trace = import_trace([write_log(tmp_path / "logs", NEW, own)])
    assert trace.num_rows("ranks") == 4
    assert trace.num_rows("comm") == 20
    left_out = "operations of processes with several ranks, of unknown rank, which are left out: 1"
    assert left_out in trace.run["lacks"]


def test_files_of_some_ranks_leave_the_others_unknown(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "logs", NEW)
    trace = import_trace(sorted(folder.iterdir())[:3])
    (group,) = rows(trace, "groups")
    assert (group.ranks, group.size) == ("", 4)
    assert [c.peer for c in rows(trace, "comm") if c.kind in ("send", "recv")] == [-1] * 3
    assert any("some members have no file" in each for each in trace.run["lacks"])
    assert not any(is_fault for _, is_fault in problems(trace))


def test_samples_blame_no_rank(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "logs", NEW)
    for path, kept in zip(sorted(folder.iterdir()), ((1, 2), (3,), (2, 5), (1,)), strict=True):
        marker, *lines = path.read_text().splitlines(keepends=True)
        path.write_text(marker + "".join(lines[place - 1] for place in kept))
    assert [each for each in problems(import_trace([folder])) if each[1]] == []


def test_operations_of_two_communicators_have_no_order(tmp_path: Path) -> None:
    # By the times of their dumps, the ranks would have made them in opposite orders.
    for rank in range(2):
        own = [
            Communicator(f"0x{n}", rank, 2, [Operation("AllReduce", 0, SIZE, 9)],
                         more={"dumped_us": DUMPED_US + 100 * (n if rank else -n)})
            for n in range(1, 3)
        ]  # fmt: skip
        write_log(tmp_path / "logs", OLD, own, pid=rank)
    assert problems(import_trace([tmp_path / "logs"])) == []


def test_a_bus_bandwidth_that_contradicts_size_and_time_is_reported(tmp_path: Path) -> None:
    own = [
        Operation("AllReduce", 0, SIZE, 100),
        Operation("AllReduce", 1, SIZE, 100, busbw=77.0),
        Operation("All2All", 2, SIZE, 100, busbw=0.0),  # Inspector computes none
    ]
    log = write_log(tmp_path / "logs", NEW, [Communicator(WORLD, 0, 2, own)])
    trace = import_trace([log])
    (note,) = [each for each in trace.run["lacks"] if "bus bandwidth" in each]
    assert f"in 1 lines, such as AllReduce 1 of {WORLD} on rank 0" in note
    frames = load(trace)
    row = CATALOG["bandwidth"].function(frames).set_index("kind").loc["all_reduce"]
    assert row["busbw_bytes_per_s"] == pytest.approx(SIZE / 100e-6)


def test_times_that_the_host_measured_are_no_times_of_the_device(tmp_path: Path) -> None:
    own = [
        Operation("AllReduce", 0, SIZE, 100, source="collective_cpu"),
        Operation("AllReduce", 1, SIZE, 100, source="kernel_cpu"),
        Operation("AllReduce", 2, SIZE, 0),
    ]
    trace = import_trace([write_log(tmp_path / "l", OLD, [Communicator(WORLD, 0, 2, own)])])
    assert [c.device_ns for c in rows(trace, "comm")] == [-1, 100_000, -1]


def test_functions_of_several_kinds_stay_unknown(tmp_path: Path) -> None:
    own = [Operation("SendRecv", 0, SIZE, 9), Operation("AllGatherV", 1, SIZE, 9)]
    trace = import_trace([write_log(tmp_path / "l", OLD, [Communicator(WORLD, 0, 2, own)])])
    assert [(c.kind, c.payload_bytes) for c in rows(trace, "comm")] == [
        ("unknown", -1), ("all_gather", -1),
    ]  # fmt: skip


def test_dropped_operations_and_steps_of_proxies_are_counted(tmp_path: Path) -> None:
    own = Communicator(WORLD, 0, 2, operations(0), more={"dropped": 512})
    text = log_of(NEW, [own]).replace(
        '"p2p_dropped_total"', '"proxy_records": 2, "p2p_dropped_total"'
    )
    text += '{"proxy_trace": {"record_type": "proxy_op"}}\n' * 2
    path = tmp_path / "a.log"
    path.write_text(text)
    lacks = import_trace([path]).run["lacks"]
    assert "512 operations that Inspector says it dropped" in lacks
    assert "steps of proxies (proxy_trace), which are left out: 2" in lacks


def test_gzipped_logs_of_any_name_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(
        gzip.compress(log_of(NEW, [Communicator(WORLD, 0, 2, operations(0))]).encode())
    )
    assert import_trace([path]).num_rows("comm") == 5


def test_a_last_line_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    text = log_of(OLD, [Communicator(WORLD, 0, 2, operations(0))])
    path = tmp_path / "a.log"
    for cut in range(1, 300, 7):
        path.write_text(text[:-cut])
        trace = import_trace([path])
        assert trace.num_rows("comm") == 3 + (cut == 1)
        noted = "a last line that is cut off, which are left out: 1" in trace.run["lacks"]
        assert noted == (cut > 1)


def header(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda line: line["header"].update(fields)


def performance(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda line: line["coll_perf"].update(fields)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda line: line.pop(name)


_NO_ID = "headers with an invalid id, rank or size"
_BEYOND = "headers of a rank that is not below the size of its communicator"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (header(n_ranks=1 << 31), _BEYOND),
        (header(rank=1 << 31, n_ranks=1 << 32), _BEYOND),
        (header(rank=-1), _BEYOND),
        (header(rank=2), _BEYOND),
        (header(rank=True), _NO_ID),
        (header(rank=0.0), _NO_ID),
        (header(id=7), _NO_ID),
        (header(id=["0x1"]), _NO_ID),
        (header(id="0x" + "f" * 5000), _NO_ID),
        (without("header"), "operations without the header of their dump"),
        (without("metadata"), "lines whose header or metadata is not an object"),
        (without("coll_perf"), "lines without an operation"),
        (performance(coll=None), "operations without a function or a number"),
        (performance(coll_sn=-1), "operations without a function or a number"),
        (performance(coll_sn=1 << 70), "operations without a function or a number"),
        (performance(coll_sn=1.5), "operations without a function or a number"),
        (performance(coll_sn=True), "operations without a function or a number"),
    ],
)
def test_a_line_that_cannot_be_is_left_out_and_counted(
    change: Callable[[dict[str, Any]], None], reason: str, tmp_path: Path
) -> None:
    lines = log_of(OLD, [Communicator(WORLD, 0, 2, operations(0))]).splitlines()
    changed = json.loads(lines[1])
    change(changed)
    path = tmp_path / "a.log"
    path.write_text("\n".join([lines[0], json.dumps(changed), *lines[2:], ""]))
    trace = import_trace([path])
    assert trace.num_rows("comm") == 3
    assert f"{reason}, which are left out: 1" in trace.run["lacks"]


@pytest.mark.parametrize(
    "fields",
    [
        {"coll_exec_time_us": float("nan")},
        {"coll_exec_time_us": -5},
        {"coll_exec_time_us": 1 << 62},
        {"coll_exec_time_us": "61", "coll_timing_source": ["kernel_gpu"]},
        {"coll_busbw_gbs": float("inf"), "coll_exec_time_us": None},
        {"event_trace_ts": {"kernel_events": [{"kernel_start_ts": 9, "kernel_stop_ts": 3}]},
         "coll_exec_time_us": []},
    ],
)  # fmt: skip
def test_a_time_that_cannot_be_is_unknown(fields: dict[str, Any], tmp_path: Path) -> None:
    line = json.loads(log_of(OLD, [Communicator(WORLD, 0, 2, operations(0))]).splitlines()[0])
    line["coll_perf"].update(fields)
    path = tmp_path / "a.log"
    path.write_text(json.dumps(line) + "\n")
    (call,) = rows(import_trace([path]), "comm")
    assert (call.device_ns, call.issue_ns, call.payload_bytes) == (-1, -1, SIZE)


def test_a_second_line_of_one_operation_is_left_out(tmp_path: Path) -> None:
    text = log_of(OLD, [Communicator(WORLD, 0, 2, operations(0))])
    path = tmp_path / "a.log"
    path.write_text(text + text)
    trace = import_trace([path])
    assert trace.num_rows("comm") == 4
    note = "operations with the number of an earlier operation, which are left out: 4"
    assert note in trace.run["lacks"]


def test_operations_beyond_the_count_of_their_dump_have_no_communicator(tmp_path: Path) -> None:
    marker, *lines = log_of(NEW, [Communicator(WORLD, 0, 2, operations(0))]).splitlines()
    path = tmp_path / "a.log"
    path.write_text("\n".join([marker, *lines, lines[0], ""]))
    trace = import_trace([path])
    assert trace.num_rows("comm") == 5
    note = "operations without the header of their dump, which are left out: 1"
    assert note in trace.run["lacks"]


def test_a_file_without_any_operation_says_why(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text('{"coll_perf": {}}\n[]\n{"header": {"id": 3}}\n')
    with pytest.raises(NotATraceError) as error:
        import_trace([path])
    assert "operations without the header of their dump: 1 lines" in str(error.value)
    assert "why: a line of NCCL Inspector has a header" in str(error.value)


def test_metrics_for_prometheus_are_refused_with_the_way_to_json(tmp_path: Path) -> None:
    path = tmp_path / "nccl_inspector.prom"
    path.write_text('nccl_bus_bandwidth_gbs{version="v5.1",node="n"} 678.263\n')
    with pytest.raises(NotATraceError, match="metrics of NCCL Inspector") as error:
        import_trace([path])
    assert "try: NCCL_INSPECTOR_PROM_DUMP=0" in str(error.value)


def test_logs_and_dumps_are_not_mixed(tmp_path: Path) -> None:
    write_log(tmp_path / "logs", OLD, [Communicator(WORLD, 0, 2, operations(0))])
    (tmp_path / "logs" / "dump.json").write_text('{"entries": [], "pg_config": {}}')
    with pytest.raises(TraceError, match="of several formats"):
        import_trace([tmp_path / "logs"])
