"""Fills of partial values: one rank gets the constant, the others the neutral element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local
from dtensor_core.spec import Spec


def fill_partial(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Fill, or on every coordinate but the first of an axis that sums, zero."""
    return op if _is_first_coordinate(inputs[0]) else _zero


def filled_partial(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Out-of-place form of `fill_partial`."""
    return op if _is_first_coordinate(inputs[0]) else _zeros


def masked_fill_partial(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Fill where the mask is true: with the value on one rank, with zero on the others."""
    return op if _is_first_coordinate(inputs[0]) else lambda x, mask, value: op(x, mask, 0)


def _is_first_coordinate(spec: Spec) -> bool:
    """True at coordinate 0 of every axis that sums, which keeps the value of a constant."""
    sums = [axis for axis, placement in enumerate(spec.placements) if placement.is_partial("sum")]
    return spec.coords is None or all(spec.coords[axis] == 0 for axis in sums)


def _zero(x: Any, *unused: Any, **unused_too: Any) -> Any:
    return x.zero_()


def _zeros(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.zeros_like(x)
