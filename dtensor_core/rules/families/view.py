"""Views: the same elements under another shape. All Partials pass, and no value is touched.

A reshape becomes notation at the sizes of the call: `[2, 12] -> [2, 3, 4]` is `a (b c) -> a b c`,
so a cut of the flattened dimension is a cut of its outermost factor, and a cut of an inner factor
is a strided shard. Slices and selections need their dimension whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand
from dtensor_core.rules.local import with_local_size
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import LocalMaker, Operand, Rule
from dtensor_core.spec import Spec

# As an operator: what is still arriving is viewed without waiting for it.
_view_op = torch.ops.aten.view.default._op


def _structural(
    call: Call,
    inputs: tuple[Operand, ...],
    outputs: tuple[Operand, ...],
    sizes: dict[str, int],
    blocked: Sequence[str] = (),
    local: LocalMaker | None = None,
) -> Rule:
    """A rule through which all Partials pass; of several arguments, all have to be Partial."""
    return Rule(
        inputs=inputs,
        outputs=outputs,
        sizes=sizes,
        blocked=frozenset(blocked),
        terms=tuple((number,) for number in range(len(inputs))),
        algebra="structural",
        local=local,
    )


def reshape_factors(
    before: Sequence[int], after: Sequence[int]
) -> tuple[Operand, Operand, dict[str, int], list[str]]:
    """The common factors of two shapes of equal element count.

    Returns both operands, the factors' sizes, and the blocked ones: those of dimensions that
    have no common factorisation, `[2, 3] -> [3, 2]`.
    """
    left: list[list[str]] = [[] for _ in before]
    right: list[list[str]] = [[] for _ in after]
    sizes: dict[str, int] = {}
    blocked: list[str] = []
    if 0 in before:
        return _unrelated(before, after)
    i = j = 0
    here, there = _size_at(before, 0), _size_at(after, 0)
    while i < len(before) and j < len(after):
        name = f"f{len(sizes)}"
        if before[i] == here == there == after[j]:  # a dimension of both, even of size 1
            left[i].append(name)
            right[j].append(name)
            sizes[name] = here
            i, here = i + 1, _size_at(before, i + 1)
            j, there = j + 1, _size_at(after, j + 1)
            continue
        if here == 1:
            i, here = i + 1, _size_at(before, i + 1)
            continue
        if there == 1:
            j, there = j + 1, _size_at(after, j + 1)
            continue
        left[i].append(name)
        right[j].append(name)
        common = min(here, there)
        if max(here, there) % common:
            sizes[name] = 1
            blocked.append(name)
            here, there = _merge(before, after, i, j, here, there, left, right, name)
            i, j = here[0], there[0]
            here, there = here[1], there[1]
            continue
        sizes[name] = common
        here, there = here // common, there // common
    return _as_operand(left), _as_operand(right), sizes, blocked


def _size_at(shape: Sequence[int], dim: int) -> int:
    return shape[dim] if dim < len(shape) else 1


def _merge(
    before: Sequence[int],
    after: Sequence[int],
    i: int,
    j: int,
    here: int,
    there: int,
    left: list[list[str]],
    right: list[list[str]],
    name: str,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Swallow dimensions of both sides under one blocked factor until their products agree."""
    while here != there:
        if here < there:
            i += 1
            here *= before[i]
            left[i].append(name)
        else:
            j += 1
            there *= after[j]
            right[j].append(name)
    return (i + 1, _size_at(before, i + 1)), (j + 1, _size_at(after, j + 1))


def _unrelated(
    before: Sequence[int], after: Sequence[int]
) -> tuple[Operand, Operand, dict[str, int], list[str]]:
    """Without elements only leading dimensions of equal size can be told to correspond."""
    left = [(f"l{dim}",) for dim in range(len(before))]
    right = [(f"r{dim}",) for dim in range(len(after))]
    sizes = {f"l{dim}": size for dim, size in enumerate(before)}
    sizes |= {f"r{dim}": size for dim, size in enumerate(after)}
    return tuple(left), tuple(right), sizes, list(sizes)


