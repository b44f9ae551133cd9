"""Reads and writes at positions that a tensor holds: gather, scatter, index operators.

Along a sharded indexed dimension every rank holds some of the positions. A read returns zeros for
positions of other ranks, so that results are partial sums; a write goes to a tensor that is longer
by one row, where positions of other ranks land and are dropped. With a sharded index, what is read
is sharded, and what is accumulated is a partial sum. None of this communicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.local.masked_select import gathering, scattering
from dtensor_core.local.sharded_indexing import (
    putting_at,
    putting_flat,
    reading,
    reading_at,
    select_into,
    slice_into,
    taking,
    writing,
)
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand, operand_of
from dtensor_core.rules.row import Row, whole_rule
from dtensor_core.rules.rule import Operand, Rule, Terms
from dtensor_core.spec import Spec

aten = torch.ops.aten


def _dim(call: Call) -> int:
    return int(call.argument("dim", 0)) % max(call.specs[0].ndim, 1)


def _addends(spec: Spec) -> str:
    """Return the reduction that combines zeros with the values read on other ranks."""
    return "max" if spec.dtype is torch.bool else "sum"


def _with(operand: Operand, dim: int, *names: str) -> Operand:
    """Replace one dimension of an operand by a factor, or by none."""
    return tuple(tuple(names) if each == dim else found for each, found in enumerate(operand))


def _index_select(call: Call) -> Rule:
    """x, dim, index [i] -> x with the dimension as long as the index."""
    spec, dim = call.specs[0], _dim(call)
    if not spec.ndim:
        return whole_rule(call)
    whole = full_operand(spec.shape)
    index = (("i",),) if call.specs[1].ndim else ()
    return Rule(
        inputs=(whole, index),
        outputs=(_with(whole, dim, "i") if index else _with(whole, dim),),
        sizes={**factor_sizes(spec.shape), **({"i": call.specs[1].shape[0]} if index else {})},
        reduce=_addends(spec),
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


def _gather(call: Call) -> Rule:
    """x, dim, index -> one element of x per element of the index."""
    spec, at = call.specs[0], call.specs[1]
    if not spec.ndim or spec.ndim != at.ndim:
        return whole_rule(call)
    x, index, sizes, blocked = _aligned(call, index=1)
    blocked |= {name for name in sizes if name[0] == "x" and name != f"x{_dim(call)}"}
    return Rule(
        inputs=(x, index),
        outputs=(index,),
        sizes=sizes,
        blocked=frozenset(blocked),
        reduce=_addends(spec),
        terms=((0,),),
        algebra="structural",
        local=reading,
    )


def _scatter(call: Call) -> Rule:
    """x, dim, index, source? -> x, overwritten or added to at the index."""
    spec, at = call.specs[0], call.specs[1]
    if (
        not spec.ndim
        or not at.ndim
        or any(each.ndim != spec.ndim for each in call.specs[1:3] if each.ndim)
    ):
        return whole_rule(call)
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
    return Rule(
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


def _index_write(call: Call) -> Rule:
    """x, dim, index [i], source? -> x, overwritten or added to at entire slices."""
    spec, dim = call.specs[0], _dim(call)
    whole = full_operand(spec.shape)
    # The kernel that multiplies half-precision numbers fails on one row, which may be a rank's
    # share.
    fails = spec.dtype.itemsize == 2 and call.argument("reduce") == "prod"
    if not spec.ndim or not call.specs[1].ndim or fails:
        return whole_rule(call)
    index = (("i",),)
    sources = [_with(whole, dim, "i") if source.ndim else () for source in call.specs[2:]]
    terms, algebra = _written(call)
    joins = _joins(call, algebra)
    return Rule(
        inputs=(whole, index, *sources),
        outputs=(whole,),
        sizes={**factor_sizes(spec.shape), "i": call.specs[1].shape[0]},
        blocked=frozenset() if joins else frozenset({"i"}),
        reduce=joins or "sum",
        terms=terms,
        algebra=algebra,
        local=writing,
    )


def parts(call: Call, *, gone: bool) -> Rule:
    """x, part, dim, ... -> x with the part in its place.

    The part is replicated along the dimension if that is sharded.
    """
    spec, dim = call.specs[0], _dim(call)
    whole = full_operand(spec.shape)
    part = whole[:dim] + whole[dim + 1 :] if gone else _with(whole, dim)
    return Rule(
        inputs=(whole, part),
        outputs=(whole,),
        sizes=factor_sizes(spec.shape),
        terms=((0,), (1,)),
        algebra="structural",
        local=select_into if gone else slice_into,
    )


def _select_scatter(call: Call) -> Rule:
    return parts(call, gone=True)


def _masked_put(call: Call) -> Rule:
    """`x[mask] = y` is elementwise unless y has one element per selected element."""
    target, indices, value = call.args[:3]
    (first, mask), *more = [(n, each) for n, each in enumerate(indices) if isinstance(each, Spec)]
    x, behind = full_operand(target.shape), first + mask.ndim
    selected = (*x[:first], (), *x[behind:])
    sizes = (*target.shape[:first], 1, *target.shape[behind:])
    place = value.ndim - len(x[behind:]) - 1
    if more or value.ndim > len(selected) or (place >= 0 and value.shape[place] != 1):
        return whole_rule(call)
    return Rule(
        inputs=(x, x[first:behind], _spread(value.shape, selected, sizes)),
        outputs=(x,),
        sizes=factor_sizes(target.shape),
    )


def _masked_scatter(call: Call) -> Rule:
    """x, mask, source -> x, with the next element of source wherever the replicated mask is set.

    Also its gradient: grad, mask -> the gradient of source.
    """
    backward = len(call.specs) == 2
    shape = call.specs[0].shape if backward else call.outputs[0].shape
    whole = (((),) * spec.ndim for spec in call.specs[1:])
    return Rule(
        inputs=(operand_of(call.specs[0].shape, shape), *whole),
        outputs=(((),) * len(call.outputs[0].shape) if backward else full_operand(shape),),
        sizes=factor_sizes(shape),
        terms=((0,),) if backward else ((0,), (2,)),
        algebra="linear" if backward else "structural",
        local=gathering if backward else scattering,
    )


def _is_mask(indices: Sequence[Any]) -> bool:
    masks = (torch.bool, torch.uint8)
    return any(isinstance(each, Spec) and each.dtype in masks for each in indices)


def _advanced(call: Call) -> tuple[Operand, Operand, list[Operand], dict[str, int], list[int]]:
    """Return operands of x and x[indices], those of the indices, sizes, and the indexed dims.

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


