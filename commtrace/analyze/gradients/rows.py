"""Rows of table `fingerprints` that tell how gradients were reduced, by optimizer step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.cached_per_run import cached_per_run
from commtrace.analyze.frame import Frames, joined
from commtrace.analyze.values.global_values import SKETCHES
from commtrace.schema import CLIPPING, GRADIENT, LOCAL_GRADIENT, LOSS, NAMED, PARAMETER, UNCLIPPED

_ROLES = (PARAMETER, LOSS, LOCAL_GRADIENT, UNCLIPPED, CLIPPING, GRADIENT, NAMED)
_COLUMNS = (
    "rank", "id", "role", "name", "module", "at_ns", "step", "dtype", "shape", "mesh",
    "placements", *SKETCHES, "total", "norm", "largest",
)  # fmt: skip
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_OF_CALLS = (
    "rank", "id", "kind", "group", "reduce_op", "input_shapes", "output_shapes", "payload_bytes",
    "issue_ns", "source_file", "source_line",
)  # fmt: skip


def _fingerprints(part: Frames) -> pd.DataFrame:
    table = part.fingerprints
    rows = table.loc[table["role"].isin(_ROLES), list(_COLUMNS)]
    texts = ("role", "name", "module", "dtype", "shape", "mesh", "placements")
    return rows.astype(dict.fromkeys(texts, str))


def _reducing(part: Frames) -> pd.DataFrame:
    calls = part.comm
    rows = calls.loc[calls["kind"].isin(_REDUCTIONS), list(_OF_CALLS)]
    texts = (
        "kind", "group", "reduce_op", "input_shapes", "output_shapes", "source_file",
    )  # fmt: skip
    return rows.astype(dict.fromkeys(texts, str))


@dataclass(frozen=True, slots=True)
class GradientRows:
    """The rows of a run; `round` numbers the optimizer steps of each rank from 0.

    Attributes:
        parameters: parameters as they were at first.
        locals: gradients as the ranks' backward passes have them.
        reduced: gradients before they are clipped.
        final: gradients as the optimizer finds them.
        losses: scalars at which backward passes began.
        clipping: norms that clipping used.
        named: tensors that the program named.
        calls: reductions of table `comm`, in order of time.
    """

    parameters: pd.DataFrame
    locals: pd.DataFrame
    reduced: pd.DataFrame
    final: pd.DataFrame
    losses: pd.DataFrame
    clipping: pd.DataFrame
    named: pd.DataFrame
    calls: pd.DataFrame


@cached_per_run
def gradient_rows(frames: Frames) -> GradientRows:
    """Return the rows of a run."""
    table = joined(frames.by_ranks(_fingerprints)).sort_values(["rank", "id"], kind="stable")
    calls = joined(frames.by_ranks(_reducing)).sort_values(["rank", "issue_ns"], kind="stable")
    table["round"] = _rounds(table)
    by_role = {role: table[table["role"] == role] for role in _ROLES}
    final = by_role[GRADIENT]
    # Without clipping, the optimizer finds what was reduced.
    unclipped = by_role[UNCLIPPED]
    keys = ["rank", "name", "round"]
    seen = pd.MultiIndex.from_frame(unclipped[keys])
    others = final[~pd.MultiIndex.from_frame(final[keys]).isin(seen)]
    return GradientRows(
        by_role[PARAMETER],
        by_role[LOCAL_GRADIENT],
        pd.concat([unclipped.drop_duplicates(keys), others]),
        final,
        by_role[LOSS],
        by_role[CLIPPING],
        by_role[NAMED],
        calls,
    )


def _rounds(table: pd.DataFrame) -> pd.Series:
    """Return for each row how many optimizer steps of its rank were over before it.

    Optimizers that step one after the other, each with parameters of its own, are one step.
    """
    rounds = pd.Series(0, index=table.index, dtype="int64")
    for _, own in table.groupby("rank", sort=False):
        is_final = (own["role"] == GRADIENT).to_numpy()
        is_before = own["role"].isin([LOSS, LOCAL_GRADIENT]).to_numpy()
        # A round ends at the first loss or gradient of a backward pass behind optimizer steps.
        ended = np.zeros(len(own), dtype="int64")
        is_open = False
        for place in np.flatnonzero(is_final | is_before):
            if is_final[place]:
                is_open = True
            elif is_open:
                ended[place] = 1
                is_open = False
        rounds.loc[own.index] = np.cumsum(ended)
    return rounds


def by_parameter(rows: pd.DataFrame) -> Iterator[tuple[tuple[int, str], pd.DataFrame]]:
    """Yield the rows of each round and name."""
    for key, own in rows.groupby(["round", "name"], sort=False):
        yield (int(key[0]), str(key[1])), own  # type: ignore[index]
