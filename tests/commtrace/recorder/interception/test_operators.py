"""Operators as spans, on distributed and on local tensors, and the calls within them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor as torch_tensor
from torch import nn
from torch._ops import TorchBindOpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import commtrace
from commtrace.tracefile import read_trace
from dtensor_core import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import calls, ops


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    with fake_world(2):
        yield


def x() -> torch.Tensor:
    return torch.ones(4, 4, requires_grad=True)


def test_an_operator_is_a_span_with_its_times_and_its_place() -> None:
    model, tensor = nn.Sequential(nn.Linear(4, 4, bias=False)), x()
    with commtrace.record() as recording, recording.region("here"):
        model(tensor)
    (transpose, matmul) = ops(recording)
    assert (transpose.op, matmul.op) == ("aten.t.default", "aten.mm.default")
    assert (matmul.phase, matmul.module, matmul.module_class, matmul.module_call) == (
        "forward", "0", "Linear", 0,
    )  # fmt: skip
    assert (matmul.level, matmul.parent, matmul.region) == ("local", -1, "here")
    assert transpose.start_ns + transpose.duration_ns <= matmul.start_ns


def test_operators_of_the_backward_pass_belong_to_the_module_of_the_forward() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh())
    with commtrace.record() as recording:
        model(x()).sum().backward()
    backward = [(op.op, op.module) for op in ops(recording) if op.phase == "backward"]
    assert ("aten.tanh_backward.default", "1") in backward
    assert ("aten.mm.default", "0") in backward


def test_gradients_that_are_added_up_belong_to_the_modules_of_their_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model(x()).sum().backward()
    with commtrace.record() as recording:  # the second gradient is added to the first
        model(x()).sum().backward()
    added = [op.module for op in ops(recording) if op.op.startswith("aten.add")]
    assert sorted(added) == ["0", "1"]


def test_operators_of_a_recomputation_are_distinguished() -> None:
    model = nn.Sequential(nn.Tanh())
    with commtrace.record() as recording:
        checkpoint(model, x(), use_reentrant=False).sum().backward()  # type: ignore[union-attr]
    phases = [op.phase for op in ops(recording) if op.op == "aten.tanh.default"]
    assert phases == ["forward", "recompute"]


def test_operators_of_an_optimizer_step_are_distinguished() -> None:
    layer = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)
    layer(x()).sum().backward()
    with commtrace.record() as recording:
        optimizer.step()
        torch.ones(2)
    assert [(op.op, op.phase) for op in ops(recording)] == [
        ("aten.add_.Tensor", "optimizer"), ("aten.ones.default", "other"),
    ]  # fmt: skip


def test_a_collective_is_no_operator() -> None:
    with commtrace.record() as recording:
        dist.all_reduce(torch.ones(2))
    assert [op.op for op in ops(recording)] == ["aten.ones.default"]
    (call,) = calls(recording)
    assert (call.op, call.op_id) == ("", -1)


class Seeing(TorchDispatchMode):
    """Mode that notes the operators that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_a_mode_around_a_recording_sees_its_collectives() -> None:
    tensor = torch.ones(2)
    with Seeing() as around, commtrace.record() as recording:
        dist.all_reduce(tensor)
    with commtrace.record() as other, Seeing() as within:
        dist.all_reduce(tensor)
    assert around.names == within.names == ["c10d::allreduce_"]
    assert len(calls(recording)) == len(calls(other)) == 1


