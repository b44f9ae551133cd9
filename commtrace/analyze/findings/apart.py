"""Sums that are reduced apart and then added, which a single reduction of their sum would replace.

x ── all_reduce ──┐                    x ──┐
                  + ── result              + ── all_reduce ── result
y ── all_reduce ──┘                    y ──┘
"""

from __future__ import annotations

from itertools import zip_longest
from math import prod

import pandas as pd

from commtrace.analyze.findings.finding import (
    REMOVE,
    Finding,
    Rule,
    Selected,
    calls_in,
    selected,
    times_each,
)
from commtrace.analyze.findings.needs import USERS
from commtrace.analyze.findings.origins import name_of, reads
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes

_ADDITIONS = ("add", "add_", "sub", "sub_")
_LINEAR = ("sum", "avg")
_KINDS = ("all_reduce", "reduce_scatter")
_ADDED = ["rank", "used_by_op_id", "group", "kind", "reduce_op", "dtype", "scattered_bytes"]
"""Common columns of reductions whose results one addition uses. Sums that all ranks have may
differ in size, since the addition repeats the smaller one; shards may not."""
_PLACE = ["group", "kind", "module", "phase", "source_file", "source_line"]


def sums_apart(frames: Frames) -> list[Finding]:
    """Reductions whose results nothing reads but one addition, of another sum of the group."""
    return [
        Finding(
            f"Two sums on {axis or 'a group'}, in {first or 'no module'} and "
            f"{second or 'no module'}, are reduced apart and then added, "
            f"{times_each(frames, len(calls.rows))}, in {phase or 'other'}. Nothing else reads "
            "them.",
            "Add the partial sums, and reduce once: output_layouts=Partial() of both modules in "
            "the plan, and a redistribution of their sum; or all_reduce behind the addition.",
            calls,
        )
        for (first, second, axis, phase), calls in selected(frames, _apart)
    ]


def _apart(part: Frames) -> Selected:
    """Return such reductions except for the largest, by both modules, axis and phase.

    What reads a result is known in detailed steps only. All of them must agree on a place.
    """
    calls = _of_one_operator(part)
    if calls.empty:
        return {}
    calls = calls.assign(is_added=_is_only_added(part, calls))
    fits = calls.groupby(_ADDED)["is_added"].transform("min")  # all of them, as far as is known
    others = calls.assign(fits=fits)[calls.duplicated(_ADDED)]
    of_place = others.groupby(_PLACE)["fits"].transform("min")
    others = others[of_place == 1]
    axes = mesh_axes(part, others["group"]).astype(object)
    by = [others["first"], others["module"], axes, others["phase"]]
    return {key: calls_in(part, part.comm.loc[rows.index]) for key, rows in others.groupby(by)}


def _of_one_operator(part: Frames) -> pd.DataFrame:
    """Return the reductions whose results one operator uses first, the largest before the others.

    Column `first` is the module of the largest.
    """
    comm = part.comm
    calls = comm[
        comm["kind"].isin(_KINDS)
        & comm["reduce_op"].isin(_LINEAR)
        & (comm["used_by_op_id"] >= 0)
        & (comm["payload_bytes"] > 0)
    ]
    calls = calls[[*dict.fromkeys([*_ADDED[:-1], *_PLACE, "id", "payload_bytes"])]]
    texts = ["group", "kind", "reduce_op", "dtype", "module", "phase", "source_file"]
    calls = calls.astype(dict.fromkeys(texts, object))
    is_shard = calls["kind"] == "reduce_scatter"
    calls = calls.assign(scattered_bytes=calls["payload_bytes"].where(is_shard, 0))
    calls = calls.sort_values(["payload_bytes", "id"], ascending=[False, True])
    by = calls.groupby(_ADDED)["module"]
    calls = calls.assign(first=by.transform("first"))
    return calls[by.transform("size") > 1]


def _is_only_added(part: Frames, calls: pd.DataFrame) -> pd.Series:
    """Return 1 for each call whose result only one addition reads, 0 for others, nan if unknown."""
    table = reads(part)
    table = table[table["is_call"]].rename(columns={"source": "call"})
    ops = part.ops[["rank", "id", "op", "shapes"]].rename(columns={"id": "op", "op": "name"})
    ops = ops[ops["op"].isin(table["op"])].astype({"name": object, "shapes": object})
    sums = {text: name_of(text) in _ADDITIONS for text in ops["name"].unique()}
    kept = {text: _keeps_size(text) for text in ops["shapes"].unique()}
    ops = ops.assign(is_sum=ops["name"].map(sums).eq(True) & ops["shapes"].map(kept).eq(True))
    by = table.merge(ops, on=["rank", "op"], how="left").groupby(["rank", "call"])
    fits = (by["op"].nunique() == 1) & by["is_sum"].min().eq(True)
    wanted = pd.MultiIndex.from_frame(calls[["rank", "id"]])
    return pd.Series(fits.astype("float64").reindex(wanted).to_numpy(), calls.index)


def _keeps_size(shapes: str) -> bool:
    """Return whether the sum of tensors of these shapes, as texts, is as large as one of them.

    >>> _keeps_size("[8,64];[64]"), _keeps_size("[8,1];[1,64]")
    (True, False)
    """
    sizes = [[int(size) for size in text.strip("[]").split(",") if size] for text in _each(shapes)]
    dims = zip_longest(*(reversed(each) for each in sizes), fillvalue=1)
    return prod(map(max, dims)) == max(map(prod, sizes), default=1)


def _each(shapes: str) -> list[str]:
    return shapes.split(";") if shapes else []


SUMS_APART = Rule(
    "sums_apart",
    "sums that are reduced apart and then added",
    sums_apart,
    (USERS,),
    cure=REMOVE,
)
