"""Views: the same elements in another shape. All Partials pass, and no value is touched.

A reshape becomes notation at the sizes of the call: `[2, 12] -> [2, 3, 4]` is `a (b c) -> a b c`,
so a shard of the flattened dimension is a shard of its outermost factor, and a shard of an inner
factor is a strided shard. Slices, splits and joins are in `slicing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dtensor_core.operators.kernels.local_operator import with_local_size
from dtensor_core.operators.kernels.memory_layout import as_complex, reshaped, resolved, viewed_as
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.rule_builders import structural_rule
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule
from dtensor_core.operators.views.local import squeezing


def reshape_factors(
    before: Sequence[int], after: Sequence[int]
) -> tuple[Operand, Operand, dict[str, int], list[str]]:
    """Return the common factors of two shapes of equal element count.

    Returns:
        Both operands, the factors' sizes, and the blocked factors, which stand for dimensions
        without a common factorisation, such as `[2, 3] -> [3, 2]`.
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
    """Merge dimensions of both sides into a blocked factor until their products agree."""
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
    """Return unrelated factors: the dimensions of empty shapes have no known correspondence."""
    left = [(f"l{dim}",) for dim in range(len(before))]
    right = [(f"r{dim}",) for dim in range(len(after))]
    sizes = {f"l{dim}": size for dim, size in enumerate(before)}
    sizes |= {f"r{dim}": size for dim, size in enumerate(after)}
    return tuple(left), tuple(right), sizes, list(sizes)


def _as_operand(dims: list[list[str]]) -> Operand:
    return tuple(tuple(names) for names in dims)


def _view(call: Call) -> ShardingRule:
    before, after, sizes, blocked = reshape_factors(call.specs[0].shape, call.outputs[0].shape)
    return structural_rule((before,), (after,), sizes, blocked, reshaped)


def _view_as(call: Call) -> ShardingRule:
    """The same bytes as another dtype: elements of the last dim that share bytes stay together.

    The ratio of the element sizes becomes a factor that is not sharded. Partial sums can't be
    viewed this way.
    """
    before, after = call.specs[0].shape, call.outputs[0].shape
    full, sizes = full_operand(before), factor_sizes(before)
    operands = [full, full]
    if full and before[-1] != after[-1]:
        last = full[-1][0]
        wide = before[-1] > after[-1]  # the result's elements are wider
        operands[not wide] = (*full[:-1], (last, "bytes"))
        sizes[last] = min(before[-1], after[-1])
        sizes["bytes"] = max(before[-1], after[-1]) // max(sizes[last], 1)
    return ShardingRule(
        inputs=(operands[0],),
        outputs=(operands[1],),
        sizes=sizes,
        blocked=frozenset(("bytes",)),
        local=viewed_as,
    )


def _permuted(call: Call, order: Sequence[int]) -> ShardingRule:
    shape = call.specs[0].shape
    full = full_operand(shape)
    permuted = tuple(full[dim] for dim in order)
    return structural_rule((full,), (permuted,), factor_sizes(shape))


def _permute(call: Call) -> ShardingRule:
    ndim = call.specs[0].ndim
    return _permuted(call, [dim % ndim for dim in call.args[1]])


def _transpose(call: Call) -> ShardingRule:
    ndim = call.specs[0].ndim
    order = list(range(ndim))
    first, second = (dim % max(ndim, 1) for dim in call.args[1:3])
    if ndim:
        order[first], order[second] = order[second], order[first]
    return _permuted(call, order)


def _t(call: Call) -> ShardingRule:
    return _permuted(call, range(call.specs[0].ndim)[::-1])


def _unsqueeze(call: Call) -> ShardingRule:
    shape = call.specs[0].shape
    full = list(full_operand(shape))
    at = call.args[1] % (len(shape) + 1)
    return structural_rule(
        (tuple(full),), (tuple([*full[:at], (), *full[at:]]),), factor_sizes(shape)
    )


def _squeeze(call: Call) -> ShardingRule:
    """Remove dimensions of size 1, all of them or those named."""
    shape = call.specs[0].shape
    named: Any = call.args[1] if len(call.args) > 1 else range(len(shape))
    dims = {dim % max(len(shape), 1) for dim in ([named] if isinstance(named, int) else named)}
    gone = {dim for dim in dims if shape and shape[dim] == 1}
    full = full_operand(shape)
    kept = tuple(names for dim, names in enumerate(full) if dim not in gone)
    return structural_rule(
        (full,), (kept,), factor_sizes(shape), [f"d{dim}" for dim in gone], squeezing(sorted(gone))
    )


def _expand(call: Call) -> ShardingRule:
    """A size of 1 is expanded to a new size: that dimension of the result is not sharded."""
    shape, out = call.specs[0].shape, call.outputs[0].shape
    first = len(out) - len(shape)
    full = full_operand(out)
    operand = tuple(
        () if size != out[first + dim] else full[first + dim] for dim, size in enumerate(shape)
    )
    return structural_rule((operand,), (full,), factor_sizes(out), local=with_local_size(1))


def _diag_embed(call: Call) -> ShardingRule:
    shape, ndim = call.specs[0].shape, len(call.outputs[0].shape)
    dims = sorted(int(call.argument(name)) % ndim for name in ("dim1", "dim2"))
    full = full_operand(shape)
    out = list(full[:-1])
    for dim in dims:
        out.insert(dim, ())
    return structural_rule((full,), (tuple(out),), factor_sizes(shape), [f"d{len(shape) - 1}"])


def _as_real(call: Call) -> ShardingRule:
    full = full_operand(call.specs[0].shape)
    return _linear(call, full, (*full, ()))


def _as_complex(call: Call) -> ShardingRule:
    full = full_operand(call.specs[0].shape[:-1])
    return replace(_linear(call, (*full, ()), full), local=as_complex)


def _conjugate(call: Call) -> ShardingRule:
    full = full_operand(call.specs[0].shape)
    return replace(_linear(call, full, full), local=resolved)


def _linear(call: Call, before: Operand, after: Operand) -> ShardingRule:
    """A view that changes the meaning of elements: sums pass, extremes don't."""
    rule = structural_rule((before,), (after,), factor_sizes(call.specs[0].shape))
    return replace(rule, algebra="linear")


_BUILDERS = {
    "view _unsafe_view reshape _reshape_alias": (_view, "common factors of both shapes"),
    "permute": (_permute, "dims permuted"),
    "transpose": (_transpose, "dims permuted"),
    "t": (_t, "dims permuted"),
    "unsqueeze": (_unsqueeze, "a.. -> a.. 1"),
    "squeeze": (_squeeze, "a.. 1 -> a.."),
    "expand": (_expand, "1 a.. -> b a.."),
    "diag_embed": (_diag_embed, "last dim replicated"),
}
_LINEAR = {
    "view_as_real": (_as_real, "a.. -> a.. 2"),
    "view_as_complex": (_as_complex, "a.. 2 -> a.."),
    "_conj _neg_view": (_conjugate, "elementwise"),
}

ROWS = {
    name: Row(build, text, algebra)
    for algebra, builders in (("structural", _BUILDERS), ("linear", _LINEAR))
    for names, (build, text) in builders.items()
    for name in names.split()
}
ROWS["view.dtype"] = Row(_view_as, "x.. (d b!) -> x.. d, or the other way")
