"""Reduced losses count all elements, however unevenly sharded; so do their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import Partial, Replicate, Shard
from dtensor_core.placement import _StridedShard
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

R, P = Replicate(), Partial()


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1


ELEMENTWISE = (
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits soft_margin_loss kl_div poisson_nll_loss"
)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ELEMENTWISE.split())
def test_an_elementwise_loss_is_that_of_one_device(name: str, reduction: str) -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        if name == "kl_div":
            return F.kl_div(x, y, reduction=reduction)
        return getattr(F, name)(x, y, reduction=reduction)

    x, y = _t(5, 3).requires_grad_(), _t(5, 3) * 0.9
    for layouts in ((Shard(0), Shard(0)), (Shard(1), R), (P, Shard(0)), (R, Shard(1)), (P, P)):
        assert_agrees(loss, [x, y], [[each] for each in layouts])


def test_a_gaussian_likelihood_is_that_of_one_device() -> None:
    x, y, variance = _t(5, 3).requires_grad_(), _t(5, 3) * 2, _t(5, 3).requires_grad_()
    for layout in (Shard(0), Shard(1), R):
        assert_agrees(F.gaussian_nll_loss, [x, y, variance], [[layout], [R], [layout]])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_that_of_one_device(
    reduction: str, weighted: bool, smoothing: float
) -> None:
    x = (_t(5, 7) * 4).requires_grad_()
    target = torch.tensor([3, 0, 1, 6, 1])
    weight = _t(7)

    def loss(x: torch.Tensor, target: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(
            x,
            target,
            weight[0] if weight else None,
            ignore_index=1,
            reduction=reduction,
            label_smoothing=smoothing,
        )

    tensors = [x, target, *([weight] if weighted else [])]
    for layouts in ((Shard(0), Shard(0)), (Shard(0), R), (Shard(1), R), (P, Shard(0))):
        assert_agrees(loss, tensors, [[each] for each in (*layouts, R)][: len(tensors)])


def test_cross_entropy_of_images_and_on_two_axes() -> None:
    x, target = _t(3, 5, 2, 4).requires_grad_(), torch.arange(24).reshape(3, 2, 4) % 5
    for layouts in ((Shard(0), Shard(0)), (Shard(3), Shard(2)), (Shard(1), R)):
        assert_agrees(F.cross_entropy, [x, target], [[each] for each in layouts])
    x, target = _t(7, 5).requires_grad_(), torch.arange(7) % 5
    for layout in ([Shard(0), Shard(0)], [Shard(0), R], [R, Shard(0)]):
        assert_agrees(F.cross_entropy, [x, target], [layout, layout], mesh_shape=(2, 2))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss])
def test_losses_of_margins_are_those_of_one_device(loss: Any, reduction: str) -> None:
    x = _t(5, 7).requires_grad_()
    target = torch.tensor([3, 0, 1, 6, 1])
    if loss is F.multilabel_margin_loss:
        target = torch.stack([target, target * 0 - 1, *[target] * 5], 1)
    for layouts in ((Shard(0), Shard(0)), (Shard(0), R), (Shard(1), R), (P, Shard(0))):
        found = [[each] for each in layouts]
        assert_agrees(lambda *t: loss(*t, reduction=reduction), [x, target], found)


GATHER, REDUCE = {"all_gather_into_tensor": 1}, {"all_reduce": 1}


@pytest.mark.parametrize(
    ("reduction", "sharding", "forward", "backward"),
    [
        # Sharded samples have losses of their own; a mean counts them, in one number. The total
        # weight of a sum is not used.
        ("sum", Shard(0), {}, {}),
        ("mean", Shard(0), REDUCE, {}),
        # With sharded classes ranks share a log-sum of each sample, and the gradient needs one sum.
        ("sum", Shard(1), GATHER, GATHER),
        ("mean", Shard(1), GATHER, GATHER),
    ],
)
def test_cross_entropy_sends_numbers_of_samples_and_not_logits(
    reduction: str, sharding: Any, forward: Any, backward: Any
) -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        logits = laid_out(_t(8, 1 << 15).requires_grad_(), mesh, [sharding])
        target = laid_out(torch.arange(8), mesh, [sharding if sharding == Shard(0) else R])
        with Collectives() as issued:
            loss: Any = F.cross_entropy(logits, target, reduction=reduction)
        assert issued == forward
        assert loss.placements == (P,)
        with Collectives() as issued:
            (found,) = torch.autograd.grad(loss, [logits], torch.ones_like(loss))
        assert issued == backward
        assert found.placements == (sharding,)  # pyright: ignore[reportAttributeAccessIssue]

    body()


@pytest.mark.parametrize("size", [8, 16])
def test_a_gate_over_halves_of_a_sharded_dim_is_that_of_one_device(size: int) -> None:
    for sharding in (Shard(0), Shard(1), _StridedShard(1, split_factor=2)):
        assert_agrees(F.glu, [_t(3, size).requires_grad_()], [[sharding]])


def test_a_gate_over_halves_that_are_sharded_alike_sends_nothing() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        halves = laid_out(_t(3, 16).requires_grad_(), mesh, [_StridedShard(1, split_factor=2)])
        with Collectives() as issued:
            gated: Any = F.glu(halves)
            (found,) = torch.autograd.grad(gated, [halves], torch.ones_like(gated))
        assert issued == {}
        assert gated.placements == (Shard(1),)
        assert found.placements == halves.placements  # pyright: ignore

    body()
