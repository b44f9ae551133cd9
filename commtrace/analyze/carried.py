"""Parameters whose data a call carries, as far as its size allows it.

A reduce-scatter of gradients leaves each rank its share of them. Any other call that reduces all of
these gradients sends that share at least. A smaller one carries something else, such as a norm or
one of the gradients; recordings of earlier versions name all parameters of a unit there.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.cached_per_run import OF_RANKS, of_each_call
from commtrace.analyze.frame import Frames


@of_each_call(OF_RANKS)
def parameters(frames: Frames) -> pd.Series:
    """Return column `parameters`, empty where a call is too small for the gradients that it names.

    The column separates names by `,`.
    """
    comm = frames.comm
    names = comm["parameters"].astype(object)
    is_named = (comm["carries"] == "gradients") & (names != "") & (comm["payload_bytes"] >= 0)
    calls = comm[is_named]
    if calls.empty:
        return names
    sizes = dict(zip(frames.groups["name"], frames.groups["size"], strict=True))
    num_shares = calls["group"].astype(object).map(sizes).astype("float64")
    share = (calls["payload_bytes"] / num_shares).where(calls["kind"] == "reduce_scatter")
    least = share.groupby([calls["rank"], names[calls.index]]).transform("max")
    is_too_small = calls["payload_bytes"] < least.fillna(0)
    return names.mask(is_too_small.reindex(comm.index, fill_value=False), "")
