"""Ranks that compute different losses of the same data: their forward passes have parted.

Gradients of replicas then differ because of that, not because they are not reduced. Where another
parameter's contributions of the same ranks are added up, the ranks have parts of a sum by design.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from commtrace.analyze.gradients.parameters import MISSING, RIGHT, SCALED, UNKNOWN, Reduction
from commtrace.analyze.gradients.scales import Losses
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.values.global_values import SKETCHES
from commtrace.schema import INPUT, OUTPUT

_NUM_FIRST = 3
"""Activations of a step that show whether ranks begin it with the same data."""

RanksAlike = Sequence[frozenset[int]]
"""Sets of ranks that agree in one of the first activations of a step."""


@cached_per_run
def _alike(frames: Frames) -> dict[int, RanksAlike]:
    """Return the sets of ranks that begin a step with the same data, by step."""
    table = joined(frames.by_ranks(_first))
    values = [row.tobytes() for row in table[[*SKETCHES]].to_numpy("float64")]
    found: dict[int, dict[bytes, set[int]]] = {}
    for step, rank, value in zip(table["step"], table["rank"], values, strict=True):
        found.setdefault(int(step), {}).setdefault(value, set()).add(int(rank))
    return {
        step: [frozenset(ranks) for ranks in sets.values() if len(ranks) > 1]
        for step, sets in found.items()
    }


def _first(part: Frames) -> pd.DataFrame:
    rows = part.fingerprints
    rows = rows.loc[rows["role"].isin((INPUT, OUTPUT)), ["id", "step", "rank", *SKETCHES]]
    return rows.sort_values("id", kind="stable").groupby(["step", "rank"]).head(_NUM_FIRST)


def excuse_parted(found: Sequence[Reduction], losses: Losses, run: Frames) -> None:
    """Make verdicts unknown that a parted forward pass explains.

    Ranks that should have equal contributions then have different contributions, and the program
    seems to have more losses than parts of the batch.

    Args:
        found: judged reductions of a step.
        losses: the losses of the step.
        run: the run.
    """
    added = [each for each in found if each.state == RIGHT and len(each.contributions) > 1]
    for reduction in found:
        if reduction.state not in (MISSING, SCALED):
            continue
        alike = _alike(run).get(reduction.rows[0].step, ())
        pair = _parted(reduction, losses, alike)
        if pair is not None and not any({*pair} <= each.fit.ranks for each in added):
            reduction.state = UNKNOWN
            reduction.explanation = (
                f"ranks {pair[0]} and {pair[1]} begin with the same data and have different "
                "losses: their forward passes have parted, and gradients differ because of that"
            )


def _parted(reduction: Reduction, losses: Losses, alike: RanksAlike) -> tuple[int, int] | None:
    """Return two ranks of the same data and different losses, if these explain a verdict."""
    own = others = frozenset(losses.by_rank)
    if reduction.state == MISSING:
        own, others = reduction.fit.ranks, reduction.contributing_ranks - reduction.fit.ranks
    found: tuple[int, int] | None = None
    for ranks in alike:
        ours, theirs = ranks & own, ranks & others
        if not ours or not theirs:
            continue
        if not ours | theirs <= losses.by_rank.keys():
            return None
        first = min(ours)
        different = [each for each in theirs if losses.by_rank[each] != losses.by_rank[first]]
        values = [{losses.by_rank[each] for each in side} for side in (ours, theirs)]
        # Contributions are missing although a rank that has one computed the same.
        if reduction.state == MISSING and not values[0].isdisjoint(values[1]):
            return None
        if different and found is None:
            found = first, min(different)
    return found
