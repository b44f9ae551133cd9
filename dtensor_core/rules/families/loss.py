"""Losses: a mean divides by the global number of elements; shards give partial sums.

Elementwise losses reduce like `mean` and `sum`. The mean of the negative log likelihood is weighted
by data: with sharded samples the ranks first reduce the sum of weights, one number. With sharded
classes, a sample's loss is computed by the rank that holds its class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.local.moments import wide
from dtensor_core.local.operator import Local, LocalMaker, by_name, called_with, zeros
from dtensor_core.local.sharded_indexing import Held
from dtensor_core.placement import Partial, Replicate
from dtensor_core.redistribute.execute import Cause, execute
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand, operand_of
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Operand, Rule
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
        local=_mean_of_all(math.prod(shape)) if _reduction(call) == _MEAN else None,
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
        local=_gradient_of_mean(math.prod(shape)) if _reduction(call) == _MEAN else None,
    )


def _is_cut(specs: Sequence[Spec]) -> bool:
    return any(p.sharded_dim is not None for spec in specs for p in spec.placements)


def _mean_of_all(count: int) -> LocalMaker:
    """Compute a mean as a sum over the global count if anything is sharded.

    Losses of half-precision dtypes are float32 until their sum is divided.
    """

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        if not _is_cut(inputs):
            return op

        def mean(*args: Any, **kwargs: Any) -> Any:
            found = called_with(op, args, kwargs, reduction=_NONE)
            losses, *rest = found if isinstance(found, tuple) else (found,)
            made = losses.sum(dtype=wide(losses.dtype)).div_(count).to(losses.dtype)
            return (made, *rest) if rest else made

        return mean

    return maker


def _gradient_of_mean(count: int) -> LocalMaker:
    """Compute the gradient of a mean as that of a sum, divided by the global count, if sharded.

    The gradient of a sum in half precision may overflow, so it is float32.
    """

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        out = outputs[0]
        if not _is_cut(inputs) or out is None:
            return op

        def widened(value: Any) -> Any:
            is_half = isinstance(value, torch.Tensor) and wide(value.dtype) is not value.dtype
            return value.float() if is_half else value

        def gradient(*args: Any, **kwargs: Any) -> torch.Tensor:
            named = {name: widened(value) for name, value in kwargs.items()}
            found = called_with(op, list(map(widened, args)), named, reduction=_SUM)
            return found.div_(count).to(out.dtype)

        return gradient

    return maker


def _samples(x: Spec) -> tuple[Operand, Operand, int]:
    """Return operands of x and of its target, and the dim of the classes.

    x is [c], [n, c] or [n, c, h, w]; the target lacks the classes.
    """
    whole, dim = full_operand(x.shape), min(x.ndim - 1, 1)
    return whole, whole[:dim] + whole[dim + 1 :], dim


def _nll(call: Call) -> Rule:
    """x, target, weight? -> loss, total weight."""
    x, target, dim = _samples(call.specs[0])
    reduction = _reduction(call)
    return Rule(
        inputs=(x, target, *(((),) * spec.ndim for spec in call.specs[2:])),
        outputs=(target if reduction == _NONE else (), ()),
        sizes=factor_sizes(call.specs[0].shape),
        settled=frozenset((1,) if reduction == _MEAN else ()),
        local=_nll_local(dim, reduction),
    )


def _nll_local(dim: int, reduction: int) -> LocalMaker:
    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        whole = outputs[1]
        if not _is_cut(inputs) or whole is None:
            return op
        held, width = Held(op, inputs[0], dim), wide(whole.dtype)
        whole = Spec(whole.mesh, whole.placements, whole.tensor_meta._replace(dtype=width))
        cut = [each.sharded_dim for each in inputs[0].placements]
        addends = [Replicate() if each in (None, dim) else Partial() for each in cut]
        total = whole.with_placements(addends)
        plan, cause = plan_between(total, whole), Cause(str(op), "total_weight")

        def loss(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            given = by_name(op, args, kwargs)
            how = _NONE if reduction == _MEAN else reduction
            found, weight = _of_classes(op, args, kwargs, held, how)
            if reduction != _MEAN:
                return found, weight
            counted = (given["target"] != given["ignore_index"]).to(width)
            if given["weight"] is not None:
                counted *= given["weight"][given["target"].clamp(0, held.size - 1)]
            weight = execute(counted.sum(), total, plan, cause)
            return (found.sum(dtype=width) / weight).to(found.dtype), weight.to(found.dtype)

        return loss

    return maker


def _of_classes(op: Local, args: Sequence[Any], kwargs: Any, held: Held, reduction: int) -> Any:
    """Run the operator on this rank's classes; samples of other classes are ignored."""
    if held.all:
        return called_with(op, args, kwargs, reduction=reduction)
    given = by_name(op, args, kwargs)
    nobody, ignored = held.count, given["target"] == given["ignore_index"]  # no local class is that
    here = held.local(given["target"].masked_fill(ignored, 0), nobody)[0]
    here.masked_fill_(ignored, nobody)
    weight = given["weight"]
    if weight is not None:
        pieces = [weight.narrow(0, at.offset, at.size) for at in held.pieces if at.size]
        weight = torch.cat(pieces or [weight[:1]])
    changed = {"self": held.not_empty(given["self"]), "target": here, "weight": weight}
    changed |= {"reduction": reduction, "ignore_index": nobody}
    return called_with(op, args, kwargs, **changed)


