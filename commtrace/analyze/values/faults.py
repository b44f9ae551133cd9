"""Relation between a wrong tensor and the right one, as far as their fingerprints show it.

kind            right tensor x, wrong tensor y
replica         y is right on some ranks, and replicas of it on others are not
absent          a gradient that a run does not have at all
non_finite      y has nan or infinite elements, and x has not, or fewer
zero            y is zero
factor          y = c x
missing         y lacks the partial sums of some ranks
stale           y is the tensor of an earlier step or call
permuted        y has the elements of x in other places
small           y differs by less than 2 %
other           none of these
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from commtrace.analyze.values.global_values import SKETCHES

_MOST_DENOMINATOR = 64
_MOST_NAMED = 8
_SMALL = 0.02


@dataclass(frozen=True, slots=True)
class Relation:
    """Relation of a wrong tensor to the right one.

    Attributes:
        kind: a kind from the module's docstring.
        text: the relation in words.
        factor: of a factor, or nan.
        is_of_axis: the factor, or its inverse, is the size of an axis.
    """

    kind: str
    text: str
    factor: float = math.nan
    is_of_axis: bool = False


def relation(
    right: pd.Series,
    wrong: pd.Series,
    tolerance: float,
    *,
    earlier: Sequence[tuple[str, np.ndarray]] = (),
    incomplete: Sequence[tuple[str, np.ndarray]] = (),
    axes: Mapping[str, int] | None = None,
) -> Relation:
    """Return the relation of a wrong tensor to the right one.

    Args:
        right: row of table `tensors`.
        wrong: row of table `tensors`, of the other run.
        tolerance: distance up to which tensors are taken for equal.
        earlier: descriptions and sketches of the wrong run's earlier tensors of this name.
        incomplete: descriptions and sketches of sums without the partial sums of some ranks.
        axes: sizes of the mesh axes of the wrong run, to which a factor is compared.
    """
    x, y = sketches_of(right), sketches_of(wrong)
    is_in_parts = bool(np.isnan(y).any())  # whose places are unknown
    if is_in_parts:
        x, y = (np.array([row["total"], row["norm"]]) for row in (right, wrong))
        earlier = incomplete = ()
    if wrong["apart"] > tolerance * wrong["norm"] and _apart(x, y) <= tolerance:
        return Relation("replica", _replica_text(wrong))
    for name, word in (("num_nan", "nan"), ("num_inf", "infinite")):
        if wrong[name] > max(right[name], 0):
            return Relation("non_finite", f"{wrong[name]:,} elements are {word}")
    if not np.any(y):
        return Relation("zero", "it is zero")
    close = max(tolerance, 1e-9)
    factor = multiple(x, y, close * 4)
    if is_in_parts and not _have_one_ratio(right, wrong, factor, close):
        factor = math.nan
    if abs(factor - 1) > close:
        sizes = {*(axes or {}).values()}
        is_of_axis = any(
            abs(each * factor - 1) <= close * 8
            for size in sizes
            for each in (size, 1 / size, -size, -1 / size)
        )
        return Relation("factor", _factor_text(factor, close, axes or {}), factor, is_of_axis)
    for kind, found in (("missing", incomplete), ("stale", earlier)):
        for text, sketches in found:
            if np.any(sketches) and _apart(sketches, y) <= close * 4:
                return Relation(kind, text)
    if not is_in_parts and _has_equal_elements(right, wrong, close):
        return Relation("permuted", "it has the same elements in other places")
    apart = _apart(x, y)
    if apart < _SMALL:
        return Relation("small", f"it differs by {apart:.2g} of its norm, more than by rounding")
    return Relation("other", f"it differs by {apart:.2g} of its norm")


def _replica_text(wrong: pd.Series) -> str:
    num, first = int(wrong["num_differing"]), int(wrong["first_differing"])
    ranks = f"rank {first}" if num == 1 else f"{num} ranks (first: rank {first})"
    apart = wrong["apart"] / wrong["norm"] if wrong["norm"] > 0 else math.nan
    return f"it is right on one rank, and the replica on {ranks} differs by {apart:.2g} of its norm"


def sketches_of(row: pd.Series) -> np.ndarray:
    """Return the sketches of a row of table `tensors`."""
    return np.array([row[name] for name in SKETCHES], dtype="float64")


def _have_one_ratio(right: pd.Series, wrong: pd.Series, factor: float, close: float) -> bool:
    """Return whether norms and largest elements have a factor, too; few numbers fit by chance."""
    return close <= _SMALL and all(
        abs(wrong[name] - abs(factor) * right[name]) <= 8 * close * wrong[name]
        for name in ("norm", "largest")
    )


def multiple(x: np.ndarray, y: np.ndarray, close: float) -> float:
    """Return the factor if y is a multiple of x, up to the relative distance `close`; else nan."""
    if not np.any(x) or not np.isfinite(y).all():
        return math.nan
    factor = float(x @ y / (x @ x))
    return factor if _apart(factor * x, y) <= close else math.nan


def _apart(x: np.ndarray, y: np.ndarray) -> float:
    size = max(float(np.linalg.norm(x)), float(np.linalg.norm(y)))
    return float(np.linalg.norm(x - y)) / size if size else 0.0


def _has_equal_elements(right: pd.Series, wrong: pd.Series, close: float) -> bool:
    """Return whether the properties that do not depend on the order of elements are equal."""
    if not right["norm"] > 0 or not wrong["norm"] > 0:
        return False
    alike = (
        (right[name], wrong[name], right["norm"] if name == "total" else right[name])
        for name in ("norm", "largest", "total")
    )
    return all(abs(ours - theirs) <= 4 * close * abs(scale) for ours, theirs, scale in alike)


def _factor_text(factor: float, close: float, axes: Mapping[str, int]) -> str:
    """Return a factor in words, such as `2 times, the size of axis tp`.

    Only fractions of small numbers and of sizes of axes are named: others fit by chance.
    """
    ratio = Fraction(factor).limit_denominator(_MOST_DENOMINATOR)
    numbers = {abs(ratio.numerator), ratio.denominator}
    is_named = numbers <= {*range(1, _MOST_NAMED + 1), *axes.values()}
    if not ratio or not is_named or abs(float(ratio) - factor) > close * 8 * abs(factor):
        return f"it is {factor:.6g} times what it should be"
    whole = max(numbers)
    is_simple = 1 in numbers and whole > 1
    text = (
        f"{ratio.numerator}/{ratio.denominator} of" if ratio.denominator > 1 else f"{ratio} times"
    )
    names = [name for name, size in axes.items() if size == whole] if is_simple else []
    why = ""
    if names:
        among = " or ".join(names)
        why = (
            f": {whole} is the size of mesh axis {among}, as if reduced over it once too often"
            if ratio.denominator == 1
            else f": {whole} is the size of mesh axis {among}, as if divided by it once too often, "
            "or not reduced over it"
        )
    return f"it is {text} what it should be{why}"
