"""A comparison of values in words: its title, the evidence of its fault, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commtrace.analyze.values.comparison import ValueComparison
from commtrace.analyze.values.first_fault import Fault
from commtrace.units import counted

_ROLES = {
    "named": "tensor", "updated": "updated parameter", "unclipped": "gradient before clipping",
    "local_gradient": "gradient of the rank's own backward pass",
}  # fmt: skip


def agreement(comparison: ValueComparison) -> str:
    """Return the sentence on a comparison without a fault."""
    num, sizes = comparison.num_paired, (comparison.num_left, comparison.num_right)
    compared = counted(num - comparison.num_unknown, "tensor")
    among = "" if {*sizes} == {num} else f" (of {sizes[0]:,} and {sizes[1]:,})"
    if comparison.open_questions:
        return (
            f"undecided: nothing differs in {compared}{among}, but {comparison.open_questions[0]}"
        )
    return f"the runs agree in {compared}{among}"


def title(fault: Fault, run: str) -> str:
    """Return a fault in a sentence.

    Args:
        fault: The fault.
        run: Name of the run that has it.
    """
    return f"{name_of(fault.right)} is wrong in {run}: {fault.relation.text}"


def evidence(fault: Fault) -> list[str]:
    """Return the layouts, norms, lines and communication of a fault."""
    left, wrong = fault.left, fault.right
    lines = [
        f"step {wrong['step']}, {wrong['phase']}, shape {wrong['shape']}",
        f"first run   {layout_of(left)}, {left['dtype']}, norm {left['norm']:.6g}",
        f"second run  {layout_of(wrong)}, {wrong['dtype']}, norm {wrong['norm']:.6g}",
        f"distance {fault.distance:.2g} of the norm; rounding explains {fault.tolerance:.2g}",
    ]
    lines += [f"in doubt: {fault.doubt}"] * bool(fault.doubt)
    if wrong["source_file"] and wrong["role"] != "result":
        lines.append(f"at {wrong['source_file']}:{wrong['source_line']}")
    lines.append(
        f"the last tensor that agrees is {name_of(fault.before)}"
        if fault.before is not None
        else "no tensor agrees before it: are the inputs, seeds and weights the same?"
    )
    lines += [fault.reduction] * bool(fault.reduction)
    return lines + (
        [_call_text(call) for call in fault.communication] or ["no communication between them"]
    )


def limits(comparison: ValueComparison) -> list[str]:
    """Return the comparison's limits, so that agreement is not mistaken for more than it is."""
    lines = [*comparison.open_questions[comparison.fault is None :]]
    if comparison.fault is not None:
        lines.append(
            f"{counted(comparison.num_paired, 'pair')} of {comparison.num_left:,} and "
            f"{comparison.num_right:,} tensors compared"
        )
    if comparison.num_unknown:
        lines.append(
            f"{counted(comparison.num_unknown, 'pair')} not comparable: unreduced maxima, missing "
            "ranks, data of a rank's own under data parallelism, or numbers before the first step"
        )
    if (
        comparison.num_doubtful
        and (fault := comparison.fault) is not None
        and fault.right["layout"]
    ):
        num = comparison.num_doubtful
        lines.append(
            f"{counted(num, 'other tensor')} differ{'s' * (num == 1)} with doubt: ranks may hold "
            "parts of it, or it is one of several alike"
        )
    if not comparison.has_reference:
        lines.append(
            "what rounding explains is an estimate; --reference with a run in float64 measures it"
        )
    return lines


def name_of(tensor: Mapping[str, Any]) -> str:
    """Return the name of a tensor for people: `gradient layers.0.weight`.

    Results of operators are named by their line and module first: `result at train.py:12 in mlp
    (aten.add.Tensor)`.
    """
    role, module, name = tensor["role"], tensor["module"], tensor["name"]
    if role == "result":
        file = tensor.get("source_file", "")
        at = f" at {file}:{tensor['source_line']}" if file else ""
        inside = f" in {module}" if module else ""
        which = f", {name}" if name else ""
        return f"result{at}{inside} ({tensor['op']}{which})"
    if role in ("input", "output", "output_gradient"):
        place = f" {name}" if name else ""
        return f"{role.replace('_', ' ')}{place} of {module or 'the outermost module'}"
    return f"{_ROLES.get(role, role)} {name}"


def layout_of(tensor: Mapping[str, Any]) -> str:
    """Return the layout of a tensor for people."""
    return tensor["layout"] or "layout unknown"


def _call_text(call: Mapping[str, Any]) -> str:
    over = f" over {call['axis'] or call['group']}" if call["axis"] or call["group"] else ""
    by = f" ({call['reduce_op']})" if call["reduce_op"] else ""
    why = f": {call['reason']}" if call["reason"] else ""
    line = f", {call['source_file']}:{call['source_line']}" if call["source_file"] else ""
    often = f"{call['count']} " if call["count"] > 1 else ""
    return f"before it: {often}{call['kind']}{by}{over}{line}{why}"
