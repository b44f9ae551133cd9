"""`explain` reports a function's communication without performing it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from dtensor_core import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.debug import CommDebugMode, ExplainError, explain
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.models.small_models import ModelArgs, Transformer


@pytest.fixture
def mesh():
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


def rows(mesh, *shape: int) -> DTensor:
    return distribute_tensor(torch.zeros(shape), mesh, [Shard(0)])


def locals_of(model: nn.Module) -> list[torch.Tensor]:
    return [each.to_local() if isinstance(each, DTensor) else each for each in model.parameters()]


def test_an_operator_is_reported_with_its_collective_and_what_was_considered(mesh) -> None:
    a, b = rows(mesh, 8, 128), rows(mesh, 128, 128)
    (row,) = explain(torch.matmul, a, b)
    assert (row.operator, row.phase) == ("aten.mm.default", "forward")
    assert row.arguments == ("f32[8,128] tp:S(0)", "f32[128,128] tp:S(0)")
    assert row.results == ("f32[8,128] tp:S(0)",)
    (send,) = row.sends
    assert (send.argument, send.step, send.axis) == ("mat2", "all_gather", "tp")
    assert row.payload_bytes == 128 * 128 * 4
    assert send.candidates[0][0] == "S(0), R -> S(0)"
    assert row.seconds == pytest.approx(send.candidates[0][1], rel=0.1)


def test_the_text_is_for_the_terminal(mesh) -> None:
    a, b = rows(mesh, 8, 128), rows(mesh, 128, 128)
    explanation = explain(lambda: (a @ b).full_tensor())
    lines = str(explanation).splitlines()
    assert lines[0].startswith("operators: 2, communicating: 2 (2 all_gather; 68 KiB, about ")
    assert lines[1:3] == [
        "forward:",
        "  aten.mm.default  f32[8,128] tp:S(0), f32[128,128] tp:S(0) -> f32[8,128] tp:S(0)",
    ]
    assert lines[3].startswith(
        "      mat2: f32[128,128] tp:S(0) -> f32[128,128] tp:R by all_gather on tp, 64 KiB, about "
    )
    assert lines[4].startswith("        considered: S(0), R -> S(0) in ")
    assert lines[5] == "  redistribute  f32[8,128] tp:S(0) -> f32[8,128] tp:R"
    assert lines[6].startswith("      all_gather on tp, 4 KiB, about ")
    assert explanation.total_bytes == 68 * 1024
    assert explanation.counts() == {"all_gather": 2}
    assert str(explain(lambda: a + a)).splitlines()[0] == "operators: 1, communicating: 0"


def test_it_reports_what_really_happens_and_leaves_no_trace(mesh) -> None:
    model = Transformer.parallelize(Transformer(ModelArgs()), mesh, False)
    tokens = torch.randint(0, 8, (2, 8))
    before = [each.clone() for each in locals_of(model)]
    state = torch.get_rng_state()

    def step() -> None:
        model(tokens).sum().backward()

    explanation = explain(step)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(map(torch.equal, before, locals_of(model)))
    assert {row.phase for row in explanation} == {"forward", "backward"}
    with CommDebugMode() as counter:
        step()
    counts = {str(packet): count for packet, count in counter.get_comm_counts().items()}
    assert counts == {
        "c10d_functional.all_reduce": explanation.counts()["all_reduce"],
        "c10d_functional.all_gather_into_tensor": explanation.counts()["all_gather"],
    }
    assert len(explanation.communicating) == sum(counts.values())


def test_nothing_is_written(mesh) -> None:
    x = rows(mesh, 8, 2)
    plain = torch.zeros(2)
    leaf = nn.Parameter(torch.ones(3))
    leaf.grad = kept = torch.full((3,), 5.0)

    def write() -> None:
        x.add_(1)
        plain.add_(1)
        F.dropout(x, 0.5).sum()
        (leaf * 2).sum().backward()

    assert explain(write)[0].operator == "aten.add_.Tensor"
    assert not plain.any()
    assert not x.to_local().any()
    assert leaf.grad is kept
    assert kept.tolist() == [5.0] * 3


def test_collectives_of_the_function_itself_are_reported_and_not_issued(mesh) -> None:
    def communicate() -> torch.Tensor:
        t = torch.ones(4)
        dist.all_reduce(t)
        dist.all_reduce(t, async_op=True).wait()
        dist.barrier()
        return distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)]).to_local()

    explanation = explain(communicate)
    assert [row.operator for row in explanation] == [
        "c10d.allreduce_.default",
        "c10d.allreduce_.default",
        "c10d.barrier.default",
        "distribute_tensor",
    ]
    assert explanation[0].arguments == ("float32[4]",)
    assert explanation[0].payload_bytes == 16


def test_a_function_that_needs_data_is_refused(mesh) -> None:
    x = rows(mesh, 8, 2)
    with pytest.raises(ExplainError, match=r"it runs aten\._local_scalar_dense"):
        explain(lambda: x.sum().item())
    assert not x.to_local().any()


def test_what_raises_raises_as_it_is(mesh) -> None:
    x = rows(mesh, 8, 2)
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        explain(torch.add, x, torch.ones(8, 2))


@on_threads(4)
def test_one_rank_may_explain_alone_for_nothing_is_sent() -> None:
    mesh = kept_mesh((4,))
    x = DTensor.from_local(torch.ones(3, 5, requires_grad=True), mesh, [Shard(0)])
    if dist.get_rank() == 0:
        assert explain(lambda: x.softmax(0).sum().full_tensor().backward()).total_bytes > 0


@on_threads(4)
def test_every_rank_is_reported_the_same() -> None:
    mesh = kept_mesh((2, 2))
    x = DTensor.from_local(torch.ones(3, 5), mesh, [Shard(0), Partial()])
    explanation = explain(lambda: x.relu().redistribute(placements=[Replicate(), Shard(1)]))
    assert [row.operator for row in explanation.communicating] == [
        "aten.relu.default",
        "redistribute",
    ]
    assert explanation.total_bytes > 0
