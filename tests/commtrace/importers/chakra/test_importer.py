"""Execution traces of Chakra: those of other writers, and files that nobody would write."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.errors import EmptyTraceError, InvalidTraceError, NotATraceError, TraceError
from commtrace.exporters.chakra import write_chakra
from commtrace.importers import import_trace
from commtrace.importers.delimited_messages import is_chakra_trace
from tests.commtrace.analyze.rows import call, group, run_of, trace_of
from tests.commtrace.exporters.chakra_files import message, written
from tests.commtrace.importers.chakra.converted import file_of, folder_of_files, node, training


def imported(folder: Path, files: dict[str, bytes]) -> Frames:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return load(import_trace([folder]))


@pytest.fixture
def run(tmp_path: Path) -> Frames:
    return imported(tmp_path, folder_of_files())


def test_nodes_of_communication_are_calls(run: Frames) -> None:
    columns = ["rank", "kind", "group", "seq", "payload_bytes", "peer", "tag", "data_call_id"]
    assert run.comm[columns].astype({"kind": object, "group": object}).to_numpy().tolist() == [
        [0, "all_gather", "5", 0, 200, -1, -1, -1],
        [0, "all_reduce", "0", 0, 32, -1, -1, 0],
        [0, "send", "0", -1, 64, 1, 3, 1],
        [1, "all_gather", "5", 0, 200, -1, -1, -1],
        [1, "all_reduce", "0", 0, 32, -1, -1, 0],
        [1, "recv", "0", -1, 64, 0, 3, 1],
    ]
    assert run.comm["wire_bytes"].tolist() == [100, 32, 64, 100, 32, 0]
    times = run.comm.loc[run.comm["rank"] == 0, ["issue_ns", "complete_ns", "device_ns"]]
    assert times.to_numpy().tolist() == [
        [60_000, 70_000, 10_000], [80_000, 90_000, 10_000], [100_000, 101_000, 1_000]
    ]  # fmt: skip


def test_work_of_the_host_is_operators_and_of_the_device_kernels(run: Frames) -> None:
    ops = run.ops[run.ops["rank"] == 0]
    assert ops["op"].tolist() == ["aten::mm", "aten::relu"]
    assert ops["needs"].tolist() == ["", "1,c2,c1"]
    assert ops[["flops", "bytes"]].to_numpy().tolist() == [[99, 12], [-1, -1]]
    kernels = run.kernels[run.kernels["rank"] == 0]
    assert kernels[["name", "category"]].astype(object).to_numpy().tolist() == [["gemm", "compute"]]
    assert kernels[["stream", "start_ns", "duration_ns"]].to_numpy().tolist() == [
        [7, 20_000, 30_000]
    ]


def test_what_the_files_lack_is_listed(run: Frames) -> None:
    assert run.run["imported_from"] == "Chakra"
    assert run.run["ranks_from"] == "read from the file names"
    assert {"1 node of type MEM_LOAD_NODE"} <= {
        each.replace("2 nodes", "1 node") for each in run.run["lacks"]
    }
    assert not any(each.startswith("times") for each in run.run["lacks"])
    for analysis in CATALOG.values():
        analysis.function(run)


def test_times_that_no_node_states_are_unknown(tmp_path: Path) -> None:
    nodes = [
        node(0, "compute", "a", is_cpu_op=True),
        node(1, "collective", needs=[0], comm_type=0, comm_size=8),
        node(2, "compute", "b", needs=[1], lasts=4),
    ]
    run = imported(tmp_path, {"trace.0.et": file_of(*nodes)})
    assert run.comm[["issue_ns", "complete_ns", "device_ns"]].to_numpy().tolist() == [[-1, -1, -1]]
    assert run.ops[["start_ns", "duration_ns"]].to_numpy().tolist() == [[-1, -1]]
    assert run.kernels[["start_ns", "duration_ns"]].to_numpy().tolist() == [[-1, 4000]]
    assert any(each.startswith("times: ") for each in run.run["lacks"])


def test_nodes_are_taken_in_an_order_in_which_they_can_run(tmp_path: Path) -> None:
    nodes = [
        node(9, "collective", "second", needs=[4], comm_type=0),
        node(4, "collective", "first", needs=[7], comm_type=5),
        node(7, "compute", is_cpu_op=True),
    ]
    run = imported(tmp_path, {"trace.0.et": file_of(*nodes)})
    assert run.comm["native_op"].tolist() == ["first", "second"]
    assert run.comm["data_op_id"].tolist() == [0, -1]


def test_groups_without_ranks_are_inferred_from_their_calls(tmp_path: Path) -> None:
    files = folder_of_files(3)
    del files["comm_group.json"]
    run = imported(tmp_path, files)
    groups = dict(zip(run.groups["name"], run.groups["ranks"], strict=True))
    assert groups == {"5": "0,1,2", "0": "0,1,2"}
    gathered = run.comm[run.comm["kind"] == "all_gather"]
    assert gathered["payload_bytes"].tolist() == [300, 300, 300]


def test_a_rank_that_is_no_member_of_its_group_is_reported(tmp_path: Path) -> None:
    files = {**folder_of_files(), "comm_group.json": b'{"5": [1, 2]}'}
    run = imported(tmp_path, files)
    expected = "has calls on group 5, which does not contain that rank"
    assert expected in run.run["ranks_from"]


def test_files_may_be_compressed(tmp_path: Path) -> None:
    files = {name: gzip.compress(data) for name, data in folder_of_files().items()}
    assert len(imported(tmp_path, files).comm) == 6


NODE = node(3, "collective", comm_type=0, comm_size=8)
WRONG: dict[str, tuple[bytes, str, str]] = {
    "a message is cut off": (
        training(0)[:-3], "message 7, at byte", "no whole message: ",
    ),
    "a length is huge": (
        file_of(NODE) + b"\xff\xff\xff\xff\x07x", "message 2, at byte", "no whole message: ",
    ),
    "a message is none": (
        file_of(NODE) + b"\x03\x0f\xff\xff", "message 2, at byte", "no whole message: ",
    ),
    "two nodes have a number": (
        file_of(NODE, NODE), "message 2, at byte", "a second node 3",
    ),
    "a node depends on none": (
        file_of(node(1, "compute", needs=[8])), "node 1",
        "node 1 depends on node 8, which the file lacks",
    ),
    "nodes depend on each other": (
        file_of(node(1, "compute", needs=[2]), node(2, "compute", after=[1])), "node 1",
        "nodes that depend on each other in a circle: 1 -> 2 -> 1",
    ),
    "a node depends on itself": (
        file_of(node(1, "compute", after=[1])), "node 1",
        "nodes that depend on each other in a circle: 1 -> 1",
    ),
    "a node has another type": (
        file_of(message("Node", id=1, type=77)), "message 1, at byte", "node 1 of type 77",
    ),
    "a collective has another type": (
        file_of(node(1, "collective", comm_type=55)), "node 1", "comm_type 55",
    ),
    "a size is negative": (
        file_of(node(1, "collective", comm_type=0, comm_size=-5)), "node 1", "comm_size is -5",
    ),
    "a size is a text": (
        file_of(node(1, "collective", comm_type=0, comm_size="big")), "node 1", "comm_size is big",
    ),
    "a payload is too large": (
        file_of(
            message("Node", id=8, type=1, inputs=message(
                "IOInfo", values="""['[{"pg_name": "5", "ranks": [0, 1, 2]}]']"""
            )),
            node(1, "collective", comm_type=2, comm_size=1 << 57, pg_name="5"),
        ), "node 1", f"comm_size of 3 ranks: {3 << 57:,} bytes",
    ),
    "a rank is too large": (
        file_of(node(1, "send", comm_dst=1 << 40)), "node 1", f"comm_dst is {1 << 40}",
    ),
    "a time is too large": (
        file_of(node(1, "compute", start=1 << 63)), "message 1, at byte",
        f"node 1 with a time of {1 << 63} µs",
    ),
    "a row is of no table": (
        file_of(node(1, "compute", **{"commtrace.table": "groups"})), "node 1",
        "a row of table 'groups'",
    ),
    "a row has no id": (
        file_of(node(1, "compute", **{"commtrace.table": "ops"})), "node 1",
        "a row of table ops without id",
    ),
    "a column has another type": (
        file_of(node(1, "compute", **{"commtrace.table": "ops", "commtrace.id": "one"})), "node 1",
        "id is 'one'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_damaged_file_is_refused_with_its_place(what: str, tmp_path: Path) -> None:
    data, place, found = WRONG[what]
    path = tmp_path / "trace.0.et"
    path.write_bytes(data)
    (tmp_path / "trace.1.et").write_bytes(training(1))
    with pytest.raises(InvalidTraceError) as error:
        import_trace([tmp_path])
    assert str(error.value).startswith(f"cannot import {path}\n  at: {place}")
    assert found in error.value.found
    assert error.value.why
    assert error.value.attempt == "copy the execution trace again, or write it again"


def test_kernels_of_a_call_are_listed_as_wholes(tmp_path: Path) -> None:
    own = node(1, "collective", **{"commtrace.table": "comm", "commtrace.id": 0})
    own.attr.add(name="commtrace.kernels.id").int64_list.values.extend([0, 1])
    own.attr.add(name="commtrace.kernels.start_ns").int64_list.values.extend([5])
    (tmp_path / "trace.0.et").write_bytes(file_of(own))
    with pytest.raises(InvalidTraceError, match="start_ns of some kernels"):
        import_trace([tmp_path])


def test_impossible_columns_are_refused_as_in_any_trace(tmp_path: Path) -> None:
    own = {"commtrace.table": "ops", "commtrace.id": 0, "commtrace.needs": "x"}
    (tmp_path / "trace.0.et").write_bytes(file_of(node(1, "compute", **own)))
    with pytest.raises(InvalidTraceError, match=r"not of the form needs"):
        import_trace([tmp_path])


@pytest.mark.parametrize("ranks", ["[0, 0]", "[-1]", f"[{1 << 40}]"])
def test_groups_of_impossible_ranks_are_refused(ranks: str, tmp_path: Path) -> None:
    (tmp_path / "trace.0.et").write_bytes(training(0))
    (tmp_path / "groups.json").write_text(f'{{"5": {ranks}}}')
    with pytest.raises(InvalidTraceError, match="at: group 5"):
        import_trace([tmp_path])
    metadata = node(9, "metadata")
    metadata.inputs.values = f"""['[{{"pg_name": "5", "ranks": {ranks}}}]']"""
    (tmp_path / "groups.json").unlink()
    (tmp_path / "trace.0.et").write_bytes(file_of(metadata))
    with pytest.raises(InvalidTraceError, match="at: node 9"):
        import_trace([tmp_path])


def test_groups_alone_are_no_trace(tmp_path: Path) -> None:
    (tmp_path / "comm_group.json").write_text('{"1": [0, 1]}')
    with pytest.raises(EmptyTraceError, match="without an execution trace"):
        import_trace([tmp_path])


def test_a_file_that_is_cut_off_within_a_message_is_refused(tmp_path: Path) -> None:
    data = training(0)
    num_read = 0
    for cut in range(len(data)):
        path = tmp_path / "trace.0.et"
        path.write_bytes(data[:cut])
        try:
            load(import_trace([path]))
        except TraceError:
            continue
        num_read += 1
    assert num_read == 7, "those that end with the metadata or with one of the first six nodes"


@pytest.mark.parametrize("length", [0, 126, 127, 128, 129, 254, 255, 256, 257, 300])
def test_a_file_is_recognized_whatever_the_length_of_its_first_message(
    length: int, tmp_path: Path
) -> None:
    about = message("GlobalMetadata", version="1" * length)
    data = written(about, node(1, "collective", comm_type=0))
    assert is_chakra_trace(data)
    (tmp_path / "trace.0.et").write_bytes(data)
    assert len(load(import_trace([tmp_path])).comm) == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"\n\n", b"\n\nhello world, this is a log of some length\n", b"{}",
     b"\x80\x02}q\x00.", b"[rank0]: Watchdog caught\n", b"\x0a" * 40, b"\x12" * 40, b"\xff" * 40],
)  # fmt: skip
def test_other_files_are_not_taken_for_execution_traces(data: bytes) -> None:
    assert not is_chakra_trace(data)


def test_text_of_names_in_groups_survives(tmp_path: Path) -> None:
    rows = [call(id=0, seq=0, at=5, group="x'\"]'é")]
    run = load(trace_of(rows, groups=[group("x'\"]'é", ranks=(0, 1))]))
    write_chakra(run, tmp_path / "et")
    found = load(import_trace([tmp_path / "et"]))
    assert found.comm["group"].tolist() == ["x'\"]'é"]
    assert found.groups["ranks"].tolist() == ["0,1"]


def test_a_single_file_without_a_rank_is_rank_0(tmp_path: Path) -> None:
    (tmp_path / "workload.et").write_bytes(training(0))
    found: Any = load(import_trace([tmp_path / "workload.et"]))
    assert found.comm["rank"].unique().tolist() == [0]


def test_an_export_states_its_ranks(tmp_path: Path) -> None:
    write_chakra(run_of([call(rank=1, id=0, at=3)], num_ranks=2), tmp_path / "et")
    (tmp_path / "et" / "trace.1.et").rename(tmp_path / "et" / "mine.et")
    found = load(import_trace([tmp_path / "et"]))
    assert found.comm["rank"].tolist() == [1]
    assert found.run["ranks_from"] == "read from the files"


def test_a_file_of_zeros_is_no_execution_trace(tmp_path: Path) -> None:
    (tmp_path / "trace.0.et").write_bytes(bytes(100))
    with pytest.raises(NotATraceError):
        import_trace([tmp_path])
