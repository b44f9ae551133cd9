"""The first wrong tensor of a comparison, ignoring proven parts of right tensors."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values.between import REDUCED
from commtrace.analyze.values.flow import Flow, flow_of
from commtrace.analyze.values.in_parts import are_counts, ranks_parts, shows_little
from commtrace.analyze.values.local_gradients import OwnGradients
from commtrace.analyze.values.tolerance import SMALL, evident, is_coarse
from commtrace.schema import (
    LOCAL_GRADIENT,
    OUTPUT,
    OUTPUT_GRADIENT,
    PARAMETER,
    RESULT,
    STATE,
    UPDATED,
)

_MOST_UNRELATED = 3
"""Tensors that may agree after a wrong tensor without depending on it, such as token counts."""
_BACKWARD = "backward"
_TINY = 1e-300
_CLOSE = 1e-3
"""Relative difference up to which factors are equal."""
_LEFT = (PARAMETER, UPDATED, STATE)
"""Roles of tensors that an optimizer's step may change by less than rounding."""
_FOLLOWING = frozenset({OUTPUT, OUTPUT_GRADIENT, RESULT})
"""Roles of tensors that are computed from those before them."""


def first_wrong(
    judged: pd.DataFrame,
    labels: np.ndarray,
    table: pd.DataFrame,
    gradients: OwnGradients,
    right: Frames,
) -> int | None:
    """Return the place of the first wrong tensor; None if there is none.

    An ambiguous tensor counts only if a certainly wrong tensor follows in its step. A tensor of
    unknown layout counts unless a right tensor was computed from it, which shows that it was a
    part. If the run does not state sources, several agreeing tensors of known layout between it and
    the first wrong tensor of known layout, or the end, show this instead.

    Args:
        judged: the pairs, in order of time.
        labels: numbers of the second run's tensors.
        table: table `tensors` of the second run.
        gradients: the ranks' own gradients.
        right: the second run.
    """
    is_wrong, is_certain = judged["is_wrong"].to_numpy(), judged["is_certain"].to_numpy()
    is_ambiguous, step = judged["is_ambiguous"].to_numpy(), judged["step"].to_numpy()
    certain = np.flatnonzero(is_wrong & is_certain & ~is_ambiguous)
    is_followed = (step == step[certain[0]]) if len(certain) else np.zeros(len(judged), bool)
    is_wrong = is_wrong & (~is_ambiguous | is_followed & is_certain)
    certain = np.flatnonzero(is_wrong & is_certain)
    end = int(certain[0]) if len(certain) else len(judged)
    doubtful = np.flatnonzero(is_wrong[:end])
    flow = flow_of(right) if len(doubtful) else None
    if flow is not None and not flow.is_known:
        doubtful = doubtful[doubtful >= _after_unrelated(judged, is_wrong, end)]
    elif flow is not None:
        is_near = judged["distance"].to_numpy() <= evident(judged["tolerance"].to_numpy())
        is_right = ~is_wrong & is_near
        # Ranks' parts may cancel in any case, as gradients of a bias before a normalization.
        least = SMALL * judged["norm_right"].fillna(0.0)
        is_right &= (judged["norm_left"] > least).to_numpy()
        is_right &= is_certain | judged["is_sum"].to_numpy()
        is_right &= ~shows_little(table.loc[labels], judged["tolerance"].to_numpy())
        half_right, own = _half_right_modules(judged, gradients), gradients.right
        of_half_right = {each for each in own if _module_of(each) in half_right}
        is_half_right = _are_of_gradients(judged, half_right)
        is_right &= ~is_half_right
        parts_of = ranks_parts(table)
        # A step of an optimizer is smaller than what coarse dtypes show of a parameter.
        hides = judged["role"].isin(_LEFT).to_numpy() & is_coarse(judged["tolerance"].to_numpy())
        cleared = flow.lead_to(
            asked=parts_of(labels[doubtful]),
            right=parts_of(labels[is_right & ~judged["role"].isin(_LEFT)]),
            blocked=parts_of(labels[are_counts(table.loc[labels])])
            | {*labels[is_wrong & is_certain | hides | is_half_right & ~is_wrong].tolist()},
            right_rows=_rows_of(own - of_half_right, flow),
            blocked_rows=_rows_of(of_half_right, flow),
        )
        # A part leads to right tensors on each rank where it leads to any that has a verdict.
        is_compared = judged["distance"].notna().to_numpy() & ~judged["role"].isin(_LEFT).to_numpy()
        is_compared[doubtful] = False
        observed = flow.lead_to(parts_of(labels[doubtful]), parts_of(labels[is_compared]), set())
        of_ranks = [parts_of(labels[[at]]) & (observed | cleared) for at in doubtful]
        is_cleared = np.array([bool(each) and each <= cleared for each in of_ranks], dtype=bool)
        is_cleared |= _are_scaled_alike(judged.iloc[doubtful], is_cleared)
        doubtful = doubtful[~is_cleared]
    first = [*doubtful[:1].tolist(), *certain[:1].tolist()]
    return first[0] if first else None


