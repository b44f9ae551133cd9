"""Wrong reductions of a run: rows of table `gradients` that are wrong for certain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from commtrace.analyze.gradients.audit import gradients
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values import replicas
from commtrace.schema import GRADIENT, STATE, UNCLIPPED, UPDATED
from commtrace.units import counted

_FOLLOW_REDUCTIONS = (UNCLIPPED, GRADIENT, UPDATED, STATE)
"""Roles of tensors whose replicas differ because of a reduction."""
_ALIKE = ("what", "state", "replicated_on", "axis", "factor")


@dataclass(frozen=True, slots=True)
class WrongReduction:
    """Values that are wrong in the same way.

    Attributes:
        first: the first of their rows in time.
        names: names of the parameters or tensors, in order.
        steps: the steps, in order.
        ranks: ranks that hold them.
    """

    first: Mapping[str, Any]
    names: tuple[str, ...]
    steps: tuple[int, ...]
    ranks: frozenset[int]

    @property
    def title(self) -> str:
        """The value and its parameters, in a few words."""
        what, name = self.first["what"], self.first["name"]
        others = len(self.names) - 1
        also = f" and {counted(others, 'other')}" if others else ""
        return f"{what} of {name}{also}" if what == "gradient" else f"{what} {name}".strip()

    @property
    def explanation(self) -> str:
        """The fault, the first step that has it, and the number of later steps."""
        more = len(self.steps) - 1
        later = f", and in {counted(more, 'later step')}" if more else ""
        calls = self.first["calls"]
        made = f" (reductions meanwhile: {calls})" if calls else ""
        step = self.first["step"]
        when = f"in step {step}" if step >= 0 else "outside of steps"
        return f"{self.title}, {when}{later}: {self.first['explanation']}{made}"


@cached_per_run
def wrong_reductions(frames: Frames) -> list[WrongReduction]:
    """Return the wrong reductions of a run, the first in time first.

    Gradients of replicas that came apart in the forward or the backward pass differ because of
    that: from such a step on, reductions are not judged.
    """
    table, apart = gradients(frames), replicas(frames)
    causes = apart.loc[~apart["role"].isin(_FOLLOW_REDUCTIONS), "step"]
    wrong = table[table["is_fault"] & ~(table["step"] >= causes.min())]
    if wrong.empty:
        return []
    factor = (wrong["scale"] / wrong["expected_scale"]).round(2).astype(str)
    # Of an axis of a mesh, each of its groups may have the same fault.
    axis = wrong["reduced_over"].str.replace(r" \(.*|^ranks? \d.*", "", regex=True)
    wrong = wrong.assign(factor=factor.where(wrong["state"] == "scaled", ""), axis=axis)
    wrong = wrong.sort_values("at_ns", kind="stable")
    found = []
    for _, rows in wrong.groupby(list(_ALIKE), sort=False):
        ranks = {int(rank) for text in rows["ranks"] for rank in str(text).split(",")}
        first: Any = rows.iloc[0].to_dict()
        found.append(
            WrongReduction(first, _unique(rows["name"]), _unique(rows["step"]), frozenset(ranks))
        )
    return found


def _unique(values: pd.Series) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values.tolist()))
