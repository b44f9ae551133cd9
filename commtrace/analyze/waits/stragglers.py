"""Stragglers: ranks that delay the others, by kind, phase, module and source line.

The straggler of a collective is the member that arrived last, or the second end of a transfer.
Its *delay* is the time for which all other members were blocked simultaneously, that is, the
shortest of their waits: without the straggler, they would have waited for the next-to-last member.
The sum of delays is the time that the run would save without stragglers. The table has the 16 rows
with the longest delay of each rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.run.analysis import Analysis, addable, typed
from commtrace.analyze.run.cached_per_run import of_each_part, of_run
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.run.matching import (
    NONE,
    Arrays,
    across_ranks,
    entries,
    matches,
    mesh_axes,
    numbers,
    of_match,
)
from commtrace.analyze.waits.lateness import REASONS, lateness, main_reasons, reason_sums
from commtrace.analyze.waits.time_before import previous_end
from commtrace.schema import Column

COLUMNS = (
    Column("rank", int, "", "rank that arrived last"),
    Column("kind", str, "", "all_reduce, all_gather, ..."),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns the group", title="Axis"),
    Column("phase", str, "", "forward, backward, recompute, optimizer or other"),
    Column("module", str, "", "path of the module"),
    Column("source_file", str, "", "file of the user's line, empty if unknown", title="Source"),
    Column("source_line", int, "", "line in that file"),
    Column("num_late", int, "", "calls that it delayed", title="Times late"),
    Column(
        "delay_ns", int, "ns", "time for which all other members waited for it", title="Delayed all"
    ),
    Column("wait_ns", int, "ns", "total wait of all other members", title="Waited"),
    Column("max_delay_ns", int, "ns", "longest delay of a call", title="Longest"),
    Column("worst_step", int, "", "step of that call; -1 outside of steps", title="In step"),
    Column("worst_call", str, "", "that call of the rank, as rank:id", title="That call"),
    Column(
        "work_ns",
        float,
        "ns",
        "mean time since the preceding call of the rank",
        title="Its work before",
    ),
    Column(
        "others_work_ns",
        float,
        "ns",
        "mean time since the preceding calls of the others",
        title="Others' work",
    ),
    Column(
        "reason",
        str,
        "",
        "reason of most of the delay, as in `start_skew`; empty if unknown",
    ),
    Column(
        "excess_ns",
        float,
        "ns",
        "time that it spent on that beyond the median of the other members; total",
        title="Longer by",
    ),
)

MOST_PLACES = 16

STANDS_OUT = 1.5
"""Multiple of its even share from which a rank stands out as the rank that others wait for."""


def stands_out(share: Any, num_ranks: int) -> Any:
    """Return whether a share of the delays or waits, or each of several, is well above even.

    Four ranks that behave alike cause about a quarter each, one of them the most: that says nothing
    about this rank.
    """
    return share >= STANDS_OUT / max(num_ranks, 1)


OF_LATE_CALL = ["rank", "id", "step", "kind", "phase", "module", "source_file", "source_line"]
"""Columns of the call of a straggler."""
_NEVER = 1 << 62
_BY = ["rank", "kind", "mesh_axis", "phase", "module", "source_file", "source_line"]


@across_ranks(
    delay_ns=(_NEVER, "int64"),
    wait_ns=(0.0, "float64"),
    num=(0, "int64"),
    straggler=(NONE, "int64"),
    work_ns=(0.0, "float64"),
    num_work=(0, "int64"),
)
def _delays(part: Frames, into: Arrays) -> None:
    """Waits of all members but the straggler, at each match.

    `delay_ns` is the shortest, and `wait_ns` the sum of the `num` waits; `straggler` is the rank
    that they wait for, and `work_ns` is the sum of the `num_work` known times since their preceding
    calls.
    """
    arrived, rank = arrivals(part), part.comm["rank"]
    waits = arrived[(arrived["wait_ns"] >= 0) & (arrived["last_rank"] != rank)]
    at, wait = matches(part)[waits.index].to_numpy(), waits["wait_ns"].to_numpy()
    np.minimum.at(into["delay_ns"], at, wait)
    np.add.at(into["wait_ns"], at, wait.astype("float64"))
    np.add.at(into["num"], at, 1)
    into["straggler"][at] = waits["last_rank"]
    work = _since_last_call(part)[waits.index].to_numpy()
    known = ~np.isnan(work)
    np.add.at(into["work_ns"], at[known], work[known])
    np.add.at(into["num_work"], at[known], 1)


@of_each_part
def delayed_calls(part: Frames) -> pd.DataFrame:
    """Return a row per delayed collective or transfer, in the part with the straggler's call.

    The index is the row of that call. Columns are `delay_ns` and `wait_ns` as in the table of
    `stragglers`; `num_ranks`, the number of ranks involved; `number`, the collective's number in
    its group; `match`; and for this call only `work_ns`, `others_work_ns`, `reason` and `excess_ns`
    as of `lateness`, and the columns `OF_LATE_CALL`.
    """
    # Texts are categories, since a run can have millions of delayed calls.
    found = _delayed(part)
    reasons = lateness(part)[["reason", "excess_ns"]].reindex(found.index)
    reason = pd.Categorical(reasons["reason"].fillna(""), categories=sorted(["", *REASONS]))
    return found.assign(reason=reason, excess_ns=reasons["excess_ns"])


@of_run
def longest_delay_ns(frames: Frames) -> int:
    """Return the longest delay of a call; -1 without any."""
    return max(frames.by_ranks(_longest_of_part))


def _longest_of_part(part: Frames) -> int:
    return int(delayed_calls(part)["delay_ns"].max()) if len(delayed_calls(part)) else -1


def _delayed(frames: Frames) -> pd.DataFrame:
    """Return the delayed calls of a part, without their reasons."""
    comm, every = frames.comm, matches(frames)
    is_late = comm["rank"].to_numpy() == of_match(frames, _delays(frames)["straggler"], NONE)
    is_late &= every.to_numpy() >= 0
    is_late[is_late] = _delays(frames)["delay_ns"][every[is_late]] > 0
    rows = comm.index[is_late]
    delays = entries(_delays(frames), every[rows])
    return pd.DataFrame(
        {
            "number": numbers(frames)[rows],
            "match": every[rows],
            "delay_ns": delays["delay_ns"],
            "wait_ns": delays["wait_ns"].astype("float64"),
            "others_work_ns": delays["work_ns"] / delays["num_work"].replace(0, np.nan),
            **comm.loc[rows, OF_LATE_CALL],
            "mesh_axis": mesh_axes(frames, comm.loc[rows, "group"]).astype("category"),
            "work_ns": _since_last_call(frames)[rows],
            "num_ranks": delays["num"] + 1,
        },
        index=rows,
    )


def _since_last_call(frames: Frames) -> pd.Series:
    """Return the ns from the end of the rank's preceding calls to each call; nan for the first."""
    issue = (frames.comm["issue_ns"] - frames.start_ns).where(frames.comm["issue_ns"] >= 0)
    return (issue - previous_end(frames)).clip(lower=0)


