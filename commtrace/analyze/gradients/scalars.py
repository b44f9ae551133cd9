"""Scalars that a program reports or clips by: the loss, the norm of the gradient, its clipping.

The loss is the value of a tensor that the program named with `loss` in its name; the norm is the
value that clipping used, or a tensor with `norm` in its name. Their right values follow from the
losses at which the backward passes began, and from the gradients before clipping.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from commtrace.analyze.gradients.fit import distinct, tolerance
from commtrace.analyze.gradients.held import Held, held
from commtrace.analyze.gradients.names import name_of, sizes_of
from commtrace.analyze.gradients.parameters import (
    MISSING,
    RIGHT,
    SCALED,
    UNKNOWN,
    RankSets,
    Reduction,
)
from commtrace.analyze.gradients.rows import SketchRow, SketchRows
from commtrace.analyze.gradients.scales import Losses, are_close, closeness, of_losses
from commtrace.units import counted, text_of_ranks

LOSS_NAME, NORM_NAME = "loss", "norm"
_CLIPPED_NORM, _MOST = "norm", "most"
_EPSILON = 1e-6
"""Summand by which torch keeps a norm from zero before it divides by it."""
_CLOSE_NORM = 1e-4
"""Relative difference of a norm that the order of its sum explains."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A verdict on a scalar, or on clipping.

    Attributes:
        what: loss, gradient norm or clipping.
        name: name of the tensor; empty for values that clipping used.
        rows: its rows of table `fingerprints`.
        ranks: the ranks that have it.
        state: right, missing, scaled or unknown.
        factor: its value relative to what it should be; nan if unknown.
        is_fault: it is wrong for certain.
        explanation: the reason, in words.
    """

    what: str
    name: str
    rows: SketchRows
    ranks: frozenset[int]
    state: str
    factor: float
    is_fault: bool
    explanation: str


def reported_loss(named: SketchRows) -> float | None:
    """Return the loss that a program reports: the first that all ranks that name it agree on."""
    for own in _scalars(named, LOSS_NAME).values():
        values = {each.total for each in held(list({row.rank: row for row in own}.values()))}
        if len(values) == 1 and len({row.rank for row in own}) > 1:
            return values.pop()
    return None


def losses_reported(named: SketchRows, losses: Losses, groups: RankSets) -> Iterator[Scalar]:
    """Yield a verdict on each loss that the program reports in a step."""
    for name, own in _scalars(named, LOSS_NAME).items():
        for tensors in distinct(held(own)):
            relation, factor = of_losses(losses, tensors[0])
            ranks = frozenset().union(*(each.ranks for each in tensors))
            if not losses.values:
                state, text = UNKNOWN, "no backward pass began at a scalar"
            elif relation in ("mean", "sum"):
                state = RIGHT
                what = f"{losses.num} losses" if losses.num > 1 else "one loss"
                text = f"it is the {relation} of {what}"
            elif relation == "own":
                state = MISSING
                text = f"it is the loss of {text_of_ranks(sorted(ranks))} alone, not reduced"
            else:
                partly = _partly_reduced(tensors[0], ranks, losses, groups)
                state, text = partly or _scaled_loss(factor, losses, groups)
            # Many programs print the loss of a rank or the mean of a group.
            is_fault = state == SCALED or (state == MISSING and _SUM in text)
            yield Scalar(
                LOSS_NAME, name, _of_ranks(own, ranks), ranks, state, factor, is_fault,
                text,
            )  # fmt: skip


_SUM = "the sum of"


def _partly_reduced(
    tensor: Held, ranks: frozenset[int], losses: Losses, groups: RankSets
) -> tuple[str, str] | None:
    """Return the verdict on a loss reduced over one of several groups; None if it is not."""
    value, close = tensor.total, max(losses.close, closeness([tensor]))
    for members in sorted(groups, key=lambda each: (len(each), sorted(each))):
        own = {losses.by_rank[rank] for rank in members if rank in losses.by_rank}
        if not ranks <= members or not 1 < len(own) < losses.num:
            continue
        total, name = math.fsum(own), name_of(groups, members)
        others = sorted(
            {axis for each, axis in groups.items() if axis and len(each & members) == 1}
        )
        lacking = f", not over {' and '.join(others)}" if others else ", not over the other ranks"
        for right, text in (
            (total / len(own), f"the mean of the losses of {name}"),
            (total, f"{_SUM} the losses of {name}"),
            (total / losses.num, f"{_SUM} the losses of {name}, divided by all {losses.num}"),
        ):
            if are_close(value, right, close):
                return MISSING, f"it is {text}{lacking}"
    return None


def _scaled_loss(factor: float, losses: Losses, groups: RankSets) -> tuple[str, str]:
    """Return the verdict on a reported loss that is neither the mean nor the sum of the losses."""
    for value, text in ((factor, "mean"), (factor / losses.num, "sum")):
        size = value if abs(value) > 1 else 1 / value if value else math.nan
        if not math.isfinite(size) or round(size) < 2 or not are_close(size, round(size)):
            continue
        names = sizes_of(groups, round(size))
        if names:
            how = "summed over it once more" if value > 1 else "divided by it once more"
            times = f"{round(size)} times" if value > 1 else f"1/{round(size)} of"
            return SCALED, (
                f"it is {times} the {text} of the losses: {round(size)} is the size of "
                f"{' or '.join(names)}, as if {how}"
            )
    return UNKNOWN, "it is neither the mean nor the sum of the losses, nor a multiple by a group"


def norms_used(
    clipping: SketchRows, named: SketchRows, found: Sequence[Reduction], groups: RankSets
) -> Iterator[Scalar]:
    """Yield a verdict on each norm of all gradients in a step."""
    used = [
        ("", [row for row in call.rows if row.name == _CLIPPED_NORM], call.covered(found))
        for call in _clippings(clipping)
    ]
    of_program = _scalars(named, "grad", NORM_NAME)
    for name, own, of in [*used, *((name, own, found) for name, own in of_program.items())]:
        for tensors in distinct(held(own)):
            ranks = frozenset().union(*(each.ranks for each in tensors))
            state, factor, text = _of_norm(tensors[0], ranks, of, groups)
            yield Scalar(
                "gradient norm", name, _of_ranks(own, ranks), ranks, state, factor,
                state in (MISSING, SCALED), text,
            )  # fmt: skip


def _of_norm(
    tensor: Held, ranks: frozenset[int], found: Sequence[Reduction], groups: RankSets
) -> tuple[str, float, str]:
    if not found or any(math.isnan(each.gradient.norm) for each in found):
        return UNKNOWN, math.nan, "not all gradients are known"
    # Of a parameter, each set of replicas is a tensor of its own.
    norms = {
        (each.name, each.replicas): (each.gradient.norm, each.gradient.largest) for each in found
    }
    right = math.sqrt(math.fsum(norm**2 for norm, _ in norms.values()))
    close = max(_CLOSE_NORM, 4 * tolerance([tensor]))
    value = tensor.total
    if not right:
        return (RIGHT if not value else UNKNOWN), math.nan, "all gradients are zero"
    factor = value / right
    if abs(factor - 1) <= close:
        return RIGHT, 1.0, f"it is the norm of {counted(len(norms), 'gradient')}"
    if abs(value - max(largest for _, largest in norms.values())) <= close * value:
        return RIGHT, 1.0, "it is the largest magnitude of all gradients"
    local = _local_norm(tensor, found)
    if local is not None and abs(value - local) <= close * value:
        return (
            MISSING,
            factor,
            (
                f"it is the norm of what {text_of_ranks(sorted(tensor.ranks))} holds, not reduced: "
                f"the norm of all gradients is {right:.6g}"
            ),
        )
    square = factor**2 if factor > 1 else factor**-2
    names = sizes_of(groups, round(square)) if abs(square - round(square)) < 0.01 * square else []
    if names:
        what = (
            f"as if gradients that ranks of it hold equally were counted {round(square)} times"
            if factor > 1
            else "as if the squares of its ranks were averaged, or not summed"
        )
        return (
            SCALED,
            factor,
            (
                f"it is {factor:.4g} times the norm of all gradients, {right:.6g}: the square of "
                f"{factor:.4g} is the size of {' or '.join(names)}, {what}"
            ),
        )
    counted_parts = _counted(value, found, right)
    if counted_parts:
        return SCALED, factor, counted_parts
    left_out = _left_out(value, found, right)
    if left_out:
        return MISSING, factor, left_out
    return UNKNOWN, factor, f"it is {factor:.4g} times the norm of all gradients, {right:.6g}"


def _local_norm(tensor: Held, found: Sequence[Reduction]) -> float | None:
    """Return the norm of what the first of some ranks holds; None if it is not known."""
    rank = min(tensor.ranks)
    squares = [row.norm**2 for each in found for row in each.rows if row.rank == rank]
    return math.sqrt(math.fsum(squares)) if squares else None


def _counted(value: float, found: Sequence[Reduction], right: float) -> str:
    """Return an explanation if parameters that ranks hold equally count once for each rank."""
    squares = math.fsum(row.norm**2 for each in found for row in each.rows)
    if not squares or abs(math.sqrt(squares) - value) > 1e-3 * value:
        return ""
    return (
        f"it is the norm of what all ranks hold together, {value / right:.4g} times the norm of "
        "all gradients: gradients that several ranks hold equally are counted once for each"
    )


def _left_out(value: float, found: Sequence[Reduction], right: float) -> str:
    """Return an explanation if a norm lacks one gradient, or all of its parts but one."""
    lack = right**2 - value**2
    known = []
    for each in found:
        parts = {row.rank: row.norm for row in each.rows if row.rank in each.gradient.ranks}
        known.append((each.gradient.norm**2, f"{each.name} is"))
        if len(set(parts.values())) > 1:
            known += [
                (
                    each.gradient.norm**2 - norm**2,
                    f"all parts of {each.name} but {text_of_ranks([rank])}'s are",
                )
                for rank, norm in parts.items()
            ]
    # Two norms in float32 differ by rounding, which matters if the gradient is small.
    close = max(4e-6 * right**2, 1e-2 * lack)
    texts = {text for square, text in known if abs(square - lack) <= close}
    if len(texts) != 1:
        return ""
    return (
        f"it is {value / right:.6g} times the norm of all gradients, as if {texts.pop()} left out"
    )


@dataclass(frozen=True, slots=True)
class _Clipping:
    """A clipping of gradients in a step, such as for one of several optimizers.

    Attributes:
        rows: the norm that it used, and the largest that is allowed, of each rank.
        spans: by rank, when the previous clipping ended, and when this clipping ended.
    """

    rows: SketchRows
    spans: Mapping[int, tuple[int, int]]

    def covered(self, found: Sequence[Reduction]) -> Sequence[Reduction]:
        """Return the gradients that it clipped: they were observed for it."""
        return [each for each in found if any(self._has(row) for row in each.rows)]

    def _has(self, row: SketchRow) -> bool:
        begin, end = self.spans.get(row.rank, (0, 0))
        return begin < row.at_ns <= end


def _clippings(rows: SketchRows) -> Sequence[_Clipping]:
    """Return the clippings of a step, from the rows observed for them."""
    ended: dict[int, list[int]] = {}
    own: dict[int, list[SketchRow]] = {}
    for row in rows:
        times = ended.setdefault(row.rank, [-1])
        own.setdefault(len(times), []).append(row)
        if row.name == _CLIPPED_NORM:
            times.append(row.at_ns)
    return [
        _Clipping(each, {row.rank: (ended[row.rank][number - 1], row.at_ns) for row in each})
        for number, each in own.items()
    ]


def clipped(
    clipping: SketchRows, final: Mapping[tuple[str, int], SketchRow], found: Sequence[Reduction]
) -> Iterator[Scalar]:
    """Yield a verdict on how the gradients of a step were clipped.

    Args:
        clipping: norms that clipping used.
        final: gradient that a rank holds when the optimizer steps, by name and rank.
        found: gradients before clipping.
    """
    for call in _clippings(clipping):
        yield from _clipped(call.rows, final, call.covered(found))


def _clipped(
    clipping: SketchRows, final: Mapping[tuple[str, int], SketchRow], found: Sequence[Reduction]
) -> Iterator[Scalar]:
    used = {row.rank: row for row in reversed(clipping) if row.name == _CLIPPED_NORM}
    most = {row.rank: row.total for row in reversed(clipping) if row.name == _MOST}
    if not used or not most or not found:
        return
    norms = held(list(used.values()))
    wrong: dict[int, tuple[str, float, float]] = {}
    num = 0
    for norm in norms:
        for rank in norm.ranks:
            if rank not in most:
                continue
            right = min(1.0, most[rank] / (norm.total + _EPSILON))
            for reduction in found:
                before = next((row for row in reduction.rows if row.rank == rank), None)
                factor = _shrinkage(before, final.get((reduction.name, rank)))
                if factor is None:
                    continue
                num += 1
                if abs(factor - right) > max(1e-2, 64 * norm.roundoff) * right:
                    wrong.setdefault(rank, (reduction.name, factor, right))
    if not num:
        return
    ranks = frozenset(wrong) or frozenset().union(*(each.ranks for each in norms))
    if wrong:
        name, factor, right = wrong[min(wrong)]
        text = (
            f"{name} is {factor:.4g} of what it was before, and {right:.4g} follows from the norm"
        )
    else:
        name, factor, right = "", math.nan, math.nan
        text = f"{counted(num, 'gradient')} shrank as the norm says"
    state = SCALED if wrong else RIGHT
    yield Scalar(
        "clipping", name, _of_ranks(clipping, ranks), ranks, state,
        factor / right if right else math.nan, bool(wrong), text,
    )  # fmt: skip


def _shrinkage(before: SketchRow | None, after: SketchRow | None) -> float | None:
    """Return the factor by which a gradient shrank; None if its parts are not comparable."""
    if before is None or after is None or not before.norm > 0:
        return None
    # Partial sums may be reduced after clipping.
    if before.placements != after.placements or "P(" in before.placements:
        return None
    return after.norm / before.norm


def _scalars(named: SketchRows, *parts: str) -> dict[str, list[SketchRow]]:
    """Return the scalars whose names have all of some parts, by name."""
    found: dict[str, list[SketchRow]] = {}
    for row in named:
        if row.is_scalar and all(part in row.name.lower() for part in parts):
            found.setdefault(row.name, []).append(row)
    return found


def _of_ranks(rows: SketchRows, ranks: frozenset[int]) -> SketchRows:
    return [row for row in rows if row.rank in ranks]
