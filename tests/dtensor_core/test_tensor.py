"""Conversions between local tensors and DTensors, their gradients, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor as torchs
import torch.nn.functional as F
from torch import nn

from dtensor_core import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
    observe,
)
from dtensor_core.errors import PlacementError
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads, run_threads


@pytest.fixture
def mesh():
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


def steps_of(body: Callable[[], object]) -> list[str]:
    """Steps announced while a body runs."""
    reasons: list[observe.Reason] = []
    with observe.listening(reasons.append):
        body()
    return [reason.step for reason in reasons]


def test_from_local_takes_all_shards_to_be_equal(mesh) -> None:
    x = DTensor.from_local(torch.ones(2, 3), mesh, [Shard(-1)])
    assert x.shape == (2, 12)
    assert x.stride() == (12, 1)
    assert x.placements == (Shard(1),)
    assert DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)]).stride() == (3, 1)


def test_from_local_with_shape_and_stride_takes_uneven_shards(mesh) -> None:
    x = DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)], shape=(7, 3), stride=(3, 1))
    assert x.shape == (7, 3)
    with pytest.raises(PlacementError, match="Please pass both shape and stride"):
        DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)], shape=(7, 3))


def test_from_local_and_to_local_alias_the_local_tensor(mesh) -> None:
    local = torch.zeros(2, 3)
    x = DTensor.from_local(local, mesh, [Shard(0)])
    x.add_(1)
    assert local.eq(1).all()
    assert x.to_local().data_ptr() == local.data_ptr()


def test_the_default_placement_is_replicate(mesh) -> None:
    assert DTensor.from_local(torch.ones(2), mesh).placements == (Replicate(),)


def test_a_mesh_in_force_needs_no_naming(mesh) -> None:
    with mesh:
        assert DTensor.from_local(torch.ones(2)).device_mesh == mesh


@pytest.mark.parametrize(
    ("source", "expected", "communication"),
    [
        (Shard(0), Shard(0), []),
        (Replicate(), Replicate(), []),
        (Partial(), Replicate(), []),
    ],
)
def test_the_gradient_of_to_local_and_from_local_has_the_forward_placement(
    mesh, source, expected, communication
) -> None:
    local = torch.ones(2, 3, requires_grad=True)
    x = DTensor.from_local(local, mesh, [source])
    seen: list[tuple[object, ...]] = []
    x.register_hook(lambda grad: seen.append(grad.placements))
    assert steps_of(lambda: x.to_local().sum().backward()) == communication
    assert seen == [(expected,)]
    assert local.grad is not None
    assert local.grad.eq(1).all()


def test_grad_placements_are_the_layout_of_incoming_gradients(mesh) -> None:
    local = torch.ones(2, 3, requires_grad=True)
    x = DTensor.from_local(local, mesh, [Replicate()])
    y = x.to_local(grad_placements=[Partial()])
    assert steps_of(lambda: y.sum().backward()) == ["all_reduce"]
    x = DTensor.from_local(local, mesh, [Replicate()], grad_placements=[Partial()])
    assert steps_of(lambda: x.to_local(grad_placements=[Partial()]).sum().backward()) == []


@pytest.mark.parametrize(
    ("source", "target", "forward", "backward"),
    [
        (Shard(0), Replicate(), ["all_gather"], []),
        (Replicate(), Shard(0), [], ["all_gather"]),
        (Partial(), Replicate(), ["all_reduce"], []),
        (Partial(), Shard(0), ["reduce_scatter"], ["all_gather"]),
        (Shard(0), Shard(1), ["all_to_all"], ["all_to_all"]),
        (Shard(0), Shard(0), [], []),
    ],
)
def test_redistribute_and_its_gradient_communicate_as_they_must(
    mesh, source, target, forward, backward
) -> None:
    x = DTensor.from_local(torch.ones(4, 4), mesh, [source]).requires_grad_()
    results: list[DTensor] = []
    assert steps_of(lambda: results.append(x.redistribute(mesh, [target]))) == forward
    (y,) = results
    assert y.placements == (target,)
    upstream = DTensor.from_local(torch.ones_like(y._local_tensor), mesh, [target])
    assert steps_of(lambda: y.backward(upstream)) == backward
    assert isinstance(x.grad, DTensor)
    assert x.grad.placements == (Replicate() if source.is_partial() else source,)


def test_redistribute_to_the_same_placements_aliases(mesh) -> None:
    local = torch.zeros(2)
    same = DTensor.from_local(local, mesh, [Shard(0)]).redistribute(mesh, [Shard(0)])
    same.add_(1)
    assert local.eq(1).all()


def test_redistribute_to_a_shard_copies() -> None:
    @on_threads(2)
    def body() -> None:
        local = torch.zeros(4)
        x = DTensor.from_local(local, kept_mesh((2,)), [Replicate()])
        x.redistribute(placements=[Shard(0)]).add_(1)
        assert local.eq(0).all()

    body()


def test_redistribute_converts_around_the_communication(mesh) -> None:
    x = DTensor.from_local(torch.ones(4), mesh, [Shard(0)]).requires_grad_()
    reasons: list[observe.Reason] = []
    with observe.listening(reasons.append):
        y = x.redistribute(mesh, [Replicate()], forward_dtype=torch.bfloat16)
    assert y.dtype is torch.bfloat16
    assert reasons[0].payload_bytes == 16 * 2
    y.to_local().float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.float32


def test_a_user_may_not_make_partial_sums(mesh) -> None:
    x = DTensor.from_local(torch.ones(4), mesh, [Shard(0)])
    with pytest.raises(RuntimeError) as error:
        x.redistribute(mesh, [Partial()])
    assert str(error.value) == (
        "Can not redistribute from S(0) to P(sum) on tp\n"
        "  Found: f32[16] tp:S(0)\n"
        "  Why: redistributing to Partial is for internal use only: partial sums have no "
        "meaning of their own\n"
        "  Try: redistribute to Replicate() or Shard(dim)"
    )


def test_redistribute_stays_on_its_mesh(mesh) -> None:
    x = DTensor.from_local(torch.ones(4), mesh, [Shard(0)])
    with pytest.raises(PlacementError, match="redistribution moves data within a mesh"):
        x.redistribute(init_device_mesh("cpu", (2, 2)), [Replicate(), Replicate()])
    with pytest.raises(PlacementError, match="placements is needed for redistribute"):
        x.redistribute(mesh)


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ([Shard(0), Shard(1)], "must have the same length as the mesh has axes"),
        ([Shard(2)], "a tensor of 2 dims placed Shard(dim=2)"),
        ([Shard(-3)], "dims -2 to 1"),
    ],
)
def test_placements_that_do_not_fit_are_refused(mesh, placements, message) -> None:
    with pytest.raises(PlacementError) as error:
        DTensor.from_local(torch.ones(2, 2), mesh, placements)
    assert message in str(error.value)


def test_reductions_of_two_kinds_are_not_mixed() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (2, 2))
        with pytest.raises(PlacementError, match="Mixed Partial reduce types: max, sum"):
            DTensor.from_local(torch.ones(2), mesh, [Partial("sum"), Partial("max")])
        mixed = DTensor.from_local(torch.ones(2), mesh, [Partial("sum"), Partial("avg")])
        assert mixed.placements == (Partial("sum"), Partial("avg"))


def test_gradients_of_gradients_cross_both_borders() -> None:
    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        original = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        expected = _penalty(original)
        leaf = original.detach().clone().requires_grad_()
        x = DTensor.from_local(leaf, mesh, [Replicate()])
        y = x.redistribute(placements=[Shard(0)])
        got = _penalty(y).full_tensor()
        torch.testing.assert_close(got, expected)
        (wanted,) = torch.autograd.grad(expected, original)
        (found,) = torch.autograd.grad(got, leaf)
        torch.testing.assert_close(found, wanted)

    body()


def _penalty(x: torch.Tensor) -> torch.Tensor:
    (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return (grad**2).sum()


class Constant(torch.autograd.Function):
    """A function of the user's that has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> None:
        return None


