"""Sums that are reduced apart and then added, which a single reduction of their sum would replace.

x ── all_reduce ──┐                    x ──┐
                  + ── result              + ── all_reduce ── result
y ── all_reduce ──┘                    y ──┘
"""

from __future__ import annotations

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
_ALIKE = ["group", "kind", "reduce_op", "dtype", "payload_bytes"]
_PLACE = ["group", "kind", "module", "phase", "source_file", "source_line"]


def sums_apart(frames: Frames) -> list[Finding]:
    """Reductions whose results nothing reads but one addition, of an equal sum of the group."""
    return [
        Finding(
            f"Two sums on {axis or 'a group'} are reduced apart and then added, "
            f"{times_each(frames, len(calls.rows))}: {_of(first)} and {_of(second)}, in "
            f"{phase or 'other'}. Nothing else reads them.",
            "Add the partial sums, and reduce once: output_layouts=Partial() of both modules in "
            "the plan, and a redistribution of their sum; or all_reduce behind the addition.",
            calls,
        )
        for (first, second, axis, phase), calls in selected(frames, _apart)
    ]


def _of(module: str) -> str:
    return f"that of {module}" if module else "one outside of modules"


def _apart(part: Frames) -> Selected:
    """Return the later of two such reductions by both modules, axis and phase.

    What reads a result is known in detailed steps only. All of them must agree on a place.
    """
    comm = part.comm
    calls = comm[
        comm["kind"].isin(_KINDS)
        & comm["reduce_op"].isin(_LINEAR)
        & (comm["used_by_op_id"] >= 0)
        & (comm["payload_bytes"] > 0)
    ]
    calls = calls[["rank", "id", "step", "used_by_op_id", *dict.fromkeys(_ALIKE + _PLACE)]]
    texts = dict.fromkeys(_ALIKE[:-1] + _PLACE[:-1], object)
    calls = calls.astype(texts).sort_values(["rank", "id"])
    of_one = calls.groupby(["rank", "used_by_op_id", *_ALIKE])["id"]
    calls = calls[of_one.transform("size") > 1]
    if calls.empty:
        return {}
    calls = calls.assign(
        first=calls.groupby(["rank", "used_by_op_id", *_ALIKE])["module"].transform("first"),
        is_later=calls.duplicated(["rank", "used_by_op_id", *_ALIKE]),
        axis=mesh_axes(part, calls["group"]).astype(object),
        is_added=_is_only_added(part, calls),
    )
    # All reductions of an addition have to be its own.
    of_one = calls.groupby(["rank", "used_by_op_id", *_ALIKE])["is_added"]
    calls = calls.assign(fits=of_one.transform("min"), known=of_one.transform("count"))
    later = calls[calls["is_later"]]
    of_place = later[later["known"] > 0].groupby(_PLACE)["fits"].transform("min")
    places = later.loc[of_place.index[of_place > 0], _PLACE].drop_duplicates()
    keys = pd.MultiIndex.from_frame(later[_PLACE])
    later = later[keys.isin(pd.MultiIndex.from_frame(places))]
    return {
        key: calls_in(part, comm.loc[rows.index])
        for key, rows in later.groupby(["first", "module", "axis", "phase"])
    }


def _is_only_added(part: Frames, calls: pd.DataFrame) -> pd.Series:
    """Return 1 for each call whose result only one addition reads, 0 for others, nan if unknown."""
    table = reads(part)
    table = table[table["is_call"]].rename(columns={"source": "call"})
    names = {text: name_of(str(text)) for text in part.ops["op"].cat.categories}
    added = part.ops["op"].astype(object).map(names).isin(_ADDITIONS)
    ops = pd.DataFrame({"rank": part.ops["rank"], "op": part.ops["id"], "is_addition": added})
    table = table.merge(ops, on=["rank", "op"], how="left")
    by = table.groupby(["rank", "call"])
    fits = (by["op"].nunique() == 1) & by["is_addition"].min().fillna(False).astype(bool)
    wanted = pd.MultiIndex.from_frame(calls[["rank", "id"]])
    return pd.Series(fits.astype("float64").reindex(wanted).to_numpy(), calls.index)


SUMS_APART = Rule(
    "sums_apart",
    "sums that are reduced apart and then added",
    sums_apart,
    (USERS,),
    cure=REMOVE,
)
