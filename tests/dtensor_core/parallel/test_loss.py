"""Cross entropy over sharded classes matches a single device, and sends only numbers per sample."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import (
    DTensor,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
    observe,
)
from dtensor_core.parallel import loss_parallel
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives

LAYOUTS: tuple[tuple[tuple[int, ...], tuple[Placement, ...]], ...] = (
    ((4,), (Shard(1),)),
    ((2, 2), (Shard(0), Shard(1))),
    ((2, 2), (Shard(1), Replicate())),
)


def _t(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(6, 10), (3, 7, 4), (2, 9, 3, 2)], ids=str)
def test_loss_and_gradient_equal_one_device(shape: tuple[int, ...], reduction: str) -> None:
    logits, targets = _t(*shape), _ids(shape[1], shape[0], *shape[2:])
    targets[0] = 2
    options: list[dict[str, Any]] = [
        {"ignore_index": ignore, "weight": weight, "label_smoothing": smoothing}
        for ignore, weight, smoothing in itertools.product(
            (-100, 2), (None, _t(shape[1]).abs()), (0.0, 0.1)
        )
    ]
    expected = []
    for option in options:
        leaf = logits.clone().requires_grad_()
        loss = F.cross_entropy(leaf, targets, reduction=reduction, **option)
        loss.sum().backward()
        expected.append((loss.detach(), leaf.grad))

    @on_threads(4)
    def body() -> None:
        for (mesh_shape, layout), (option, (loss, grad)) in itertools.product(
            LAYOUTS, zip(options, expected, strict=True)
        ):
            mesh = kept_mesh(mesh_shape)
            leaf = distribute_tensor(logits, mesh, layout).requires_grad_()
            with loss_parallel():
                found = F.cross_entropy(leaf, targets, reduction=reduction, **option)
                found.sum().backward()
            assert isinstance(found, DTensor)
            torch.testing.assert_close(found.full_tensor(), loss)
            assert isinstance(leaf.grad, DTensor)
            assert leaf.grad.placements == layout
            torch.testing.assert_close(leaf.grad.full_tensor(), grad)

    body()


def test_no_logits_travel() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        logits = distribute_tensor(_t(6, 400), mesh, [Shard(1)]).requires_grad_()
        reasons: list[observe.Reason] = []
        with observe.listening(reasons.append), loss_parallel():
            F.cross_entropy(logits, _ids(400, 6)).backward()
        assert {reason.step for reason in reasons} == {"all_reduce"}
        assert max(reason.payload_bytes for reason in reasons) == 6 * 4
        assert len(reasons) <= 4


def test_it_ends_with_an_exception() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        logits = distribute_tensor(_t(6, 400), mesh, [Shard(1)])
        with pytest.raises(KeyError), loss_parallel():
            raise KeyError
        reasons: list[observe.Reason] = []
        with observe.listening(reasons.append):
            F.log_softmax(logits, 1)
        assert [reason.step for reason in reasons] == ["all_gather"]


def test_logits_that_are_not_sharded_by_class_have_no_parallel_loss() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        logits = distribute_tensor(_t(8, 10), mesh, [Shard(0)])
        with loss_parallel():
            out = F.log_softmax(logits, 1)
            with pytest.raises(ValueError, match=r"loss_parallel\(\) requires an axis"):
                F.cross_entropy(logits, torch.zeros(8, dtype=torch.long))
        assert out.placements == (Shard(0),)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@on_threads(4)
def test_three_reductions_forward_and_nothing_backward(reduction):
    mesh = kept_mesh((4,))
    logits = distribute_tensor(_t(6, 10), mesh, [Shard(1)]).requires_grad_()
    target = _ids(10, 6)
    with loss_parallel():
        with Collectives() as forward:
            loss = F.cross_entropy(logits, target, reduction=reduction)
        assert forward == {"all_reduce": 3}
        assert loss.placements == (Replicate(),)
        with Collectives() as backward:
            loss.sum().backward()
    assert backward == {}
    assert logits.grad.placements == (Shard(1),)


SINGULAR: dict[str, dict[tuple[int, int], float]] = {
    "classes that are ruled out": {(0, 3): -math.inf, (1, 6): -math.inf},
    "a target that is ruled out": {(0, 0): -math.inf},
    "an overflow": {(1, 5): math.inf},
    "nan": {(2, 7): math.nan},
    "nothing but minus infinity": {(0, n): -math.inf for n in range(10)},
    "nan of an ignored sample": {(4, n): math.nan for n in range(10)},
    "an ignored class that is ruled out": {(4, 4): -math.inf},
}


@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize(
    "options",
    [{}, {"weighted": True}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 4}],
    ids=str,
)
def test_what_is_not_finite_is_as_on_one_device(name: str, options: dict[str, Any]) -> None:
    x, target = _t(5, 10), torch.tensor([0, 1, 2, 3, options.get("ignore_index", -100)])
    for place, value in SINGULAR[name].items():
        x[place] = value
    options = dict(options)
    if options.pop("weighted", False):
        options["weight"] = torch.arange(10.0)
    alone = x.clone().requires_grad_()
    wanted = F.cross_entropy(alone, target, **options)
    wanted.sum().backward()

    @on_threads(4)
    def body() -> None:
        mine = distribute_tensor(x, kept_mesh((4,)), [Shard(1)], src_data_rank=None)
        mine.requires_grad_()
        with loss_parallel():
            loss: Any = F.cross_entropy(mine, target, **options)
            loss.sum().backward()
        grad: Any = mine.grad
        for found, expected in ((loss, wanted), (grad, alone.grad)):
            torch.testing.assert_close(found.full_tensor(), expected, equal_nan=True)

    body()
