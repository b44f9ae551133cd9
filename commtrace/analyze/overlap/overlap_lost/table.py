"""Communication that was not hidden, by place and reason: by how much it could be, and behind what.

A row is a place of the program and a reason. Its calls were exposed for some time; the *transfer*
is the part after the arrival of the last peer. A replay of the run tells how much of the transfer
could be hidden: there, calls are issued once their data is ready, and waited for where their result
is used. Calls that are split, or buckets that are divided, have a part that is ready sooner, or
used later. Other waits may grow, so that a step gains less (`commtrace whatif`). The column
`reason` states why calls were not hidden:

"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.measures import steady_ns, summed
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.overlap.overlap_lost.behind import behind
from commtrace.analyze.overlap.overlap_lost.chances import PLACE, chances
from commtrace.analyze.overlap.overlap_lost.reasons import REASONS, Reason
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.analyze.run.sums import numbered_rows, sums_of
from commtrace.schema import Column
from commtrace.units import text_of_duration

_WIDTH = max(map(len, REASONS))
__doc__ = (__doc__ or "") + "".join(
    f"    {name:{_WIDTH}}    {each.meaning}\n" for name, each in REASONS.items()
)

COLUMNS = (
    Column("kind", str, "", "all_reduce, all_gather, ..."),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns the group", title="Axis"),
    Column("module", str, "", "path of the innermost module"),
    Column("phase", str, "", "forward, backward, recompute, optimizer or other"),
    Column("reason", str, "", "reason, from the list above"),
    Column("num_calls", float, "", "calls; mean over ranks", title="Calls"),
    Column(
        "exposed_ns", float, "ns", "time in which they blocked the rank; mean over ranks",
        title="Exposed",
    ),
    Column(
        "transfer_ns", float, "ns",
        "the part of it after the arrival of the last peer, or all of it if that is unknown; "
        "mean over ranks",
        title="Transferred",
    ),
    Column(
        "hidden_ns", float, "ns", "time in flight that did not block the rank; mean over ranks",
        title="Hidden",
    ),
    Column(
        "could_hide_ns", float, "ns",
        "part of the transfer that the replay hides; mean over ranks; of a large run, the mean of "
        "the calls in the replayed steps times the number of calls; nan unknown, as on devices",
        title="Could hide",
    ),
    Column(
        "share_of_steps", float, "1",
        "the part of it in steady steps, as a fraction of the steps' time",
        title="Of the steps",
    ),
    Column(
        "early_ns", float, "ns",
        "time between the moment at which the data was ready and the issue; mean over calls for "
        "which it is known",
        title="Ready before",
    ),
    Column(
        "slack_ns", float, "ns",
        "time between the end and the first use of the result; mean over calls for which it is "
        "known",
        title="Used after",
    ),
    Column(
        "behind", str, "",
        "operators of the longest part of the time that the call of the greatest loss could be "
        "hidden behind; of hidden calls, that they were hidden behind",
    ),
    Column("source_file", str, "", "file of the user's line", title="Source"),
    Column("source_line", int, "", "line in that file"),
    Column("num_steps", float, "", "steps with a loss; mean over ranks", title="Steps"),
    Column("advice", str, "", "what to try", title="To try"),
)  # fmt: skip

_SUMS = ["num_calls", "exposed_ns", "transfer_ns", "hidden_ns", "could_hide_ns", "in_steps_ns"]
_OTHER_SUMS = ["early_sum", "num_early", "slack_sum", "num_slack", "num_steps"]


def overlap_lost(frames: Frames) -> pd.DataFrame:
    """Return a row per place and reason, the largest time that could be hidden first."""
    parts = frames.by_ranks(_of_ranks)
    by = [*PLACE, "reason"]
    sums = summed([table[[*_SUMS, *_OTHER_SUMS]] for table, _ in parts])
    examples = pd.concat([each for _, each in parts])
    best = examples.sort_values(["could", "rank", "id"], ascending=[False, True, True])
    best = best[~best.index.duplicated()]
    num_ranks = max(frames.num_ranks, 1)
    table = sums[[*_SUMS[:-1], "num_steps"]] / num_ranks
    in_steps = steady_ns(frames)
    table["share_of_steps"] = sums["in_steps_ns"] / (in_steps or np.nan)
    table["early_ns"] = sums["early_sum"] / sums["num_early"].where(sums["num_early"] > 0)
    table["slack_ns"] = sums["slack_sum"] / sums["num_slack"].where(sums["num_slack"] > 0)
    table["behind"] = best["behind"].reindex(table.index)
    table = table.reset_index()
    table["advice"] = [REASONS[reason].advice for reason in table["reason"]]
    table = table.sort_values(
        ["could_hide_ns", "exposed_ns", *by], ascending=[False, False, *([True] * len(by))]
    )
    return typed(table, COLUMNS)


def _of_ranks(part: Frames) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return sums of the calls of some ranks by place and reason, and an example of each."""
    comm, calls = part.comm, chances(part)
    moves_data = np.flatnonzero(comm["kind"] != "barrier")
    axes = mesh_axes(part, comm["group"])
    keys = [axes if name == "mesh_axis" else comm[name] for name in PLACE] + [calls["reason"]]
    number, firsts = numbered_rows([key.take(moves_data) for key in keys])
    place = pd.MultiIndex.from_arrays(
        [_texts(key.iloc[moves_data[firsts]]) for key in keys], names=[*PLACE, "reason"]
    )
    rank, step, call_id = (comm[name].to_numpy()[moves_data] for name in ("rank", "step", "id"))
    of = {name: calls[name].to_numpy()[moves_data] for name in _TIMES}
    could = of["could"]
    early, slack = (np.maximum(of[end] - of[begin], 0) for begin, end in _WINDOWS)
    sums = sums_of(
        {
            "num_calls": np.ones(len(number)),
            "exposed_ns": of["exposed"],
            "transfer_ns": of["transfer"],
            "hidden_ns": of["hidden"],
            "could_hide_ns": could,
            "in_steps_ns": np.where(is_steady(part, comm["step"].iloc[moves_data]), could, 0.0),
            "early_sum": early,
            "num_early": (~np.isnan(early)).astype("float64"),
            "slack_sum": slack,
            "num_slack": (~np.isnan(slack)).astype("float64"),
        },
        number,
        len(place),
        min_count=1,
    )
    lossy = np.flatnonzero((step >= 0) & (could > 0))
    _, of_steps = numbered_rows([each[lossy] for each in (number, rank, step)])
    num_steps = np.bincount(number[lossy[of_steps]], minlength=len(place))
    example = _examples(number, len(place), could, rank, call_id)
    examples = pd.DataFrame(
        {
            "could": could[example],
            "rank": rank[example],
            "id": call_id[example],
            "behind": behind(part, calls.iloc[moves_data[example]]).to_numpy(),
        },
        index=place,
    )
    return sums.assign(num_steps=num_steps.astype("float64")).set_axis(place), examples


