"""Comparison of the values of two runs, in which a wrong gradient has what it is the sum of.

It joins the comparison of tensors (`values`) and the audit of gradients (`gradients`).
"""

from __future__ import annotations

from dataclasses import replace

from commtrace.analyze.gradients.audit import GRADIENT, gradients
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values import Fault, ValueComparison
from commtrace.analyze.values import compare as compare_tensors
from commtrace.analyze.values.between import REDUCED


def compare(left: Frames, right: Frames, reference: Frames | None = None) -> ValueComparison:
    """Compare the tensors of two runs of a program; see `values.compare`."""
    found = compare_tensors(left, right, reference)
    if found.fault is None or found.fault.right["role"] not in REDUCED:
        return found
    return replace(found, fault=replace(found.fault, reduction=reduction_of(found.fault, right)))


def reduction_of(fault: Fault, run: Frames) -> str:
    """Return what a wrong gradient is the sum of, in words; empty if unknown."""
    table = gradients(run)
    found = table[
        (table["what"] == GRADIENT)
        & (table["name"] == fault.right["name"])
        & (table["step"] == fault.right["step"])
        & (table["num_reduced"] > 0)
    ]
    if found.empty:
        return ""
    row = found.iloc[0]
    return (
        f"it is the sum over {row['reduced_over']} of {row['num_reduced']} of "
        f"{row['num_contributions']} different contributions, times {row['scale']:.4g}"
    )
