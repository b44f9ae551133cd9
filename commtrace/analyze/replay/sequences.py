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
_ALIKE = ["group", "kind", "dtype", "reduce_op"]


def sequences(run: Frames, calls: pd.DataFrame, rows: np.ndarray) -> tuple[list[np.ndarray], int]:
    """Return the rows of each sequence of two calls or more of a rank, and the unknown uses.

    Args:
        run: The run.
        calls: Calls of its graph, with `rank match begin`.
        rows: The calls that may be merged, with all members.
    """
    comm = run.comm[["result_used_ns", "step", *_ALIKE]].loc[rows]
    used = comm["result_used_ns"]
    table = pd.DataFrame(
        {
            "row": rows,
            "match": calls["match"].reindex(rows).to_numpy(),
            "rank": calls["rank"].reindex(rows).to_numpy(),
            "begin": calls["begin"].reindex(rows).to_numpy(),
            "used": np.where(used >= 0, used - run.start_ns, _LATER),
            "step": comm["step"].to_numpy(),
            "what": comm.groupby(_ALIKE, observed=True, sort=False).ngroup().to_numpy(),
        }
    )
    table = table[table["match"] >= 0].sort_values(["rank", "match"], kind="stable")
    last = _last_mergeable(table)
    numbers = _sequence_numbers(last)
    table["sequence"] = table["match"].map(numbers)
    several = table.groupby(["rank", "sequence"])["row"].transform("size") > 1
    table = table[several].sort_values(["rank", "sequence"], kind="stable")
    begins = table[["rank", "sequence"]].diff().ne(0).any(axis=1).to_numpy()
    found = np.split(table["row"].to_numpy(), np.flatnonzero(begins)[1:]) if len(table) else []
    return found, int((used < 0).sum())


def _last_mergeable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the last match with which each match could be one, as `last what step`, by match."""
    ordered = table.sort_values(["rank", "what", "step"], kind="stable")
    of = ordered.groupby(["rank", "what", "step"], sort=False)
    group, own = of.ngroup().to_numpy(), np.arange(len(ordered))
    begun = of["begin"].cummax().to_numpy()
    # Times as their places among all times, so that groups fit into one order.
    times, place = np.unique(np.concatenate([begun, ordered["used"]]), return_inverse=True)
    begun, used = place.reshape(2, -1) + group * len(times)
    until = np.searchsorted(begun, used, side="left") - 1
    every = ordered.assign(last=ordered["match"].to_numpy()[np.maximum(until, own)])
    return every.groupby("match").agg(
        last=("last", "min"), what=("what", "first"), step=("step", "first")
    )


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
