"""Collectives with the calls of all members in the trace, each once: arrivals, waits, stragglers.

`member_calls` has their calls, and `collectives` one row for each. The *skew* of a collective is
the time from its first arrival to its last one. Its *straggler* is the call for which others
waited: the last one, or the root's where the others need only the root (`arrivals`). Point-to-point
calls are no collectives.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.analysis import addable
from commtrace.analyze.arrivals import arrivals, last_arrivals
from commtrace.analyze.cached_per_run import cached_per_run, of_each_part
from commtrace.analyze.covered import ends_of_parts
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import group_numbers, is_transfer, numbers

NOBODY = -1
"""Row of the straggler of a collective in which nobody waited."""


@cached_per_run
def member_calls(frames: Frames) -> pd.DataFrame:
    """Return the calls of complete collectives, by their rows in table `comm`.

    Columns are `collective`, its number in `collectives`; `group`, the row of its group in table
    `groups`; `kind`, the code of its category; `number` in the group; `rank`; `issue` in ns since
    the start of the run; `last_rank` as in `arrivals`; and `wait_ns` and `transfer_ns`, -1 if
    unknown.
    """
    comm, last = frames.comm, last_arrivals(frames)
    arrived = arrivals(frames)
    calls = pd.DataFrame(
        {
            "group": group_numbers(frames),
            "kind": comm["kind"].cat.codes,
            "number": numbers(frames),
            "rank": comm["rank"],
            "issue": comm["issue_ns"] - frames.start_ns,
            "last_rank": last["last_rank"],
            "wait_ns": arrived["wait_ns"],
            "transfer_ns": arrived["transfer_ns"],
        }
    )[last["arrival"].notna() & ~is_transfer(frames)]
    calls.insert(0, "collective", calls.groupby(["group", "number"], sort=False).ngroup())
    return calls


@of_each_part
def collectives(frames: Frames) -> pd.DataFrame:
    """Return one row per complete collective.

    Columns are `group`, `kind` and `number` as in `member_calls`; `num_ranks`; the ranks `first`
    and `last` to arrive, the lowest in a tie, and `last_row`, the call of the latter; `skew_ns`;
    `wait_ns` and `transfer_ns`, summed over the members of which they are known, -1 if over none;
    and `straggler`, the row of the call for which others waited, or `NOBODY`.
    """
    calls = member_calls(frames)
    by, issue, rank = (calls[name].to_numpy() for name in ("collective", "issue", "rank"))
    # In order of arrival within each collective, the lowest rank first in a tie.
    order = np.lexsort((rank, issue, by))
    begins, ends = ends_of_parts(np.diff(by[order]) != 0) if len(order) else (order, order)
    first, latest = order[begins], issue[order[ends]]
    place = np.arange(len(order))
    is_last = issue[order] == np.repeat(latest, ends - begins + 1)
    last = order[np.minimum.reduceat(np.where(is_last, place, len(order)), begins)]
    table = calls.iloc[first][["group", "kind", "number"]].set_axis(
        pd.Index(by[first], name="collective")
    )
    table["num_ranks"] = ends - begins + 1
    table["first"], table["last"] = rank[first], rank[last]
    table["last_row"] = calls.index[last]
    table["skew_ns"] = latest - issue[first]
    known = (calls["wait_ns"] >= 0).groupby(calls["collective"]).any()
    for name in ("wait_ns", "transfer_ns"):
        sums = addable(calls[name].clip(lower=0)).groupby(calls["collective"]).sum()
        table[name] = sums.where(known, -1)
    table["straggler"] = _stragglers(calls).reindex(table.index, fill_value=NOBODY)
    return table


def _stragglers(calls: pd.DataFrame) -> pd.Series:
    """Return the row of the call that others waited for, by collective; only where there is one."""
    waiting = calls[calls["last_rank"] != calls["rank"]]
    late = waiting.groupby("collective")["last_rank"].first()
    is_late = calls["rank"] == calls["collective"].map(late)
    return pd.Series(calls.index[is_late], index=calls.loc[is_late, "collective"], dtype="int64")


def with_names(frames: Frames, each: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `collectives` with the names of their groups and kinds instead of numbers."""
    codes = pd.Categorical.from_codes
    return each.assign(
        group=codes(each["group"], pd.Index(frames.groups["name"].astype(object))),
        kind=codes(each["kind"], frames.comm["kind"].cat.categories),
    )
