"""Triangles of matrices: what a rank keeps depends on which rows and columns it holds."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtensor_core.local.operator import Local
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Rule
from dtensor_core.spec import Spec


def _triangle(call: Call) -> Rule:
    whole = full_operand(call.specs[0].shape)
    return Rule(
        inputs=(whole,),
        outputs=(whole,),
        sizes=factor_sizes(call.specs[0].shape),
        terms=((0,),),
        algebra="structural",
        local=_held_triangle,
    )


def _held_triangle(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Keep what lies on the operator's side of the diagonal, by global rows and columns."""
    spec = inputs[0]
    if spec.local_shape[-2:] == tuple(spec.shape[-2:]):
        return op
    lower = "tril" in op._schema.name  # pyright: ignore[reportFunctionMemberAccess]
    in_place = op._schema.is_mutable  # pyright: ignore[reportFunctionMemberAccess]

    def triangle(x: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
        rows, columns = (_positions(spec, dim, x) for dim in (spec.ndim - 2, spec.ndim - 1))
        distance = columns.unsqueeze(0) - rows.unsqueeze(1)
        gone = distance > diagonal if lower else distance < diagonal
        return x.masked_fill_(gone, 0) if in_place else x.masked_fill(gone, 0)

    return triangle


def _positions(spec: Spec, dim: int, like: torch.Tensor) -> torch.Tensor:
    held = [
        torch.arange(piece.offset, piece.offset + piece.size, device=like.device)
        for piece in spec.held(dim)
    ]
    return torch.cat(held)


ROWS = {
    name: Row(_triangle, "elementwise, by global rows and columns", "structural")
    for name in ("tril", "triu")
}
