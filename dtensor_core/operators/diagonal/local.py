"""Diagonals and triangles of matrices that are sharded by rows and columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local, LocalMaker
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

DimPair = tuple[int, int]


def _pieces(
    x: torch.Tensor, spec: Spec, offset: int, dims: DimPair
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the local pieces of the diagonal, as views, each with its start in the diagonal."""
    row = 0
    for rows in spec.extents(dims[0]):
        column = 0
        for columns in spec.extents(dims[1]):
            block = x.narrow(dims[0], row, rows.size).narrow(dims[1], column, columns.size)
            here = offset + rows.offset - columns.offset
            piece = block.diagonal(here, *dims)
            if piece.shape[-1]:
                yield rows.offset + max(-here, 0) - max(-offset, 0), piece
            column += columns.size
        row += rows.size


def _is_unsharded(spec: Spec, dims: DimPair) -> bool:
    return all(spec.local_shape[dim] == spec.shape[dim] for dim in dims)


def reading_diagonal(dims: DimPair, offset: int) -> LocalMaker:
    """Read the diagonal, with zeros for the parts of other ranks."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        spec, out = inputs[0], outputs[0]
        if out is None or _is_unsharded(spec, dims):
            return op

        def read(x: torch.Tensor, *unused: Any, **options: Any) -> torch.Tensor:
            made = depending(x.new_zeros(out.local_shape), x)
            for start, piece in _pieces(x, spec, offset, dims):
                made.narrow(-1, start, piece.shape[-1]).copy_(piece)
            return made

        return read

    return maker


def writing_diagonal(dims: DimPair, offset: int) -> LocalMaker:
    """Write the diagonal; each rank writes its local pieces."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        spec = inputs[0]
        if _is_unsharded(spec, dims):
            return op

        def write(x: torch.Tensor, diagonal: torch.Tensor, *unused: Any, **options: Any):
            made = x.clone()
            for start, piece in _pieces(made, spec, offset, dims):
                piece.copy_(diagonal.narrow(-1, start, piece.shape[-1]))
            return made

        return write

    return maker


def tracing(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Sum the local part of the diagonal."""
    if _is_unsharded(inputs[0], (0, 1)):
        return op

    def trace(x: torch.Tensor) -> torch.Tensor:
        made = depending(x.new_zeros(0).sum(), x)
        for _, piece in _pieces(x, inputs[0], 0, (0, 1)):
            made = made + piece.sum()
        return made

    return trace


def triangular(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Keep the operator's side of the diagonal, by global rows and columns."""
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
    positions = [
        torch.arange(piece.offset, piece.offset + piece.size, device=like.device)
        for piece in spec.extents(dim)
    ]
    return torch.cat(positions)
