"""Diagonals and triangles of matrices; a rank holds the diagonal's part within its shard."""

from __future__ import annotations

from dataclasses import replace

from dtensor_core.operators.diagonal.local import (
    reading_diagonal,
    tracing,
    triangular,
    writing_diagonal,
)
from dtensor_core.operators.kernels.local_operator import LocalMaker
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.rule_builders import reduction_with_zeros, structural_rule
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule


def _matrix(call: Call) -> tuple[Operand, Operand, tuple[int, int], int]:
    """Return operands of matrices and of their diagonals [.., l], both dims, and the offset."""
    shape = call.specs[0].shape
    dims = int(call.argument("dim1")) % len(shape), int(call.argument("dim2")) % len(shape)
    full = full_operand(shape)
    diagonal = (*(names for dim, names in enumerate(full) if dim not in dims), ())
    return full, diagonal, dims, int(call.argument("offset"))


def _rule(
    call: Call, inputs: tuple[Operand, ...], output: Operand, algebra: str, local: LocalMaker
) -> ShardingRule:
    rule = structural_rule(inputs, (output,), factor_sizes(call.specs[0].shape), local=local)
    return replace(rule, reduce=reduction_with_zeros(call.outputs[0]), algebra=algebra)


def _diagonal(call: Call) -> ShardingRule:
    full, diagonal, dims, offset = _matrix(call)
    return _rule(call, (full,), diagonal, "structural", reading_diagonal(dims, offset))


def _scatter(call: Call) -> ShardingRule:
    full, diagonal, dims, offset = _matrix(call)
    local = writing_diagonal(dims, offset)
    return _rule(call, (full, diagonal), full, "structural", local)


def _trace(call: Call) -> ShardingRule:
    return _rule(call, (full_operand(call.specs[0].shape),), (), "linear", tracing)


def _triangle(call: Call) -> ShardingRule:
    full = full_operand(call.specs[0].shape)
    return _rule(call, (full,), full, "structural", triangular)


ROWS = {
    **same_row(
        "diagonal diagonal_copy",
        Row(_diagonal, "each rank has its part of the diagonal", "structural"),
    ),
    "diagonal_scatter": Row(
        _scatter, "each rank has its part of the diagonal", "structural", ((0,), (1,))
    ),
    "trace": Row(_trace, "each rank has its part of the diagonal", "linear"),
    **same_row("tril triu", Row(_triangle, "by global rows and columns", "structural")),
}