def _nll_backward(call: Call) -> Rule:
    """grad, x, target, weight?, total weight -> grad of x."""
    x, target, dim = _samples(call.specs[1])
    grad, reduction = target if call.specs[0].ndim else (), _reduction(call)

    def local(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        held = Held(op, inputs[1], dim)
        if held.all:
            return op

        def backward(*args: Any, **kwargs: Any) -> torch.Tensor:
            found = _of_classes(op, args, kwargs, held, reduction)
            return found.narrow(dim, 0, held.count)

        return backward

    return Rule(
        inputs=(grad, x, target, *(((),) * spec.ndim for spec in call.specs[3:])),
        outputs=(x,),
        sizes=factor_sizes(call.specs[1].shape),
        terms=((0,),),
        algebra="linear",
        local=local,
        unread=frozenset(() if reduction == _MEAN else (len(call.specs) - 1,)),
    )


def _margins(call: Call) -> Rule | None:
    """grad?, x [n, c], target [n] or [n, c], weight? -> one number per sample, or the grad of x."""
    if not call.outputs:  # without a meta kernel the metadata is known for contiguous tensors only
        return None
    x, samples, dim = _samples(call.argument("self"))
    operands = {"self": x, "is_target": x, "weight": ((),)}
    operands["target"] = x if call.argument("target").ndim == len(x) else samples
    backward = "grad_output" in call.names
    each = samples if _reduction(call) == _NONE else ()
    operands["grad_output"] = each
    number = call.names.index("self")
    count = math.prod(call.specs[number].shape[:dim]) if _reduction(call) == _MEAN else None

    def local(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Local:
        if 0 in inputs[number].local_shape and inputs[number].is_sharded():
            return zeros(op, outputs)  # pyright: ignore[reportArgumentType]
        if count is None:
            return op
        of_mean = _gradient_of_mean if backward else _mean_of_all
        return of_mean(count)(op, inputs, outputs)

    return Rule(
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
ROWS = {
    name: Row(_elementwise, "elementwise, then a mean by the global count, or a sum")
    for name in _ELEMENTWISE.split()
}
ROWS |= {name: Row(_elementwise_backward, "elementwise", "linear") for name in _BACKWARD.split()}
ROWS |= {
    name: Row(_nll, "n c s.., n s.., c! -> n s.., 1")
    for name in ("nll_loss_forward", "nll_loss2d_forward")
}
ROWS |= {
    name: Row(_nll_backward, "n s.., n c s.., n s.., c!, 1 -> n c s..", "linear")
    for name in ("nll_loss_backward", "nll_loss2d_backward")
}
ROWS |= {
    name: Row(_margins, "n c!, n, c! -> n")
    for name in (
        "multi_margin_loss",
        "multi_margin_loss_backward",
        "multilabel_margin_loss_forward",
        "multilabel_margin_loss_backward",
    )
}
