"""Losses: a mean counts all elements, wherever they are; what is cut leaves addends of it.

Elementwise losses reduce like `mean` and `sum`. The negative log likelihood has a mean weighted by
data: where samples are cut the ranks add up the weights, one number, before they divide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core.placement import sharded_dim
from dtensor_core.redistribute.execute import Cause, execute
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand, operand_of
from dtensor_core.rules.local import called_with
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Local, Operand, Rule
from dtensor_core.spec import Spec

_NONE, _MEAN, _SUM = 0, 1, 2


def _reduction(call: Call) -> int:
    return int(call.argument("reduction", _MEAN))


def _elementwise(call: Call) -> Rule:
    """x, target, weights.. -> the loss of every element, their mean or their sum."""
    shape = torch.broadcast_shapes(*call.shapes)
    reduced = _reduction(call) != _NONE
    return Rule(
        inputs=tuple(operand_of(spec.shape, shape) for spec in call.specs),
        outputs=(() if reduced else full_operand(shape),),
        sizes=factor_sizes(shape),
        local=_by_global_count(math.prod(shape)) if _reduction(call) == _MEAN else None,
    )


def _elementwise_backward(call: Call) -> Rule:
    """grad, x, target, weights.. -> grad of x; linear in the gradient."""
    shape = call.outputs[0].shape
    return Rule(
        inputs=tuple(operand_of(spec.shape, shape) for spec in call.specs),
        outputs=(full_operand(shape),),
        sizes=factor_sizes(shape),
        terms=((0,),),
        algebra="linear",
        local=_by_global_count(math.prod(shape)) if _reduction(call) == _MEAN else None,
    )


def _is_cut(specs: Sequence[Spec]) -> bool:
    return any(sharded_dim(p) is not None for spec in specs for p in spec.placements)


def _by_global_count(count: int) -> Callable[..., Local]:
    """A mean as a sum over the global count, where anything is cut."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        if not _is_cut(inputs):
            return op

        def mean(*args: Any, **kwargs: Any) -> torch.Tensor:
            return called_with(op, args, kwargs, reduction=_SUM).div_(count)

        return mean

    return maker


def _samples(call: Call, x: Spec) -> tuple[Operand, Operand]:
    """X [c], [n, c] or [n, c, h, w], and target, which lacks the classes."""
    whole = full_operand(x.shape)
    dim = 0 if x.ndim == 1 else 1
    return whole, whole[:dim] + whole[dim + 1 :]


def _nll(call: Call) -> Rule:
    """x, target, weight? -> loss, total weight; the classes must be whole."""
    x, target = _samples(call, call.specs[0])
    (classes,) = x[0 if len(x) == 1 else 1]
    weights = (((classes,),),) * (len(call.specs) - 2)
    reduction = _reduction(call)
    return Rule(
        inputs=(x, target, *weights),
        outputs=(target if reduction == _NONE else (), ()),
        sizes=factor_sizes(call.specs[0].shape),
        blocked=frozenset({classes}),
        local=_nll_local(reduction),
    )


def _nll_local(reduction: int) -> Callable[..., Local]:
    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        total = outputs[1]
        if not _is_cut(inputs) or total is None or reduction != _MEAN:
            return op
        whole = total.replicated()
        plan, cause = plan_between(total, whole), Cause(str(op), "total_weight")

        def mean(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            loss, weight = called_with(op, args, kwargs, reduction=_SUM)
            return loss / execute(weight, total, plan, cause), weight

        return mean

    return maker


def _nll_backward(call: Call) -> Rule:
    """grad, x, target, weight?, total weight -> grad of x."""
    x, target = _samples(call, call.specs[1])
    (classes,) = x[0 if len(x) == 1 else 1]
    weights = (((classes,),),) * (len(call.specs) - 4)
    return Rule(
        inputs=(target if call.specs[0].ndim else (), x, target, *weights, ()),
        outputs=(x,),
        sizes=factor_sizes(call.specs[1].shape),
        blocked=frozenset({classes}),
        terms=((0,),),
        algebra="linear",
    )


_ELEMENTWISE = (
    "mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits "
    "soft_margin_loss"
)
_BACKWARD = (
    "mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward "
    "soft_margin_loss_backward"
)
ROWS = {
    name: Row(_elementwise, "elementwise, then a mean by the global count, or a sum")
    for name in _ELEMENTWISE.split()
}
ROWS |= {name: Row(_elementwise_backward, "elementwise", "linear") for name in _BACKWARD.split()}
ROWS |= {
    name: Row(_nll, "n c! s.., n s.., c! -> n s.., 1")
    for name in ("nll_loss_forward", "nll_loss2d_forward")
}
ROWS |= {
    name: Row(_nll_backward, "n s.., n c! s.., n s.., c!, 1 -> n c! s..", "linear")
    for name in ("nll_loss_backward", "nll_loss2d_backward")
}
