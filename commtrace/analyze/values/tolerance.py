"""Tolerance of a comparison: the difference of two tensors that rounding can explain.

The distance of two tensors is the root mean square of the differences of their sketches, relative
to the norm: an estimate of the relative Euclidean distance.

With a run in float64 as a reference, the tolerance of a tensor is a multiple of the distance
between the left run and the reference: the error that the program's own precision makes there.
Without a reference, it is a multiple of the unit roundoff of the coarsest dtype seen up to there,
or of a distance accepted before, since rounding errors grow along a program. Nothing is accepted
after the first tensor that is wrong. A tensor that is small beside others of its role may be the
remainder of larger numbers that cancel, and is measured against those.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from commtrace.analyze.values.global_values import SKETCHES
from commtrace.schema import GRADIENT, RESULT, STATE

ROUNDOFF = {
    "float64": 2.0**-53, "complex128": 2.0**-53, "float32": 2.0**-24, "complex64": 2.0**-24,
    "float16": 2.0**-11, "bfloat16": 2.0**-8, "complex32": 2.0**-11,
    "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3,
}  # fmt: skip
"""Unit roundoff of each dtype: the largest relative error of rounding a number."""

OF_ROUNDOFF = 64.0
"""Multiple of the unit roundoff that is always accepted."""
OF_COARSE = 16.0
"""Multiple that is always accepted in coarse dtypes, whose errors do not accumulate."""
_COARSE = 2.0**-12
GROWTH = 8.0
"""Factor by which an operator may enlarge the distance of its inputs."""
OF_REFERENCE = 8.0
"""Multiple of the error of the program's own precision that is accepted, with a reference."""
_OF_EVIDENCE = 0.25
"""Part of the tolerance of coarse dtypes up to which a right tensor shows anything."""
_MOST_LOWERED = 0.1
"""Share of tensors of lower precision from which on a run itself counts as such."""
MOST_APART = 0.05
"""Distance up to which tensors may be equal, in any dtype."""
SMALL = 2.0**-8
"""Norms below this share of the largest of their role are measured against that share of it."""


def distances(left: pd.DataFrame, right: pd.DataFrame) -> np.ndarray:
    """Return the distance of each pair of rows, relative to the larger norm; nan if unknown."""
    ours, theirs = (side[[*SKETCHES]].to_numpy("float64") for side in (left, right))
    apart = np.sqrt(((ours - theirs) ** 2).mean(axis=1))
    return np.divide(apart, sizes(left, right), out=np.zeros_like(apart), where=apart != 0)


def sizes(left: pd.DataFrame, right: pd.DataFrame) -> np.ndarray:
    """Return the larger norm of each pair, estimated by sketches where it is unknown."""
    known = [side["norm"].to_numpy("float64") for side in (left, right)]
    norm = np.fmax(*known)
    sketches = [
        np.sqrt((side[[*SKETCHES]].to_numpy("float64") ** 2).mean(axis=1)) for side in (left, right)
    ]
    return np.where(np.isnan(norm), np.fmax(*sketches), norm)


def scales(left: pd.DataFrame, right: pd.DataFrame) -> np.ndarray:
    """Return the factor by which the distance of each pair of rows counts less if it is small.

    It is small beside tensors of the left run, which is taken for right: a tensor that is wrong by
    a large factor does not hide others.
    """
    pairs, size = left, sizes(left, right)
    norms = pd.Series(sizes(left, left), index=pairs.index)
    by_role = [pairs[name] for name in ("step", "phase", "role")]
    # States, such as means of squares, are measured by their kind.
    kind = pairs["name"].str.rpartition(".")[2].where(pairs["role"] == STATE, "")
    largest = norms.groupby([*by_role, kind]).transform("max").to_numpy()
    units = left["dtype"].astype(str).map(ROUNDOFF).fillna(ROUNDOFF["float32"]).to_numpy("float64")
    # A sum of gradients that cancel is what rounding has left of them.
    times = np.where(units > _COARSE, OF_COARSE, OF_ROUNDOFF)
    is_left = (left["role"] == GRADIENT).to_numpy() & (size <= times * units * largest)
    least = np.where(is_left, 1.0, SMALL) * largest
    # Results are rounding errors of other results of their module, which may be smaller than that.
    of_module = norms.groupby([*by_role, pairs["module"]]).transform("max").to_numpy()
    least = np.where(pairs["role"] == RESULT, np.fmin(least, of_module), least)
    factors = np.divide(size, least, out=np.ones_like(least), where=least > 0)
    return np.fmin(factors, 1.0)


