"""Errors and values of DTensors that differ from one device's, all of them documented.

A statement that raises such an error on all ranks alike is removed from its program, and counted.
A program whose values differ is compared again without what is documented to make them differ.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tests.programs.program import Program

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


def without_documented_values(program: Program) -> tuple[str, Program] | None:
    """Return a program without its first documented difference of values, and the reason.

    None if there is no such difference. All are in docs/moving-over.md.
    """
    code = "\n".join(statement.code for statement in program.statements)
    hidden = {s.targets[0] for s in program.statements if s.in_place and ".data." in s.code}
    if hidden:
        return "copies of what is written through .data", program.without(hidden)
    is_special = any(given.values == "special" for given in program.given)
    if program.differentiated and is_special and "prod" in code:
        return "gradients of products that are not finite", replace(program, differentiated=())
    return None
