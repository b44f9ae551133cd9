"""Where the largest elements are: ranks that share a dimension say their best, and where it is.

Of equal elements the first one counts, as on one device. Which of them `topk` takes is up to its
kernel, so that types of which elements are often equal have their dimension whole there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.local.operator import Local
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand
from dtensor_core.rules.families.reduction import reduced_dims, whole_dim, whole_dim_reduced
from dtensor_core.rules.merged import Line, merged
from dtensor_core.rules.row import Row, alike
from dtensor_core.rules.rule import Rule
from dtensor_core.spec import Spec

aten = torch.ops.aten
_PLACE_BYTES = torch.int64.itemsize


def _extreme(call: Call) -> Rule:
    spec = call.specs[0]
    dims = reduced_dims(call, spec.ndim)
    run = _values_and_places if len(call.outputs) == 2 else _places
    return merged(whole_dim_reduced(call), call, dims, spec.dtype.itemsize + _PLACE_BYTES, run)


def _is_max(op: Local) -> bool:
    return "max" in op._schema.name  # pyright: ignore[reportFunctionMemberAccess]


def _best_of(
    values: torch.Tensor, places: torch.Tensor, *, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best of all ranks, and its first place; NaN goes before everything."""
    best = values.amax(0) if largest else values.amin(0)
    is_best = (values == best) | (values != values)
    return best, places.masked_fill(~is_best, torch.iinfo(torch.int64).max).amin(0)


def _values_and_places(op: Local, line: Line) -> Local:
    def extreme(
        x: torch.Tensor, dim: int, keepdim: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = op(line.filled(x), dim, keepdim)
        ranks = line.gather(values, places + line.offset(dim % x.ndim))
        return _best_of(*ranks, largest=_is_max(op))

    return extreme


def _places(op: Local, line: Line) -> Local:
    """Places of extremes in a dimension, or in the whole tensor."""
    search = aten.max.dim if _is_max(op) else aten.min.dim

    def place(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
        if dim is not None:
            values, places = search(line.filled(x), dim, keepdim)
            ranks = line.gather(values, places + line.offset(dim % x.ndim))
            return _best_of(*ranks, largest=_is_max(op))[1]
        filled = line.filled(x)
        value, at = search(filled.reshape(-1), 0)
        place = torch.zeros_like(at)
        for n, coordinate in enumerate(torch.unravel_index(at, filled.shape)):
            place = place * line.shape[n] + coordinate + line.offset(n)
        found = _best_of(*line.gather(value, place), largest=_is_max(op))[1]
        return found.reshape([1] * x.ndim) if keepdim else found

    return place


def _both_extremes(call: Call) -> Rule:
    spec = call.specs[0]
    dims = reduced_dims(call, spec.ndim)
    return merged(whole_dim_reduced(call), call, dims, 2 * spec.dtype.itemsize, _least_and_most)


def _least_and_most(op: Local, line: Line) -> Local:
    def extremes(x: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        least, most = line.gather(*op(line.filled(x), **kwargs))
        return least.amin(0), most.amax(0)

    return extremes


def _top(call: Call) -> Rule:
    spec, k = call.specs[0], int(call.argument("k"))
    if spec.dtype not in (torch.float32, torch.float64):
        return whole_dim(call)
    dim = int(call.argument("dim")) % max(spec.ndim, 1)
    said = k * (spec.dtype.itemsize + _PLACE_BYTES)
    return merged(whole_dim(call), call, (dim,), said, _best)


def _best(op: Local, line: Line) -> Local:
    """The best of the candidates of all ranks; a rank has as many as it holds rows."""

    def top(
        x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dim = dim % x.ndim
        counts = [min(k, shape[dim]) for shape in line.shapes]
        filled = line.filled(x)
        values, places = op(filled, min(k, filled.shape[dim]), dim, largest, sorted)
        said = _padded(values, dim, max(counts)), _padded(places, dim, max(counts))
        heard = line.gather(said[0], said[1] + line.offset(dim))
        values, places = (_side_by_side(said, dim, counts) for said in heard)
        best, whose = op(values, k, dim, largest, sorted)
        return best, places.gather(dim, whose)

    return top


def _padded(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """As long as the longest of all ranks."""
    return aten.constant_pad_nd(x, [0, 0] * (x.ndim - 1 - dim) + [0, size - x.shape[dim]])


def _side_by_side(ranks: torch.Tensor, dim: int, counts: Sequence[int]) -> torch.Tensor:
    parts = [part.narrow(dim, 0, n) for part, n in zip(ranks.unbind(0), counts, strict=True)]
    return torch.cat(parts, dim)


def _sorted_and_sought(call: Call) -> Rule:
    """What is sorted counts, for each value, the elements before it: each piece counts its own."""
    buckets = call.op._schema.name == "aten::bucketize"
    given = [call.argument("self"), call.argument("boundaries" if buckets else "sorted_sequence")]
    values, line = given if isinstance(given[0], Spec) else (None, given[1])
    sought = full_operand(values.shape if values else ())
    own = tuple(sought[: line.ndim - 1]) if line.ndim > 1 else ()
    sizes = {**factor_sizes(values.shape if values else ()), "s": line.shape[-1]}
    operands = ((*own, ("s",)), *([sought] if values else []))
    rest = [(*own, ("s",))] * (len(call.specs) - len(operands))
    return Rule(
        inputs=(*(operands[::-1] if buckets else operands), *rest),
        outputs=(sought,),
        sizes=sizes,
        blocked=frozenset("s" if rest else ""),
    )


def _is_in(call: Call) -> Rule:
    """Elements that are among others, or (`invert`) not: each piece of these tells of its own."""
    named = [("elements", "e"), ("test_elements", "t"), ("element", "e"), ("test_element", "t")]
    found = [(call.argument(name), letter) for name, letter in named]
    given = [(spec, letter) for spec, letter in found if isinstance(spec, Spec)]
    operands = [tuple((f"{letter}{n}",) for n in range(spec.ndim)) for spec, letter in given]
    sizes = {f"{letter}{n}": size for spec, letter in given for n, size in enumerate(spec.shape)}
    out = tuple((f"e{n}",) for n in range(len(call.outputs[0].shape)))
    return Rule(tuple(operands), (out,), sizes, reduce="min" if call.argument("invert") else "max")


ROWS = {
    **alike("searchsorted bucketize", Row(_sorted_and_sought, "sorted dim: sum of shards")),
    "isin": Row(_is_in, "test elements: max or min of shards"),
    **alike("max.dim min.dim argmax argmin", Row(_extreme, "along a cut dim a best of each rank")),
    "aminmax": Row(_both_extremes, "along a cut dim both of each rank"),
    "topk": Row(_top, "along a cut dim k of each rank"),
    **alike("sort", Row(whole_dim, "dim whole")),
    **alike("median nanmedian kthvalue mode", Row(whole_dim_reduced, "dim whole, reduced")),
}
