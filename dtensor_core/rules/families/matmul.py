"""Products of matrices: the rows are notation alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from dtensor_core.rules.call import Call
from dtensor_core.rules.row import Row, notation, whole_rule
from dtensor_core.rules.rule import Rule


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _scaled(text: str) -> Row:
    """A row of kernels that take fractional factors for integers, but not where a sum is empty."""
    row = notation(text)

    def build(call: Call) -> Rule | None:
        names = () if _is_inexact(call.specs[0].dtype) else ("beta", "alpha")
        if any(isinstance(call.argument(name, 1), float) for name in names):
            return whole_rule(call)
        return row.build(call)

    return replace(row, build=build)


ROWS = {
    "mm": notation("m k, k n -> m n"),
    "bmm": notation("b m k, b k n -> b m n"),
    "mv": notation("m k, k -> m"),
    "dot": notation("k, k -> "),
    "vdot": notation("k, k -> "),
    "outer": notation("m, n -> m n"),
    "addmm": notation("m n + m k, k n -> m n"),
    "addmv": notation("m + m k, k -> m"),
    "baddbmm": _scaled("b m n + b m k, b k n -> b m n"),
    "addbmm": _scaled("m n + b m k, b k n -> m n"),
    "addr": notation("m n + m, n -> m n"),
}
