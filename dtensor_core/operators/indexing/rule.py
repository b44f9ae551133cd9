"""Reads and writes at positions that tensors hold: `x[i, j]`, index_put, take, put.

Along a sharded indexed dimension every rank holds some of the positions. A read returns zeros for
positions of other ranks, so that results are partial sums; a write goes to a tensor with an extra
row, where positions of other ranks land and are dropped. With sharded indices, results of reads are
sharded, and accumulated results are partial sums. None of this communicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.operators.indexing.local import putting_at, putting_flat, reading_at, taking
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.rule_builders import reduction_with_zeros, replicated_rule
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule, Terms
from dtensor_core.spec import Spec

aten = torch.ops.aten


def _masked_put(call: Call) -> ShardingRule:
    """`x[mask] = y` is elementwise unless y has one element per selected element."""
    target, indices, value = call.args[:3]
    (first, mask), *more = [(n, each) for n, each in enumerate(indices) if isinstance(each, Spec)]
    x, behind = full_operand(target.shape), first + mask.ndim
    selected = (*x[:first], (), *x[behind:])
    sizes = (*target.shape[:first], 1, *target.shape[behind:])
    place = value.ndim - len(x[behind:]) - 1
    if more or value.ndim > len(selected) or (place >= 0 and value.shape[place] != 1):
        return replicated_rule(call)
    return ShardingRule(
        inputs=(x, x[first:behind], _spread(value.shape, selected, sizes)),
        outputs=(x,),
        sizes=factor_sizes(target.shape),
    )


def _is_mask(indices: Sequence[Any]) -> bool:
    masks = (torch.bool, torch.uint8)
    return any(isinstance(each, Spec) and each.dtype in masks for each in indices)


def _advanced(call: Call) -> tuple[Operand, Operand, list[Operand], dict[str, int], list[int]]:
    """Return operands of x, of x[indices] and of the indices; sizes; and the indexed dims.

    The broadcast dims of the indices come first in the result, or at the place of the indexed dims
    if those are adjacent.
    """
    spec, indices = call.specs[0], call.args[1]
    dims = [dim for dim, each in enumerate(indices) if isinstance(each, Spec)]
    shape = torch.broadcast_shapes(*(indices[dim].shape for dim in dims))
    x = full_operand(spec.shape)
    broadcast = tuple((f"i{dim}",) for dim in range(len(shape)))
    kept = [names for dim, names in enumerate(x) if dim not in dims]
    first = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    out = (*kept[:first], *broadcast, *kept[first:])
    sizes = {**factor_sizes(spec.shape), **{f"i{dim}": size for dim, size in enumerate(shape)}}
    given = [_spread(each.shape, broadcast, shape) for each in indices if isinstance(each, Spec)]
    return x, out, given, sizes, dims


def _index(call: Call) -> ShardingRule:
    """x[indices]; the result's shape depends on the data of a mask."""
    if _is_mask(call.args[1]):
        return replicated_rule(call)
    x, out, given, sizes, dims = _advanced(call)
    first = out.index(("i0",)) if ("i0",) in out else dims[0]
    return ShardingRule(
        inputs=(x, *given),
        outputs=(out,),
        sizes=sizes,
        reduce=reduction_with_zeros(call.specs[0]),
        terms=((0,),),
        algebra="structural",
        local=reading_at(dims, first),
    )


def _take(call: Call) -> ShardingRule:
    """x, positions in flattened x -> the elements there."""
    spec, at = call.specs
    if 0 in spec.shape or not spec.ndim:
        return replicated_rule(call)
    index = tuple((f"i{dim}",) for dim in range(at.ndim))
    return ShardingRule(
        inputs=(full_operand(spec.shape), index),
        outputs=(index,),
        sizes={**factor_sizes(spec.shape), **{f"i{n}": size for n, size in enumerate(at.shape)}},
        reduce=reduction_with_zeros(spec),
        terms=((0,),),
        algebra="structural",
        local=taking,
    )


def _put(call: Call) -> ShardingRule:
    """x, positions in flattened x, source -> x with the elements of source there."""
    spec = call.specs[0]
    x = full_operand(spec.shape)
    if 0 in spec.shape or not spec.ndim:
        return replicated_rule(call)
    replicated = tuple(((),) * each.ndim for each in call.specs[1:])
    return ShardingRule((x, *replicated), (x,), factor_sizes(spec.shape), local=putting_flat)


def _index_put(call: Call) -> ShardingRule:
    """x[indices] = values, replaced or added."""
    indices = call.args[1]
    if _is_mask(indices):
        return _masked_put(call)
    x, out, given, sizes, dims = _advanced(call)
    values = call.specs[-1]
    shape = [sizes[name] for (name,) in out]
    adds = bool(call.argument("accumulate", False))
    source = _spread(values.shape, out, shape)
    blocked = {name for name in sizes if name.startswith("i") and not (adds and (name,) in source)}
    return ShardingRule(
        inputs=(x, *given, source),
        outputs=(x,),
        sizes=sizes,
        blocked=frozenset(blocked),
        terms=((0,), (len(call.specs) - 1,)),
        algebra="linear" if adds else "structural",
        local=putting_at(dims),
    )


def _spread(shape: Sequence[int], operand: Operand, sizes: Sequence[int]) -> Operand:
    first = len(sizes) - len(shape)
    return tuple(
        () if size == 1 and sizes[first + dim] != 1 else operand[first + dim]
        for dim, size in enumerate(shape)
    )


_READ = "each rank reads its positions; a sharded dim gives partial sums"
_WRITTEN = "each rank writes its positions"
_BOTH: Terms = ((0,), (2,))


ROWS = {
    **same_row(
        "nonzero masked_select _unique _unique2 unique_dim unique_consecutive bincount",
        Row(replicated_rule, "replicated: data decides the shape"),
    ),
    **same_row("index _unsafe_index", Row(_index, _READ, "structural")),
    **same_row(
        "index_put _unsafe_index_put _index_put_impl",
        Row(_index_put, _WRITTEN, "structural", _BOTH),
    ),
    "take": Row(_take, _READ, "structural"),
    "put": Row(_put, _WRITTEN),
}