def _as_operand(dims: list[list[str]]) -> Operand:
    return tuple(tuple(names) for names in dims)


def _view(call: Call) -> Rule:
    before, after, sizes, blocked = reshape_factors(call.specs[0].shape, call.outputs[0].shape)
    return _structural(call, (before,), (after,), sizes, blocked, _reshaped)


def _reshaped(
    op: Callable[..., Any], inputs: Sequence[Spec], outputs: Sequence[Spec | None]
) -> Callable[..., Any]:
    """The local part in its local shape; copied where its strides are not those of the whole.

    Kernels choose strides by those of their arguments, and a part may have other ones: what is
    contiguous as a whole need not be so in part.
    """
    out = outputs[0]
    assert out is not None
    size = out.local_shape
    if inputs[0].dtype is not out.dtype:
        return op

    def reshaped(x: torch.Tensor, *unused: Any) -> torch.Tensor:
        try:
            return _view_op(x, size)
        except RuntimeError:
            return torch.reshape(x, size)

    return reshaped


def _permuted(call: Call, order: Sequence[int]) -> Rule:
    shape = call.specs[0].shape
    whole = full_operand(shape)
    permuted = tuple(whole[dim] for dim in order)
    return _structural(call, (whole,), (permuted,), factor_sizes(shape))


def _permute(call: Call) -> Rule:
    ndim = call.specs[0].ndim
    return _permuted(call, [dim % ndim for dim in call.args[1]])


def _transpose(call: Call) -> Rule:
    ndim = call.specs[0].ndim
    order = list(range(ndim))
    first, second = (dim % max(ndim, 1) for dim in call.args[1:3])
    if ndim:
        order[first], order[second] = order[second], order[first]
    return _permuted(call, order)


def _t(call: Call) -> Rule:
    return _permuted(call, range(call.specs[0].ndim)[::-1])


def _unsqueeze(call: Call) -> Rule:
    shape = call.specs[0].shape
    whole = list(full_operand(shape))
    at = call.args[1] % (len(shape) + 1)
    return _structural(
        call, (tuple(whole),), (tuple([*whole[:at], (), *whole[at:]]),), factor_sizes(shape)
    )


def _squeeze(call: Call) -> Rule:
    """Dimensions of size 1 go, all of them or those named."""
    shape = call.specs[0].shape
    named: Any = call.args[1] if len(call.args) > 1 else range(len(shape))
    dims = {dim % max(len(shape), 1) for dim in ([named] if isinstance(named, int) else named)}
    gone = {dim for dim in dims if shape and shape[dim] == 1}
    whole = full_operand(shape)
    kept = tuple(names for dim, names in enumerate(whole) if dim not in gone)
    return _structural(
        call,
        (whole,),
        (kept,),
        factor_sizes(shape),
        [f"d{dim}" for dim in gone],
        _squeeze_exactly(sorted(gone)),
    )


def _squeeze_exactly(dims: list[int]) -> LocalMaker:
    """Squeeze what has size 1 globally: a shard may have size 1 in a dimension that stays."""

    def maker(
        op: Callable[..., Any], inputs: Sequence[Spec], outputs: Sequence[Spec | None]
    ) -> Callable[..., Any]:
        return lambda x, *unused: torch.ops.aten.squeeze.dims(x, dims)

    return maker


def _expand(call: Call) -> Rule:
    """Size 1 is spread over a new size: that dimension of the result is not cut."""
    shape, out = call.specs[0].shape, call.outputs[0].shape
    first = len(out) - len(shape)
    whole = full_operand(out)
    operand = tuple(
        () if size != out[first + dim] else whole[first + dim] for dim, size in enumerate(shape)
    )
    return _structural(call, (operand,), (whole,), factor_sizes(out), local=with_local_size(1))


