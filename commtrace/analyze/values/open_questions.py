"""Questions that a comparison without a wrong tensor leaves open.

Runs that agree in all compared tensors may differ in the rest: a run has died early, most tensors
have no counterpart, or the program's dtype is so coarse that rounding explains a missing reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.units import text_of_ranks

_FEW = 0.25
"""Share of the smaller run's tensors below which too few were compared."""
_COARSE = 0.1
"""Distance explained by rounding above which a missing addend may go unseen."""
_SIDES = ("first", "second")


def open_questions(
    left: Frames,
    right: Frames,
    tables: Sequence[pd.DataFrame],
    judged: pd.DataFrame,
    *,
    has_reference: bool,
) -> Iterator[str]:
    """Yield what the comparison left out, or did not compare exactly enough.

    Args:
        left: the first run.
        right: the second run.
        tables: their tensors.
        judged: the pairs that were compared, with `rounding`.
        has_reference: a reference decided on the tolerance.
    """
    if left.path and left.path == right.path:
        yield "both runs are the same file"
    paired, num = int(judged["distance"].notna().sum()), min(map(len, tables))
    if not paired or len(judged) < _FEW * num:
        yield (
            f"only {paired:,} of {num:,} tensors have a counterpart of their name and shape: is it "
            "the same program?"
        )
    for run, side in zip((left, right), _SIDES, strict=True):
        ranks = run.ranks
        lost = sorted(ranks.loc[~ranks["complete"].astype(bool), "rank"])
        if lost:
            yield f"{text_of_ranks(lost)} of the {side} run did not close the recording"
        if missing := run.run.get("missing_ranks"):
            yield f"{text_of_ranks(sorted(missing))} of the {side} run have no recording"
    steps = [{*table["step"]} for table in tables]
    if any(max(each, default=-1) >= 0 for each in steps):  # what is before them is preparation
        steps = [{step for step in each if step >= 0} for each in steps]
    for own, other, side in ((*steps, "second"), (*steps[::-1], "first")):
        if lacking := sorted(own - other):
            yield f"{_steps_text(lacking)} missing in the {side} run"
    coarsest = judged.loc[judged["distance"].notna(), "rounding"].quantile(0.5)
    if not has_reference and coarsest > _COARSE:
        yield (
            f"rounding may explain {coarsest:.2g} of the norm in these dtypes, which a missing "
            "reduction may not exceed: use --reference with a run in float64"
        )


def _steps_text(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]} is"
    is_range = steps[-1] - steps[0] == len(steps) - 1
    return f"steps {steps[0]} to {steps[-1]} are" if is_range else f"{len(steps):,} steps are"
