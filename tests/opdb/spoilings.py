"""Calls that torch may refuse, made of calls that it accepts: an argument of a case is spoiled.

Used by `spoiled`, which calls torch and DTensors with the same arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

# Beyond the sizes of all samples, and no size that would not fit into memory.
_BEYOND = 99
_DTYPES = (torch.int64, torch.bool, torch.float64, torch.complex64)


def spoilings(leaves: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield every spoiling of the leaves, one argument at a time, with a description."""
    for place, leaf in enumerate(leaves):
        for name, spoiled in _instead_of(leaf):
            text = f"argument {place} {name}"
            yield text, [*leaves[:place], spoiled, *leaves[place + 1 :]]


def _instead_of(leaf: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(leaf, torch.Tensor):
        yield from _of_other_metadata(leaf.detach())
        yield from _of_other_values(leaf.detach())
    elif isinstance(leaf, (bool, int, float, complex)):
        numbers = (_BEYOND, -_BEYOND, leaf + 1, float("nan"), 1j, None, "none")
        yield from ((f"{leaf} -> {each!r}", each) for each in numbers)
    elif isinstance(leaf, torch.dtype):
        yield from ((f"{leaf} -> {each}", each) for each in (torch.bool, torch.complex64))
    elif isinstance(leaf, str):
        yield f"{leaf!r} -> 'none'", "none"
    elif leaf is None:
        yield f"None -> {_BEYOND}", _BEYOND


def _of_other_metadata(x: torch.Tensor) -> Iterator[tuple[str, Any]]:
    yield "-> None", None
    yield "-> 0.5", 0.5
    yield from ((f"as {dtype}", x.to(dtype)) for dtype in _DTYPES if dtype is not x.dtype)
    yield "with a dim more", x.unsqueeze(0)
    if x.ndim:
        yield "with a dim less", x.select(0, 0) if len(x) else x.sum(0)
    for dim, size in enumerate(x.shape):
        yield f"longer in dim {dim}", torch.cat([x, x.narrow(dim, 0, min(size, 1))], dim)
        yield f"empty in dim {dim}", x.narrow(dim, 0, 0)


def _of_other_values(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if x.dtype in (torch.int64, torch.int32) and x.numel():
        for number in (_BEYOND, -_BEYOND):
            for at in (0, -1):
                made = x.clone(memory_format=torch.contiguous_format)
                made.view(-1)[at] = number
                yield f"with {number} at {at}", made
    if x.dtype.is_floating_point and x.numel():
        yield "of nan", torch.full_like(x, torch.nan)