def _whole_dim(call: Call, *, dim: int, removed: bool = False, added: bool = False) -> Rule:
    """One dimension must be whole; it stays, goes, or is new in the result."""
    shape = call.specs[0].shape
    whole = full_operand(shape)
    out = whole
    if removed:
        out = whole[:dim] + whole[dim + 1 :]
    if added:
        out = (*whole[:dim], (), *whole[dim:])
    blocked = () if added else (f"d{dim}",)
    return _structural(
        call,
        (whole,) * len(call.specs),
        (out,) * len(call.outputs),
        factor_sizes(shape),
        blocked,
    )


def _slice(call: Call) -> Rule:
    """A slice that takes the whole dimension leaves any cut of it alone."""
    spec = call.specs[0]
    dim = int(call.argument("dim", 0)) % spec.ndim
    if call.outputs[0].shape == spec.shape:
        whole = full_operand(spec.shape)
        return _structural(call, (whole,), (whole,), factor_sizes(spec.shape))
    return _whole_dim(call, dim=dim)


def _select(call: Call) -> Rule:
    """Where the dimension is cut one rank has the selected part, and the others zeros."""
    spec, dim = call.specs[0], call.args[1] % call.specs[0].ndim
    whole = full_operand(spec.shape)
    truth = spec.dtype is torch.bool
    return _structural(
        call,
        (whole,),
        (whole[:dim] + whole[dim + 1 :],),
        factor_sizes(spec.shape),
        (f"d{dim}",) if truth else (),
        _select_held,
    )


def _select_held(
    op: Callable[..., Any], inputs: Sequence[Spec], outputs: Sequence[Spec | None]
) -> Callable[..., Any]:
    """The selected part, or zeros where the rank does not hold it."""

    def select(x: torch.Tensor, dim: int, index: int) -> torch.Tensor:
        dim = dim % x.ndim
        size = inputs[0].shape[dim]
        if inputs[0].local_shape[dim] == size:
            return op(x, dim, index)
        index, start = index % size, 0
        for piece in inputs[0].held(dim):
            if piece.offset <= index < piece.offset + piece.size:
                return op(x, dim, start + index - piece.offset).clone()
            start += piece.size
        return x.new_zeros([n for each, n in enumerate(x.shape) if each != dim])

    return select


def _repeat(call: Call) -> Rule:
    """Dims that are repeated must be whole."""
    shape, out = call.specs[0].shape, call.outputs[0].shape
    whole, first = full_operand(shape), len(out) - len(shape)
    kept = [names if out[first + dim] == shape[dim] else () for dim, names in enumerate(whole)]
    blocked = [f"d{dim}" for dim, names in enumerate(kept) if not names]
    result = (*((),) * first, *kept)
    return _structural(call, (whole,), (result,), factor_sizes(shape), blocked)


def _roll(call: Call) -> Rule:
    shape = call.specs[0].shape
    dims = [dim % len(shape) for dim in call.argument("dims") or range(len(shape))]
    whole = full_operand(shape)
    return _structural(call, (whole,), (whole,), factor_sizes(shape), [f"d{dim}" for dim in dims])


def _diagonal(call: Call) -> Rule:
    shape = call.specs[0].shape
    dims = [int(call.argument(name)) % len(shape) for name in ("dim1", "dim2")]
    whole = full_operand(shape)
    kept = tuple(names for dim, names in enumerate(whole) if dim not in dims)
    blocked = [f"d{dim}" for dim in dims]
    return _structural(call, (whole,), ((*kept, ()),), factor_sizes(shape), blocked)


def _diag_embed(call: Call) -> Rule:
    shape, ndim = call.specs[0].shape, len(call.outputs[0].shape)
    dims = sorted(int(call.argument(name)) % ndim for name in ("dim1", "dim2"))
    whole = full_operand(shape)
    out = list(whole[:-1])
    for dim in dims:
        out.insert(dim, ())
    return _structural(call, (whole,), (tuple(out),), factor_sizes(shape), [f"d{len(shape) - 1}"])


def _as_real(call: Call) -> Rule:
    whole = full_operand(call.specs[0].shape)
    return _linear(call, whole, (*whole, ()))