def test_an_undefined_gradient_stays_undefined_at_both_borders(mesh) -> None:
    local = torch.ones(2, requires_grad=True)
    original = DTensor.from_local(local, mesh, [Shard(0)])
    moved = original.redistribute(mesh, [Replicate()])
    total = Constant.apply(original).sum() + Constant.apply(moved).sum() + moved.square().sum()
    total.backward()
    assert local.grad is not None
    assert local.grad.tolist() == [2.0, 2.0]
    local.grad = None
    (Constant.apply(original).sum() + Constant.apply(moved).sum()).backward()
    assert local.grad is None


def test_a_tensor_made_of_a_dtensor_is_one() -> None:
    with fake_world(2):
        x = DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (2,)), [Shard(0)])
        for made in (torch.Tensor(x), torch.as_tensor(x), x.as_subclass(torch.Tensor)):
            assert isinstance(made, DTensor)
            assert made.placements == (Shard(0),)


def test_a_parameter_made_of_a_dtensor_is_one(mesh) -> None:
    parameter = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    assert isinstance(parameter, DTensor)
    assert isinstance(parameter, nn.Parameter)
    assert parameter.is_leaf
    assert parameter.placements == (Shard(0),)


def test_from_local_checked_takes_the_first_rank_for_replicas() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((2, 2))
        local = torch.full((2,), float(mesh.get_rank()))
        x = DTensor.from_local(local, mesh, [Replicate(), Shard(0)], run_check=True)
        assert x.to_local().tolist() == [float(mesh.get_local_rank(1))] * 2

    body()


def test_from_local_checked_gives_the_gradient_to_each_ranks_own_tensor() -> None:
    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        local = torch.full((2,), float(mesh.get_rank()), requires_grad=True)
        x = DTensor.from_local(local, mesh, [Replicate()], run_check=True)
        assert x.to_local().tolist() == [0.0, 0.0]
        (x * 3).sum().backward()
        assert local.grad is not None
        assert local.grad.tolist() == [3.0, 3.0]

    body()


