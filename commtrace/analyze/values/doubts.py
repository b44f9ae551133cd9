"""Doubts on a fault: reasons for which the tensor may be right, or the fault may be elsewhere.

scale           all ranks have it alike, and it is the right one times the size of an axis
layout          the layout of the tensor is unknown, so that ranks may hold parts of it
ambiguity       it is one of several alike in a module's call, whose order may differ
communication   no tensor that agrees vouches for a collective of another module or phase before it
decision        numbers that agree within rounding were sorted or compared before it, so that
                elements may have fallen differently: a token has another expert
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from commtrace.analyze.values.faults import Relation

_DECIDING = frozenset(
    {"topk", "sort", "argsort", "argmax", "max", "min", "kthvalue", "multinomial"}
)
_OF_DECISIONS = frozenset({"other", "permuted", "small"})
"""Relations to the right tensor that another decision can lead to."""


def doubt_of(
    judged: pd.DataFrame, relation: Relation, communication: Sequence[Mapping[str, Any]]
) -> str:
    """Return the doubts on a fault as a sentence; empty if there are none.

    Args:
        judged: the pairs up to the fault, which is the last one.
        relation: of the fault.
        communication: calls between the last tensor that agrees and the fault.
    """
    wrong = judged.iloc[-1]
    doubts = []
    if wrong["is_scaled"] and not wrong["is_certain"]:
        doubts.append(
            "all ranks have it alike, which does not make it a replica: a program may scale by the "
            "number of ranks what it adds up later"
        )
    elif not wrong["is_certain"]:
        doubts.append(
            "its layout is unknown: if ranks hold parts of it rather than replicas, it may be right"
            if wrong["right_on"] < 0
            else "its layout is unknown: if ranks should not have equal ones, it may be right"
        )
    if wrong["is_ambiguous"]:
        doubts.append(
            "it is one of several results alike in its module's call: the runs may compute them in "
            "another order"
        )
    others = [call["module"] for call in communication if _is_elsewhere(call, wrong)]
    if others:
        among = ", ".join(dict.fromkeys(each or "the outermost module" for each in others))
        doubts.append(
            f"communication in {among} comes before it, whose result was not compared: the fault "
            "may be there"
        )
    if relation.kind in _OF_DECISIONS and (op := _decision(judged)):
        doubts.append(
            f"{op} decided before it on numbers that agree up to rounding: other elements may have "
            "been chosen, such as another expert for a token"
        )
    return "; ".join(doubts)


def _is_elsewhere(call: Mapping[str, Any], wrong: pd.Series) -> bool:
    if call["has_carried"] or call["is_right"]:
        return False
    return (call["module"], call["phase"]) != (wrong["module"], wrong["phase"])


def _decision(judged: pd.DataFrame) -> str:
    """Return the latest operator of the step that decides on numbers, in the wrong one's phase."""
    wrong = judged.iloc[-1]
    same = judged[(judged["step"] == wrong["step"]) & (judged["phase"] == wrong["phase"])]
    names = same["op"].astype(str).str.split(".").str[1]
    found = same["op"][names.isin(_DECIDING).to_numpy()]
    return str(found.iloc[-1]) if len(found) else ""
