"""Reads and writes by an index along a dimension: gather, scatter, index_select, index_add.

Along a sharded indexed dimension every rank holds some of the positions. A read returns zeros for
positions of other ranks, so that results are partial sums; a write goes to a tensor with an extra
row, where positions of other ranks land and are dropped. With a sharded index, results of reads are
sharded, and accumulated results are partial sums. None of this communicates.
"""

from __future__ import annotations

import torch

from dtensor_core.operators.gather_scatter.local import reading
from dtensor_core.operators.kernels.local_positions import writing
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.rule_builders import reduction_with_zeros, replicated_rule
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule, Terms


def _dim(call: Call) -> int:
    return int(call.argument("dim", 0)) % max(call.specs[0].ndim, 1)


def _with(operand: Operand, dim: int, *names: str) -> Operand:
    """Replace a dimension of an operand by a factor, or by none."""
    return tuple(tuple(names) if each == dim else found for each, found in enumerate(operand))


def _index_select(call: Call) -> ShardingRule:
    """x, dim, index [i] -> x with the dimension as long as the index."""
    spec, dim = call.specs[0], _dim(call)
    if not spec.ndim:
        return replicated_rule(call)
    full = full_operand(spec.shape)
    index = (("i",),) if call.specs[1].ndim else ()
    return ShardingRule(
        inputs=(full, index),
        outputs=(_with(full, dim, "i") if index else _with(full, dim),),
        sizes={**factor_sizes(spec.shape), **({"i": call.specs[1].shape[0]} if index else {})},
        reduce=reduction_with_zeros(spec),
        terms=((0,),),
        algebra="structural",
        local=reading,
    )


def _aligned(call: Call, *, index: int) -> tuple[Operand, Operand, dict[str, int], set[str]]:
    """Return operands of x and of an index with the same dims, perhaps shorter.

    Dims of equal size share a factor. Also returns the sizes, and the factors of unequal dims.
    """
    spec, at, dim = call.specs[0], call.specs[index], _dim(call)
    names = [
        (f"d{each}",) if each != dim and at.shape[each] == size else (f"x{each}",)
        for each, size in enumerate(spec.shape)
    ]
    other = [
        (f"d{each}",) if each != dim and spec.shape[each] == size else (f"i{each}",)
        for each, size in enumerate(at.shape)
    ]
    sizes = {name: size for (name,), size in zip(names, spec.shape, strict=True)}
    sizes |= {name: size for (name,), size in zip(other, at.shape, strict=True)}
    unequal = {name for name in sizes if name[0] in "xi" and name not in (f"x{dim}", f"i{dim}")}
    return tuple(names), tuple(other), sizes, unequal


def _gather(call: Call) -> ShardingRule:
    """x, dim, index -> an element of x per element of the index."""
    spec, at = call.specs[0], call.specs[1]
    if not spec.ndim or spec.ndim != at.ndim:
        return replicated_rule(call)
    x, index, sizes, blocked = _aligned(call, index=1)
    blocked |= {name for name in sizes if name[0] == "x" and name != f"x{_dim(call)}"}
    return ShardingRule(
        inputs=(x, index),
        outputs=(index,),
        sizes=sizes,
        blocked=frozenset(blocked),
        reduce=reduction_with_zeros(spec),
        terms=((0,),),
        algebra="structural",
        local=reading,
    )


def _scatter(call: Call) -> ShardingRule:
    """x, dim, index, source? -> x, overwritten or added to at the index."""
    spec, at = call.specs[0], call.specs[1]
    if (
        not spec.ndim
        or not at.ndim
        or any(each.ndim != spec.ndim for each in call.specs[1:3] if each.ndim)
    ):
        return replicated_rule(call)
    x, index, sizes, blocked = _aligned(call, index=1)
    sources: list[Operand] = []
    for source in call.specs[2:]:
        if not source.ndim:
            sources.append(())
            continue
        for each in range(spec.ndim):
            if source.shape[each] != at.shape[each]:
                blocked |= {f"d{each}", f"i{each}"}
        sources.append(index)
    terms, algebra = _written(call)
    joins = _joins(call, algebra)
    if not joins or sources != [index]:
        blocked.add(f"i{_dim(call)}")
    return ShardingRule(
        inputs=(x, index, *sources),
        outputs=(x,),
        sizes=sizes,
        blocked=frozenset(blocked),
        reduce=joins or "sum",
        terms=terms,
        algebra=algebra,
        local=writing,
    )


# Algebra of writing by a reduction; without one, elements are only moved.
_REDUCING = {None: "structural", "add": "linear", "sum": "linear", "multiply": "product"}
_REDUCING |= {"prod": "product", "amax": "max", "amin": "min"}


def _written(call: Call) -> tuple[Terms, str]:
    """Return terms and algebra of a write, of elements of another tensor or of a constant."""
    adds = call.op._schema.name.startswith(("aten::scatter_add", "aten::index_add"))
    reduce = "add" if adds else call.argument("reduce")
    if len(call.specs) < 3 or not call.specs[2].ndim:
        return ((0,),), "opaque" if reduce else "affine increasing"
    return ((0,), (2,)), _REDUCING.get(reduce, "opaque")


_JOINING = {"linear": "sum", "product": "product", "max": "max", "min": "min"}


def _joins(call: Call, algebra: str) -> str:
    """Return the reduction that combines written and existing values; empty if there is none."""
    if call.specs[0].dtype is torch.bool or not call.argument("include_self", True):
        return ""
    if algebra == "product" and call.specs[0].dtype.is_complex:  # no backend multiplies complex
        return ""
    return _JOINING.get(algebra, "")


def _index_write(call: Call) -> ShardingRule:
    """x, dim, index [i], source? -> x, overwritten or added to at entire slices."""
    spec, dim = call.specs[0], _dim(call)
    full = full_operand(spec.shape)
    # The kernel that multiplies half-precision numbers fails on one row, which may be a rank's
    # share.
    fails = spec.dtype.itemsize == 2 and call.argument("reduce") == "prod"
    if not spec.ndim or not call.specs[1].ndim or fails:
        return replicated_rule(call)
    index = (("i",),)
    sources = [_with(full, dim, "i") if source.ndim else () for source in call.specs[2:]]
    terms, algebra = _written(call)
    joins = _joins(call, algebra)
    return ShardingRule(
        inputs=(full, index, *sources),
        outputs=(full,),
        sizes={**factor_sizes(spec.shape), "i": call.specs[1].shape[0]},
        blocked=frozenset() if joins else frozenset({"i"}),
        reduce=joins or "sum",
        terms=terms,
        algebra=algebra,
        local=writing,
    )


_READ = "each rank reads its positions; a sharded dim gives partial sums"
_WRITTEN = "each rank writes its positions"
_SLICES = "each rank writes its slices"
_BOTH: Terms = ((0,), (2,))

ROWS = {
    "index_select": Row(_index_select, _READ, "structural"),
    "gather": Row(_gather, _READ, "structural"),
    "scatter": Row(_scatter, _WRITTEN, "structural", _BOTH),
    "scatter_reduce": Row(_scatter, _WRITTEN, "linear product max min", _BOTH),
    "scatter_add": Row(_scatter, _WRITTEN, "linear", _BOTH),
    "index_add": Row(_index_write, _SLICES, "linear", _BOTH),
    "index_copy": Row(_index_write, _SLICES, "structural", _BOTH),
    "index_fill": Row(_index_write, _SLICES, "affine increasing"),
    "index_reduce": Row(_index_write, _SLICES, "product max min", _BOTH),
}