def _index(call: Call) -> Rule:
    """x[indices]; the result's shape depends on the data of a mask."""
    if _is_mask(call.args[1]):
        return whole_rule(call)
    x, out, given, sizes, dims = _advanced(call)
    first = out.index(("i0",)) if ("i0",) in out else dims[0]
    return Rule(
        inputs=(x, *given),
        outputs=(out,),
        sizes=sizes,
        reduce=_addends(call.specs[0]),
        terms=((0,),),
        algebra="structural",
        local=reading_at(dims, first),
    )


def _take(call: Call) -> Rule:
    """x, positions in flattened x -> the elements there."""
    spec, at = call.specs
    if 0 in spec.shape or not spec.ndim:
        return whole_rule(call)
    index = tuple((f"i{dim}",) for dim in range(at.ndim))
    return Rule(
        inputs=(full_operand(spec.shape), index),
        outputs=(index,),
        sizes={**factor_sizes(spec.shape), **{f"i{n}": size for n, size in enumerate(at.shape)}},
        reduce=_addends(spec),
        terms=((0,),),
        algebra="structural",
        local=taking,
    )


def _put(call: Call) -> Rule:
    """x, positions in flattened x, source -> x with the elements of source there."""
    spec = call.specs[0]
    x = full_operand(spec.shape)
    if 0 in spec.shape or not spec.ndim:
        return whole_rule(call)
    whole = tuple(((),) * each.ndim for each in call.specs[1:])
    return Rule((x, *whole), (x,), factor_sizes(spec.shape), local=putting_flat)


def _index_put(call: Call) -> Rule:
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
    return Rule(
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


_READ = "elements read where they lie; a cut dim gives addends"
_WRITTEN = "elements written where they lie"
_MASKED = "x cut freely, a whole mask tells which is next"
_SLICES = "slices written where they lie"
_BOTH: Terms = ((0,), (2,))
_PART = "a part written where it lies"
_ROWS = {
    "nonzero masked_select _unique _unique2 unique_dim unique_consecutive bincount": Row(
        whole_rule, "data decides the shape: whole"
    ),
    "index_select": Row(_index_select, _READ, "structural"),
    "gather": Row(_gather, _READ, "structural"),
    "index _unsafe_index": Row(_index, _READ, "structural"),
    "scatter": Row(_scatter, _WRITTEN, "structural", _BOTH),
    "scatter_reduce": Row(_scatter, _WRITTEN, "linear product max min", _BOTH),
    "scatter_add": Row(_scatter, _WRITTEN, "linear", _BOTH),
    "index_add": Row(_index_write, _SLICES, "linear", _BOTH),
    "index_copy": Row(_index_write, _SLICES, "structural", _BOTH),
    "index_fill": Row(_index_write, _SLICES, "affine increasing"),
    "index_reduce": Row(_index_write, _SLICES, "product max min", _BOTH),
    "index_put _unsafe_index_put _index_put_impl": Row(_index_put, _WRITTEN, "structural", _BOTH),
    "take": Row(_take, _READ, "structural"),
    "put": Row(_put, _WRITTEN),
    "masked_scatter": Row(_masked_scatter, _MASKED, "structural", _BOTH),
    "masked_scatter_backward": Row(_masked_scatter, _MASKED, "linear"),
    "select_scatter": Row(_select_scatter, _PART, "structural", ((0,), (1,))),
}
ROWS = {name: row for names, row in _ROWS.items() for name in names.split()}