_TIMES = ("exposed", "transfer", "hidden", "could", "issue", "end", "ready", "used")
_WINDOWS = (("ready", "issue"), ("end", "used"))
"""Begin and end of the time before the issue of a call, and of the time after its end."""


def _texts(key: pd.Series) -> pd.Series:
    """Return a key with texts that are equal in all parts."""
    return key if key.dtype.kind in "iu" else key.astype(object)


def _examples(
    number: np.ndarray, num: int, could: np.ndarray, rank: np.ndarray, call_id: np.ndarray
) -> np.ndarray:
    """Return the row of each number that could hide most, the first call of the lowest rank."""
    rows, found = np.arange(len(number)), np.zeros(num, dtype="int64")
    for values in (-np.where(np.isnan(could), -1.0, could), rank, call_id):
        least = np.full(num, np.iinfo("int64").max, dtype=values.dtype)
        np.minimum.at(least, number[rows], values[rows])
        rows = rows[values[rows] == least[number[rows]]]
    found[number[rows]] = rows
    return found


def clause(reason: str, early_ns: float, slack_ns: float) -> str:
    """Describe calls of a reason in a sentence: `whose input was ready 3 ms before ...`."""
    known: Reason = REASONS[reason]
    return known.clause.format(early=text_of_duration(early_ns), slack=text_of_duration(slack_ns))


OVERLAP_LOST = Analysis(
    "overlap_lost",
    "Overlap lost",
    "Why was this communication not hidden?",
    overlap_lost,
    COLUMNS,
    topic="When",
    shown=(
        "kind mesh_axis module phase reason exposed_ns hidden_ns could_hide_ns share_of_steps "
        "early_ns slack_ns behind source_file num_calls"
    ),
)
