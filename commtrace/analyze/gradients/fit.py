"""The sum of contributions that a reduced gradient is a multiple of.

A sketch is linear: if a gradient is c times the sum of the contributions of some ranks, so is its
sketch. Contributions that are equal, such as from ranks that computed the same, count once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from commtrace.analyze.gradients.held import Held

_ROUNDINGS = 64
"""Units of roundoff of a reduction's result, relative to its contributions."""
_MOST_ROUNDING = 0.05
_OF_USUAL = 1e-3
_MOST_LEFT_OUT = 64
"""Ranks of a group up to which sums that leave out a rank are tried."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A gradient as a multiple of a sum.

    Attributes:
        contributions: number of distinct contributions that are summed.
        ranks: the ranks that have these.
        scale: factor of the sum; nan if no sum fits.
    """

    contributions: int
    ranks: frozenset[int]
    scale: float

    @property
    def is_known(self) -> bool:
        """True if a sum fits."""
        return not math.isnan(self.scale)


UNKNOWN = Fit(0, frozenset(), math.nan)


def tolerance(held: Iterable[Held]) -> float:
    """Return the relative error that rounding explains in a sum of tensors."""
    return min(_MOST_ROUNDING, _ROUNDINGS * max(each.roundoff for each in held))


def distinct(contributions: Sequence[Held]) -> list[list[Held]]:
    """Return classes of equal contributions, in the order of ranks."""
    classes: list[list[Held]] = []
    for contribution in sorted(contributions, key=lambda each: min(each.ranks)):
        for known in classes:
            if are_equal(known[0], contribution):
                known.append(contribution)
                break
        else:
            classes.append([contribution])
    return classes


def are_equal(one: Held, other: Held) -> bool:
    """Return whether two tensors are equal up to rounding."""
    size = max(np.linalg.norm(one.sketches), np.linalg.norm(other.sketches))
    apart = np.linalg.norm(one.sketches - other.sketches)
    return bool(apart <= tolerance((one, other)) / 8 * size)


def fitted(
    gradient: Held, classes: Sequence[Sequence[Held]], groups: Iterable[frozenset[int]]
) -> Fit:
    """Return the sum that a gradient is a multiple of: of all ranks, or else of some.

    Args:
        gradient: the reduced gradient.
        classes: classes of equal contributions.
        groups: ranks over which it may have been reduced.
    """
    everyone = frozenset().union(*(each.ranks for own in classes for each in own))
    found: list[Fit] = []
    for ranks in _candidates(everyone, min(gradient.ranks), groups):
        members = [
            each for each in classes if any(contribution.ranks & ranks for contribution in each)
        ]
        scale = _scale(gradient, [each[0] for each in members])
        if scale is not None:
            holders = frozenset().union(*(each.ranks for own in members for each in own))
            found.append(Fit(len(members), holders, scale))
            if gradient.norm > gradient.largest or _is_usual(found[-1]):
                return found[-1]
    return found[0] if found else UNKNOWN


def _is_usual(fit: Fit) -> bool:
    """Return whether a factor is 1, as in a sum, or 1 over the number of contributions.

    A single number is a multiple of any sum, so that its factor has to tell which.
    """
    return any(abs(fit.scale * by - 1) <= _OF_USUAL for by in (1, fit.contributions))


def _candidates(
    everyone: frozenset[int], own: int, groups: Iterable[frozenset[int]]
) -> Iterable[frozenset[int]]:
    yield everyone
    within = sorted({each & everyone for each in groups if own in each}, key=len, reverse=True)
    yield from within
    yield frozenset({own})
    for ranks in (everyone, *within):
        if 2 < len(ranks) <= _MOST_LEFT_OUT:
            yield from (ranks - {left_out} for left_out in sorted(ranks))


def _scale(gradient: Held, contributions: Sequence[Held]) -> float | None:
    """Return the factor of a gradient in a sum of contributions; None if it is no multiple."""
    if not contributions:
        return None
    total = np.sum([each.sketches for each in contributions], axis=0)
    square = float(total @ total)
    size = max(float(np.linalg.norm(each.sketches)) for each in contributions)
    close = tolerance((gradient, *contributions))
    if square <= (close * size) ** 2:
        return None
    scale = float(total @ gradient.sketches) / square
    apart = float(np.linalg.norm(gradient.sketches - scale * total))
    # The contributions may cancel, and each has an error of its own.
    return scale if apart <= close * abs(scale) * size * math.sqrt(len(contributions)) else None
