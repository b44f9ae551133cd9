"""Values that are reduced, as they are sent: so that the result is that of one device.

Backends add up in the type that they are sent, and may pass over a nan in a maximum. Therefore

    average       divided by a power of two before, and by the rest of the number of ranks after:
                  exact but for subnormal numbers, and no sum overflows where the average does not
    norm          the sum of powers that it is made of, those of half types in float32
    max, min      of floating numbers as integers in the same order, nan beyond all others; those
                  of half types, of whose width backends reduce no integers, as of float32

`site` asks once for each step, and `steps` encodes and decodes. What travels in another width
counts so in the announced bytes (`sent_itemsize`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from dtensor_core.placement import norm_exponent

_HALVES = (torch.float16, torch.bfloat16)
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
_EXTREMES = ("max", "min")


@dataclass(frozen=True, slots=True)
class Addends(ABC):
    """Encoding of values before they are reduced by `reduce_op`, and decoding of the result."""

    reduce_op: str

    @abstractmethod
    def encoded(self, local: torch.Tensor) -> torch.Tensor:
        """The values as they are sent."""

    @abstractmethod
    def decoded(self, arrived: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The result in its own type."""


@dataclass(frozen=True, slots=True)
class _Averaged(Addends):
    """Addends of an average over `factor` ranks."""

    factor: int

    @property
    def _before(self) -> int:
        return 1 << (self.factor - 1).bit_length()

    def encoded(self, local: torch.Tensor) -> torch.Tensor:
        return divided(local, self._before) if _is_inexact(local.dtype) else local

    def decoded(self, arrived: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        rest = self.factor / (self._before if _is_inexact(dtype) else 1)
        return arrived if rest == 1 else divided(arrived, rest)


@dataclass(frozen=True, slots=True)
class _Powers(Addends):
    """Norms, as the sums of powers that they are made of."""

    exponent: float

    def encoded(self, local: torch.Tensor) -> torch.Tensor:
        return _widened(local).pow(self.exponent)

    def decoded(self, arrived: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return arrived.pow_(1 / self.exponent).to(dtype)


@dataclass(frozen=True, slots=True)
class _Ordered(Addends):
    """Floating numbers as integers in the same order; a nan wins."""

    def encoded(self, local: torch.Tensor) -> torch.Tensor:
        local = _widened(local)
        bits = local.view(_INTEGERS[local.dtype])
        limits = torch.iinfo(bits.dtype)
        beyond = limits.max if self.reduce_op == "max" else limits.min
        return _reordered(bits).masked_fill_(local.isnan(), beyond)

    def decoded(self, arrived: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        return _reordered(arrived).view(wide).to(dtype)


def addends_of(reduce_op: str, factor: int, dtype: torch.dtype) -> Addends | None:
    """Encoding of the values of a reduction over ranks; None if they are sent as they are."""
    exponent = norm_exponent(reduce_op)
    if exponent is not None:
        return _Powers("sum", exponent)
    if factor != 1:
        return _Averaged(reduce_op, factor)
    ordered = reduce_op in _EXTREMES and (dtype in _INTEGERS or dtype in _HALVES)
    return _Ordered(reduce_op) if ordered else None


def sent_itemsize(reduce_op: str, dtype: torch.dtype) -> int:
    """The bytes that an element of a type has on its way to be reduced."""
    widened = reduce_op in _EXTREMES or norm_exponent(reduce_op) is not None
    return 4 if widened and dtype in _HALVES else dtype.itemsize


def divided(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The quotient, in the type of the tensor; of integers it is rounded to zero."""
    if tensor.dtype is torch.complex32:  # no kernel divides these
        return torch.view_as_complex(divided(torch.view_as_real(tensor), factor))
    return tensor / factor if _is_inexact(tensor.dtype) else (tensor / factor).to(tensor.dtype)


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _widened(local: torch.Tensor) -> torch.Tensor:
    return local.float() if local.dtype in _HALVES else local


def _reordered(bits: torch.Tensor) -> torch.Tensor:
    """Bits of floating numbers as integers in their order, and back: its own inverse."""
    limits = torch.iinfo(bits.dtype)
    return bits ^ ((bits >> (limits.bits - 1)) & limits.max)
