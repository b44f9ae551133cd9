"""Rules that several families build: replicated, structural, and with replicated dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtensor_core.operators.kernels.local_operator import LocalMaker
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand, operand_of
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule
from dtensor_core.spec import Spec, TensorMeta


def reduced_dims(call: Call, ndim: int) -> tuple[int, ...]:
    """Return the dimensions that a call reduces, non-negative; all of them if none is named."""
    dim = call.argument("dim")
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(ndim))
    dims = dim if isinstance(dim, (list, tuple)) else (dim,)
    return tuple(each % max(ndim, 1) for each in dims)


def kept_dims(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> Operand:
    """Return the operand of a reduction's result."""
    operand = full_operand(shape)
    if keepdim:
        return tuple(() if dim in dims else names for dim, names in enumerate(operand))
    return tuple(names for dim, names in enumerate(operand) if dim not in dims)


def _replicated(call: Call, outputs_keep_dim: bool) -> ShardingRule:
    """Build a rule in which all tensors have the shape of the first, and `dim` is not sharded."""
    shape = call.specs[0].shape
    dims = reduced_dims(call, len(shape))
    keepdim = outputs_keep_dim or bool(call.argument("keepdim", False))
    out = full_operand(shape) if outputs_keep_dim else kept_dims(shape, dims, keepdim)
    return ShardingRule(
        inputs=(full_operand(shape),) * len(call.specs),
        outputs=(out,) * len(call.outputs),
        sizes=factor_sizes(shape),
        blocked=frozenset(f"d{dim}" for dim in dims),
    )


def replicated_dim(call: Call) -> ShardingRule:
    """Build a rule in which the dimension is not sharded, and every tensor has it."""
    return _replicated(call, outputs_keep_dim=True)


def replicated_reduced_dims(call: Call) -> ShardingRule:
    """Build a rule in which the dimensions are not sharded, and no result has them."""
    return _replicated(call, outputs_keep_dim=False)


def replicated_rule(call: Call) -> ShardingRule:
    """Return the rule with every argument and every result replicated."""
    return ShardingRule(
        inputs=tuple(() for _ in call.specs), outputs=tuple(() for _ in call.outputs), sizes={}
    )


def structural_rule(
    inputs: tuple[Operand, ...],
    outputs: tuple[Operand, ...],
    sizes: dict[str, int],
    blocked: Sequence[str] = (),
    local: LocalMaker | None = None,
) -> ShardingRule:
    """Build a rule that passes all Partials; several arguments must all be Partial."""
    return ShardingRule(
        inputs=inputs,
        outputs=outputs,
        sizes=sizes,
        blocked=frozenset(blocked),
        terms=tuple((number,) for number in range(len(inputs))),
        algebra="structural",
        local=local,
    )


def elementwise_rule(call: Call) -> ShardingRule:
    """Build the rule of elementwise results, through which no Partial passes."""
    shape = call.outputs[0].shape
    return ShardingRule(
        inputs=tuple(operand_of(spec.shape, shape) for spec in call.specs),
        outputs=tuple(
            full_operand(shape) if meta.shape == shape else ((),) * len(meta.shape)
            for meta in call.outputs
        ),
        sizes=factor_sizes(shape),
    )


def reduction_with_zeros(spec: Spec | TensorMeta) -> str:
    """Return the reduction that combines zeros with the values read on other ranks."""
    return "max" if spec.dtype is torch.bool else "sum"