def _as_complex(call: Call) -> Rule:
    whole = full_operand(call.specs[0].shape[:-1])
    return _linear(call, (*whole, ()), whole)


def _conjugate(call: Call) -> Rule:
    whole = full_operand(call.specs[0].shape)
    return replace(_linear(call, whole, whole), local=_resolved)


def _linear(call: Call, before: Operand, after: Operand) -> Rule:
    """A view that changes what its elements are: sums pass, extremes don't."""
    rule = _structural(call, (before,), (after,), factor_sizes(call.specs[0].shape))
    return replace(rule, algebra="linear")


def _resolved(
    op: Callable[..., Any], inputs: Sequence[Spec], outputs: Sequence[Spec | None]
) -> Callable[..., Any]:
    """The values: what is marked as conjugate or negative can't be communicated."""
    return lambda x: op(x).resolve_conj().resolve_neg()


def _split(call: Call) -> Rule:
    return _whole_dim(call, dim=int(call.argument("dim", 0)) % call.specs[0].ndim)


def _unbind(call: Call) -> Rule:
    dim = int(call.argument("dim", 0)) % call.specs[0].ndim
    return _whole_dim(call, dim=dim, removed=True)


def _cat(call: Call) -> Rule:
    return _whole_dim(call, dim=int(call.argument("dim", 0)) % call.specs[0].ndim)


def _stack(call: Call) -> Rule:
    dim = int(call.argument("dim", 0)) % (call.specs[0].ndim + 1)
    return _whole_dim(call, dim=dim, added=True)


def _unfold(call: Call) -> Rule:
    """x, dim, size, step -> windows of dim, whose elements are a new last dim."""
    shape = call.specs[0].shape
    whole, dim = full_operand(shape), int(call.args[1]) % max(len(shape), 1)
    if not shape:
        return _structural(call, ((),), ((),), {})
    out = (*whole[:dim], (), *whole[dim + 1 :], ())
    return _structural(call, (whole,), (out,), factor_sizes(shape), (f"d{dim}",))


def _inserted(call: Call) -> Rule:
    """The gradient of a slice or selection: zeros but for a part of one dimension."""
    shape = call.outputs[0].shape
    dim = int(call.argument("dim")) % len(shape)
    whole = full_operand(shape)
    operand = whole if call.specs[0].ndim == len(shape) else whole[:dim] + whole[dim + 1 :]
    return _structural(
        call, (operand,), (whole,), factor_sizes(shape), (f"d{dim}",), with_local_size(1)
    )


_BUILDERS = {
    "view _unsafe_view reshape _reshape_alias": (_view, "common factors of both shapes"),
    "permute": (_permute, "dims permuted"),
    "transpose": (_transpose, "dims permuted"),
    "t": (_t, "dims permuted"),
    "unsqueeze": (_unsqueeze, "a.. -> a.. 1"),
    "squeeze": (_squeeze, "a.. 1 -> a.."),
    "expand": (_expand, "1 a.. -> b a.."),
    "slice": (_slice, "dim whole"),
    "select": (_select, "dim whole, removed"),
    "repeat": (_repeat, "repeated dims whole"),
    "roll flip": (_roll, "dims whole"),
    "diagonal": (_diagonal, "dims whole, removed"),
    "diag_embed": (_diag_embed, "last dim whole"),
    "view_as_real": (_as_real, "a.. -> a.. 2"),
    "view_as_complex": (_as_complex, "a.. 2 -> a.."),
    "_conj _neg_view": (_conjugate, "elementwise"),
    "split split_with_sizes unsafe_split unsafe_split_with_sizes": (_split, "dim whole"),
    "unbind": (_unbind, "dim whole, removed"),
    "unfold": (_unfold, "dim whole, windows"),
    "cat": (_cat, "dim whole"),
    "stack": (_stack, "dim added"),
    "slice_backward select_backward": (_inserted, "dim whole"),
}

ROWS = {
    name: Row(build, text) for names, (build, text) in _BUILDERS.items() for name in names.split()
}