def roundoffs(ours: pd.Series, theirs: pd.Series) -> np.ndarray:
    """Return the unit roundoff of each pair of element types.

    The first run's type decides, or the second run's coarser type if that is a run of lower
    precision. Single tensors of lower precision, such as a reduction in bfloat16, do not raise it.
    """
    default = ROUNDOFF["float32"]
    left, right = (
        each.astype(str).map(ROUNDOFF).fillna(default).to_numpy("float64")
        for each in (ours, theirs)
    )
    is_lower = right > left
    return np.where(is_lower, right, left) if is_lower.mean() >= _MOST_LOWERED else left


def closeness(left: pd.Series, right: pd.Series) -> np.ndarray:
    """Return the distance up to which tensors may be equal, from their element types alone."""
    return np.fmin(OF_ROUNDOFF * roundoffs(left, right), MOST_APART)


def evident(tolerance: np.ndarray) -> np.ndarray:
    """Return the distance up to which a tensor shows that what it was computed from is right.

    In coarse dtypes, what a wrong tensor leaves of others may be below the tolerance.
    """
    return np.where(is_coarse(tolerance), _OF_EVIDENCE * tolerance, tolerance)


def is_coarse(tolerance: np.ndarray | float) -> np.ndarray | bool:
    """Return which tolerances belong to coarse dtypes."""
    return tolerance > OF_COARSE * _COARSE


def coarsest_before(ours: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """Return the largest unit roundoff of the first run's tensors up to each of some of them.

    Tensors without a counterpart count: a gradient in float32 may follow from activations in
    bfloat16 that only a single device has.
    """
    inside = table[table["step"] >= ours["step"].min()]
    units = inside["dtype"].astype(str).map(ROUNDOFF).fillna(ROUNDOFF["float32"])
    by_order = units.groupby(inside["order"]).max().sort_index().cummax()
    places = by_order.index.searchsorted(ours["order"].to_numpy(), side="right") - 1
    return by_order.to_numpy("float64")[np.fmax(places, 0)]


@dataclass(slots=True)
class Tolerance:
    """Tolerance along the tensors of a program, in order of time."""

    roundoff: float = 0.0
    accepted: float = 0.0
    accepted_in: dict[str, float] = field(default_factory=dict)

    def of(self, roundoff: float, reference: float | None, phase: str = "") -> float:
        """Return the tolerance of the next tensor.

        Args:
            roundoff: unit roundoff of its element types.
            reference: distance of the left run from the reference there, if there is a reference.
            phase: its phase. In coarse dtypes, errors of other phases do not let it grow.
        """
        self.roundoff = max(self.roundoff, roundoff)
        most = OF_ROUNDOFF * self.roundoff
        if reference is not None:
            return max(most / 8, OF_REFERENCE * reference)
        if self.roundoff > _COARSE:
            grown = GROWTH * self.accepted_in.get(phase, 0.0)
            return min(max(OF_COARSE * self.roundoff, grown), most)
        return max(most, GROWTH * self.accepted)

    def accept(self, distance: float, phase: str = "") -> None:
        """Note the distance of a tensor that was found right."""
        self.accepted = max(self.accepted, distance)
        self.accepted_in[phase] = max(self.accepted_in.get(phase, 0.0), distance)
