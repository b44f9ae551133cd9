"""Errors of DTensors that one device does not raise, each with the place that names it.

A statement that ends in one, on all ranks alike, is left out of its program, and counted.
"""

from __future__ import annotations

import re

from tests.programs.program import Statement

# What the error says, and what is told of it. All are in docs/moving-over.md.
_KNOWN = (
    # torch's Python makes plain tensors there.
    (r"(?s)unravel_index.*got mixed torch.Tensor and DTensor", "unravel_index"),
    ("in-place operations that require placement changes are not supported", "given addends"),
    ("what is written keeps its shape", "resize_"),
    ("needed communication", "a view that is a copy"),
)


def reason_of(statement: Statement, error: str) -> str | None:
    """Why an error is to be expected; None if it is not."""
    for text, reason in _KNOWN:
        if re.search(text, f"{statement}\n{error}"):
            return reason
    return None
