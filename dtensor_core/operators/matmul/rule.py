"""Matrix products: rows in notation alone, except where kernels require aligned rows."""

from __future__ import annotations

from dataclasses import replace

import torch

from dtensor_core.operators.matmul.local import expanding_bias, grouped_product
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.notation import bind, parse
from dtensor_core.operators.rules.row import Row, notation
from dtensor_core.operators.rules.rule_builders import replicated_rule
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _scaled(text: str) -> Row:
    """Make a row for kernels that accept fractional factors for integers, except for empty sums."""
    row = notation(text)

    def build(call: Call) -> ShardingRule | None:
        names = () if _is_inexact(call.specs[0].dtype) else ("beta", "alpha")
        if any(isinstance(call.argument(name, 1), float) for name in names):
            return replicated_rule(call)
        return row.build(call)

    return replace(row, build=build)


def _in_blocks(call: Call, text: str, block: int) -> ShardingRule:
    """Build the rule of a line of notation whose k and n are sharded in multiples of `block`."""
    parsed = parse(text)
    sizes, blocked = bind(parsed, call.shapes), set(parsed.blocked)
    for name in sizes.keys() & {"k", "n"}:
        if sizes[name] % block:
            blocked.add(name)
        else:
            blocked.add(f"{name}'")
            sizes[name], sizes[f"{name}'"] = sizes[name] // block, block

    def split(operand: Operand) -> Operand:
        return tuple(
            tuple(each for name in dim for each in (name, f"{name}'") if each in sizes)
            for dim in operand
        )

    inputs, outputs = map(split, parsed.inputs), map(split, parsed.outputs)
    rest = frozenset(blocked), "sum", parsed.terms
    return ShardingRule(tuple(inputs), tuple(outputs), sizes, *rest)


# A group owns rows of the first argument, columns of the second, or a range of the summed dim.
_GROUPED = {
    (2, 3): "t! k, g! k n, g! -> t! n",
    (3, 3): "g m k, g k n -> g m n",
    (3, 2): "g! m k, k t!, g! -> m t!",
    (2, 2): "m t!, t! n, g! -> g! m n",
}


def _grouped(call: Call) -> ShardingRule:
    """Products by groups of rows, with their ends in `offs`.

    Rows of a matrix start at a multiple of 16 bytes, so k and n are sharded in blocks of that size.
    """
    if call.argument("bias") is not None:
        return replicated_rule(call)
    x, other = call.specs[:2]
    rule = _in_blocks(call, _GROUPED[x.ndim, other.ndim], max(16 // x.dtype.itemsize, 1))
    return replace(rule, local=grouped_product)


def _packed(call: Call) -> ShardingRule:
    """Integer weights with a scale per row; the kernel fails on empty shards."""
    return _in_blocks(call, "m k, n k, n -> m n", 16)


def _scaled_product(call: Call) -> ShardingRule:
    """Multiply x [m, k] and y [k, n] with their scales, and add a bias [n].

    Scales are per tensor, or per row of x and column of y.
    """
    (m, _), (_, n) = call.shapes[:2]
    named = {(): "", (1,): "1", (m, 1): "m 1", (1, n): "1 n", (1, 1): "1 1"}
    scales = [named.get(shape) for shape in call.shapes[2:4]]
    if None in scales or call.argument("scale_result") is not None:
        return replicated_rule(call)
    blocked = "!" if call.outputs[0].dtype.itemsize == 1 else ""  # partial sums would be rounded
    bias = " + n" if call.argument("bias") is not None else ""
    return _in_blocks(call, f"m k{blocked}, k n, {', '.join(map(str, scales))}{bias} -> m n", 16)


ROWS = {
    "mm": notation("m k, k n -> m n"),
    "bmm": notation("b m k, b k n -> b m n"),
    "mv": notation("m k, k -> m"),
    "dot": notation("k, k -> "),
    "vdot": notation("k, k -> "),
    "outer": notation("m, n -> m n"),
    "addmm": notation("m n + m k, k n -> m n"),
    "addmv": notation("m + m k, k -> m", local=expanding_bias),
    "baddbmm": _scaled("b m n + b m k, b k n -> b m n"),
    "addbmm": _scaled("m n + b m k, b k n -> m n"),
    "addr": notation("m n + m, n -> m n"),
    "_int_mm": notation("m k, k n -> m n", algebra="opaque"),
    "_weight_int8pack_mm": Row(_packed, "m k, n k, n -> m n"),
    "_grouped_mm": Row(_grouped, "; ".join(_GROUPED.values())),
    "_scaled_mm": Row(_scaled_product, "m k, k n, m?, n? + n? -> m n"),
}
