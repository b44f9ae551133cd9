"""Collectives with the calls of all members in the trace, each once: arrivals, waits, stragglers.

`member_calls` has their calls, and `collectives` a row for each. The *skew* of a collective is the
time from its first arrival to its last. Its *straggler* is the call for which others waited: the
last, or the root's where the others need only the root (`arrivals`). Point-to-point calls are not
collectives.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.analysis import addable
from commtrace.analyze.arrivals import arrivals, last_arrivals
from commtrace.analyze.cached_per_run import cached_per_run, of_each_part
from commtrace.analyze.covered import ends_of_parts
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import collective_keys, group_numbers, is_transfer, numbers

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
    (key,) = collective_keys(calls)
    calls.insert(0, "collective", key.factorize()[0])
    return calls


@of_each_part
def collectives(frames: Frames) -> pd.DataFrame:
    """Return a row per complete collective.

    Columns are `group`, `kind` and `number` as in `member_calls`; `num_ranks`; the ranks `first`
    and `last` to arrive, the lowest in a tie, and `last_row`, the call of the latter; `skew_ns`;
    `wait_ns` and `transfer_ns`, summed over the members for which they are known, -1 if there
    are none; and `straggler`, the row of the call for which others waited, or `NOBODY`.
    """
    calls = member_calls(frames)
    order = np.argsort(calls["collective"].to_numpy(), kind="stable")
    by, issue, rank = (calls[name].to_numpy()[order] for name in ("collective", "issue", "rank"))
    begins, ends = ends_of_parts(np.diff(by) != 0) if len(order) else (order, order)
    num = ends - begins + 1
    earliest, latest = np.minimum.reduceat(issue, begins), np.maximum.reduceat(issue, begins)

    def lowest_rank_at(times: np.ndarray) -> np.ndarray:
        """Return the place of the call of the lowest rank among those issued at these times."""
        ranks = np.where(issue == np.repeat(times, num), rank, _NO_RANK)
        is_lowest = ranks == np.repeat(np.minimum.reduceat(ranks, begins), num)
        return np.minimum.reduceat(np.where(is_lowest, np.arange(len(order)), len(order)), begins)

    first, last = lowest_rank_at(earliest), lowest_rank_at(latest)
    table = calls.iloc[order[first]][["group", "kind", "number"]].set_axis(
        pd.Index(by[begins], name="collective")
    )
    table["num_ranks"] = num
    table["first"], table["last"] = rank[first], rank[last]
    table["last_row"] = calls.index[order[last]]
    table["skew_ns"] = latest - earliest
    known = np.maximum.reduceat(calls["wait_ns"].to_numpy()[order], begins) >= 0
    for name in ("wait_ns", "transfer_ns"):
        values = addable(calls[name].clip(lower=0)).to_numpy()[order]
        table[name] = np.where(known, np.add.reduceat(values, begins), -1)
    table["straggler"] = _stragglers(calls, len(table))
    return table


_NO_RANK = np.iinfo("int64").max


def _stragglers(calls: pd.DataFrame, num: int) -> np.ndarray:
    """Return the row of the call that others waited for, for each collective; or `NOBODY`."""
    collective, rank, last_rank = (
        calls[name].to_numpy() for name in ("collective", "rank", "last_rank")
    )
    late, row = np.full(num, -1), np.full(num, NOBODY)
    # From the last one on, so that the first one of several that differ counts.
    waits = np.flatnonzero(last_rank != rank)[::-1]
    late[collective[waits]] = last_rank[waits]
    is_late = rank == late[collective]
    row[collective[is_late]] = calls.index[is_late]
    return row


def with_names(frames: Frames, each: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `collectives` with the names of their groups and kinds instead of numbers."""
    codes = pd.Categorical.from_codes
    return each.assign(
        group=codes(each["group"], pd.Index(frames.groups["name"].astype(object))),
        kind=codes(each["kind"], frames.comm["kind"].cat.categories),
    )
