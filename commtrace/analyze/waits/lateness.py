"""Reasons why stragglers arrive late, by comparison with the other members.

The time of each member before the collective is divided by use (`time_before`). The reason is the
use on which the straggler spent the most beyond the median of the others. It is unknown if that
explains less than half of its delay, which is counted from the median of the others' arrivals.
`REASONS` lists the reasons; `UNKNOWN` lists the causes for which none is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.run.analysis import addable
from commtrace.analyze.run.cached_per_run import of_each_part, of_run
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.run.matching import group_numbers, matches, numbers
from commtrace.analyze.waits.collectives import NOBODY, collectives, member_calls, waits_in_all
from commtrace.analyze.waits.time_before import LONE, PARTS, preceding, uses_before
from commtrace.schema import Column
from commtrace.units import text_of_duration

COMPUTE, COPIES = "longer compute", "memory copies"
OTHER_GROUP, EARLIER_CALL = "blocked in another group", "blocked in an earlier call"
HOST_LATE, LAUNCH_DELAYED = "host late", "launch delayed"
OTHER_KERNEL, WORK = "behind another kernel", "longer work"
NO_CORE = "no free core"

REASONS = {
    COMPUTE: "kernels computed longer on its device",
    COPIES: "copies ran longer on its device",
    HOST_LATE: "its device was idle until the host launched the kernel of the call",
    LAUNCH_DELAYED: "its device was idle although that kernel had been launched",
    OTHER_KERNEL: "that kernel's stream was busy with another kernel",
    WORK: "it worked longer outside of communication",
    NO_CORE: "it was ready to run, but other programs or ranks had the cores",
    OTHER_GROUP: "communication of another group kept it longer",
    EARLIER_CALL: "earlier communication of the same group kept it longer",
}
"""Reasons and their meanings. The first five apply to devices."""

REASON_COLUMNS = (
    Column("reason", str, "", f"{', '.join(REASONS)}; empty if unknown"),
    Column(
        "excess_ns",
        float,
        "ns",
        "time that it spent on that beyond the median of the other members",
        title="Longer by",
    ),
    Column("usual_ns", float, "ns", "that median", title="Usual"),
)
"""Columns of tables with the reason of a single collective's straggler."""

NO_BEGIN = "the begin of a member's recording is unknown"
NO_OTHER_KERNELS = "the trace has no other kernels of the device"
MIXED = "its members ran on devices and on hosts"
NO_LAUNCH = "the launch of its kernel is not in the trace"
NO_BLOCKED_TIME = "the blocked time of earlier calls is unknown"
ALREADY = "it was late already where the comparison begins"
NO_CAUSE = "no use of time explains half of the delay"
UNKNOWN = (NO_BEGIN, NO_OTHER_KERNELS, MIXED, NO_LAUNCH, NO_BLOCKED_TIME, ALREADY, NO_CAUSE)

MOST_COMPARED = 500_000
"""Number of calls that are compared, of the collectives with the largest skew."""

_BY_USE = {
    "compute": COMPUTE,
    "copies": COPIES,
    "communication": OTHER_GROUP,
    "idle_before": HOST_LATE,
    "idle_after": LAUNCH_DELAYED,
    "idle": NO_LAUNCH,
    "blocked": OTHER_GROUP,
    "maybe_blocked": NO_BLOCKED_TIME,
    "work": WORK,
    "no_core": NO_CORE,
}
"""Reason of each use, or the cause for which there is none."""
_BY_PART = {
    "stream_compute": OTHER_KERNEL,
    "stream_communication": OTHER_KERNEL,
    "group_blocked": EARLIER_CALL,
}
"""Reason of a use that consists mostly of this part."""


