"""The critical path of a run: the chain of work across ranks that its time consists of.

The path ends with the last event of the run and leads back through whatever each of its events
waited for last: work of the host, a call of another rank, a kernel. If any of it were shorter, the
run could end earlier; work beside it could take longer by its slack (`slack`).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.replay.basis import basis_of
from commtrace.analyze.replay.graph import HOST
from commtrace.analyze.replay.stretches import NONE, WORK, hops, stretches
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.schema import INSTANT, Column

MOST_ROWS = 2000
"""Number of rows above which the shortest stretches are merged with those beside them."""
_NAMED, _LEAST_NAMED = 3, 0.1
"""Operators that are named of host work: at most these, if they take this part of it."""
PLACE = ["kind", "mesh_axis", "module", "module_class", "source_file", "source_line"]

COLUMNS = (
    Column("at_ns", int, INSTANT, "when the stretch begins", title="At"),
    Column("duration_ns", int, "ns", "time that it takes", title="Takes"),
    Column("share", float, "1", "the same as a fraction of the path"),
    Column("rank", int, "", "rank"),
    Column("from_rank", int, "", "rank that the path comes from, if it is another",
           title="From rank"),
    Column("step", int, "", "step of the rank in which it begins; -1 outside of steps"),
    Column("work", str, "", f"{', '.join(WORK.values())}"),
    Column("kind", str, "", "kind of the call, or of the next call that host work leads to"),
    Column("module", str, "", "path of its innermost module"),
    Column("op", str, "", "the kernel, or the operators that most of the host work consists of",
           title="Operator"),
    Column("source_file", str, "", "file of the user's line that it is from", title="Source"),
    Column("source_line", int, "", "line in that file"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns its group", title="Axis"),
    Column("id", int, "", "id of that call", title="Call"),
    Column("module_class", str, "", "class of that module", title="Class"),
    Column("device", str, "", "device of the kernel, `cuda:1`"),
    Column("stream", int, "", "its stream"),
    Column("num_stretches", int, "",
           "stretches in the row, which is described by the longest of them; above 1 only in long "
           "runs", title="Stretches"),
)  # fmt: skip


def critical_path(frames: Frames) -> pd.DataFrame:
    """Return a row per stretch of the path, in order of time."""
    frames = basis_of(frames)
    found = merged(stretches(frames), MOST_ROWS)
    found = found.join(facts_of_calls(frames, found["call"])).join(_facts_of_kernels(frames, found))
    host = found[(found["sort"] == HOST) & (found["num_stretches"] == 1)]
    named = frames.by_ranks(_operators_within, host[["rank", "begin", "end"]])
    operators = pd.concat(named).reindex(found.index)
    lasts = found["end"] - found["begin"]
    table = found.assign(
        at_ns=found["begin"] + frames.start_ns,
        duration_ns=lasts,
        share=lasts / (lasts.sum() or np.nan),
        work=found["sort"].map(WORK),
        op=operators.where(operators.fillna("") != "", found["op"]),
    )
    return typed(table, COLUMNS)


def merged(found: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return stretches with `num_stretches`: at most about `most`, each time in one of them.

    The longest half of `most` remain as they are. All that is between two of them becomes one row
    with the facts of its longest stretch.
    """
    if len(found) <= most:
        return found.assign(num_stretches=1)
    lasts = (found["end"] - found["begin"]).to_numpy()
    order = np.argsort(-lasts, kind="stable")
    is_kept = np.zeros(len(found), dtype=bool)
    is_kept[order[: most // 2]] = True
    begins = np.append(True, is_kept[1:] | is_kept[:-1])
    number = np.cumsum(begins) - 1
    # The first stretch of each row in the order of durations is its longest.
    rows, first = np.unique(number[order], return_index=True)
    longest = found.iloc[order[first]].reset_index(drop=True)
    at = np.flatnonzero(begins)
    return hops(
        longest.assign(
            begin=found["begin"].to_numpy()[at],
            end=found["end"].to_numpy()[np.append(at[1:], len(found)) - 1],
            num_stretches=np.bincount(number, minlength=len(rows)),
        )
    )


def facts_of_calls(frames: Frames, calls: pd.Series) -> pd.DataFrame:
    """Return `id` and the columns of `PLACE` of calls, by rows in table `comm`; -1 is of none."""
    known = calls[calls >= 0]
    rows = frames.calls_at(pd.Index(known.unique()))
    taken = rows[["id", *(name for name in PLACE if name != "mesh_axis")]].astype(object)
    taken["mesh_axis"] = mesh_axes(frames, rows["group"]).astype(object)
    found = taken.reindex(calls.to_numpy()).set_axis(calls.index)
    nothing = {"id": NONE, "source_line": NONE}
    return found.fillna({name: nothing.get(name, "") for name in found})


def _facts_of_kernels(frames: Frames, found: pd.DataFrame) -> pd.DataFrame:
    """Return `op device stream` of the kernels of stretches, by rows of `found`."""
    rows = found.loc[found["kernel"] >= 0, "kernel"]
    known = pd.concat(frames.by_ranks(_kernels_at, pd.Index(rows.unique())))
    taken = known.reindex(found["kernel"].to_numpy()).set_axis(found.index)
    is_host = found["sort"] == HOST
    # Host work that leads to a kernel consists of the operator that launches it.
    taken["op"] = taken["launched_by"].where(is_host, taken["name"])
    taken.loc[is_host, ["device", "stream"]] = ["", NONE]
    return taken[["op", "device", "stream"]].fillna({"op": "", "device": "", "stream": NONE})


def _kernels_at(part: Frames, rows: pd.Index) -> pd.DataFrame:
    kernels = part.kernels.loc[part.kernels.index.intersection(rows)]
    taken = kernels[["name", "op", "device", "stream"]].astype(object)
    return taken.rename(columns={"op": "launched_by"})


def _operators_within(part: Frames, spans: pd.DataFrame) -> pd.Series:
    """Return the outermost operators of the part that take most of each of its spans, as text."""
    ops = part.ops[(part.ops["parent"] < 0) & (part.ops["duration_ns"] > 0)]
    found: dict[int, str] = {}
    for rank, own in spans.groupby("rank"):
        of_rank = ops[ops["rank"] == rank].sort_values("start_ns", kind="stable")
        if of_rank.empty:
            continue
        begin = (of_rank["start_ns"] - part.start_ns).to_numpy()
        end = begin + of_rank["duration_ns"].to_numpy()
        reach, names = np.maximum.accumulate(end), of_rank["op"].cat
        for row, first, last in own[["begin", "end"]].itertuples(name=None):
            low, high = np.searchsorted(reach, first, "right"), np.searchsorted(begin, last)
            inside = np.minimum(end[low:high], last) - np.maximum(begin[low:high], first)
            codes = names.codes.to_numpy()[low:high]
            found[row] = _longest(codes, np.maximum(inside, 0), last - first, names.categories)
    return pd.Series(found, dtype=object)


def _longest(codes: np.ndarray, inside: np.ndarray, lasts: int, names: pd.Index) -> str:
    """Name the operators that take most of a time, the longest first."""
    if not len(codes):
        return ""
    sums = np.bincount(codes, inside)
    order = np.argsort(-sums, kind="stable")[:_NAMED]
    return ", ".join(str(names[code]) for code in order if sums[code] >= _LEAST_NAMED * lasts)


CRITICAL_PATH = Analysis(
    "critical_path",
    "Critical path",
    "Which work, on which rank, does the time of the run consist of?",
    critical_path,
    COLUMNS,
    topic="When",
    shown="at_ns duration_ns share rank from_rank step work kind module op source_file id",
)
