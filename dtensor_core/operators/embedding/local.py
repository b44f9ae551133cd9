"""Embedding look-ups in the rows of a table that a rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local
from dtensor_core.operators.kernels.local_positions import LocalPositions
from dtensor_core.spec import Spec

aten = torch.ops.aten


def looking_up(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Look up local rows, with zeros for rows of other ranks."""
    positions = LocalPositions(op, inputs[0], 0)
    if positions.all:
        return op

    def lookup(
        weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, *unused: Any
    ) -> torch.Tensor:
        found, elsewhere = positions.local(indices)
        # The padding index is dropped, as it concerns the backward only.
        rows = aten.embedding.default(positions.not_empty(weight), found, -1)
        return rows.masked_fill_(elsewhere.unsqueeze(-1), 0)

    return lookup


def renormalizing(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Renormalize the indexed local rows."""
    positions = LocalPositions(op, inputs[0], 0)
    if positions.all:
        return op

    def shorten(weight: torch.Tensor, indices: torch.Tensor, *how: float) -> torch.Tensor:
        rows, elsewhere = positions.local(indices)
        if type(weight) is torch.Tensor:  # the number of local rows depends on data
            rows = rows[~elsewhere]
        return op(weight, rows, *how) if positions.count else weight

    return shorten
