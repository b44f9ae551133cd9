"""Table `gradients`: how each gradient was reduced, and whether that is how it must be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from commtrace.analyze.gradients.local_steps import excuse_local_steps
from commtrace.analyze.gradients.names import known_groups, name_of
from commtrace.analyze.gradients.parameters import (
    MISSING,
    MIXED,
    RIGHT,
    SCALED,
    UNKNOWN,
    RankSets,
    Reduction,
    factors,
    judge,
    reductions,
)
from commtrace.analyze.gradients.partings import excuse_parted
from commtrace.analyze.gradients.rows import SketchRows, gradient_rows
from commtrace.analyze.gradients.scalars import (
    Scalar,
    clipped,
    losses_reported,
    norms_used,
    reported_loss,
)
from commtrace.analyze.gradients.scales import Losses, Scale, expected_scale, losses_of
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.schema import INSTANT, TABLES, Column

GRADIENT = "gradient"
STATES = (RIGHT, MISSING, SCALED, MIXED, UNKNOWN)

_OF_TABLE = {column.name: column for column in TABLES["fingerprints"]}

COLUMNS = (
    _OF_TABLE["step"],
    Column("what", str, "", "gradient, loss, gradient norm or clipping"),
    Column("name", str, "", "name of the parameter, or of the tensor that the program names"),
    _OF_TABLE["module"],
    _OF_TABLE["shape"],
    _OF_TABLE["dtype"],
    Column("ranks", str, "", "ranks that hold this value, `0,1`", form="ranks"),
    Column("replicated_on", str, "", "ranks that hold replicas of the parameter", title="Replicas"),
    Column("num_contributions", int, "", "different gradients of the ranks' own backward passes"),
    Column("num_reduced", int, "", "contributions in the sum that it is a multiple of; -1 unknown"),
    Column("num_losses", int, "", "different losses at which backward passes began"),
    Column("reduced_over", str, "", "ranks whose gradients are in it"),
    Column("scale", float, "", "factor of the sum; nan unknown"),
    Column("expected_scale", float, "", "factor that it should have; nan unknown"),
    Column("state", str, "", f"{', '.join(STATES[:-1])} or {STATES[-1]}"),
    Column("is_fault", bool, "", "it is wrong for certain"),
    Column("calls", str, "", "reductions of the first rank meanwhile"),
    Column("source", str, "", "line of the first of these"),
    Column("explanation", str, "", "explanation in a sentence"),
    Column("at_ns", int, INSTANT, "when the value was observed"),
)


@cached_per_run
def gradients(frames: Frames) -> pd.DataFrame:
    """Return a row for each reduced gradient, reported loss, norm and clipping, by step.

    A parameter whose replicas differ has a row for each value. Faults come first in a step.
    """
    found = [_row(each) for each in _verdicts(frames)]
    table = pd.DataFrame(found, columns=[column.name for column in COLUMNS])
    if table.empty:
        return typed(table, COLUMNS)
    order = table.assign(is_right=~table["is_fault"]).sort_values(
        ["step", "is_right"], kind="stable"
    )
    return typed(order, COLUMNS)


def _verdicts(frames: Frames) -> Iterator[dict[str, Any]]:
    rows, groups = gradient_rows(frames), known_groups(frames)
    sizes = {len(frames.ranks), *map(len, groups)}
    is_missing = False
    by_round: dict[int, list[Reduction]] = {}
    for reduction in reductions(frames):
        by_round.setdefault(reduction.round, []).append(reduction)
    for number, found in by_round.items():
        losses = losses_of(rows.losses.get(number, ()))
        named, clipping = rows.named.get(number, ()), rows.clipping.get(number, ())
        close = max(each.close for each in found)
        scale = expected_scale(
            losses,
            reported_loss(named),
            factors(found),
            close,
            sizes,
            rows.num_passes.get(number, 1),
        )
        for reduction in found:
            judge(reduction, losses, scale, groups, rows.stays_equal)
        # Replicas that a missing contribution leaves different part the passes of later steps.
        if not is_missing:
            excuse_parted(found, losses, frames)
            excuse_local_steps(found, frames)
        is_missing |= any(each.state == MISSING for each in found)
        for reduction in found:
            yield _of_reduction(reduction, losses, scale, groups)
        own = {(row.name, row.rank): row for row in rows.final.get(number, ())}
        scalars = (
            *losses_reported(named, losses, groups),
            *norms_used(clipping, named, found, groups),
            *clipped(clipping, own, found),
        )
        for scalar in scalars:
            yield _of_scalar(scalar, losses)


def _of_reduction(
    reduction: Reduction, losses: Losses, scale: Scale, groups: RankSets
) -> dict[str, Any]:
    fit = reduction.fit
    is_wrong = reduction.state in (MISSING, SCALED, MIXED)
    return {
        **_place(reduction.rows),
        "what": GRADIENT,
        "name": reduction.name,
        "ranks": _numbers(row.rank for row in reduction.rows),
        "replicated_on": _numbers(reduction.replicas) if reduction.contributions else "",
        "num_contributions": len(reduction.contributions) or -1,
        "num_reduced": fit.contributions if fit.is_known else -1,
        "num_losses": len(losses.values) or -1,
        "reduced_over": name_of(groups, fit.ranks) if fit.is_known else "",
        "scale": fit.scale,
        "expected_scale": scale.value if reduction.contributions else math.nan,
        "state": reduction.state,
        "is_fault": is_wrong and (reduction.is_certain or reduction.state == SCALED),
        "calls": reduction.calls,
        "source": reduction.source,
        "explanation": reduction.explanation,
    }


def _of_scalar(scalar: Scalar, losses: Losses) -> dict[str, Any]:
    return {
        **_place(scalar.rows),
        "what": scalar.what,
        "name": scalar.name,
        "ranks": _numbers(scalar.ranks),
        "replicated_on": "",
        "num_contributions": -1,
        "num_reduced": -1,
        "num_losses": len(losses.values) or -1,
        "reduced_over": "",
        "scale": scalar.factor,
        "expected_scale": 1.0 if not math.isnan(scalar.factor) else math.nan,
        "state": scalar.state,
        "is_fault": scalar.is_fault,
        "calls": "",
        "source": "",
        "explanation": scalar.explanation,
    }


def _place(rows: SketchRows) -> dict[str, Any]:
    first = rows[0]
    return {
        "step": first.step,
        "module": first.module,
        "shape": first.shape,
        "dtype": first.dtype,
        "at_ns": first.at_ns,
    }


def _numbers(ranks: Any) -> str:
    return ",".join(map(str, sorted({int(rank) for rank in ranks})))


def _row(verdict: dict[str, Any]) -> list[Any]:
    return [verdict[column.name] for column in COLUMNS]


GRADIENTS = Analysis(
    "gradients",
    "Reductions of gradients",
    "Is every gradient reduced over the right ranks, once, with the right factor?",
    gradients,
    COLUMNS,
    topic="Values",
    shown="step what name reduced_over num_contributions scale expected_scale state explanation",
    needs="fingerprints",
)