def _are_scaled_alike(doubtful: pd.DataFrame, is_cleared: np.ndarray) -> np.ndarray:
    """Return which gradients have the factor of others that are right but for it.

    A loss of a rank's own part of the batch scales all gradients of a step by the same factor,
    which earlier gradients of the step or the same output's gradients in other steps then show.
    """
    norms = doubtful["norm_left"].to_numpy("float64"), doubtful["norm_right"].to_numpy("float64")
    largest = np.fmax(*norms)
    share = np.divide(np.fmin(*norms), largest, out=np.zeros(len(largest)), where=largest > 0)
    # Sums and norms of parts are apart by the factor alone.
    is_factor = np.abs(doubtful["distance"] - (1 - share)) <= doubtful["tolerance"]
    is_factor |= doubtful["is_scaled"]
    is_factor &= (doubtful["phase"] == _BACKWARD) & (share > 0)
    factor = pd.Series(np.where(is_factor, norms[1] / np.fmax(norms[0], _TINY), np.nan))
    cleared = factor.where(is_cleared)
    of_output = [doubtful[name].to_numpy() for name in ("role", "module", "name", "op")]
    close = np.fmax(_CLOSE, doubtful["tolerance"].to_numpy())
    known = (
        cleared.groupby(doubtful["step"].to_numpy()).ffill(),
        cleared.groupby(of_output).transform("first"),
    )
    return np.any([(np.abs(factor - each) <= close * each).to_numpy() for each in known], axis=0)


def _half_right_modules(judged: pd.DataFrame, gradients: OwnGradients) -> set[tuple[int, str]]:
    """Return steps and modules with right gradients of the ranks' own and certainly wrong ones.

    The gradient of a bias is the sum of an output's gradient over positions, so it is right even if
    the ranks have each other's parts.
    """
    is_wrong = judged["is_wrong"] & judged["is_certain"] & judged["role"].isin(REDUCED)
    wrong = judged.loc[is_wrong, ["step", "name"]].itertuples(index=False, name=None)
    other = {each for each in wrong if each[0] not in gradients.steps_of_other_scales}
    return {_module_of(each) for each in gradients.other & other} & {
        _module_of(each) for each in gradients.right
    }


def _module_of(gradient: tuple[int, str]) -> tuple[int, str]:
    step, name = gradient
    return step, name.rpartition(".")[0]


def _are_of_gradients(judged: pd.DataFrame, modules: set[tuple[int, str]]) -> np.ndarray:
    """Return which tensors are gradients of some modules, or computed in their backward passes."""
    is_of = (judged["phase"] == _BACKWARD) | judged["role"].isin(REDUCED)
    of_module = zip(judged["step"], judged["module"], strict=True)
    return is_of.to_numpy() & np.array([each in modules for each in of_module], dtype=bool)


def _rows_of(gradients: Collection[tuple[int, str]], flow: Flow) -> list[int]:
    """Return the places of rows of the ranks' own gradients."""
    rows = flow.rows[flow.rows["role"] == LOCAL_GRADIENT]
    is_of_them = [each in gradients for each in zip(rows["step"], rows["name"], strict=True)]
    return rows.index[np.array(is_of_them, dtype=bool)].tolist()


def _after_unrelated(judged: pd.DataFrame, is_wrong: np.ndarray, end: int) -> int:
    """Return the place behind tensors after which several of known layout agree."""
    is_right = judged["is_certain"].to_numpy() & ~is_wrong & judged["distance"].notna().to_numpy()
    is_right &= judged["role"].isin(_FOLLOWING).to_numpy()
    right = np.flatnonzero(is_right[:end])
    return int(right[-_MOST_UNRELATED - 1]) + 1 if len(right) > _MOST_UNRELATED else 0
