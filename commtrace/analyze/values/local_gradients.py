"""Gradients of the ranks' own backward passes, which together are those of the first run.

Ranks that have parts of the batch, or of the sequence, have parts of each gradient, scaled by how
they average their losses. If the sum over ranks is a multiple of the first run's, the backward pass
was right, and with it the losses.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.cached_per_run import cached_per_run
from commtrace.analyze.frame import Frames, joined
from commtrace.analyze.values.global_values import SKETCHES
from commtrace.analyze.values.tolerance import OF_ROUNDOFF, ROUNDOFF
from commtrace.schema import LOCAL_GRADIENT

_MOST_APART = 0.05
_KEY = ["step", "name", "shape"]


def _rows(part: Frames) -> pd.DataFrame:
    table = part.fingerprints
    own = table.loc[table["role"] == LOCAL_GRADIENT, [*_KEY, "dtype", *SKETCHES]]
    return own.astype({"name": str, "shape": str, "dtype": str})


@cached_per_run
def _sums(run: Frames) -> pd.DataFrame:
    rows = joined(run.by_ranks(_rows))
    sums = rows.groupby(_KEY)[[*SKETCHES]].sum()
    unit = rows["dtype"].map(ROUNDOFF).fillna(ROUNDOFF["float32"])
    return sums.assign(unit=unit.groupby([rows[name] for name in _KEY]).max())


def right_gradients(left: Frames, right: Frames) -> set[tuple[int, str]]:
    """Return the steps and names of parameters whose gradients are right, whatever their scale."""
    ours, theirs = _sums(left), _sums(right)
    both = ours.add_suffix("_left").join(theirs.add_suffix("_right"), how="inner")
    x, y = (
        both[[f"{name}_{side}" for name in SKETCHES]].to_numpy("float64")
        for side in ("left", "right")
    )
    squares = (x**2).sum(axis=1)
    factor = np.divide((x * y).sum(axis=1), squares, out=np.zeros(len(x)), where=squares > 0)
    apart = np.linalg.norm(factor[:, None] * x - y, axis=1)
    unit = np.fmax(both["unit_left"], both["unit_right"]).to_numpy("float64")
    close = np.fmin(OF_ROUNDOFF * unit, _MOST_APART) * np.linalg.norm(y, axis=1)
    is_right = (factor > 0) & (apart <= close)
    return {(int(step), str(name)) for step, name, _ in both.index[is_right]}