_FIRSTS = ("max_delay_ns", "worst_step", "worst_id")
_SUMS = (
    *("num_late", "delay_ns", "wait_ns", "work_ns", "num_work", "others_work_ns"),
    "num_others_work",
)
_Sums = tuple[pd.DataFrame, pd.DataFrame]
"""Sums by place, and `reason_sums`."""


def _of_part(part: Frames) -> _Sums:
    events = delayed_calls(part)
    rows = events.assign(
        num_late=1,
        max_delay_ns=events["delay_ns"],
        worst_step=events["step"],
        worst_id=events["id"],
        num_work=events["work_ns"].notna().astype("int64"),
        num_others_work=events["others_work_ns"].notna().astype("int64"),
    )
    return _by_place(rows), reason_sums(events, _BY)


def _joined(parts: list[_Sums]) -> _Sums:
    tables, reasons = zip(*parts, strict=True)
    return _by_place(joined(tables)), reason_sums(joined(reasons), _BY)


def _by_place(rows: pd.DataFrame) -> pd.DataFrame:
    """Return sums by rank and place, and the values of the row with the longest delay."""
    ordered = rows.sort_values(["max_delay_ns", "worst_id"], ascending=[False, True])
    ordered = ordered.assign(**{name: addable(ordered[name]) for name in _SUMS})
    how = dict.fromkeys(_FIRSTS, "first") | dict.fromkeys(_SUMS, "sum")
    return ordered.groupby(_BY, sort=False, observed=True).agg(how).reset_index()


def stragglers(frames: Frames) -> pd.DataFrame:
    """Return a row per rank and place, the longest delay first."""
    table, reasons = _joined(frames.by_ranks(_of_part, fold=_joined))
    table = table.set_index(_BY).join(main_reasons(reasons, _BY)).reset_index()
    table["work_ns"] /= table["num_work"]
    table["others_work_ns"] /= table["num_others_work"]
    table["worst_call"] = [
        f"{rank}:{number}" for rank, number in zip(table["rank"], table["worst_id"], strict=True)
    ]
    order = [False, *[True] * len(_BY)]
    table = table.sort_values(["delay_ns", *_BY], ascending=order)
    return typed(table.groupby("rank").head(MOST_PLACES), COLUMNS)


STRAGGLERS = Analysis(
    "stragglers",
    "Stragglers",
    "Which ranks delay the others, and where in the program?",
    stragglers,
    COLUMNS,
    topic="Who waits",
    shown=(
        "rank kind phase module source_file num_late delay_ns max_delay_ns "
        "worst_step worst_call work_ns others_work_ns reason excess_ns"
    ),
)