@of_run
@of_each_part
def lateness(frames: Frames) -> pd.DataFrame:
    """Return the reason of each straggler, by its row in table `comm`.

    Columns are `reason`, one of `REASONS` or empty; `excess_ns`, the time that the straggler spent
    on it beyond the median of the others; `usual_ns`, that median; and `unknown`, one of `UNKNOWN`
    if there is no reason. Times are floats, nan without a reason.

    In a run with more than `MOST_COMPARED` calls of collectives with a straggler, only the
    collectives with the largest skew have a row.
    """
    chosen = _most_skewed(frames.by_ranks(_with_straggler, fold=_most_skewed))
    if chosen.empty:
        return _NOBODY_LATE
    calls = joined(frames.by_ranks(_members_of, chosen))
    late = calls.loc[calls["is_late"], "collective"]
    late = pd.Series(late.index, index=late)
    uses = uses_before(frames, calls)
    calls = calls.loc[uses.index]
    uses = uses.assign(issue=calls["issue"])
    incomparable = _incomparable(uses["clock"], calls["collective"])
    is_compared = ~calls["collective"].isin(incomparable.index)
    calls, uses = calls[is_compared], uses[is_compared]
    is_late = calls.index.isin(late)
    others = uses[~is_late].groupby(calls.loc[~is_late, "collective"])
    usual = others[[*_BY_USE, *PARTS, "begin", "issue"]].median()
    own = uses[is_late].set_axis(calls.loc[is_late, "collective"]).loc[usual.index]
    found = _reasons(own[usual.columns] - usual, usual).reindex(late.index)
    found["reason"] = found["reason"].fillna("")
    found["unknown"] = found["unknown"].fillna(incomparable).fillna(NO_BEGIN)
    return found.set_axis(pd.Index(late, name="row"))


_NOBODY_LATE = pd.DataFrame(
    {
        "reason": pd.Series(dtype=object),
        "excess_ns": pd.Series(dtype="float64"),
        "usual_ns": pd.Series(dtype="float64"),
        "unknown": pd.Series(dtype=object),
    },
    index=pd.Index([], dtype="int64", name="row"),
)
"""`lateness` of a run in which no collective has a straggler."""


_IN_ORDER = ["skew_ns", "group", "number"]


def _with_straggler(frames: Frames) -> pd.DataFrame:
    """Return the collectives with a straggler that have the largest skew; see `_most_skewed`."""
    each = collectives(frames)
    columns = ["group", "number", "num_ranks", "skew_ns", "straggler"]
    late = each.loc[each["straggler"] != NOBODY, columns].reset_index()
    return _most_skewed([late])


