"""Sequences of calls that could be one: issued in a row before a result of them is used.

    all_reduce a    all_reduce b    uses a    all_reduce c          a and b could be one call, c not

They are of equal kind, type and group, in the same step, and no other call of the group is between
them. What a member cannot merge, none can.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.run.frame import Frames

_LATER = np.iinfo("int64").max


def sequences(
    run: Frames, calls: pd.DataFrame, rows: np.ndarray
) -> tuple[list[np.ndarray], int]:
    """Return the rows of each sequence of two calls or more of a rank, and the unknown uses.

    Args:
        run: The run.
        calls: Calls of its graph, with `rank match begin`.
        rows: The calls that may be merged, with all members.
    """
    comm = run.calls_at(pd.Index(rows))
    used = comm["result_used_ns"]
    table = pd.DataFrame(
        {
            "row": rows,
            "match": calls["match"].reindex(rows).to_numpy(),
            "rank": calls["rank"].reindex(rows).to_numpy(),
            "begin": calls["begin"].reindex(rows).to_numpy(),
            "used": np.where(used >= 0, used - run.start_ns, _LATER),
            "step": comm["step"].to_numpy(),
            "what": pd.factorize(
                pd.MultiIndex.from_frame(comm[["group", "kind", "dtype", "reduce_op"]].astype(object))
            )[0],
        }
    )
    table = table[table["match"] >= 0].sort_values(["rank", "match"], kind="stable")
    last = _last_mergeable(table)
    numbers = _sequence_numbers(last)
    table["sequence"] = table["match"].map(numbers)
    found = [
        own["row"].to_numpy()
        for _, own in table.groupby(["rank", "sequence"], sort=True)
        if len(own) > 1
    ]
    return found, int((used < 0).sum())


def _last_mergeable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the last match with which each match could be one, as `last what step`, by match."""
    found = []
    for _, own in table.groupby("rank"):
        match, begin = own["match"].to_numpy(), own["begin"].to_numpy()
        last = match.copy()
        for _, of in own.reset_index(drop=True).groupby(["what", "step"]):
            place = of.index.to_numpy()
            begun = np.maximum.accumulate(begin[place])
            until = np.searchsorted(begun, of["used"].to_numpy(), side="left") - 1
            last[place] = match[place][np.maximum(until, np.arange(len(place)))]
        found.append(own.assign(last=last))
    every = pd.concat(found) if found else table.assign(last=0)
    return every.groupby("match").agg(last=("last", "min"), what=("what", "first"), step=("step", "first"))


def _sequence_numbers(last: pd.DataFrame) -> pd.Series:
    """Return the number of the sequence of each match, in order."""
    numbers, number, until, before = [], -1, -1, None
    for match, own_last, what, step in last.itertuples():
        continues = before == (match - 1, what, step) and match <= until
        number += not continues
        until = min(until, own_last) if continues else own_last
        before = (match, what, step)
        numbers.append(number)
    return pd.Series(numbers, index=last.index)
