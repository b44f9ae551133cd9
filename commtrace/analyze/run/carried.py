"""Parameters whose data a call carries, as far as its size allows it.

A reduce-scatter of gradients leaves each rank its share of them. Any other call that reduces all of
these gradients sends at least that share. A smaller call carries something else, such as a norm or
a single gradient; recordings of earlier versions name all parameters of a unit there.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.run.cached_per_run import of_each_call
from commtrace.analyze.run.frame import Frames


def parameters_of(frames: Frames, calls: pd.DataFrame) -> pd.Series:
    """Return column `parameters` of rows of `comm`; empty if a call is too small for its names.

    The column separates names by `,`.
    """
    return calls["parameters"].astype(object).mask(is_too_small(frames)[calls.index], "")


@of_each_call
def is_too_small(frames: Frames) -> pd.Series:
    """Return a mask of the calls that are too small for the gradients that they name."""
    comm = frames.comm
    names = comm["parameters"].astype(object)
    is_named = (comm["carries"] == "gradients") & (names != "") & (comm["payload_bytes"] >= 0)
    calls = comm[is_named]
    if calls.empty:
        return is_named
    sizes = dict(zip(frames.groups["name"], frames.groups["size"], strict=True))
    num_shares = calls["group"].astype(object).map(sizes).astype("float64")
    share = (calls["payload_bytes"] / num_shares).where(calls["kind"] == "reduce_scatter")
    least = share.groupby([calls["rank"], names[calls.index]]).transform("max")
    found = calls["payload_bytes"] < least.fillna(0)
    return found.reindex(comm.index, fill_value=False)
