"""Distribute tensors over a mesh and reassemble them, with nothing but torch.chunk.

dtensor_core is compared with this module, so it uses none of its arithmetic and communicates
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core import DTensor, Partial, Placement, Replicate, Shard, _StridedShard
from dtensor_core.placement import norm_exponent
from tests.programs.given import Given, placements_of


class Mismatch(AssertionError):
    """A result that differs from a single device's."""


@dataclass(frozen=True, slots=True)
class Held:
    """A rank's part of a result."""

    local: torch.Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    placements: tuple[Placement, ...]
    requires_grad: bool

    @classmethod
    def of(cls, value: Any) -> Any:
        """Copy a DTensor's local part and its layout; a value that is no tensor stays as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        if not isinstance(value, DTensor):
            raise Mismatch(f"a {type(value).__name__} where a DTensor was expected")
        tensor = value
        as_it_is = tensor.detach().redistribute(placements=tensor.placements)
        return cls(
            as_it_is.to_local().clone(),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            tensor.placements,
            tensor.requires_grad,
        )


def lay(given: Given, mesh: Any) -> DTensor:
    """Create the DTensor of an input, a leaf; partial values differ from rank to rank."""
    full = given.full()
    local = full
    for axis, placement in enumerate(given.placements):
        local = _part(
            local, placement, mesh.size(axis), mesh.get_coordinate()[axis], given.seed + axis
        )
    if given.tight:
        local = local.contiguous()
    laid = DTensor.from_local(local, mesh, given.placements, shape=full.shape, stride=full.stride())
    return laid.requires_grad_(given.requires_grad)


def _part(
    full: torch.Tensor, placement: Placement, ranks: int, coord: int, seed: int
) -> torch.Tensor:
    """Local part of a coordinate on an axis."""
    if isinstance(placement, Shard):
        pieces = full.chunk(ranks, placement.dim)
        return pieces[coord] if coord < len(pieces) else full.narrow(placement.dim, 0, 0)
    if isinstance(placement, _StridedShard):
        held = _numbers(full.shape[placement.dim], placement, ranks)[coord]
        return full.index_select(placement.dim, held)
    if isinstance(placement, Partial):
        return _partial_value(full, placement.reduce_op, ranks, coord, seed)
    return full


def _partial_value(full: torch.Tensor, op: str, ranks: int, coord: int, seed: int) -> torch.Tensor:
    """Partial value of a coordinate: small numbers, and on the first coordinate the rest."""
    dice = torch.Generator().manual_seed(seed)
    noise = [torch.randint(1, 4, full.shape, generator=dice).to(full.dtype) for _ in range(ranks)]
    if op in ("max", "min"):
        return full if coord == 0 else full - noise[coord] * (1 if op == "max" else -1)
    if op == "product":
        return full if coord == 0 else torch.ones_like(full)
    if norm_exponent(op) is not None:
        return full.abs() if coord == 0 else torch.zeros_like(full)
    wanted = full * ranks if op == "avg" else full
    first = wanted - sum(noise[1:])
    return torch.where(full.isfinite(), noise[coord] if coord else first, full)


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of a function of the finite elements, so that each of them contributes differently."""
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return parts.sin().nan_to_num().double().sum()


def redistribute(tensor: torch.Tensor, text: str) -> torch.Tensor:
    """Copy a DTensor to other placements (`"S0 R"`); a plain tensor is just copied.

    Without the copy, the same placements would return an alias, which a single device does not
    have.
    """
    copy = tensor.clone()
    return copy.redistribute(placements=placements_of(text)) if isinstance(copy, DTensor) else copy


