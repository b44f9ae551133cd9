"""Reading by an index along a sharded dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local, refusing
from dtensor_core.operators.kernels.local_positions import LocalPositions
from dtensor_core.spec import Spec


def reading(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Read by an index along a dimension; positions of other ranks give zero."""
    of_all = refusing(op, inputs, op)

    def read(x: torch.Tensor, dim: int, index: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        positions = LocalPositions(op, inputs[0], dim % max(x.ndim, 1))
        if positions.all:
            return of_all(x, dim, index, **kwargs)
        found, elsewhere = positions.local(index)
        result = op(positions.not_empty(x), dim, found, **kwargs)
        if elsewhere.ndim != result.ndim or elsewhere.shape != result.shape:
            elsewhere = elsewhere.reshape(-1, *[1] * (result.ndim - positions.dim - elsewhere.ndim))
        return result.masked_fill_(elsewhere, 0)

    return read
