"""Errors of DTensors that one device does not raise, each with its place in the documentation.

A statement that raises one on all ranks alike is removed from its program, and counted.
"""

from __future__ import annotations

import re

# Patterns of a statement and its error, and the reason. All are in docs/moving-over.md.
_KNOWN = (
    ("in-place operations that require placement changes are not supported", "given addends"),
    ("what is written keeps its shape", "resize_"),
    ("a copy, .* of an expanded tensor needed communication", "copies of expanded tensors"),
    ("a copy, .*aten.unfold.default needed communication", "copies of windows"),
    ("op_.'addbmm'.*output with shape .* doesn't match the broadcast shape", "addbmm_"),
    ("it takes elements of memory that are not the tensor's", "as_strided beyond a tensor"),
    # torch's Python code creates plain tensors there.
    ("the gradients.*aten.mm.out: got mixed", "linear_cross_entropy in chunks, backward"),
    ("unravel_index.*got mixed torch.Tensor and DTensor", "unravel_index"),
)


def reason_of(statement: str, error: str) -> str | None:
    """Return the reason why an error is expected; None if it is not."""
    for text, reason in _KNOWN:
        if re.search(text, f"{statement}\n{error}", re.DOTALL):
            return reason
    return None
