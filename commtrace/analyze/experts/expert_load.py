"""Load of experts and of their ranks, by layer and step: the rows that arrive there.

It counts the all-to-alls to the experts (`exchanges` describes the directions), or all-to-alls of
unknown direction. If the program states the rows of its experts (`commtrace.experts`,
`ExpertParallel`), there is a row of the table for each expert; otherwise the splits state the load
of a rank only, for all of its experts together. Conversions of layouts and the counts that ranks
exchange first, which are integers, are no load.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.experts.all_to_all_splits import OF_PLACE, PLACE
from commtrace.analyze.experts.exchanges import (
    COMBINE,
    DIRECTIONS,
    carries_rows,
    directions,
    exchanges,
    ranks_of_experts,
)
from commtrace.analyze.run.analysis import Analysis, addable, typed
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.run.known import NOT_KNOWN
from commtrace.analyze.run.matching import members, mesh_axes
from commtrace.schema import Column

COLUMNS = (
    *OF_PLACE,
    Column("direction", str, "", "dispatch (to the experts); empty if unknown"),
    Column("source_file", str, "", "file of the user's line", title="Source file"),
    Column("source_line", int, "", "line in that file"),
    Column("step", int, "", "number of the step, from 0; -1 outside of steps"),
    Column("rank", int, "", "global rank of the experts"),
    Column(
        "expert", int, "", "number of the expert in its group; -1 for all of the rank together",
        minus="all of the rank",
    ),
    Column("load_bytes", int, "bytes", "bytes for it, from all ranks", title="Load"),
    Column("num_rows", int, "", "rows for it, such as tokens; -1 unknown", title="Rows"),
    Column("ratio", float, "1", "its bytes relative to the mean of the group; nan if none arrive"),
)  # fmt: skip

_AT = [*PLACE[:3], "direction", *PLACE[3:], "step"]
_BY = [*_AT, "rank", "expert"]
_SUMS = ["load_bytes", "num_rows", "num_unsized"]


@of_run
def expert_load(frames: Frames) -> pd.DataFrame:
    """Return a row per all-to-all of the program, step, rank and, where known, expert."""
    table = _joined(frames.by_ranks(_of_ranks, fold=_joined))
    mean = table.groupby(_AT)["load_bytes"].transform("mean")
    table["ratio"] = table["load_bytes"] / mean.where(mean > 0)
    table["num_rows"] = table["num_rows"].where(table["num_unsized"] == 0, NOT_KNOWN)
    table = table.assign(mesh_axis=mesh_axes(frames, table["group"]))
    return typed(table.sort_values(_BY, kind="stable"), COLUMNS)


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    rows = joined(parts)
    rows = rows.astype({name: object for name in _AT if rows[name].dtype.kind not in "iu"})
    # An expert is stated only if all calls of its all-to-all state it.
    is_whole = rows.groupby(_AT)["expert"].transform("min") < 0
    rows["expert"] = rows["expert"].mask(is_whole, NOT_KNOWN)
    rows[_SUMS] = rows[_SUMS].apply(addable)
    return rows.groupby(_BY)[_SUMS].sum().reset_index()


def _of_ranks(part: Frames) -> pd.DataFrame:
    every = exchanges(part)
    columns = [*PLACE, "step", "source_spec", "dtype"]
    calls = part.comm.loc[every.index, columns].assign(direction=directions(part)[every.index])
    is_known = np.array([each.sent is not None for each in every], dtype=bool)
    is_used = is_known & (calls["direction"] != COMBINE) & carries_rows(calls)
    calls, every = calls[is_used], every[is_used]
    ranks, experts, load_bytes, row_bytes, sizes = [], [], [], [], []
    for each in every:
        has_experts = each.experts is not None
        size = len(each.experts) if has_experts else len(each.sent)
        sizes.append(size)
        ranks.append(ranks_of_experts(size, len(each.sent)))
        experts.append(np.arange(size) if has_experts else np.full(size, NOT_KNOWN))
        load_bytes.append(each.experts * each.row_bytes if has_experts else each.sent)
        row_bytes.append(np.full(size, each.row_bytes))
    rows = calls.loc[calls.index.repeat(sizes)].astype({"group": object})
    for name, values in (
        *(("position", ranks), ("expert", experts), ("load_bytes", load_bytes)),
        ("row_bytes", row_bytes),
    ):
        rows[name] = np.concatenate([*values, np.empty(0, dtype="int64")]).astype("int64")
    is_sized = (rows["row_bytes"] > 0) | (rows["load_bytes"] == 0)
    rows["num_rows"] = (rows["load_bytes"] // rows["row_bytes"].clip(lower=1)).where(is_sized, 0)
    rows["num_unsized"] = (~is_sized).astype("int64")
    rows = rows.merge(members(part), on=["group", "position"])
    names = dict(enumerate(DIRECTIONS))
    return _joined([rows.assign(direction=rows["direction"].map(names).astype(object))])


EXPERT_LOAD = Analysis(
    "expert_load",
    "Load of experts",
    "Which expert or rank is overloaded?",
    expert_load,
    COLUMNS,
    topic="Between whom",
    shown="module phase step rank expert num_rows load_bytes ratio",
)
