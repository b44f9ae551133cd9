"""Operators that take only shape and dtype from their argument.

Their results have the same value everywhere: they are replicated where the argument is a Partial,
and sharded where it is sharded. The argument's values are not read, so nothing is communicated for
it.
"""

from __future__ import annotations

from dataclasses import replace

from dtensor_core.operators.factory.local import unchanged
from dtensor_core.operators.kernels.local_operator import with_local_size
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.rule_builders import elementwise_rule, structural_rule
from dtensor_core.operators.rules.sharding_rule import Candidate, ShardingRule
from dtensor_core.placement import Partial, Replicate


def _like(call: Call) -> ShardingRule:
    partials = dict.fromkeys(p for p in call.specs[0].placements if isinstance(p, Partial))
    extra = tuple(Candidate((partial,), (Replicate(),)) for partial in partials)
    return replace(elementwise_rule(call), extra=extra)


def _new(call: Call) -> ShardingRule:
    """A new tensor: laid out like the argument if it has its shape, otherwise replicated.

    Autograd makes a `new_empty_strided` before it copies a gradient into it, so that stays Partial.
    It makes a `new_zeros` to fill a part of it, along a dim that is not sharded.
    """
    shape, out, name = call.specs[0].shape, call.outputs[0].shape, call.op._schema.name
    comparable = out == shape or (name == "aten::new_zeros" and len(out) == len(shape))
    same = {dim for dim in range(len(shape)) if comparable and out[dim] == shape[dim]}
    stays = name == "aten::new_empty_strided" and out == shape
    others = dict.fromkeys(
        p for p in call.specs[0].placements if p.is_partial() or p.sharded_dim not in {*same, None}
    )
    return ShardingRule(
        inputs=(tuple((f"d{dim}",) if dim in same else () for dim in range(len(shape))),),
        outputs=(tuple((f"d{dim}",) if dim in same else () for dim in range(len(out))),),
        sizes={f"d{dim}": shape[dim] for dim in sorted(same)},
        extra=tuple(
            Candidate((p,), (p if stays and p.is_partial() else Replicate(),)) for p in others
        ),
        local=with_local_size(1),
    )


def _tangent(call: Call) -> ShardingRule | None:
    """Zeros of the second argument's shape, for a missing tangent of the first."""
    tensor, other = call.specs
    if tensor.shape != other.shape:
        return None
    both = zip(tensor.placements, other.placements, strict=True)
    partial = dict.fromkeys(pair for pair in both if any(p.is_partial() for p in pair))
    extra = tuple(Candidate(pair, (Replicate(),)) for pair in partial)
    return replace(elementwise_rule(call), extra=extra)


def _resize(call: Call) -> ShardingRule:
    """Resize to the shape that the tensor has, as `torch.randn(..., out=x)` does: no effect."""
    full = full_operand(call.specs[0].shape)
    return structural_rule((full,), (full,), factor_sizes(call.specs[0].shape), local=unchanged)


_LIKE = "ones_like zeros_like empty_like full_like"
_NEW = "new_empty new_zeros new_ones new_full new_empty_strided"

ROWS = {name: Row(_like, "shape of the argument") for name in _LIKE.split()}
ROWS["resize"] = Row(_resize, "in place, to the same shape", "structural")
ROWS["_new_zeros_with_same_feature_meta"] = Row(_tangent, "like the second argument")
ROWS |= {name: Row(_new, "replicated, or like the argument") for name in _NEW.split()}
