"""Gradients of the ranks' own backward passes, which add up to the first run's.

Ranks that have parts of the batch, or of the sequence, have parts of each gradient, scaled by how
they average their losses; ranks that computed the same have equal gradients, which count once. If
the sums over ranks are the first run's gradients times a factor common to all parameters of a step,
the backward pass was right, and with it the losses. Ranks with other numbers of samples have other
factors, each common to all parameters: least squares finds them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.values.global_values import SKETCHES
from commtrace.analyze.values.tolerance import (
    GROWTH,
    MOST_APART,
    OF_ROUNDOFF,
    ROUNDOFF,
    SMALL,
    evident,
)
from commtrace.schema import LOCAL_GRADIENT

_CLOSE = 0.05
"""Relative difference up to which factors are equal, in any dtype."""
_KEY = ["step", "name", "shape"]
_MOST_RANKS = 64
_EQUATIONS = 2
"""Sketches for each rank's factor: the first determines it, the second verifies it."""


@dataclass(frozen=True, slots=True)
class OwnGradients:
    """Gradients of the ranks' own backward passes that are right together.

    Attributes:
        right: steps and names of their parameters.
        other: steps and names of those that were compared, and do not add up to the first run's.
        steps_of_other_scales: steps in which they add up only with a factor for each rank.
    """

    right: set[tuple[int, str]]
    other: set[tuple[int, str]]
    steps_of_other_scales: Collection[int]


def _rows(part: Frames) -> pd.DataFrame:
    table = part.fingerprints
    own = table.loc[table["role"] == LOCAL_GRADIENT, ["rank", "id", *_KEY, "dtype", *SKETCHES]]
    return own.astype({"name": str, "shape": str, "dtype": str})


@cached_per_run
def _own(run: Frames) -> pd.DataFrame:
    """Return the sum of each rank's gradients of a step; equal sums count for the first rank."""
    rows = joined(run.by_ranks(_rows))
    rows = rows.assign(unit=rows["dtype"].map(ROUNDOFF).fillna(ROUNDOFF["float32"]))
    of_ranks = rows.groupby([*_KEY, "rank"])
    each = of_ranks[[*SKETCHES]].sum().assign(unit=of_ranks["unit"].max(), id=of_ranks["id"].min())
    each = each.reset_index()
    each["num_ranks"] = each.groupby(_KEY)["rank"].transform("nunique")
    return each.drop_duplicates([*_KEY, *SKETCHES])


def _sums(run: Frames) -> pd.DataFrame:
    different = _own(run).groupby(_KEY)
    return different[[*SKETCHES]].sum().join(different[["unit", "num_ranks", "id"]].max())


def computed_gradients(run: Frames) -> set[tuple[int, str]]:
    """Return steps and names of the gradients that the ranks' own backward passes have computed."""
    rows = _own(run)[["step", "name"]]
    return {(int(step), str(name)) for step, name in rows.itertuples(index=False)}


@cached_per_run
def _unit(run: Frames) -> float:
    """Return the unit roundoff of the coarsest dtype of a run, such as of its activations."""
    dtypes = {str(each) for part in run.by_ranks(_dtypes) for each in part["dtype"]}
    return max((ROUNDOFF.get(each, 0.0) for each in dtypes), default=0.0)


def _dtypes(part: Frames) -> pd.DataFrame:
    return part.fingerprints[["dtype"]].drop_duplicates()


def own_gradients(left: Frames, right: Frames) -> OwnGradients:
    """Return which gradients of the ranks' own backward passes add up to the first run's.

    Args:
        left: the run that is taken to be right.
        right: the other run.
    """
    evenly, even_steps, shared = _evenly_right(left, right)
    unevenly = {
        each
        for step, of_step in shared.groupby(level=0)
        if step not in even_steps
        for each in _right_with_weights(of_step, _own(right))
    }
    compared = {(int(step), str(name)) for step, name, _ in shared.index}
    found = evenly | unevenly
    return OwnGradients(found, compared - found, {step for step, _ in unevenly})


