"""Reductions of the gradients of parameters, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from commtrace.analyze.gradients.calls import ReductionCalls, calls_between, reducing_calls
from commtrace.analyze.gradients.fit import Fit, distinct, fitted
from commtrace.analyze.gradients.held import Held, held
from commtrace.analyze.gradients.names import groups_in_modules, known_groups, name_of, sizes_of
from commtrace.analyze.gradients.replicated import Replicas, replica_sets
from commtrace.analyze.gradients.rows import SketchRows, gradient_rows
from commtrace.analyze.gradients.scales import Losses, Scale, are_close, closeness
from commtrace.analyze.run.frame import Frames
from commtrace.units import counted, text_of_ranks

RIGHT, MISSING, SCALED, MIXED, UNKNOWN = "right", "missing", "scaled", "mixed", "unknown"

RankSets = Mapping[frozenset[int], str]


@dataclass(slots=True)
class Reduction:
    """A reduced gradient of a parameter, with what it is the sum of.

    Attributes:
        round: number of the optimizer step, from 0.
        name: name of the parameter.
        rows: its rows of table `fingerprints`, of the ranks that hold it.
        gradient: the gradient.
        replicas: the ranks that hold replicas of the parameter.
        is_certain: False if it is not certain that these are replicas.
        contributions: the ranks' own gradients, grouped by equality.
        fit: what the gradient is the sum of.
        calls: reductions of this rank meanwhile, in words, and the line of the first.
    """

    round: int
    name: str
    rows: SketchRows
    gradient: Held
    replicas: frozenset[int]
    is_certain: bool
    contributions: Sequence[Sequence[Held]]
    fit: Fit
    calls: str
    source: str
    state: str = UNKNOWN
    explanation: str = field(default="")

    @property
    def is_complete(self) -> bool:
        """True if the contributions of all ranks are in it."""
        fit = self.fit
        is_own = fit.ranks <= self.contributing_ranks
        return fit.is_known and is_own and fit.contributions == len(self.contributions)

    @property
    def is_alone(self) -> bool:
        """True if a single rank holds the parameter and has computed a gradient of it."""
        return len(self.replicas) == 1 and len(self.contributions) == 1

    @property
    def close(self) -> float:
        """Relative difference up to which its factor is taken for equal to another."""
        return closeness([self.gradient, *(own[0] for own in self.contributions)])

    @property
    def contributing_ranks(self) -> frozenset[int]:
        """The ranks that have a contribution."""
        return frozenset().union(*(each.ranks for own in self.contributions for each in own))


def reductions(frames: Frames) -> Iterator[Reduction]:
    """Yield the reduced gradients of all parameters and steps, as yet without a verdict."""
    rows, groups = gradient_rows(frames), known_groups(frames)
    if not rows.reduced:
        return
    calls = reducing_calls(frames)
    replicated = replica_sets(rows.parameters, groups_in_modules(frames))
    for (number, name), reduced in rows.reduced.items():
        everyone = Replicas((frozenset(row.rank for row in reduced),), is_certain=False)
        of_parameter = _Parameter(
            number, name, reduced, rows.locals.get((number, name), ()),
            replicated.get(name, everyone),
        )  # fmt: skip
        yield from _of_parameter(of_parameter, groups, calls)


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter in a step, with its reduced gradients and the ranks' own gradients."""

    round: int
    name: str
    reduced: SketchRows
    locals: SketchRows
    replicated: Replicas


def _of_parameter(
    parameter: _Parameter, groups: RankSets, calls: dict[int, ReductionCalls]
) -> Iterator[Reduction]:
    reduced, replicated = parameter.reduced, parameter.replicated
    contributions = held(parameter.locals)
    by_holders: dict[frozenset[int], list[Held]] = {}
    for gradient in held(reduced):
        replicas = frozenset().union(*(replicated.of(rank) for rank in gradient.ranks))
        by_holders.setdefault(replicas, []).append(gradient)
    num_ranks = len({row.rank for row in reduced})
    for replicas, gradients in by_holders.items():
        classes = distinct([each for each in contributions if each.ranks & replicas])
        for alike in distinct(gradients):
            first = alike[0]
            fit = fitted(first, classes, groups)
            if not fit.is_known and len(replicas) < num_ranks:
                fit = fitted(first, distinct(contributions), groups)
            holders = frozenset().union(*(each.ranks for each in alike))
            made, source = calls_between(calls, min(first.ranks), reduced, parameter.locals)
            yield Reduction(
                parameter.round, parameter.name,
                [row for row in reduced if row.rank in holders], first, replicas,
                replicated.is_certain, classes, fit, made, source,
            )  # fmt: skip