def put_together(held: Sequence[Held], mesh_shape: Sequence[int]) -> torch.Tensor:
    """Reassemble the full tensor from the parts of a mesh's ranks, in rank order.

    Raises:
        Mismatch: Ranks disagree about the layout or about replicated values, or a local part does
            not
            have the shape that its layout requires.
    """
    first = held[0]
    for each in held:
        facts = [(h.shape, h.stride, h.dtype, h.placements, h.requires_grad) for h in (each, first)]
        if facts[0] != facts[1]:
            raise Mismatch(f"ranks differ: {first} and {each}")
    parts = [each.local for each in held]
    sizes = _sizes(first, mesh_shape)
    for axis in reversed(range(len(mesh_shape))):
        placement, ranks = first.placements[axis], mesh_shape[axis]
        groups = [parts[start : start + ranks] for start in range(0, len(parts), ranks)]
        parts = [
            _joined(group, placement, size) for group, size in zip(groups, sizes[axis], strict=True)
        ]
    if tuple(parts[0].shape) != first.shape:
        raise Mismatch(f"the parts make {tuple(parts[0].shape)}, the tensor has {first.shape}")
    if parts[0].dtype != first.dtype:
        raise Mismatch(f"the parts are {parts[0].dtype}, the tensor is {first.dtype}")
    return parts[0]


def _sizes(held: Held, mesh_shape: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """For each axis, the shape that each coordinate of the axes before it divides."""
    shapes: list[list[tuple[int, ...]]] = []
    level = [held.shape]
    for placement, ranks in zip(held.placements, mesh_shape, strict=True):
        shapes.append(level)
        level = [piece for shape in level for piece in _pieces(shape, placement, ranks)]
    return shapes


def _pieces(shape: tuple[int, ...], placement: Placement, ranks: int) -> list[tuple[int, ...]]:
    """Local shapes on the coordinates of an axis, for a tensor of this shape."""
    dim = placement.sharded_dim
    if dim is None:
        return [shape] * ranks
    if isinstance(placement, Shard):
        full = torch.empty(shape, device="meta")
        return [tuple(_part(full, placement, ranks, coord, 0).shape) for coord in range(ranks)]
    held = [len(numbers) for numbers in _numbers(shape[dim], placement, ranks)]
    return [(*shape[:dim], size, *shape[dim + 1 :]) for size in held]


def _numbers(size: int, placement: Placement, ranks: int) -> list[torch.Tensor]:
    """Indices of a dim that each coordinate holds: its chunk of each block."""
    blocks = [_chunks(block, ranks) for block in _chunks(torch.arange(size), placement.num_blocks)]
    return [torch.cat([block[coord] for block in blocks]) for coord in range(ranks)]


def _chunks(indices: torch.Tensor, count: int) -> list[torch.Tensor]:
    """torch.chunk, padded with empty chunks to `count`."""
    chunks = list(indices.chunk(count))
    return chunks + [indices[:0]] * (count - len(chunks))


def _joined(
    parts: list[torch.Tensor], placement: Placement, shape: tuple[int, ...]
) -> torch.Tensor:
    if isinstance(placement, Partial):
        if parts[0].dtype is torch.complex32:  # no kernel reduces these
            return _joined([part.cfloat() for part in parts], placement, shape).chalf()
        stacked = torch.stack(parts)
        exponent = norm_exponent(placement.reduce_op)
        if exponent is not None:
            return stacked.abs().pow(exponent).sum(0).pow(1 / exponent)
        return {
            "sum": lambda: stacked.sum(0, dtype=stacked.dtype),
            "avg": lambda: stacked.mean(0),
            "max": lambda: stacked.amax(0),
            "min": lambda: stacked.amin(0),
            "product": lambda: stacked.prod(0, dtype=stacked.dtype),
        }[placement.reduce_op]()
    if isinstance(placement, Replicate):
        for part in parts[1:]:
            if not torch.allclose(part, parts[0], rtol=0, atol=0, equal_nan=True):
                raise Mismatch(f"replicas differ: {parts[0]} and {part}")
        return parts[0]
    expected, found = _pieces(shape, placement, len(parts)), [tuple(p.shape) for p in parts]
    if found != expected:
        raise Mismatch(f"{placement} holds pieces of {found}, not of {expected}")
    dim = placement.sharded_dim
    assert dim is not None
    numbers = torch.cat([*_numbers(shape[dim], placement, len(parts))])
    return torch.cat(parts, dim).index_select(dim, numbers.argsort())
