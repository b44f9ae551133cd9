"""Selections, and writes of slices, in a sharded dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local
from dtensor_core.operators.kernels.local_positions import writing
from dtensor_core.spec import Spec

aten = torch.ops.aten


def selecting(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Select the part, or return zeros if this rank does not hold it."""

    def select(x: torch.Tensor, dim: int, index: int) -> torch.Tensor:
        dim = dim % x.ndim
        size = inputs[0].shape[dim]
        if inputs[0].local_shape[dim] == size:
            return op(x, dim, index)
        index, start = index % size, 0
        for piece in inputs[0].extents(dim):
            if piece.offset <= index < piece.offset + piece.size:
                return op(x, dim, start + index - piece.offset).clone()
            start += piece.size
        return x.new_zeros([n for each, n in enumerate(x.shape) if each != dim])

    return select


def writing_slice(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Write a slice; each rank writes its own positions."""
    write = writing(aten.index_copy.default, inputs, outputs)

    def into(
        x: torch.Tensor,
        part: torch.Tensor,
        dim: int = 0,
        start: Any = None,
        end: Any = None,
        step: int = 1,
    ) -> torch.Tensor:
        if inputs[0].local_shape[dim] == inputs[0].shape[dim]:
            return op(x, part, dim, start, end, step)
        places = torch.arange(inputs[0].shape[dim], device=x.device)[slice(start, end, step)]
        return write(x, dim, places, part.to(x.dtype))

    return into


def writing_selection(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Write at a position, on the rank that holds it."""
    write = writing(aten.index_copy.default, inputs, outputs)

    def into(x: torch.Tensor, part: torch.Tensor, dim: int, index: int) -> torch.Tensor:
        if inputs[0].local_shape[dim] == inputs[0].shape[dim]:
            return op(x, part, dim, index)
        place = torch.tensor([index % inputs[0].shape[dim]], device=x.device)
        return write(x, dim, place, part.unsqueeze(dim).to(x.dtype))

    return into