def test_a_collective_is_dispatched_once_more_by_the_mode_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Converting a group and a reduction for another round takes longer than all else."""
    seen: list[object] = []
    monkeypatch.setattr(TorchBindOpOverload, "__call__", lambda op, *args: seen.append(op))
    with commtrace.record() as recording:
        dist.all_reduce(torch.ones(2))
    assert (len(calls(recording)), seen) == (1, [])


def test_an_operator_that_raises_ends_its_span() -> None:
    with commtrace.record() as recording:
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        torch.ones(1)
    assert [(op.op, op.parent) for op in ops(recording)][-2:] == [
        ("aten.mm.default", -1), ("aten.ones.default", -1),
    ]  # fmt: skip


def factors() -> tuple[DTensor, DTensor]:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    return (
        distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)]),
        distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]),
    )


def check_spans_of_a_matmul_and_a_relu(recording: commtrace.Recording) -> None:
    """A product of shards is a partial sum, which must be reduced before the relu."""
    spans = ops(recording)
    matmul, relu = [span for span in spans if span.level == "dtensor"]
    assert (matmul.op, relu.op) == ("aten.mm.default", "aten.relu.default")
    inner = {span.op: span.parent for span in spans if span.level == "local"}
    assert inner["aten.mm.default"] == matmul.id
    assert inner["aten.relu.default"] == relu.id
    (call,) = calls(recording)
    assert call.kind in ("all_reduce", "reduce_scatter")
    assert (call.op, call.op_id) == ("aten.relu.default", relu.id)
    for span in spans:
        parent = {each.id: each for each in spans}.get(span.parent)
        if parent is not None:
            assert parent.start_ns <= span.start_ns
            assert span.start_ns + span.duration_ns <= parent.start_ns + parent.duration_ns


def test_an_operator_on_distributed_tensors_holds_those_on_local_ones() -> None:
    left, right = factors()
    with commtrace.record() as recording:
        (left @ right).relu()
    check_spans_of_a_matmul_and_a_relu(recording)


def test_a_view_runs_one_of_the_local_shape_and_an_inner_operator_keeps_to_its_own() -> None:
    left, right = factors()
    with commtrace.record() as recording:
        right.view(2, 2, 4)
        (left @ right).view(16)
    spans = ops(recording)
    held = [
        (outer.op, inner.op)
        for outer in spans
        for inner in spans
        if outer.level == "dtensor" and inner.parent == outer.id
    ]
    assert held == [
        ("aten.view.default", "aten.view.default"),
        ("aten.mm.default", "aten.mm.default"),
        ("aten.view.default", "aten.view.default"),
    ]
    assert len(spans) == len({span.id for span in spans}) == 6


def test_of_operators_beyond_the_bound_the_number_is_kept(tmp_path: Path) -> None:
    _, right = factors()
    with commtrace.record(tmp_path / "run.json", max_calls=1) as recording:  # ten operators
        for _ in range(20):
            right.view(2, 2, 4)
    trace = read_trace(tmp_path / "run.json")
    assert trace.num_rows("ops") == len(ops(recording)) == 10
    assert list(trace.tables["ranks"]["num_ops_dropped"]) == [30]


def test_so_it_is_for_the_distributed_tensors_of_torch() -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    left = torch_tensor.distribute_tensor(torch.ones(4, 4), mesh, [torch_tensor.Shard(1)])
    right = torch_tensor.distribute_tensor(torch.ones(4, 4), mesh, [torch_tensor.Shard(0)])
    (left @ right).relu()  # warms up the caches of torch's dispatch, which are not under test
    with commtrace.record() as recording:
        (left @ right).relu()
    check_spans_of_a_matmul_and_a_relu(recording)


def test_the_operator_of_a_call_is_known_without_operators_too_where_it_is_announced() -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    tensor = DTensor.from_local(torch.ones(2, 4), mesh, [Shard(0)])
    with commtrace.record(detail="collective") as recording:
        tensor.redistribute(mesh, [Replicate()])
    (call,) = calls(recording)
    assert (call.kind, call.op, call.op_id) == ("all_gather", "redistribute", -1)
    assert ops(recording) == []


def test_only_the_thread_that_entered_the_recording_shows_operators() -> None:
    with commtrace.record() as recording:
        thread = threading.Thread(target=torch.ones, args=(2,))
        thread.start()
        thread.join()
    assert ops(recording) == []


def test_a_recording_of_operators_inside_of_another_shares_its_mode() -> None:
    with commtrace.record() as outer, commtrace.record() as inner:
        torch.ones(2)
        assert torch._C._len_torch_dispatch_stack() == 1
    assert [op.id for op in ops(outer)] == [op.id for op in ops(inner)] == [0]


def test_a_recording_of_operators_inside_of_one_of_collectives_keeps_them_to_itself() -> None:
    left, right = factors()
    with commtrace.record(detail="collective") as outer, commtrace.record(detail="op") as inner:
        (left @ right).relu()
    check_spans_of_a_matmul_and_a_relu(inner)
    assert ops(outer) == []
    (call,) = calls(outer)
    assert (call.op, call.op_id) == ("aten.relu.default", -1)


def test_the_mode_is_gone_afterwards() -> None:
    with commtrace.record():
        assert torch._C._len_torch_dispatch_stack() == 1
    assert torch._C._len_torch_dispatch_stack() == 0


def test_operators_belong_to_the_step_in_which_they_end() -> None:
    with commtrace.record() as recording:
        torch.ones(1)
        recording.step()
        torch.ones(2).mul_(2)
        recording._output.flush()
        torch.zeros(3)
        recording.step()
        torch.empty(4)
    assert [(op.op.split(".")[1], op.step) for op in ops(recording)] == [
        ("ones", 0), ("ones", 1), ("mul_", 1), ("zeros", 1), ("empty", 2),
    ]  # fmt: skip


def test_each_of_two_recordings_keeps_the_operators_while_it_is_on() -> None:
    with commtrace.record() as outer:
        torch.ones(1)
        with commtrace.record() as inner:
            torch.zeros(1)
            with inner.paused():
                torch.empty(1)
            inner.step()
            torch.zeros(1)
    names = ["aten.zeros.default", "aten.empty.memory_format", "aten.zeros.default"]
    assert [op.op for op in ops(outer)] == ["aten.ones.default", *names]
    assert [(op.op, op.id, op.step) for op in ops(inner)] == [(names[0], 0, 0), (names[2], 2, 1)]


def test_operators_beyond_the_bound_are_counted_and_a_local_one_stays_with_its_own() -> None:
    left, right = factors()
    with commtrace.record(max_calls=1) as recording:
        torch.ones(1)
        for _ in range(10):
            torch.mm(left, right)
    spans = ops(recording)
    assert len(spans) == 11, "ten, and the local operator of the last one"
    ((num_dropped,),) = (recording.trace().tables["ranks"]["num_ops_dropped"],)
    assert len(spans) + num_dropped == 21


def test_an_operator_keeps_its_region_after_the_region_has_changed() -> None:
    with commtrace.record() as recording:
        with recording.region("first"):
            torch.ones(1)
        with recording.region("second"):
            torch.ones(1)
        torch.ones(1)
    assert [op.region for op in ops(recording)] == ["first", "second", ""]