def _most_skewed(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the collectives with the largest skew, in its order, numbered from 0.

    They have at most `MOST_COMPARED` calls, but at least one collective is returned.
    """
    each = pd.concat(parts).sort_values(_IN_ORDER, ascending=[False, True, True])
    num_calls = each["num_ranks"].cumsum()
    num = max(int((num_calls <= MOST_COMPARED).sum()), 1)
    return each.iloc[:num].reset_index(drop=True)


def _members_of(frames: Frames, chosen: pd.DataFrame) -> pd.DataFrame:
    """Return the calls of collectives of `_most_skewed`, with `collective`, their numbers there.

    Other columns are `group` and `number` as in `member_calls`, `rank`, `issue`, the columns of
    `preceding`, and `is_late`, a mask of the calls of stragglers.
    """
    place = pd.Index(chosen["collective"]).get_indexer(pd.Index(matches(frames)))
    rows = frames.comm.index[place >= 0]
    comm = frames.comm.loc[rows, ["rank", "issue_ns"]]
    calls = pd.DataFrame(
        {
            "group": group_numbers(frames)[rows],
            "number": numbers(frames)[rows],
            "collective": place[place >= 0],
            "rank": comm["rank"],
            "issue": comm["issue_ns"] - frames.start_ns,
            "is_late": rows.isin(chosen["straggler"]),
        },
        index=rows,
    )
    return calls.join(preceding(frames, calls))


def _incomparable(clock: pd.Series, collective: pd.Series) -> pd.Series:
    """Return the collectives whose members' times cannot be compared, each with the cause."""
    is_lone = (clock == LONE).groupby(collective).any()
    code = clock.astype("category").cat.codes.groupby(collective)
    is_mixed = code.min() != code.max()
    cause = pd.Series(np.where(is_lone, NO_OTHER_KERNELS, MIXED), index=is_mixed.index)
    return cause[is_lone | is_mixed]


def _reasons(excess: pd.DataFrame, usual: pd.DataFrame) -> pd.DataFrame:
    """Return the reason of each collective, from the straggler's excess and the others' median."""
    excess = _with_waits_of_work(excess, usual)
    over = excess[[*_BY_USE]].to_numpy()
    each = np.arange(len(over))
    use = over.argmax(axis=1) if len(over) else each
    over = over[each, use]
    reason = np.array([*_BY_USE.values()], dtype=object)[use]
    for part, whole in PARTS.items():
        is_part = (use == [*_BY_USE].index(whole)) & (2 * excess[part].to_numpy() >= over)
        # Kernels that the others' streams have too are the program's own computation.
        is_usual = (part == "stream_compute") & (usual[part].to_numpy() > 0)
        reason[is_part & ~is_usual] = _BY_PART[part]
    delay = excess["issue"].to_numpy()
    is_already = 2 * excess["begin"].to_numpy() >= delay
    explains = (over > 0) & (2 * over >= delay)
    reason = np.where(explains, reason, np.where(is_already, ALREADY, NO_CAUSE))
    is_known = np.isin(reason, [*REASONS])
    return pd.DataFrame(
        {
            "reason": np.where(is_known, reason, ""),
            "excess_ns": np.where(is_known, over, np.nan),
            "usual_ns": np.where(is_known, usual[[*_BY_USE]].to_numpy()[each, use], np.nan),
            "unknown": np.where(is_known, "", reason),
        },
        index=excess.index,
    )


def _with_waits_of_work(excess: pd.DataFrame, usual: pd.DataFrame) -> pd.DataFrame:
    """Count waits for cores that are due to longer work as work.

    A member that works longer also waits for cores longer: at the others' rate, work is the reason.
    """
    rate = (usual["no_core"] / usual["work"]).where(usual["work"] > 0, 0)
    waits = excess["no_core"].clip(lower=0)
    of_work = np.minimum(excess["work"].clip(lower=0) * rate, waits)
    return excess.assign(work=excess["work"] + of_work, no_core=excess["no_core"] - of_work)


@dataclass(frozen=True, slots=True)
class Lateness:
    """Reason why the straggler of a collective is late, with its call.

    Attributes:
        reason: One of `REASONS`; empty if unknown.
        excess_ns: Time that it spent on that beyond the median of the others; nan if unknown.
        usual_ns: That median.
        unknown: Cause for which the reason is unknown.
    """

    rank: int
    id: int
    reason: str
    excess_ns: float
    usual_ns: float
    unknown: str

    def sentence(self) -> str:
        """Return the reason in words, or the cause for which it is unknown."""
        if not self.reason:
            return f"rank {self.rank} was late; reason unknown: {self.unknown}"
        excess, usual = map(text_of_duration, (self.excess_ns, self.usual_ns))
        amounts = f"{excess} beyond the others' median of {usual}"
        return f"rank {self.rank} was late: {self.reason}, {amounts}"


def lateness_at(frames: Frames, row: int) -> Lateness | None:
    """Return the lateness of the straggler at the collective of a row of table `comm`.

    It is None if nobody waited, or if the members' arrivals are unknown.
    """
    late = max(frames.by_ranks(_straggler_of, str(row)))
    if late == NOBODY or late not in lateness(frames).index:
        return None
    call, found = frames.calls_at([late]).iloc[0], lateness(frames).loc[late]
    return Lateness(
        rank=int(call["rank"]),
        id=int(call["id"]),
        reason=str(found["reason"]),
        excess_ns=float(found["excess_ns"]),
        usual_ns=float(found["usual_ns"]),
        unknown=str(found["unknown"]),
    )


def _straggler_of(part: Frames, row: str) -> int:
    """Return the row of the straggler at the collective of a row, if the part has it."""
    calls = member_calls(part)
    if int(row) not in calls.index:
        return NOBODY
    return int(waits_in_all(part)["straggler"][calls["collective"].loc[int(row)]])


def reason_sums(events: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return `delay_ns` and `excess_ns` of delayed calls, summed by some columns and `reason`.

    Args:
        events: Delayed calls with `delay_ns`, and `reason` and `excess_ns` as of `lateness`; or
            such sums of parts.
        by: Columns to group by.
    """
    sums = events.assign(delay_ns=addable(events["delay_ns"]))
    grouped = sums.groupby([*by, "reason"], sort=False, observed=True)
    return grouped[["delay_ns", "excess_ns"]].sum().reset_index()


def main_reasons(sums: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the reason of most of the delay, by columns of `reason_sums`.

    Returns:
        `reason`, empty if none accounts for half of the delay, and `excess_ns`, its total there.
    """
    whole = sums.groupby([*by], observed=True)["delay_ns"].sum()
    known = sums[sums["reason"] != ""].sort_values(["delay_ns", "reason"], ascending=[False, True])
    main = known.drop_duplicates([*by]).set_index([*by]).reindex(whole.index)
    main = main[2 * main["delay_ns"] >= whole].reindex(whole.index)
    reason = main["reason"].astype(object).fillna("")
    return main.assign(reason=reason)[["reason", "excess_ns"]]
