"""Doubts about a fault: reasons why the tensor may be right, or the fault may be elsewhere.

scale           all ranks have it alike, and it is the right tensor times the size of an axis
layout          the layout of the tensor is unknown, so that ranks may hold parts of it
ambiguity       several tensors of a module's call are like it, and their order may differ
communication   no tensor that agrees vouches for a collective of another module or phase before it
scales          ranks' losses have factors that the reduction of gradients may not undo
rounding        a tensor of a coarse dtype is hardly further off than right tensors before it, or
                sums and norms of parts before it, which show little, are nearly as far off as that
decision        numbers that agree within rounding were sorted or compared before it, so that
                elements may have fallen differently: a token has another expert
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from commtrace.analyze.values.between import REDUCED
from commtrace.analyze.values.faults import Relation
from commtrace.analyze.values.in_parts import IN_PARTS
from commtrace.analyze.values.tolerance import is_coarse
from commtrace.schema import OUTPUT, OUTPUT_GRADIENT

_DECIDING = frozenset(
    {"topk", "sort", "argsort", "argmax", "max", "min", "kthvalue", "multinomial"}
)
_HARDLY = 2.0
"""Multiple of the tolerance below which a difference may be rounding that has grown."""
_OF_DECISIONS = frozenset({"other", "permuted", "small"})
"""Relations to the right tensor that another decision can lead to."""


def doubt_of(
    judged: pd.DataFrame,
    relation: Relation,
    communication: Sequence[Mapping[str, Any]],
    *,
    has_reference: bool,
    right_losses: Collection[int],
    other_scales: Collection[int],
) -> str:
    """Return the doubts about a fault as a sentence; empty if there are none.

    Args:
        judged: the pairs up to the fault, which is the last.
        relation: of the fault.
        communication: calls between the last tensor that agrees and the fault.
        has_reference: a reference in float64 decided on the tolerance.
        right_losses: steps whose losses are right together.
        other_scales: steps in which each rank's own gradients have a factor of their own.
    """
    wrong = judged.iloc[-1]
    doubts = []
    shows_layout = wrong["step"] in right_losses and relation.kind != "factor"
    is_certain = wrong["is_certain"] or (shows_layout and _has_output_in_parts(judged))
    if wrong["is_scaled"] and not is_certain:
        doubts.append(
            "all ranks have it alike, which does not make it a replica: a program may scale by the "
            "number of ranks, or of parts of the batch, what it adds up later"
        )
    elif not is_certain:
        doubts.append(
            "its layout is unknown: if ranks hold parts of it rather than replicas, it may be right"
            if wrong["right_on"] < 0
            else "its layout is unknown: if ranks should hold different values, it may be right"
        )
    if wrong["is_ambiguous"]:
        doubts.append(
            "several results in its module's call are alike: the runs may compute them in "
            "another order"
        )
    others = [call["module"] for call in communication if _is_elsewhere(call, wrong)]
    if others:
        among = ", ".join(dict.fromkeys(each or "the outermost module" for each in others))
        doubts.append(
            f"communication in {among} comes before it, whose result was not compared: the fault "
            "may be there"
        )
    if wrong["role"] in REDUCED and wrong["step"] in other_scales:
        doubts.append(
            "the ranks' own gradients add up with another factor for each rank: the fault may be "
            "in how their losses are averaged"
        )
    if not has_reference and _may_be_rounding(judged):
        doubts.append(
            "rounding has grown to nearly as much before it: compare with a reference in float64"
        )
    elif not has_reference and _may_be_hidden(judged):
        doubts.append(
            "rounding may hide a fault before it, where sums and norms of parts are nearly as far "
            "off as it explains: compare with a reference in float64"
        )
    if relation.kind in _OF_DECISIONS and (op := _decision(judged)):
        doubts.append(
            f"{op} decided before it on numbers that agree up to rounding: other elements may have "
            "been chosen, such as another expert for a token"
        )
    return "; ".join(doubts)


def _has_output_in_parts(judged: pd.DataFrame) -> bool:
    """Return whether a wrong gradient is in parts like its output, whose parts are right."""
    wrong = judged.iloc[-1]
    if wrong["role"] != OUTPUT_GRADIENT or wrong["layout_right"] != IN_PARTS:
        return False
    same = judged[(judged["role"] == OUTPUT) & (judged["layout_right"] == IN_PARTS)]
    for name in ("step", "module", "module_call"):
        same = same[same[name] == wrong[name]]
    return bool((same["distance"].notna() & ~same["is_wrong"]).any())


def _may_be_rounding(judged: pd.DataFrame) -> bool:
    """Return whether a tensor of a coarse dtype is hardly further off than right tensors."""
    wrong = judged.iloc[-1]
    if not is_coarse(wrong["tolerance"]) or not wrong["excess"] < _HARDLY:
        return False
    right = judged[~judged["is_wrong"] & (judged["phase"] == wrong["phase"])]
    return bool((right["excess"] * right["tolerance"] > wrong["tolerance"] / _HARDLY).any())


def _may_be_hidden(judged: pd.DataFrame) -> bool:
    """Return whether parts of a coarse dtype before it, in its step, are nearly wrong."""
    wrong = judged.iloc[-1]
    before = judged[~judged["is_wrong"] & (judged["step"] == wrong["step"])]
    parts = before[before["layout_right"] == IN_PARTS]
    is_nearly_wrong = parts["excess"] > 1 / _HARDLY
    return bool(is_coarse(wrong["tolerance"]) and is_nearly_wrong.any())


def _is_elsewhere(call: Mapping[str, Any], wrong: pd.Series) -> bool:
    if call["has_carried"] or call["is_right"]:
        return False
    return (call["module"], call["phase"]) != (wrong["module"], wrong["phase"])


def _decision(judged: pd.DataFrame) -> str:
    """Return the step's latest operator that decides on numbers, in the wrong tensor's phase."""
    wrong = judged.iloc[-1]
    same = judged[(judged["step"] == wrong["step"]) & (judged["phase"] == wrong["phase"])]
    names = same["op"].astype(str).str.split(".").str[1]
    found = same["op"][names.isin(_DECIDING).to_numpy()]
    return str(found.iloc[-1]) if len(found) else ""