def _evenly_right(
    left: Frames, right: Frames
) -> tuple[set[tuple[int, str]], set[int], pd.DataFrame]:
    """Return gradients right up to a common factor, their steps, and all that ranks share."""
    ours, theirs = _sums(left), _sums(right)
    both = ours.add_suffix("_left").join(theirs.add_suffix("_right"), how="inner")
    x, y = (
        both[[f"{name}_{side}" for name in SKETCHES]].to_numpy("float64")
        for side in ("left", "right")
    )
    squares = (x**2).sum(axis=1)
    factor = np.divide((x * y).sum(axis=1), squares, out=np.zeros(len(x)), where=squares > 0)
    apart = np.linalg.norm(factor[:, None] * x - y, axis=1)
    unit = np.fmax(np.fmax(both["unit_left"], both["unit_right"]).to_numpy("float64"), _unit(left))
    close = evident(np.fmin(OF_ROUNDOFF * unit, MOST_APART)) * np.linalg.norm(y, axis=1)
    is_right = (factor > 0) & (apart <= close)
    # A parameter of one rank alone, such as an expert's, may have got the tokens of all.
    is_shared = both["num_ranks_right"] == both["num_ranks_right"].max()
    step = both.index.get_level_values("step")
    known = pd.Series(np.where(is_right & is_shared, factor, np.nan), index=step)
    of_step = known.groupby(level=0)
    is_one = (of_step.max() - of_step.min()) <= _CLOSE * of_step.max()
    steps = {*is_one.index[is_one]}
    is_known = is_right & is_shared.to_numpy() & step.isin(steps)
    found = {(int(step), str(name)) for step, name, _ in both.index[is_known]}
    return found, steps, both[is_shared]


def _right_with_weights(both: pd.DataFrame, own: pd.DataFrame) -> set[tuple[int, str]]:
    """Return the gradients of a step that are sums of the ranks' gradients times a factor per rank.

    A few parameters determine the factors, with which all gradients are then compared.
    """
    both = both.sort_values("id_right", kind="stable")
    theirs = own[pd.MultiIndex.from_frame(own[_KEY]).isin(both.index)]
    ranks = np.unique(theirs["rank"])
    if not 1 < len(ranks) <= _MOST_RANKS:
        return set()
    x = both[[f"{name}_left" for name in SKETCHES]].to_numpy("float64")
    y = np.zeros((len(ranks), *x.shape))
    place = both.index.get_indexer(pd.MultiIndex.from_frame(theirs[_KEY]))
    y[np.searchsorted(ranks, theirs["rank"]), place] = theirs[[*SKETCHES]]
    unit = both[["unit_left", "unit_right"]].max(axis=1).to_numpy("float64")
    close = evident(np.fmin(GROWTH * OF_ROUNDOFF * unit, MOST_APART))
    size = -(-_EQUATIONS * len(ranks) // len(SKETCHES))
    fit = np.zeros(len(x), dtype=bool)
    for first in range(0, len(x) - size + 1, size):
        some = slice(first, first + size)
        weights = _weights(x[some], y[:, some])
        fit[some] = (weights > 0).all() and _are_sums(x, y, weights, close)[some].all()
    is_right = _are_sums(x, y, _weights(x[fit], y[:, fit]), close) if fit.any() else fit
    return {(int(step), str(name)) for step, name, _ in both.index[is_right]}


def _weights(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the factor of each rank, [R], with which the ranks' tensors best add up to the sums.

    Args:
        x: sketches of the sums, [N, NUM_SKETCHES].
        y: sketches of the ranks' own tensors, [R, N, NUM_SKETCHES].
    """
    return np.linalg.lstsq(y.reshape(len(y), -1).T, x.ravel(), rcond=None)[0]


def _are_sums(x: np.ndarray, y: np.ndarray, weights: np.ndarray, close: np.ndarray) -> np.ndarray:
    """Return which tensors are such sums, up to relative differences `close`, [N].

    Sums that cancel, as they may in any case, are not among them.
    """
    apart = np.linalg.norm(np.tensordot(weights, y, 1) - x, axis=1)
    largest = np.linalg.norm(weights[:, None, None] * y, axis=2).max(axis=0)
    return (apart <= close * largest) & (np.linalg.norm(x, axis=1) > SMALL * largest)
