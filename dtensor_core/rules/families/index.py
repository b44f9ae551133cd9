"""Reading and writing at positions that a tensor holds: gather, scatter, index operators.

Where the indexed dimension is cut, every rank has some of the positions. A rank that reads answers
zeros for what it has not, so that results are addends; a rank that writes does so into a tensor
that is longer by one, where what belongs to others lands and is dropped. Where the index is cut,
what is read is cut, and what is added makes addends. None of it communicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.local.operator import Local, LocalMaker
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand
from dtensor_core.rules.row import Row, whole_rule
from dtensor_core.rules.rule import Operand, Rule, Terms
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

aten = torch.ops.aten


def _dim(call: Call) -> int:
    return int(call.argument("dim", 0)) % max(call.specs[0].ndim, 1)


def _addends(spec: Spec) -> str:
    """By what zeros join what was read elsewhere."""
    return "max" if spec.dtype is torch.bool else "sum"


def _with(operand: Operand, dim: int, *names: str) -> Operand:
    """The operand with one dimension replaced: by a factor, or by none."""
    return tuple(tuple(names) if each == dim else found for each, found in enumerate(operand))


class Held:
    """Which positions of dimension `dim` of an argument this rank holds, in local order."""

    def __init__(self, spec: Spec, dim: int) -> None:
        self.dim, self.size = dim, spec.shape[dim] if spec.ndim else 1
        self.pieces = spec.held(dim) if spec.ndim else ()
        self.count = sum(piece.size for piece in self.pieces) if spec.ndim else 1
        self.all = self.count == self.size

    def local(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Local positions, 0 where the rank has none, and where it has none."""
        index = torch.where(index < 0, index + self.size, index)
        found, elsewhere, start = (
            torch.zeros_like(index),
            torch.ones_like(index, dtype=torch.bool),
            0,
        )
        for piece in self.pieces:
            here = (index >= piece.offset) & (index < piece.offset + piece.size)
            found = torch.where(here, index - piece.offset + start, found)
            elsewhere &= ~here
            start += piece.size
        return found, elsewhere

    def dumped(self, index: torch.Tensor) -> torch.Tensor:
        """Local positions; those of others are the one behind the last."""
        found, elsewhere = self.local(index)
        return found.masked_fill_(elsewhere, self.count)

    def longer(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor with a place for what belongs to others."""
        shape = list(x.shape)
        shape[self.dim] = 1
        return torch.cat([x, x.new_zeros(shape)], self.dim)

    def shorter(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor without that place."""
        return x.narrow(self.dim, 0, self.count)

    def not_empty(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor, or zeros to read from where the rank holds nothing."""
        if self.count:
            return x
        shape = [1 if dim == self.dim else size for dim, size in enumerate(x.shape)]
        return depending(x.new_zeros(shape), x)


def _reading(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Read by an index along a dimension; where it points elsewhere the result is zero."""

    def read(x: torch.Tensor, dim: int, index: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        held = Held(inputs[0], dim % max(x.ndim, 1))
        if held.all:
            return op(x, dim, index, **kwargs)
        found, elsewhere = held.local(index)
        result = op(held.not_empty(x), dim, found, **kwargs)
        if elsewhere.ndim != result.ndim or elsewhere.shape != result.shape:
            elsewhere = elsewhere.reshape(-1, *[1] * (result.ndim - held.dim - elsewhere.ndim))
        return result.masked_fill_(elsewhere, 0)

    return read


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
        local=_reading,
    )


def _aligned(call: Call, *, index: int) -> tuple[Operand, Operand, dict[str, int], set[str]]:
    """X and an index that has its dims, perhaps shorter: those of equal size share a factor."""
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
    """x, dim, index -> one element of x for each of the index."""
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
        local=_reading,
    )


def _writing(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Write by the index at position 2 along the dimension at position 1."""
    in_place = op._schema.is_mutable  # pyright: ignore[reportFunctionMemberAccess]
    functional = getattr(aten, op._schema.name.removeprefix("aten::").removesuffix("_"))  # pyright: ignore

    def write(x: torch.Tensor, dim: int, index: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        held = Held(inputs[0], dim % max(x.ndim, 1))
        if held.all:
            return op(x, dim, index, *args, **kwargs)
        made = held.shorter(functional(held.longer(x), dim, held.dumped(index), *args, **kwargs))
        return x.copy_(made) if in_place else made.contiguous()

    return write


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
        local=_writing,
    )


# What passes where elements are written by a reduction; without one they are moved.
_REDUCING = {None: "structural", "add": "linear", "sum": "linear", "multiply": "product"}
_REDUCING |= {"prod": "product", "amax": "max", "amin": "min"}


def _written(call: Call) -> tuple[Terms, str]:
    """Terms and algebra of what is written: elements of another tensor, or a constant."""
    adds = call.op._schema.name.startswith(("aten::scatter_add", "aten::index_add"))
    reduce = "add" if adds else call.argument("reduce")
    if len(call.specs) < 3 or not call.specs[2].ndim:
        return ((0,),), "opaque" if reduce else "affine increasing"
    return ((0,), (2,)), _REDUCING.get(reduce, "opaque")


_JOINING = {"linear": "sum", "product": "product", "max": "max", "min": "min"}


def _joins(call: Call, algebra: str) -> str:
    """By what that which is written joins what is there; empty where it takes its place."""
    if call.specs[0].dtype is torch.bool or not call.argument("include_self", True):
        return ""
    return _JOINING.get(algebra, "")


def _index_write(call: Call) -> Rule:
    """x, dim, index [i], source? -> x, overwritten or added to at whole slices."""
    spec, dim = call.specs[0], _dim(call)
    whole = full_operand(spec.shape)
    if not spec.ndim or not call.specs[1].ndim:
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
        local=_writing,
    )


def _parts(call: Call, *, gone: bool) -> Rule:
    """x, part, dim, ... -> x with the part in its place; a part of the cut dimension is whole."""
    spec, dim = call.specs[0], _dim(call)
    whole = full_operand(spec.shape)
    part = whole[:dim] + whole[dim + 1 :] if gone else _with(whole, dim)
    return Rule(
        inputs=(whole, part),
        outputs=(whole,),
        sizes=factor_sizes(spec.shape),
        terms=((0,), (1,)),
        algebra="structural",
        local=_select_into if gone else _slice_into,
    )


def _slice_scatter(call: Call) -> Rule:
    return _parts(call, gone=False)


def _select_scatter(call: Call) -> Rule:
    return _parts(call, gone=True)


def _slice_into(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Each rank writes the positions of the slice that it holds."""
    write = _writing(aten.index_copy.default, inputs, outputs)

    def into(
        x: torch.Tensor,
        part: torch.Tensor,
        dim: int = 0,
        start: Any = None,
        end: Any = None,
        step: int = 1,
    ) -> torch.Tensor:
        if inputs[0].local_shape[dim] == inputs[0].shape[dim]:
            return op(x, part, dim, start, end, step)
        places = torch.arange(inputs[0].shape[dim], device=x.device)[slice(start, end, step)]
        return write(x, dim, places, part.to(x.dtype))

    return into


def _select_into(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    write = _writing(aten.index_copy.default, inputs, outputs)

    def into(x: torch.Tensor, part: torch.Tensor, dim: int, index: int) -> torch.Tensor:
        if inputs[0].local_shape[dim] == inputs[0].shape[dim]:
            return op(x, part, dim, index)
        place = torch.tensor([index], device=x.device)
        return write(x, dim, place, part.unsqueeze(dim).to(x.dtype))

    return into


def _masked_put(call: Call) -> Rule:
    """`x[mask] = y` is elementwise unless y has an element for each one that the mask selects."""
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


def _is_mask(indices: Sequence[Any]) -> bool:
    masks = (torch.bool, torch.uint8)
    return any(isinstance(each, Spec) and each.dtype in masks for each in indices)


def _advanced(call: Call) -> tuple[Operand, Operand, list[Operand], dict[str, int], list[int]]:
    """X and x[indices]: the dims that are indexed, and those that both have.

    The dims of the indices, broadcast, stand first in the result, or where the indexed ones stood
    if those are neighbours.
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
    """x[indices], of which a mask decides the shape by its data."""
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
        local=_index_reading(dims, first),
    )


def _index_reading(dims: Sequence[int], first: int) -> LocalMaker:
    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        parts = [held for held in (Held(inputs[0], dim) for dim in dims) if not held.all]

        def read(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
            mine = list(indices)
            wide = torch.broadcast_shapes(*(each.shape for each in mine if each is not None))
            missing: list[torch.Tensor] = []
            for held in parts:
                mine[held.dim], elsewhere = held.local(_index_of(mine, held.dim))
                missing.append(elsewhere.expand(wide))
                x = held.not_empty(x)
            result = op(x, mine)
            for elsewhere in missing:
                behind = result.ndim - first - len(wide)
                result.masked_fill_(elsewhere.reshape(*wide, *[1] * behind), 0)
            return result

        return read if parts else op

    return maker


def _index_of(indices: Sequence[torch.Tensor | None], dim: int) -> torch.Tensor:
    index = indices[dim]
    assert index is not None
    return index


def _flat(index: torch.Tensor, shape: Sequence[int]) -> list[torch.Tensor]:
    """The indices along all dims of places in a flattened tensor of this global shape."""
    index = torch.where(index < 0, index + torch.Size(shape).numel(), index)
    return list(torch.unravel_index(index, torch.Size(shape)))


def _take(call: Call) -> Rule:
    """x, places in it as if flattened -> the elements there."""
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
        local=_taking,
    )


def _taking(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    shape = inputs[0].shape
    read = _index_reading(range(len(shape)), 0)(aten.index.Tensor, inputs, outputs)
    if read is aten.index.Tensor:
        return op
    return lambda x, index: read(x, _flat(index, shape))


def _put(call: Call) -> Rule:
    """x, places in it as if flattened, source -> x with the elements of the source there."""
    spec = call.specs[0]
    x = full_operand(spec.shape)
    if 0 in spec.shape or not spec.ndim:
        return whole_rule(call)
    whole = tuple(((),) * each.ndim for each in call.specs[1:])
    return Rule((x, *whole), (x,), factor_sizes(spec.shape), local=_putting_flat)


def _putting_flat(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    shape = inputs[0].shape
    put = _putting(range(len(shape)))(op, inputs, outputs)
    if put is op:
        return op
    return lambda x, index, source, *adds, **kwargs: put(
        x, _flat(index, shape), source.reshape(index.shape), *adds, **kwargs
    )


def _index_put(call: Call) -> Rule:
    """x[indices] = values, in their place or added."""
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
        local=_putting(dims),
    )


def _spread(shape: Sequence[int], operand: Operand, sizes: Sequence[int]) -> Operand:
    first = len(sizes) - len(shape)
    return tuple(
        () if size == 1 and sizes[first + dim] != 1 else operand[first + dim]
        for dim, size in enumerate(shape)
    )


def _putting(dims: Sequence[int]) -> LocalMaker:
    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        parts = [held for held in (Held(inputs[0], dim) for dim in dims) if not held.all]
        in_place = op._schema.is_mutable  # pyright: ignore[reportFunctionMemberAccess]

        def put(
            x: torch.Tensor,
            indices: Sequence[torch.Tensor | None],
            values: torch.Tensor,
            accumulate: bool = False,
            unsafe: bool = False,
        ) -> torch.Tensor:
            mine, made = list(indices), x
            for held in parts:
                mine[held.dim] = held.dumped(_index_of(mine, held.dim))
                made = held.longer(made)
            made = aten.index_put(made, mine, values, accumulate)
            for held in parts:
                made = held.shorter(made)
            return x.copy_(made) if in_place else made.contiguous()

        return put if parts else op

    return maker


_READ = "elements read where they lie; a cut dim gives addends"
_WRITTEN = "elements written where they lie"
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
    "slice_scatter": Row(_slice_scatter, _PART, "structural", ((0,), (1,))),
    "select_scatter": Row(_select_scatter, _PART, "structural", ((0,), (1,))),
}
ROWS = {name: row for names, row in _ROWS.items() for name in names.split()}
