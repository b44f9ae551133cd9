"""Products of matrices: the rows are notation alone."""

from __future__ import annotations

from dtensor_core.rules.row import notation

ROWS = {
    "mm": notation("m k, k n -> m n"),
    "bmm": notation("b m k, b k n -> b m n"),
    "mv": notation("m k, k -> m"),
    "dot": notation("k, k -> "),
    "vdot": notation("k, k -> "),
    "outer": notation("m, n -> m n"),
    "addmm": notation("m n + m k, k n -> m n"),
    "addmv": notation("m + m k, k -> m"),
    "baddbmm": notation("b m n + b m k, b k n -> b m n"),
    "addbmm": notation("m n + b m k, b k n -> m n"),
    "addr": notation("m n + m, n -> m n"),
}
