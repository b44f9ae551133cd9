"""Factor that gradients should have, relative to the sum of the ranks' own gradients.

Ranks that compute a loss each, of data of their own, train on the mean of the losses or on their
sum: the factor is 1 / number of losses, or 1, and it is the same for all parameters. Where the
program names the loss that it reports, that shows which. A gradient scaler's factor, a large power
of two, may come on top.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

from commtrace.analyze.gradients.held import Held, held
from commtrace.analyze.gradients.rows import SketchRows

_CLOSE = 1e-3
"""Relative difference up to which two factors are taken for equal, in precise dtypes."""
_ROUNDINGS = 8
_PRECISE = 2.0**-24
_LEAST_LOSS_SCALE = 5
_MAJORITY = 2 / 3
_LEAST_VOTERS = 3
_MOST_SIZES = 8


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of an optimizer step.

    Attributes:
        values: a value for each set of ranks that computed the same.
        by_rank: the loss of each rank.
        close: relative difference up to which values of their dtype are taken for equal.
        is_precise: different losses do not look equal because of their dtype.
    """

    values: tuple[float, ...]
    by_rank: dict[int, float]
    close: float
    is_precise: bool

    @property
    def num(self) -> int:
        """Number of different losses; 1 if none is known."""
        return max(1, len(self.values))

    @property
    def total(self) -> float:
        """Sum of the different losses."""
        return math.fsum(self.values)


@dataclass(frozen=True, slots=True)
class Scale:
    """Factor that gradients should have.

    Attributes:
        value: the factor; nan if it is not known.
        why: where it is known from, in words.
    """

    value: float
    why: str


def losses_of(rows: SketchRows) -> Losses:
    """Return the losses of a step; losses of several backward passes of a rank add up.

    Ranks that computed the same have the same loss, to the last bit.
    """
    tensors = held(rows)
    by_rank = {rank: each.total for each in tensors for rank in each.ranks}
    values = {each.total for each in tensors}
    is_precise = all(each.roundoff <= _PRECISE for each in tensors)
    return Losses(tuple(sorted(values)), by_rank, closeness(tensors), is_precise)


def closeness(tensors: Sequence[Held]) -> float:
    """Return the relative difference up to which factors of such tensors are taken for equal."""
    return max([_CLOSE, *(_ROUNDINGS * each.roundoff for each in tensors)])


def are_close(one: float, other: float, close: float = _CLOSE) -> bool:
    """Return whether two factors are equal."""
    return abs(one - other) <= close * max(abs(one), abs(other))


def expected_scale(
    losses: Losses,
    reported: float | None,
    found: Sequence[float],
    close: float,
    sizes: Collection[int] = (),
    num_passes: int = 1,
) -> Scale:
    """Return the factor that gradients should have.

    A factor that most gradients have is no fault of their reductions unless sizes explain it: the
    program has scaled them, as by clipping them.

    Args:
        losses: the losses of the step.
        reported: the loss that the program reports; None if it names none.
        found: the factors that completely reduced gradients have.
        close: relative difference up to which these are taken for equal.
        sizes: numbers of ranks of the program's groups, and of the run.
        num_passes: backward passes of a rank, which the program may have averaged over.
    """
    scale, common = _of_losses(losses, reported, found, close), _common(found, close)
    if common is None or not common or are_close(common, scale.value, close):
        return scale
    if num_passes > 1 and are_close(common, scale.value / num_passes, close):
        return Scale(common, f"the mean of {num_passes} backward passes")
    if common < 0 or _is_of_sizes(common / scale.value, {*sizes, losses.num}, close):
        return scale
    return Scale(common, "the factor of all gradients, which the program has scaled")


def _is_of_sizes(factor: float, sizes: Collection[int], close: float) -> bool:
    """Return whether a factor is a * b / c or 1 / (a * b), where each is a size or 1."""
    numbers = {1, *sorted(sizes)[-_MOST_SIZES:]}
    products = {one * other for one in numbers for other in numbers}
    quotients = {Fraction(one, other) for one in products for other in numbers}
    return any(are_close(factor, float(each), close) for each in quotients) or any(
        are_close(factor, 1 / each, close) for each in products
    )


def _of_losses(
    losses: Losses, reported: float | None, found: Sequence[float], close: float
) -> Scale:
    """Return the factor by what the program reports, or else by most gradients."""
    mean, text_of_mean = 1 / losses.num, f"the mean of {losses.num} losses"
    if losses.num == 1:
        text_of_mean = "a single loss"
    known = {1.0: f"the sum of {losses.num} losses", mean: text_of_mean}
    if not losses.is_precise:
        num = len(losses.by_rank)
        known.setdefault(1 / num, f"the mean of {num} losses")
    elif reported is not None and losses.num > 1 and losses.total:
        for value, text in known.items():
            factor = reported / (value * losses.total)
            if are_close(factor, 1, losses.close):
                return Scale(value, f"the factor of {text}, which the program reports")
            if is_loss_scale(factor, losses.close):
                return Scale(
                    value * factor, f"the factor of {text}, which the program reports unscaled"
                )
    common = _common(found, close)
    if common is None:
        best = max(known, key=lambda value: sum(are_close(value, each, close) for each in found))
        return Scale(best if found else mean, f"the factor of {known[best]}")
    for value, text in known.items():
        if are_close(common, value, close):
            return Scale(value, f"the factor of {text}, as of the other gradients")
        if is_loss_scale(common / value, close):
            return Scale(common, "the factor of the other gradients")
    return Scale(mean, f"the factor of {text_of_mean}")


def _common(found: Sequence[float], close: float) -> float | None:
    """Return the factor that most gradients have, or None."""
    if len(found) < _LEAST_VOTERS:
        return None
    middle = sorted(found)[len(found) // 2]
    num_alike = sum(are_close(middle, each, close) for each in found)
    return middle if num_alike >= _MAJORITY * len(found) else None


def is_loss_scale(factor: float, close: float) -> bool:
    """Return whether a factor fits a gradient scaler: a large or small power of two."""
    if not factor > 0:
        return False
    power = math.log2(factor)
    return abs(power) >= _LEAST_LOSS_SCALE and abs(power - round(power)) < 2 * close


def of_losses(losses: Losses, tensor: Held) -> tuple[str, float]:
    """Return how a tensor relates to the losses, `mean`, `sum`, `own` or `other`, and its factor.

    The factor is relative to the mean of the losses; nan if it does not matter.
    """
    mean, close = losses.total / losses.num, max(losses.close, closeness([tensor]))
    value = tensor.total
    for name, right in (("mean", mean), ("sum", losses.total)):
        if are_close(value, right, close) or (right and is_loss_scale(value / right, close)):
            return name, 1.0
    own = [losses.by_rank[rank] for rank in tensor.ranks if rank in losses.by_rank]
    if any(are_close(value, each, close) for each in own):
        return "own", math.nan
    return "other", value / mean if mean else math.nan
