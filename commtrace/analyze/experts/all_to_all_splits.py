"""Bytes and rows of all-to-alls from rank to rank, by layer and step.

Only all-to-alls with splits are listed: the others send every member as much, or do not state how
much. `exchanges` describes the directions. The part that a rank keeps for itself, which is not
sent, is included: source and target are then equal.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.experts.exchanges import DIRECTIONS, directions, exchanges
from commtrace.analyze.run.analysis import Analysis, addable, typed
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.run.known import NOT_KNOWN
from commtrace.analyze.run.matching import members, mesh_axes
from commtrace.schema import Column

PLACE = ("group", "module", "phase", "source_file", "source_line")
"""Columns of a call that say which all-to-all of the program it is."""

OF_PLACE = (
    Column("group", str, "", "name of the process group"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns it", title="Axis"),
    Column("module", str, "", "path of the module, the layer"),
    Column("phase", str, "", "forward, backward, recompute, optimizer or other"),
)

COLUMNS = (
    *OF_PLACE,
    Column("direction", str, "", "dispatch (to the experts), combine (back); empty if unknown"),
    Column("source_file", str, "", "file of the user's line", title="Source file"),
    Column("source_line", int, "", "line in that file"),
    Column("step", int, "", "number of the step, from 0; -1 outside of steps"),
    Column("source", int, "", "global rank that sends"),
    Column("target", int, "", "global rank that receives"),
    Column("sent_bytes", int, "bytes", "bytes for the target", title="Sent"),
    Column("num_rows", int, "", "rows for it, such as tokens; -1 unknown", title="Rows"),
    Column("num_calls", int, "", "calls of the source", title="Calls"),
)

_BY = [*PLACE[:3], "direction", *PLACE[3:], "step", "source", "target"]
_SUMS = ["sent_bytes", "num_rows", "num_unsized", "num_calls"]


def all_to_all_splits(frames: Frames) -> pd.DataFrame:
    """Return a row per all-to-all of the program, step, source and target."""
    # Each part has all calls of its sources.
    table = joined(frames.by_ranks(_of_ranks))
    table = table.assign(mesh_axis=mesh_axes(frames, table["group"]))
    table["num_rows"] = table["num_rows"].where(table["num_unsized"] == 0, NOT_KNOWN)
    texts = [name for name in _BY if table[name].dtype.kind not in "iu"]
    table = table.astype(dict.fromkeys(texts, object))
    return typed(table.sort_values(_BY, kind="stable"), COLUMNS)


def _of_ranks(part: Frames) -> pd.DataFrame:
    every = exchanges(part)
    every = every[[each.sent is not None for each in every]]
    calls = part.comm.loc[every.index, [*PLACE, "rank", "step"]]
    calls = calls.assign(direction=directions(part)[every.index]).rename(columns={"rank": "source"})
    sizes = [len(each.sent) for each in every]
    rows = calls.loc[calls.index.repeat(sizes)].astype({"group": object})
    sent_bytes = np.concatenate([each.sent for each in every] or [np.empty(0, dtype="int64")])
    row_bytes = np.repeat([each.row_bytes for each in every], sizes)
    is_sized = (row_bytes > 0) | (sent_bytes == 0)
    rows["position"] = [place for size in sizes for place in range(size)]
    rows["sent_bytes"] = sent_bytes
    rows["num_rows"] = np.where(is_sized, sent_bytes // np.maximum(row_bytes, 1), 0).astype("int64")
    rows["num_unsized"] = (~is_sized).astype("int64")
    rows["num_calls"] = 1
    rows = rows.merge(members(part), on=["group", "position"]).rename(columns={"rank": "target"})
    rows[_SUMS] = rows[_SUMS].apply(addable)
    sums = rows.groupby(_BY, observed=True)[_SUMS].sum().reset_index()
    return sums.assign(direction=sums["direction"].map(dict(enumerate(DIRECTIONS))).astype(object))


ALL_TO_ALL_SPLITS = Analysis(
    "all_to_all_splits",
    "Splits of all-to-alls",
    "How much does each rank send to every other rank in the all-to-alls of each layer and step?",
    all_to_all_splits,
    COLUMNS,
    topic="Between whom",
    shown="module phase direction step source target num_rows sent_bytes num_calls",
)