def judge(
    reduction: Reduction,
    losses: Losses,
    scale: Scale,
    groups: RankSets,
    stays_equal: Callable[[str, Collection[int]], bool],
) -> None:
    """Decide whether a gradient is reduced as it must be.

    Args:
        reduction: the gradient.
        losses: losses of the step.
        scale: the factor that gradients should have.
        groups: sets of ranks with their names.
        stays_equal: returns whether optimizers leave ranks equal values of a parameter.
    """
    fit = reduction.fit
    if not reduction.contributions:
        reduction.explanation = "the gradients of the ranks before the reduction were not seen"
        return
    if all(not own[0].sketches.any() for own in reduction.contributions):
        is_zero = not reduction.gradient.sketches.any()
        reduction.state = RIGHT if is_zero else UNKNOWN
        reduction.explanation = "it is zero" if is_zero else "it is not of this backward pass"
        return
    if not fit.is_known:
        reduction.explanation = (
            "it is no multiple of a sum of the ranks' own gradients, up to rounding"
        )
        return
    if not fit.ranks <= reduction.contributing_ranks:
        reduction.state = MIXED
        reduction.explanation = _mixed(reduction, groups)
        return
    # The backward pass may have reduced the gradient of one rank's parameter to the mean already,
    # before the program scaled all gradients.
    done = 1.0 if are_close(scale.value, 1.0, reduction.close) else scale.value * losses.num
    is_done = reduction.is_alone and any(
        are_close(fit.scale, each, reduction.close) for each in (1.0, done)
    )
    is_right = is_done or are_close(fit.scale, scale.value, reduction.close)
    if reduction.is_complete and is_right:
        reduction.state = RIGHT
        return
    holders = {row.rank for row in reduction.rows}
    if holders < reduction.replicas and stays_equal(reduction.name, reduction.replicas):
        reduction.explanation = (
            "it is not reduced when the optimizer steps, which leaves replicas equal: the "
            "optimizer reduces gradients itself"
        )
    elif reduction.is_complete:
        reduction.state = SCALED
        reduction.explanation = _scaled(reduction, losses, scale, groups)
    else:
        reduction.state = MISSING
        reduction.explanation = _missing(reduction, groups)


def _missing(reduction: Reduction, groups: RankSets) -> str:
    fit = reduction.fit
    everyone = reduction.contributing_ranks
    lacking = everyone - fit.ranks
    held_by = text_of_ranks(sorted(reduction.replicas))
    if fit.ranks <= reduction.gradient.ranks or fit.contributions == 1:
        what = f"the gradient of {text_of_ranks(sorted(reduction.gradient.ranks))} is not reduced"
    else:
        what = f"it is reduced over {name_of(groups, fit.ranks)} only"
    what += _not_over(groups, min(reduction.gradient.ranks), fit.ranks, everyone)
    doubt = "" if reduction.is_certain else "; the parameter may hold other elements on each rank"
    return (
        f"{what}: the contributions of {text_of_ranks(sorted(lacking))} are missing, although "
        f"{held_by} hold replicas of the parameter and have different contributions{doubt}"
    )


def _not_over(
    groups: RankSets, rank: int, reduced: frozenset[int], everyone: frozenset[int]
) -> str:
    """Return the axes of meshes and named groups over which a gradient is not reduced, in words."""
    lacking = [
        f"{name} ({text_of_ranks(sorted(ranks))})"
        for ranks, name in groups.items()
        if name and rank in ranks and ranks <= everyone and ranks & reduced == {rank}
    ]
    return f", not over {' and '.join(lacking)}" if lacking else ""


def _mixed(reduction: Reduction, groups: RankSets) -> str:
    others = sorted(reduction.fit.ranks - reduction.contributing_ranks)
    doubt = "" if reduction.is_certain else "; it may be that they do hold replicas"
    return (
        f"it is reduced over {name_of(groups, reduction.fit.ranks)}, but {text_of_ranks(others)} "
        f"hold other elements of the parameter{doubt}"
    )


def _scaled(reduction: Reduction, losses: Losses, scale: Scale, groups: RankSets) -> str:
    factor = reduction.fit.scale / scale.value
    if not factor:
        return "it is zero, although the contributions are not"
    size = factor if abs(factor) > 1 else 1 / factor
    whole = round(size)
    is_whole = whole > 1 and are_close(size, whole, reduction.close)
    names = " or ".join(sizes_of(groups, whole)) if is_whole else ""
    text = f"{whole} times" if is_whole and factor > 1 else (
        f"1/{whole} of" if is_whole else f"{factor:.4g} times"
    )  # fmt: skip
    multiplicity = max(len(own) for own in reduction.contributions)
    why = ""
    if factor > 1 and multiplicity == whole and is_whole:
        together = reduction.contributions[0]
        ranks = frozenset().union(*(each.ranks for each in together))
        why = (
            f": {name_of(groups, ranks)} have equal contributions, which were summed although "
            "they are the same gradient"
        )
    elif names:
        why = (
            f": {whole} is the size of {names}, as if summed over it once more, or not divided by "
            "it" if factor > 1
            else f": {whole} is the size of {names}, as if divided by it once more"
        )  # fmt: skip
    return (
        f"it is {text} what it should be{why}; the sum of "
        f"{counted(len(reduction.contributions), 'different contribution')} has the factor "
        f"{reduction.fit.scale:.4g}, and {scale.value:.4g} is {scale.why}"
    )


def factors(found: Sequence[Reduction]) -> list[float]:
    """Return the factors of the gradients that contain all contributions.

    Factors of parameters that a single rank holds count only if there are no others: the backward
    pass may have reduced their gradients already.
    """
    voters = [each for each in found if each.is_complete and not math.isnan(each.fit.scale)]
    shared = [each.fit.scale for each in voters if not each.is_alone]
    return shared or [each.fit.scale for each in voters]
