"""Encoding of values for a reduction, so that the result matches a single device's.

Backends accumulate in the dtype that they are sent, and may ignore a nan in a maximum. Therefore:

    average       is divided by a power of two before, and by the rest of the number of ranks after:
                  exact but for subnormal numbers, and no sum overflows unless the average does
    norm          is sent as its sum of powers, in float32 for half-precision dtypes
    max, min      of floating-point numbers are sent as integers in the same order, nan beyond all
                  others; half-precision dtypes as float32's, since backends reduce no
                  integers of their width

`rank_step` asks once per step; `steps` encodes and decodes. Values that travel in another width
count with that width in the announced bytes (`sent_itemsize`).
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
class WireEncoding(ABC):
    """Encoding of values before they are reduced by `reduce_op`, and decoding of the result."""

    reduce_op: str

    @abstractmethod
    def encoded(self, local: torch.Tensor) -> torch.Tensor:
        """Return the values in the form in which they are sent."""

    @abstractmethod
    def decoded(self, arrived: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the result in its own dtype."""


@dataclass(frozen=True, slots=True)
class _Averaged(WireEncoding):
    """Values of an average over `factor` ranks."""

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
class _Powers(WireEncoding):
    """Norms, sent as the sums of powers that they are made of."""

    exponent: float

    def encoded(self, local: torch.Tensor) -> torch.Tensor:
        return _widened(local).pow(self.exponent)

    def decoded(self, arrived: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return arrived.pow_(1 / self.exponent).to(dtype)


@dataclass(frozen=True, slots=True)
class _Ordered(WireEncoding):
    """Floating-point numbers, sent as integers in the same order; a nan wins."""

    def encoded(self, local: torch.Tensor) -> torch.Tensor:
        local = _widened(local)
        bits = local.view(_INTEGERS[local.dtype])
        limits = torch.iinfo(bits.dtype)
        beyond = limits.max if self.reduce_op == "max" else limits.min
        return _reordered(bits).masked_fill_(local.isnan(), beyond)

    def decoded(self, arrived: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        return _reordered(arrived).view(wide).to(dtype)


def encoding_of(reduce_op: str, factor: int, dtype: torch.dtype) -> WireEncoding | None:
    """Return the encoding of the values of a reduction, or None if they are sent unchanged."""
    exponent = norm_exponent(reduce_op)
    if exponent is not None:
        return _Powers("sum", exponent)
    if factor != 1:
        return _Averaged(reduce_op, factor)
    ordered = reduce_op in _EXTREMES and (dtype in _INTEGERS or dtype in _HALVES)
    return _Ordered(reduce_op) if ordered else None


def sent_itemsize(reduce_op: str, dtype: torch.dtype) -> int:
    """Return the bytes per element of a dtype on the wire of a reduction."""
    widened = reduce_op in _EXTREMES or norm_exponent(reduce_op) is not None
    return 4 if widened and dtype in _HALVES else dtype.itemsize


def divided(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Return the quotient in the dtype of the tensor; integers are rounded toward zero."""
    if tensor.dtype is torch.complex32:  # no kernel divides these
        return torch.view_as_complex(divided(torch.view_as_real(tensor), factor))
    return tensor / factor if _is_inexact(tensor.dtype) else (tensor / factor).to(tensor.dtype)


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _widened(local: torch.Tensor) -> torch.Tensor:
    return local.float() if local.dtype in _HALVES else local


def _reordered(bits: torch.Tensor) -> torch.Tensor:
    """Map bits of floating-point numbers to integers in the same order; its own inverse."""
    limits = torch.iinfo(bits.dtype)
    # Negative numbers are stored by magnitude; flipping all bits but the sign reverses their order.
    return bits ^ ((bits >> (limits.bits - 1)) & limits.max)
