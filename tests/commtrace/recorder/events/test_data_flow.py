"""Operators state what they needed; calls, whose data they send and who used their results."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import all_reduce, wait_tensor

import commtrace
from commtrace.recorder.events import data_times
from commtrace.session import flusher
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import calls, ops

SIZE = 4
TWO = 2 * SIZE


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Another test of this process may have compiled a function.
    monkeypatch.setattr(data_times, "has_compiled", lambda: False)
    # A call of a fake group is over at once, and is written before its result is used.
    monkeypatch.setattr(flusher, "FLUSH_INTERVAL_S", 600)
    with fake_world(2), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@dataclass(frozen=True)
class Flow:
    """The flow of data in a recording: operators by name, calls by number."""

    data_op: list[str]
    data_call: list[int]
    used_by_op: list[str]
    used_by_call: list[int]
    needs: dict[str, set[str]]


def flow_of(program: Callable[[], object]) -> Flow:
    with commtrace.record(detail="op") as recording:
        program()
    rows, spans = calls(recording), ops(recording)
    names = {span.id: span.op.split(".")[1] for span in spans} | {-1: ""}
    needs: dict[str, set[str]] = {}
    for span in spans:
        latest = max([row.id for row in rows if row.issue_ns <= span.start_ns], default=-1)
        found = needs.setdefault(names[span.id], set())
        for each in filter(None, span.needs.split(",")):
            is_call = each.startswith("c")
            found.add(f"call {latest - int(each[1:])}" if is_call else names[span.id - int(each)])
    return Flow(
        [names[row.data_op_id] for row in rows],
        [row.data_call_id for row in rows],
        [names[row.used_by_op_id] for row in rows],
        [row.used_by_call_id for row in rows],
        needs,
    )


def test_operators_need_the_last_writers_of_their_arguments() -> None:
    def program() -> None:
        a, b = torch.ones(SIZE, SIZE), torch.zeros(SIZE)
        c = a.mul(b)
        c.add_(b)
        torch.addmm(b, c, a).exp()

    needs = flow_of(program).needs
    assert needs["ones"] == needs["zeros"] == set()
    assert needs["mul"] == {"ones", "zeros"}
    assert needs["add_"] == {"mul", "zeros"}
    assert needs["addmm"] == {"zeros", "add_", "ones"}
    assert needs["exp"] == {"addmm"}


def test_views_need_nothing_and_lead_to_what_wrote_their_storage() -> None:
    def program() -> None:
        tensor = torch.ones(SIZE, SIZE)
        tensor[1:].t().exp()
        tensor[2].fill_(3)
        tensor[1:].neg()
        first, second = tensor.split(2)
        torch.sin(second)
        first.zero_()
        torch.cos(second)

    needs = flow_of(program).needs
    assert needs["slice"] == needs["t"] == needs["select"] == needs["split"] == set()
    assert needs["exp"] == {"ones"}
    assert needs["fill_"] == needs["zero_"] == set()  # they read nothing
    assert needs["neg"] == needs["sin"] == {"fill_"}
    assert needs["cos"] == {"zero_"}


def test_memory_that_is_given_out_again_has_another_writer() -> None:
    def program() -> None:
        for _ in range(4):
            tensor = torch.ones(1 << 16).exp()
            part = tensor[SIZE:]
            part.sin()
            del tensor, part
            gc.collect()
            other = torch.zeros(1 << 16)
            other[SIZE:].cos()
            dist.all_reduce(other)

    flow = flow_of(program)
    assert flow.needs["sin"] == {"exp"}
    assert flow.needs["cos"] == {"zeros"}
    assert flow.data_op == ["zeros"] * 4
    assert flow.data_call == [-1] * 4


def test_operators_on_lists_need_all_that_is_in_them() -> None:
    def program() -> None:
        one, other = torch.ones(SIZE), torch.zeros(SIZE)
        torch._foreach_add_([one], [other])
        torch.cat([one, other, torch.full((SIZE,), 2.0)])

    needs = flow_of(program).needs
    assert needs["_foreach_add_"] == {"ones", "zeros"}
    assert needs["cat"] == {"_foreach_add_", "zeros", "full"}


def test_a_call_that_sends_another_s_result_and_the_operators_between() -> None:
    def program() -> None:
        tensor, gathered = torch.ones(SIZE), torch.empty(TWO)
        dist.all_reduce(tensor)
        scaled = tensor.mul(2)
        dist.all_gather_into_tensor(gathered, scaled)
        gathered.view(2, SIZE)[1].sum()
        dist.all_reduce(gathered)

    flow = flow_of(program)
    assert flow.data_op == ["ones", "mul", ""]
    assert flow.data_call == [-1, 0, 1]
    assert flow.used_by_op == ["mul", "sum", ""]
    assert flow.used_by_call == [-1, 2, -1]
    assert flow.needs["mul"] == {"call 0"}
    assert flow.needs["sum"] == {"call 1"}


def test_the_last_of_several_calls_counts_through_operators() -> None:
    def program() -> None:
        one, other = torch.ones(SIZE), torch.zeros(SIZE)
        dist.all_reduce(one)
        dist.all_reduce(other)
        later = torch.empty(SIZE)
        dist.all_reduce(later)
        total = one.add(other)
        total.mul_(3)
        dist.all_reduce(total.view(2, 2))

    flow = flow_of(program)
    assert flow.needs["add"] == {"call 0", "call 1"}
    assert (flow.data_op[3], flow.data_call[3]) == ("mul_", 1)
    assert flow.used_by_op == ["add", "add", "", ""]


def test_the_result_of_a_functional_collective() -> None:
    group: Any = dist.group.WORLD

    def program() -> None:
        result = all_reduce(torch.ones(SIZE), "sum", group)
        total = wait_tensor(result).exp()
        wait_tensor(all_reduce(total, "sum", group))

    flow = flow_of(program)
    assert (flow.data_op, flow.data_call) == (["ones", "exp"], [-1, 0])
    assert flow.used_by_op == ["exp", ""]
    assert flow.needs["exp"] == {"call 0"}


def test_fake_tensors_have_ids_and_no_times() -> None:
    group: Any = dist.group.WORLD

    with FakeTensorMode(), commtrace.record(detail="op") as recording:
        tensor = torch.ones(SIZE, SIZE)
        dist.all_reduce(tensor)
        product = tensor[1:] @ tensor
        reduced = wait_tensor(all_reduce(product, "sum", group))
        reduced.exp()
    rows, spans = calls(recording), ops(recording)
    names = {span.id: span.op for span in spans} | {-1: ""}
    assert [names[row.data_op_id] for row in rows] == ["aten.ones.default", "aten.mm.default"]
    assert [row.data_call_id for row in rows] == [-1, 0]
    assert [names[row.used_by_op_id] for row in rows] == ["aten.mm.default", "aten.exp.default"]
    times = {(row.data_ready_ns, row.result_used_ns, row.used_shard) for row in rows}
    assert times == {(-1, -1, -1)}
    product = next(span for span in spans if span.op == "aten.mm.default")
    assert (product.shapes, product.flops) == ("[3,4];[4,4]", 2 * 3 * 4 * 4)


def test_alike_operators_of_different_steps_share_a_call_site() -> None:
    tensor = torch.ones(SIZE, SIZE)
    with commtrace.record(detail="op") as recording:
        for _ in range(2):
            tensor.exp().mm(tensor).sin().sum()
            recording.step()
    (spool,) = recording._output.buffer.contents()
    products = [span for span in ops(recording) if span.op == "aten.mm.default"]
    assert [span.needs for span in products] == ["1"] * 2
    kinds = recording._output.buffer._op_sites._known
    assert len(spool) > 0
    assert len([kind for kind in kinds if str(kind.op) == "aten.mm.default"]) == 1


def test_other_shapes_and_types_are_other_details() -> None:
    with commtrace.record(detail="op") as recording:
        for num, dtype in ((2, torch.float32), (3, torch.float32), (2, torch.float64)):
            tensor = torch.ones(num, SIZE, dtype=dtype)
            tensor.sum(0)
            tensor.sum(1)
            tensor.mul(2.0)
            tensor.mul(tensor)
    found = [
        (span.op.split(".")[1], span.shapes, span.bytes)
        for span in ops(recording)
        if span.op != "aten.ones.default"
    ]
    expected = []
    for num, size in ((2, 4), (3, 4), (2, 8)):
        full, shape = num * SIZE * size, f"[{num},4]"
        expected += [
            ("sum", shape, full + SIZE * size), ("sum", shape, full + num * size),
            ("mul", shape, 2 * full), ("mul", f"{shape};{shape}", 3 * full),
        ]  # fmt: skip
    assert found == expected


def test_at_other_details_nothing_is_known() -> None:
    with commtrace.record(detail="collective") as recording:
        tensor = torch.ones(SIZE)
        dist.all_reduce(tensor)
        tensor.exp()
        dist.all_reduce(tensor)
    ids = {
        (row.data_op_id, row.data_call_id, row.used_by_op_id, row.used_by_call_id)
        for row in calls(recording)
    }
    assert ids == {(-1, -1, -1, -1)}


def test_ids_count_from_the_beginning_of_the_recording() -> None:
    tensor = torch.ones(SIZE)
    with commtrace.record(detail="op"):
        dist.all_reduce(tensor)
        early = tensor.exp()
        dist.all_reduce(early)
        with commtrace.record(detail="op") as inner:
            dist.all_reduce(early)
            dist.all_reduce(early.exp())
    rows = calls(inner)
    assert [row.data_call_id for row in rows] == [-1, 0]
    assert [row.data_op_id for row in rows] == [-1, 0]
    assert rows[0].used_by_op_id == 0