@pytest.mark.parametrize("what", ["dtype", "requires_grad", "shape", "stride"])
def test_from_local_checked_reports_on_every_rank_which_ranks_differ(what: str) -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((2, 2))
        local = torch.ones(3, 3)
        if mesh.get_rank() == 1:
            local = {
                "dtype": local.double(),
                "requires_grad": local.clone().requires_grad_(),
                "shape": torch.ones(2, 3),
                "stride": local.t(),
            }[what]
        with pytest.raises(ValueError, match=r"Inconsistent.* on ranks \[0, 2, 3\]; .*\[1\]"):
            DTensor.from_local(local, mesh, [Replicate(), Shard(0)], run_check=True)
        DTensor.from_local(local, mesh, [Replicate(), Shard(0)], run_check=False)

    body()


def test_full_tensor_is_complete_on_every_rank_and_differentiable() -> None:
    @on_threads(3)
    def body() -> None:
        original = torch.arange(10.0).reshape(5, 2)
        x = distribute_tensor(original, kept_mesh((3,)), [Shard(0)]).requires_grad_()
        full = x.full_tensor()
        assert type(full) is torch.Tensor
        assert torch.equal(full, original)
        (full**2).sum().backward()
        assert isinstance(x.grad, DTensor)
        assert torch.equal(x.grad.full_tensor(), 2 * original)

    body()


def test_the_text_of_a_dtensor_has_global_facts_first_and_then_the_local_part(mesh) -> None:
    facts = "dtype=torch.float32, placements=(Shard(dim=0),), device_mesh=DeviceMesh((tp=4), "
    x = DTensor.from_local(torch.ones(1, 2), mesh, [Shard(0)])
    text = repr(x)
    assert text.startswith(f"DTensor(shape=(4, 2), {facts}")
    assert text.endswith("local_tensor=tensor([[1., 1.]]))")
    assert "requires_grad=True" in repr(x.detach().requires_grad_())
    assert "grad_fn=<MulBackward0>" in repr(x.detach().requires_grad_() * 2)
    assert repr(nn.Parameter(x)).startswith("Parameter containing:\nDTensor(shape=(4, 2)")
    long = repr(DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)]))
    assert long.endswith(
        "local_shape=(2, 2), local_tensor=\n    tensor([[1., 1.],\n            [1., 1.]]))"
    )


def test_a_training_step_keeps_every_optimizer_state_where_its_parameter_is(mesh) -> None:
    weight = nn.Parameter(distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    x = DTensor.from_local(torch.ones(2, 4), mesh, [Replicate()])
    F.linear(x, weight).to_local().sum().backward()
    assert steps_of(optimizer.step) == []
    for name in ("exp_avg", "exp_avg_sq"):
        assert optimizer.state[weight][name].placements == (Shard(0),)


def _refused_from_local(held: int, run_check: bool, shape: tuple[int, ...]) -> str | None:
    """The error on a rank, of four, that holds `held` rows; None if there is no error."""
    mesh = kept_mesh((4,))
    try:
        DTensor.from_local(
            torch.ones(held, 4), mesh, [Shard(0)], shape=shape, stride=(4, 1), run_check=run_check
        )
    except ValueError as error:
        return str(error)
    return None


def test_a_shape_that_the_parts_can_not_have_is_refused() -> None:
    def body(run_check: bool) -> str | None:
        return _refused_from_local(2 if dist.get_rank() == 2 else 3, run_check, (12, 4))

    alone, checked = run_threads(body, 4, False), run_threads(body, 4, True)
    assert [each is not None for each in alone] == [False, False, True, False]
    assert "of shape [2, 4] where [3, 4] is held" in str(alone[2])
    assert len(set(checked)) == 1
    assert "of shape [2, 4] where [3, 4] is held on rank 2" in str(checked[0])


def test_uneven_parts_that_make_up_a_shape_are_taken() -> None:
    def body(run_check: bool) -> str | None:
        return _refused_from_local((3, 3, 3, 1)[dist.get_rank()], run_check, (10, 4))

    assert {*run_threads(body, 4, False), *run_threads(body, 4, True)} == {None}


def test_ranks_that_are_given_other_shapes_are_refused() -> None:
    def body() -> str | None:
        return _refused_from_local(3, True, (12 - dist.get_rank() % 2, 4))

    (error_text,) = set(run_threads(body, 4))
    assert "Inconsistent tensor metadata" in str(error_text)


@pytest.mark.parametrize(("shape", "stride"), [((12,), (1,)), ((12, 4), (1,))])
def test_a_shape_of_other_dims_is_refused(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    def body() -> None:
        with pytest.raises(ValueError, match="one entry per dim of the local tensor"):
            DTensor.from_local(
                torch.ones(3, 4), kept_mesh((4,)), [Shard(0)], shape=shape, stride=stride
            )

    run_threads(body, 4)


def test_neither_tensors_nor_placements_are_instances_of_torchs_classes() -> None:
    """docs/moving-over.md names this difference."""
    with fake_world(2):
        tensor = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
    assert not isinstance(tensor, torchs.DTensor)
    assert isinstance(tensor, DTensor)
    assert not any(isinstance(Shard(0), each) for each in (torchs.Shard, torchs.Placement))
    assert Shard(0).is_shard()
