"""Errors and values of DTensors that differ from a single device's, all of them documented.

A statement that raises such an error on all ranks alike is removed from its program, and counted.
A program whose values differ is compared again without the statements documented to differ.
"""

from __future__ import annotations

import re
from dataclasses import replace

from dtensor_core import Placement, Replicate
from tests.programs.given import Given
from tests.programs.program import Program

# Patterns of a statement and its error, and the reason. All are in docs/moving-over.md.
_KNOWN = (
    ("in-place operations that require placement changes are not supported", "given partial sums"),
    ("pending norms, which are not reduced yet", "signs of norms that are written to"),
    ("the shape of a written argument cannot change", "resize_"),
    ("a copy, .* of an expanded tensor needed communication", "copies of expanded tensors"),
    ("a copy, .*aten.expand.default needed communication", "copies of expanded tensors"),
    ("a copy, .*aten.unfold.default needed communication", "copies of windows"),
    ("more than one element of the written-to tensor", "writes where elements share memory"),
    ("the gradients.*cat.*aten.add.Tensor: got mixed", "gradients of tensors that cat skips"),
    ("the gradients.*cat.*a Tensor where a DTensor", "gradients of tensors that cat skips"),
    ("op_.'addbmm'.*output with shape .* doesn't match the broadcast shape", "addbmm_"),
    ("some positions are outside of the tensor's elements", "as_strided beyond a tensor"),
    # torch's Python code creates plain tensors there.
    ("the gradients.*aten.mm.out: got mixed", "linear_cross_entropy in chunks, backward"),
    ("unravel_index.*got mixed torch.Tensor and DTensor", "unravel_index"),
)
_TWO_FORMULAS = r"prod|\.(max|min|median|nanmedian)\(\)|reduction no dim|'(nan)?median'"

_ORDERED = re.compile(r"sort|topk|arg(max|min)|kthvalue|median|mode|unique|searchsorted|bucketize")
_SCALES = re.compile(r"\.(mul|div)_\(|op_\('(mul|div|multiply|divide|true_divide)\b")


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
    bits = {s.targets[0] for s in program.statements if ".view(torch." in s.code}
    if bits and "'exponential'" in code:
        return "last bits of random numbers", program.without(bits)
    scaled = {s.targets[0] for s in program.statements if s.in_place and _SCALES.search(s.code)}
    if scaled and "norm" in code:
        return "signs of norms that are written to", program.without(scaled)
    if any(given.memory == "expanded" for given in program.given) and "_(" in code:
        apart = tuple(replace(given, memory="dense") for given in program.given)
        return "writes where elements share memory", replace(program, given=apart)
    rounded = {g.name for g in program.given if _is_rounded(g)}
    if rounded and _ORDERED.search(code):
        whole = [
            replace(g, placements=tuple(_reduced(each) for each in g.placements))
            if g.name in rounded
            else g
            for g in program.given
        ]
        return "the order of close numbers", replace(program, given=tuple(whole))
    if not program.differentiated:
        return None
    is_special = any(given.values == "special" for given in program.given)
    if is_special and re.search(_TWO_FORMULAS, code):
        return "gradients with two formulas", replace(program, differentiated=())
    is_pending = any(placement.is_partial() for g in program.given for placement in g.placements)
    if is_pending and "sinc" in code:
        return "rounding of terms in the gradient of sinc", replace(program, differentiated=())
    return None


def _is_rounded(given: Given) -> bool:
    """True for 16-bit numbers as partial sums: their rounding makes equal numbers unequal."""
    return given.dtype.itemsize == 2 and any(each.is_partial() for each in given.placements)


def _reduced(placement: Placement) -> Placement:
    return Replicate() if placement.is_partial() else placement
