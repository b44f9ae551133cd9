"""Linear algebra: batch dimensions and right-hand sides are sharded freely."""

from __future__ import annotations

from dataclasses import replace

from dtensor_core.operators.rules.batched import batched, operand_in
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.rule_builders import elementwise_rule
from dtensor_core.operators.rules.sharding_rule import Candidate, ShardingRule
from dtensor_core.placement import Replicate, Shard


def _solving(number: int, row: Row) -> Row:
    """Make a row that solves for every column of argument `number` (row, unless it is `left`)."""

    def build(call: Call) -> ShardingRule | None:
        rule, spec = row.build(call), call.specs[number]
        may_be = call.op._schema.name == "aten::_linalg_solve_ex"
        is_vector = may_be and (spec.ndim < 2 or spec.shape == call.specs[0].shape[:-1])
        if rule is None or is_vector:
            return _vectors(call) if is_vector else None
        behind, replicate = 1 if call.argument("left", True) else 2, Replicate()
        sharded = Shard(spec.ndim - behind)
        inputs = tuple(sharded if n == number else replicate for n in range(len(call.specs)))
        solved = Shard(len(call.outputs[0].shape) - behind)
        outputs = (solved, *(replicate for _ in call.outputs[1:]))
        return replace(rule, extra=(Candidate(inputs, outputs),))

    return Row(build, f"{row.text}; columns of {number}")


def _vectors(call: Call) -> ShardingRule:
    """Matrices with one vector each; only the matrices' batch dims are known to be such."""
    widths = [2 if n == 0 else 1 for n in range(len(call.specs))]
    batch = call.specs[0].shape[:-2]
    inputs = tuple(operand_in(s, w, batch) for s, w in zip(call.shapes, widths, strict=True))
    outputs = tuple(
        (*((f"b{n}",) for n in range(len(batch))), *((),) * (len(meta.shape) - len(batch)))
        for meta in call.outputs
    )
    return ShardingRule(inputs, outputs, {f"b{n}": size for n, size in enumerate(batch)})


def _cross(call: Call) -> ShardingRule:
    """Bilinear; the dim of size three is replicated."""
    dim = int(call.argument("dim", -1)) % len(call.outputs[0].shape)
    return replace(
        elementwise_rule(call),
        blocked=frozenset([f"d{dim}"]),
        terms=((0, 1),),
        algebra="linear",
    )


ROWS = {
    **same_row(
        "_linalg_svd linalg_inv_ex _linalg_det _linalg_slogdet _linalg_eigh linalg_eig linalg_qr "
        "linalg_lu_factor_ex linalg_lu linalg_cholesky_ex cholesky cholesky_inverse "
        "linalg_matrix_exp geqrf linalg_ldl_factor_ex",
        batched(2),
    ),
    **same_row("linalg_solve_triangular _linalg_solve_ex", _solving(1, batched(2))),
    **same_row("cholesky_solve triangular_solve", _solving(0, batched(2))),
    **same_row("linalg_lu_solve linalg_ldl_solve", _solving(2, batched(2, pivots=1))),
    "lu_unpack": batched(2, LU_pivots=1),
    "linalg_householder_product": batched(2, tau=1),
    "ormqr": batched(2, input2=1),
    "linalg_cross": Row(_cross, "dim replicated", "linear", ((0, 1),)),
}
