"""Operands with a factor per dimension, `d0, d1, ...`, and with broadcast dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dtensor_core.operators.rules.sharding_rule import Operand


def operand_of(shape: Sequence[int], out_shape: Sequence[int]) -> Operand:
    """Return the operand of an argument broadcast to `out_shape`, whose dims are d0, d1, ..."""
    first = len(out_shape) - len(shape)
    return tuple(
        () if size == 1 and out_shape[first + dim] != 1 else (f"d{first + dim}",)
        for dim, size in enumerate(shape)
    )


def full_operand(shape: Sequence[int]) -> Operand:
    """Return the operand with a factor per dimension."""
    return _one_factor_each(len(shape))


@lru_cache(maxsize=64)
def _one_factor_each(ndim: int) -> Operand:
    return tuple((f"d{dim}",) for dim in range(ndim))


def factor_sizes(shape: Sequence[int]) -> dict[str, int]:
    """Return the sizes of the factors of `full_operand`."""
    return {name: size for (name,), size in zip(full_operand(shape), shape, strict=True)}
