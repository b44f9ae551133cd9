"""All-to-alls in which a rank sends more or less than the receiver expects.

A call without splits, of an operator that takes splits, sends equal parts to all members. The parts
of other calls without splits are unknown, and agree with everything.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.consistency.coverage import Coverage, source_of
from commtrace.analyze.experts.exchanges import ALL_TO_ALL, equal_parts, splits_of
from commtrace.units import counted

_EQUAL_WITHOUT = "c10d::alltoall_base_"
_BY = ["group", "number", "source", "target"]
_READ = [
    *("group", "rank", "number", "native_op", "dtype"),
    *(f"{end}_{what}" for end in ("input", "output") for what in ("shapes", "splits")),
]
_ENDS = {"sent": ("input", "source", "target"), "received": ("output", "target", "source")}
"""Shapes and splits of each end, the call's own rank, and the other rank."""


def unmatched_splits(covered: Coverage, calls: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs of ranks in which the sent and the expected bytes differ.

    Args:
        covered: Members of the groups.
        calls: Calls with `number`, all of each collective.

    Returns:
        `group`, `number`, `source` and `target` (positions in the group), and the bytes `sent` and
        `received`.
    """
    calls = calls[calls["kind"] == ALL_TO_ALL]
    has_splits = (calls["input_splits"] != "") | (calls["output_splits"] != "")
    if not has_splits.any():
        return pd.DataFrame(columns=[*_BY, "sent", "received"])
    by = [calls["group"].cat.codes, calls["number"]]
    calls = calls[has_splits.groupby(by).transform("any")][_READ].astype({"group": object})
    reached = covered.reached[["group", "rank", "position"]]
    sizes = reached.groupby("group").size()
    calls = calls.merge(reached, on=["group", "rank"])
    sent, received = (_parts(calls, sizes, name, *columns) for name, columns in _ENDS.items())
    both = sent.merge(received, on=_BY)
    return both[both["sent"] != both["received"]].sort_values(_BY)


def _parts(
    calls: pd.DataFrame, sizes: pd.Series, name: str, end: str, own: str, other: str
) -> pd.DataFrame:
    """Return the bytes of each call to, or from, each member."""
    columns = ["group", f"{end}_splits", f"{end}_shapes", "dtype", "native_op"]
    lists = [
        splits_of(text, int(sizes[group]))
        if text
        else equal_parts(shapes, dtype, int(sizes[group]))
        if op == _EQUAL_WITHOUT
        else None
        for group, text, shapes, dtype, op in calls[columns].itertuples(index=False, name=None)
    ]
    rows = calls[["group", "number"]].assign(
        **{own: calls["position"], name: [[] if each is None else [*each] for each in lists]}
    )
    rows[other] = [[*range(len(each))] for each in rows[name]]
    rows = rows.explode([name, other]).dropna(subset=name)
    return rows.astype({name: "int64", other: "int64"})


def problem_of_splits(
    covered: Coverage, calls: pd.DataFrame, named: str
) -> tuple[list[int], dict[str, str]] | None:
    """Return the blamed ranks and the texts of a problem if splits of a collective do not fit.

    Args:
        covered: Members of the groups.
        calls: The calls of the collective.
        named: Its description.
    """
    pairs = unmatched_splits(covered, calls)
    if pairs.empty:
        return None
    reached = covered.reached[covered.reached["group"] == pairs["group"].iloc[0]]
    rank_at = dict(zip(reached["position"], reached["rank"], strict=True))
    ends = [
        {int(rank_at[place]) for place in pair}
        for pair in zip(pairs["source"], pairs["target"], strict=True)
    ]
    # If there are several pairs, the rank common to all of them has the wrong splits.
    blamed = set.intersection(*ends) if len(ends) > 1 else set()
    first = pairs.iloc[0]
    source, target = (int(rank_at[first[end]]) for end in ("source", "target"))
    lines = [source_of(calls[calls["rank"] == rank].iloc[0]) for rank in (source, target)]
    at = [f" at {line}" if line else "" for line in lines]
    found = (
        f"rank {source} sends {counted(int(first['sent']), 'byte')} to rank {target}, which "
        f"expects {int(first['received'])}"
    )
    more = f"; {len(pairs)} pairs of ranks differ" if len(pairs) > 1 else ""
    explanation = (
        f"In {named}, rank {source}{at[0]} sends {counted(int(first['sent']), 'byte')} to rank "
        f"{target}, which expects {int(first['received'])}{at[1]}{more}."
    )
    return sorted(blamed), {"expected": "", "found": found, "explanation": explanation}
