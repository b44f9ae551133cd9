"""Ranks that compute different losses of the same data: their forward passes have parted.

Gradients of replicas then differ because of that, not because they are not reduced. Where another
parameter's contributions of the same ranks are added up, the ranks have parts of a sum by design.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from commtrace.analyze.cached_per_run import cached_per_run
from commtrace.analyze.frame import Frames, joined
from commtrace.analyze.gradients.parameters import MISSING, RIGHT, SCALED, UNKNOWN, Reduction
from commtrace.analyze.gradients.scales import Losses
from commtrace.analyze.values.global_values import SKETCHES
from commtrace.schema import INPUT, OUTPUT

_NUM_FIRST = 3
"""Activations of a step that show whether ranks begin it with the same data."""

_NONE: frozenset[bytes] = frozenset()
FirstValues = dict[tuple[int, int], frozenset[bytes]]


@cached_per_run
def first_values(frames: Frames) -> FirstValues:
    """Return the first activations of each step and rank, as bytes of their sketches."""
    table = joined(frames.by_ranks(_first))
    values = [row.tobytes() for row in table[[*SKETCHES]].to_numpy("float64")]
    found: dict[tuple[int, int], set[bytes]] = {}
    for step, rank, value in zip(table["step"], table["rank"], values, strict=True):
        found.setdefault((int(step), int(rank)), set()).add(value)
    return {key: frozenset(each) for key, each in found.items()}


def _first(part: Frames) -> pd.DataFrame:
    rows = part.fingerprints
    rows = rows.loc[rows["role"].isin((INPUT, OUTPUT)), ["id", "step", "rank", *SKETCHES]]
    return rows.sort_values("id", kind="stable").groupby(["step", "rank"]).head(_NUM_FIRST)


def excuse_parted(found: Sequence[Reduction], losses: Losses, first: FirstValues) -> None:
    """Make verdicts unknown that a parted forward pass explains.

    Contributions are missing only of ranks that should have equal ones, and a factor is that of
    more losses than the program has.

    Args:
        found: judged reductions of one step.
        losses: the losses of the step.
        first: of the run.
    """
    added = [each for each in found if each.state == RIGHT and len(each.contributions) > 1]
    for reduction in found:
        if reduction.state not in (MISSING, SCALED):
            continue
        step = reduction.rows[0].step
        own = others = {*losses.by_rank}
        if reduction.state == MISSING:
            own, others = reduction.fit.ranks, reduction.contributing_ranks - reduction.fit.ranks
        pairs = [
            (one, other)
            for one in sorted(own)
            for other in sorted(others)
            if one != other and first.get((step, one), _NONE) & first.get((step, other), _NONE)
        ]
        known = [[losses.by_rank.get(rank) for rank in pair] for pair in pairs]
        is_different = [None not in each and each[0] != each[1] for each in known]
        has_parted = any(is_different) if reduction.state == SCALED else all(is_different)
        if not pairs or not has_parted:
            continue
        one, other = pairs[is_different.index(True)]
        if not any({one, other} <= each.fit.ranks for each in added):
            reduction.state = UNKNOWN
            reduction.explanation = (
                f"ranks {one} and {other} begin with the same data and have different losses: "
                "their forward passes have parted, and gradients differ because of that"
            )
