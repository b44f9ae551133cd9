"""Losses: a mean divides by the global number of elements; shards give partial sums.

Elementwise losses reduce like `mean` and `sum`. The mean of the negative log likelihood is weighted
by data: with sharded samples the ranks first reduce the sum of weights, a scalar. With sharded
classes, a sample's loss is computed by the rank that holds its class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local, zeros
from dtensor_core.operators.kernels.local_positions import LocalPositions
from dtensor_core.operators.loss.local import (
    MEAN,
    NONE,
    gradient_of_mean,
    mean_by_global_count,
    nll,
    on_local_classes,
)
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand, operand_of
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.rule_builders import elementwise_rule
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule
from dtensor_core.spec import Spec


def _reduction(call: Call) -> int:
    return int(call.argument("reduction", MEAN))


def _elementwise(call: Call) -> ShardingRule:
    """x, target, weights.. -> the loss of every element, their mean or their sum."""
    shape = torch.broadcast_shapes(*call.shapes)
    reduced = _reduction(call) != NONE
    return ShardingRule(
        inputs=tuple(operand_of(spec.shape, shape) for spec in call.specs),
        outputs=(() if reduced else full_operand(shape),),
        sizes=factor_sizes(shape),
        local=mean_by_global_count(math.prod(shape)) if _reduction(call) == MEAN else None,
    )


def _elementwise_backward(call: Call) -> ShardingRule:
    """grad, x, target, weights.. -> grad of x; linear in the gradient."""
    return replace(
        elementwise_rule(call),
        terms=((0,),),
        algebra="linear",
        local=gradient_of_mean(math.prod(call.outputs[0].shape))
        if _reduction(call) == MEAN
        else None,
    )


def _samples(x: Spec) -> tuple[Operand, Operand, int]:
    """Return operands of x and of its target, and the dim of the classes.

    x is [c], [n, c] or [n, c, h, w]; the target lacks the classes.
    """
    full, dim = full_operand(x.shape), min(x.ndim - 1, 1)
    return full, full[:dim] + full[dim + 1 :], dim


def _nll(call: Call) -> ShardingRule:
    """x, target, weight? -> loss, total weight."""
    x, target, dim = _samples(call.specs[0])
    reduction = _reduction(call)
    return ShardingRule(
        inputs=(x, target, *(((),) * spec.ndim for spec in call.specs[2:])),
        outputs=(target if reduction == NONE else (), ()),
        sizes=factor_sizes(call.specs[0].shape),
        settled=frozenset((1,) if reduction == MEAN else ()),
        local=nll(dim, reduction),
    )


def _nll_backward(call: Call) -> ShardingRule:
    """grad, x, target, weight?, total weight -> grad of x."""
    x, target, dim = _samples(call.specs[1])
    grad, reduction = target if call.specs[0].ndim else (), _reduction(call)

    def local(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        positions = LocalPositions(op, inputs[1], dim)
        if positions.all:
            return op

        def backward(*args: Any, **kwargs: Any) -> torch.Tensor:
            found = on_local_classes(op, args, kwargs, positions, reduction)
            return found.narrow(dim, 0, positions.count)

        return backward

    return ShardingRule(
        inputs=(grad, x, target, *(((),) * spec.ndim for spec in call.specs[3:])),
        outputs=(x,),
        sizes=factor_sizes(call.specs[1].shape),
        terms=((0,),),
        algebra="linear",
        local=local,
        unread=frozenset(() if reduction == MEAN else (len(call.specs) - 1,)),
    )


def _margins(call: Call) -> ShardingRule | None:
    """grad?, x [n, c], target [n] or [n, c], weight? -> one number per sample, or the grad of x."""
    if not call.outputs:  # without a meta kernel the metadata is known for contiguous tensors only
        return None
    x, samples, dim = _samples(call.argument("self"))
    operands = {"self": x, "is_target": x, "weight": ((),)}
    operands["target"] = x if call.argument("target").ndim == len(x) else samples
    backward = "grad_output" in call.names
    each = samples if _reduction(call) == NONE else ()
    operands["grad_output"] = each
    number = call.names.index("self")
    count = math.prod(call.specs[number].shape[:dim]) if _reduction(call) == MEAN else None

    def local(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Local:
        if 0 in inputs[number].local_shape and inputs[number].is_sharded():
            return zeros(op, outputs)  # pyright: ignore[reportArgumentType]
        if count is None:
            return op
        of_mean = gradient_of_mean if backward else mean_by_global_count
        return of_mean(count)(op, inputs, outputs)

    return ShardingRule(
        inputs=tuple(operands[name] for name in call.names),
        outputs=(x,) if backward else (each, x)[: len(call.outputs)],
        sizes=factor_sizes(call.argument("self").shape),
        blocked=frozenset(x[dim] if x else ()),
        local=local,  # pyright: ignore[reportArgumentType]
    )


_ELEMENTWISE = (
    "mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits "
    "soft_margin_loss"
)
_BACKWARD = (
    "mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward "
    "soft_margin_loss_backward"
)
ROWS = same_row(
    _ELEMENTWISE, Row(_elementwise, "elementwise, then a mean by the global count, or a sum")
)
ROWS |= same_row(_BACKWARD, Row(_elementwise_backward, "elementwise", "linear"))
ROWS |= same_row("nll_loss_forward nll_loss2d_forward", Row(_nll, "n c s.., n s.., c! -> n s.., 1"))
ROWS |= same_row(
    "nll_loss_backward nll_loss2d_backward",
    Row(_nll_backward, "n s.., n c s.., n s.., c!, 1 -> n c s..", "linear"),
)
ROWS |= same_row(
    "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward "
    "multilabel_margin_loss_backward",
    Row(_margins, "n c!, n, c! -> n"),
)
