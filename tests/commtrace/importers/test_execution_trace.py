"""torch's ExecutionTraces: recorded on gloo, and as NCCL's ranks write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commtrace.analyze import CATALOG, Frames, load
from commtrace.errors import NotATraceError
from commtrace.importers import import_trace
from dtensor_core.testing import run_processes
from tests.commtrace.importers.executions import document, executions, node

NUM_RANKS = 2


def record(folder: Path) -> None:
    """Run a rank's calls under torch's observer."""
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

    rank = dist.get_rank()
    observer = ExecutionTraceObserver().register_callback(str(folder / f"et_rank{rank}.json"))
    values, gathered = torch.ones(2, 8), torch.empty(NUM_RANKS * 8)
    with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer):
        dist.all_reduce(values)
        dist.all_gather_into_tensor(gathered, torch.ones(8))
        dist.broadcast(values, src=1)
        dist.all_gather([torch.empty(8) for _ in range(NUM_RANKS)], torch.ones(8))
        if rank == 0:
            dist.send(values, 1)
        else:
            dist.recv(values, 0)
        dist.barrier()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    folder = tmp_path_factory.mktemp("recorded")
    run_processes(record, NUM_RANKS, folder)
    return load(import_trace([folder]))


def test_calls_that_torch_recorded_on_gloo_are_those_of_the_program(recorded: Frames) -> None:
    for rank, transfer, root in ((0, "send", 1), (1, "recv", 1)):
        own = recorded.comm[recorded.comm["rank"] == rank]
        assert own["kind"].tolist() == [
            "all_reduce", "all_gather", "broadcast", "all_gather", transfer, "barrier",
        ]  # fmt: skip
        assert own["payload_bytes"].tolist() == [64, 64, 64, 64, 64, 0]
        assert own["root"].tolist()[2] == root
        assert own["peer"].tolist()[4] == 1 - rank
        assert own["seq"].tolist() == [0, 1, 2, 3, -1, 4]


def test_no_call_has_a_time(recorded: Frames) -> None:
    times = ["issue_ns", "call_ns", "blocked_ns", "complete_ns", "device_ns"]
    assert (recorded.comm[times] == -1).all(axis=None)
    assert (recorded.ops[["start_ns", "duration_ns"]] == -1).all(axis=None)
    assert any("times: calls have their order" in each for each in recorded.run["lacks"])


def imported(folder: Path, files: dict[str, bytes]) -> Frames:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return load(import_trace([folder]))


def test_a_described_call_has_its_group_number_and_size(tmp_path: Path) -> None:
    frames = imported(tmp_path, executions(2))
    first, second = frames.comm[frames.comm["rank"] == 1].to_dict("records")
    assert (first["kind"], first["group"], first["seq"]) == ("all_reduce", "0", 0)
    assert (first["dtype"], first["payload_bytes"], first["op"]) == ("float32", 4096, "")
    assert (second["seq"], second["op"]) == (1, "_c10d_functional.all_reduce")
    assert frames.groups["ranks"].tolist() == ["0,1"]
    assert frames.ranks[["pid", "device"]].values.tolist() == [[4711, ""], [4712, ""]]
    assert CATALOG["consistency"].function(frames).empty


def test_a_rank_that_calls_something_else_is_found(tmp_path: Path) -> None:
    files = executions(3)
    other = files["et_rank2.json"].replace(b'"allreduce"', b'"broadcast"')
    files["et_rank2.json"] = other.replace(b"c10d::allreduce_", b"c10d::broadcast_")
    (fault,) = CATALOG["consistency"].function(imported(tmp_path, files)).to_dict("records")
    assert (fault["problem"], fault["ranks"], fault["number"]) == ("kind", "2", 0)


@pytest.mark.parametrize(
    "nodes",
    [[{"id": 1}], [{"id": 1, "name": "x", "ctrl_deps": "y"}], [3], [node(1, "x", 1)] * 2],
)
def test_nodes_that_are_none_are_refused_with_their_place(nodes: Any, tmp_path: Path) -> None:
    path = tmp_path / "et_rank0.json"
    path.write_text(json.dumps({"schema": "1.1.1", "nodes": nodes}))
    with pytest.raises(NotATraceError, match=r"at: nodes\[[01]\]"):
        import_trace([path])


def test_nodes_that_are_their_own_ancestors_end_the_reading(tmp_path: Path) -> None:
    trace = document(0, 2)
    trace["nodes"] += [node(20, "aten::a", 21), node(21, "aten::b", 20)]
    frames = imported(tmp_path, {"et_rank0.json": json.dumps(trace).encode()})
    assert {"aten.a", "aten.b"} <= set(frames.ops["op"])


def test_deep_nesting_is_read(tmp_path: Path) -> None:
    trace = document(0, 2)
    trace["nodes"] += [node(n, "aten::a", n - 1) for n in range(100, 5000)]
    frames = imported(tmp_path, {"et_rank0.json": json.dumps(trace).encode()})
    assert len(frames.comm) == 2
