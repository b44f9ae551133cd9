"""Collectives with the calls of all members in the trace, each once: arrivals, waits, stragglers.

`member_calls` has their calls, and `collectives` a row for each. The *skew* of a collective is the
time from its first arrival to its last. Its *straggler* is the call for which others waited: the
last, or the root's where the others need only the root (`arrivals`). Point-to-point calls are not
collectives.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import (
    NEEDS_EVERYONE,
    NEEDS_ROOT,
    ROOT_NEEDS_EVERYONE,
    arrivals,
    last_arrivals,
    meetings,
)
from commtrace.analyze.run.cached_per_run import cached_per_run, of_each_part
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import (
    Arrays,
    across_ranks,
    entries,
    group_numbers,
    is_transfer,
    matches,
    numbers,
)

NOBODY = -1
"""Row of the straggler of a collective in which nobody waited."""


@cached_per_run
def is_member(frames: Frames) -> pd.Series:
    """Return a mask of the calls of complete collectives."""
    return last_arrivals(frames)["arrival"].notna() & ~is_transfer(frames)


@cached_per_run
def member_calls(frames: Frames) -> pd.DataFrame:
    """Return the calls of complete collectives, by their rows in table `comm`.

    Columns are `collective`, its match; `group`, the row of its group in table `groups`; `kind`,
    the code of its category; `number` in the group; `rank`; `issue` in ns since the start of the
    run; and `wait_ns` and `transfer_ns`, -1 if unknown.
    """
    comm, arrived = frames.comm, arrivals(frames)
    calls = {
        "collective": matches(frames),
        "group": group_numbers(frames),
        "kind": comm["kind"].cat.codes,
        "number": numbers(frames),
        "rank": comm["rank"],
        "issue": comm["issue_ns"] - frames.start_ns,
        "wait_ns": arrived["wait_ns"],
        "transfer_ns": arrived["transfer_ns"],
    }
    return pd.DataFrame(calls, copy=False)[is_member(frames)]


@cached_per_run
def is_straggler(frames: Frames) -> pd.Series:
    """Return a mask of the calls of complete collectives for which other members waited."""
    own = is_member(frames).to_numpy()
    at, kind, rank = matches(frames)[own], frames.comm["kind"][own], frames.comm["rank"][own]
    met = entries(meetings(frames), at)
    is_last = rank == met["last"]
    is_late = kind.isin(NEEDS_EVERYONE) & is_last & (met["earliest"] < met["latest"])
    is_late |= (
        kind.isin(NEEDS_ROOT)
        & (rank == frames.comm["root"][own])
        & (met["earliest"] < met["of_root"])
    )
    has_waited = (met["of_root"] >= 0) & (met["of_root"] < met["latest"])
    is_late |= kind.isin(ROOT_NEEDS_EVERYONE) & is_last & has_waited
    return is_late.reindex(frames.comm.index, fill_value=False)


@across_ranks(
    wait_ns=(0.0, "float64"),
    transfer_ns=(0.0, "float64"),
    is_known=(False, "bool"),
    straggler=(NOBODY, "int64"),
)
def waits_in_all(part: Frames, into: Arrays) -> None:
    """Waits of the members of complete collectives in sum, and the row of the straggler's call."""
    calls = member_calls(part)
    known = calls[calls["wait_ns"] >= 0]
    for name in ("wait_ns", "transfer_ns"):
        # Floats do not overflow, and are exact for sums of 100 days.
        np.add.at(into[name], known["collective"], known[name].clip(lower=0).astype("float64"))
    into["is_known"][known["collective"]] = True
    late = calls.index[is_straggler(part)[calls.index]]
    into["straggler"][calls["collective"][late]] = late


@of_each_part
def collectives(frames: Frames) -> pd.DataFrame:
    """Return a row per complete collective, in the part that has the call of its last rank.

    Columns are `group`, `kind` and `number` as in `member_calls`; `num_ranks`; the ranks `first`
    and `last` to arrive, the lowest in a tie, and `last_row`, the call of the latter; `skew_ns`;
    `wait_ns` and `transfer_ns`, summed over the members for which they are known, -1 if there
    are none; and `straggler`, the row of the call for which others waited, or `NOBODY`. The index
    is the match.
    """
    calls = member_calls(frames)
    met = meetings(frames)
    calls = calls[calls["rank"] == met["last"][calls["collective"]]]
    met = entries(met, calls["collective"])
    waits = entries(waits_in_all(frames), calls["collective"])
    table = calls[["group", "kind", "number"]].assign(
        num_ranks=met["num"],
        first=met["first"],
        last=met["last"],
        last_row=calls.index,
        skew_ns=met["latest"] - met["earliest"],
        straggler=waits["straggler"],
    )
    for name in ("wait_ns", "transfer_ns"):
        total = waits[name]
        total = total.astype("int64") if total.max() < _EXACT or total.empty else total
        table[name] = total.where(waits["is_known"], -1)
    return table.set_axis(pd.Index(calls["collective"], name="collective"))


_EXACT = 2.0**53


def with_names(frames: Frames, each: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `collectives` with the names of their groups and kinds instead of numbers."""
    codes = pd.Categorical.from_codes
    return each.assign(
        group=codes(each["group"], pd.Index(frames.groups["name"].astype(object))),
        kind=codes(each["kind"], frames.comm["kind"].cat.categories),
    )
