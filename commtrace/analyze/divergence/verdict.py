"""A fault in one line: the rank, its line and the cause, then where the others wait."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from commtrace.analyze.consistency.problem import DIFFERENT, ranks_in
from commtrace.units import text_of_ranks

_STATEMENT = r"`[^`]*` \([^)]*\)"
_FIRST_STATEMENT = re.compile(rf"{_STATEMENT}(?: or {_STATEMENT})?")
_WAITS = "waits"


def verdict_of(fault: Mapping[str, Any], parted: Mapping[str, Any] | None) -> str:
    """Return a fault in one line.

    Args:
        fault: A row of table `consistency`.
        parted: The row of table `divergences` about it; None if there is none.

    Returns:
        ``Rank 1 went on to train.py:39, others to train.py:40, by `if loss > 10:` (train.py:38)``.
    """
    if parted is None or not (parted["own"] or parted["instead"]):
        return _of_fault(fault, parted)
    own, others = (text_of_ranks(ranks_in(parted[name]), most=4) for name in ("ranks", "others"))
    is_known = bool(fault["ranks"]) and not fault["is_one_of_ranks"]
    wait = "wait" if is_known or len(ranks_in(parted["others"])) > 1 else "waits"
    others = "others" if is_known else others
    cause = ""
    if parted["event"]:
        is_own = parted["event_rank"] in ranks_in(parted["ranks"])[:1]
        cause = f"as {'it' if is_own else text_of_ranks([parted['event_rank']])} {parted['event']}"
    if statement := _FIRST_STATEMENT.match(parted["branch"]):
        cause = f"by {statement[0]}"
    places = [parted["own_source"] or parted["own"], parted["instead_source"] or parted["instead"]]
    if places[0] == places[1]:  # one line, in other modules or groups
        places = [parted["own"], f"{parted['instead']}, at {places[0]}"]
    if not parted["own"]:
        state = parted["event"] or "made no further call"
        if parted["event"] and len(ranks_in(parted["ranks"])) > 1:
            own = f"each of {own}"
        ended = ", ".join(filter(None, [f"{_capital(own)} {state}", cause if statement else ""]))
        return f"{ended}; {others} {wait} at {places[1]}"
    went = f"{_capital(own)} went on to {places[0]}"
    if parted["ranks"] == parted["others"]:
        went = f"{went} instead of {places[1]} as in rounds before"
    elif places[1]:
        went = f"{went}, {others} to {places[1]}"
    elif parted["event"].startswith(_WAITS) and parted["event_rank"] in ranks_in(parted["others"]):
        went = f"{went}; {others} {wait}{parted['event'].removeprefix(_WAITS)}"
        cause = cause if statement else ""
    else:
        went = f"{went}, {others} made no further call"
    return ", ".join(filter(None, [went, cause]))


def _of_fault(fault: Mapping[str, Any], parted: Mapping[str, Any] | None) -> str:
    """Return the line of a fault without a divergence before it, such as a root that differs."""
    at = f" at {fault['source']}" if fault["source"] else ""
    if fault["problem"] in DIFFERENT and fault["ranks"]:
        ranks = ranks_in(fault["ranks"])
        usual = f"; others: {fault['expected']}" if fault["expected"] else ""
        differs = f"in the {DIFFERENT[fault['problem']]} of"
        verb = f"differs {differs} its call" if len(ranks) == 1 else f"differ {differs} their calls"
        return f"{_capital(text_of_ranks(ranks, most=4))} {verb}{at} ({fault['found']}{usual})"
    sentence = str(fault["explanation"]).partition(". ")[0].rstrip(".")
    return f"{sentence}{'' if str(fault['source']) in sentence else at}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
