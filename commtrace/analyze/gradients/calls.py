"""Reductions that a rank made between its own gradient and the reduced gradient, in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from commtrace.analyze.gradients.rows import SketchRows
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames, joined

_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_SCALARS = ("[]", "[1]", "")
"""Shapes of losses and norms, which are not gradients."""
_TEXTS = ("kind", "reduce_op", "input_shapes", "output_shapes", "source_file")
_COLUMNS = ("rank", "id", "issue_ns", "source_line", *_TEXTS)
_MOST_SHOWN = 4


class ReductionCall(NamedTuple):
    """A reduction."""

    kind: str
    reduce_op: str
    input_shapes: str
    output_shapes: str
    source: str

    @property
    def text(self) -> str:
        """Kind and reduction, `all_reduce (sum)`."""
        return f"{self.kind} ({self.reduce_op})"


@dataclass(frozen=True, slots=True)
class ReductionCalls:
    """Reductions of a rank.

    Attributes:
        issue_ns: times of issue, ascending.
        calls: the calls, in that order.
    """

    issue_ns: np.ndarray
    calls: list[ReductionCall]


def _reducing(part: Frames) -> pd.DataFrame:
    calls = part.comm
    is_one = calls["kind"].isin(_REDUCTIONS) & ~calls["input_shapes"].isin(_SCALARS)
    return calls.loc[is_one, list(_COLUMNS)].astype(dict.fromkeys(_TEXTS, str))


@cached_per_run
def reducing_calls(frames: Frames) -> dict[int, ReductionCalls]:
    """Return the reductions of each rank."""
    table = joined(frames.by_ranks(_reducing)).sort_values(["rank", "issue_ns"], kind="stable")
    found = {}
    for rank in table["rank"].unique().tolist():
        own = table[table["rank"] == rank]
        sources = [
            f"{file}:{line}" if file else ""
            for file, line in zip(own["source_file"], own["source_line"], strict=True)
        ]
        columns = (own[name] for name in _TEXTS[:-1])
        found[rank] = ReductionCalls(
            own["issue_ns"].to_numpy(), list(map(ReductionCall, *columns, sources))
        )
    return found


def calls_between(
    calls: dict[int, ReductionCalls], rank: int, reduced: SketchRows, locals_: SketchRows
) -> tuple[str, str]:
    """Return the reductions, `2 all_reduce (sum) at train.py:31`, and the line of the first.

    Reductions of tensors of the parameter's shape are its own, and only these are named. Without
    any, the others may have carried the gradient in a bucket.
    """
    end = [row.at_ns for row in reduced if row.rank == rank]
    begin = [row.at_ns for row in locals_ if row.rank == rank]
    if not end or not begin:
        return "", ""
    known = calls.get(rank)
    if known is None:
        return "none", ""
    first, last = np.searchsorted(known.issue_ns, [min(begin), max(end)])
    own = known.calls[first:last]
    shape = reduced[0].shape
    exact = [each for each in own if shape in (each.input_shapes, each.output_shapes)]
    shown = exact or own
    if not shown:
        return "none", ""
    lines = Counter((each.text, each.source) for each in shown)
    what = "" if exact else " of buckets"
    texts = [
        f"{number} {text}{what}" + (f" at {source}" if source else "")
        for (text, source), number in lines.most_common(_MOST_SHOWN)
    ]
    return ", ".join(texts), shown[0].source
