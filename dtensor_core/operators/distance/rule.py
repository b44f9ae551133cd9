"""Distances by a norm between points: cdist, pdist, and their gradients.

Distances along sharded coordinates are norms of the ranks' norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local, zeros_if_empty
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, operand_of
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule
from dtensor_core.spec import Spec


def _distances(*roles: str) -> Row:
    """Distances by a norm between points with coordinates m in the last dim, or their gradient."""
    backward = len(roles) > 3

    def build(call: Call) -> ShardingRule:
        shapes = [*(spec.shape for spec in call.specs), call.outputs[0].shape]
        batch = shapes[-1][: len(shapes[-1]) - len(roles[-1])]
        operands: list[Operand] = []
        sizes = factor_sizes(batch)
        for shape, role in zip(shapes, roles, strict=True):
            last = len(shape) - len(role)
            operands.append((*operand_of(shape[:last], batch), *((name,) for name in role)))
            sizes |= dict(zip(role, shape[last:], strict=True))
        exponent = float(call.argument("p", 2.0))
        return ShardingRule(
            inputs=tuple(operands[:-1]),
            outputs=tuple(operands[-1:]),
            sizes=sizes,
            # Pairs of points within one set are numbered.
            blocked=frozenset("xy"),
            reduce=_NORMS.get(exponent, f"norm{exponent:g}") if not backward else "sum",
            terms=((0,),) if backward else (),
            algebra="linear" if backward else "opaque",
            local=_of_contiguous,
        )

    text = f"{', '.join(' '.join(role) for role in roles[:-1])} -> {' '.join(roles[-1])}"
    return Row(
        build, text.replace("x", "x!").replace("y", "y!"), "linear" if backward else "opaque"
    )


def _of_contiguous(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Copy parts that are not contiguous, as a shard's may be; pdist's kernels refuse them."""
    run = zeros_if_empty(op, inputs, outputs)

    def local(*args: Any) -> Any:
        return run(*(a.contiguous() if isinstance(a, torch.Tensor) else a for a in args))

    return local


_NORMS = {math.inf: "max", 0.0: "sum"}


ROWS = {
    "_pdist_forward": _distances("xm", "y"),
    "_pdist_backward": _distances("y", "xm", "y", "xm"),
    "_cdist_forward": _distances("pm", "rm", "pr"),
    "_cdist_backward": _distances("pr", "pm", "rm", "pr", "pm"),
}
