"""Rows of table `fingerprints` that show how gradients were reduced, by optimizer step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.values.global_values import SKETCHES
from commtrace.schema import (
    CLIPPING,
    GRADIENT,
    LOCAL_GRADIENT,
    LOSS,
    NAMED,
    PARAMETER,
    UNCLIPPED,
    UPDATED,
)

_ROLES = (PARAMETER, LOSS, LOCAL_GRADIENT, UNCLIPPED, CLIPPING, GRADIENT, NAMED, UPDATED)
_TEXTS = ("role", "name", "module", "dtype", "shape", "mesh", "placements")
_OF_ROW = (
    "rank", "name", "at_ns", "step", "module", "shape", "dtype", "mesh", "placements", "total",
    "norm", "largest",
)  # fmt: skip
_COLUMNS = ("id", "role", *_OF_ROW, *SKETCHES)


class SketchRow(NamedTuple):
    """A row of table `fingerprints`, with its sketches as an array, [NUM_SKETCHES]."""

    rank: int
    name: str
    at_ns: int
    step: int
    module: str
    shape: str
    dtype: str
    mesh: str
    placements: str
    total: float
    norm: float
    largest: float
    sketches: np.ndarray

    @property
    def is_scalar(self) -> bool:
        """True for a tensor with a single element."""
        return self.shape in ("[]", "[1]")


SketchRows = Sequence[SketchRow]
ByRound = Mapping[int, SketchRows]


@dataclass(frozen=True, slots=True)
class GradientRows:
    """The rows of a run, by optimizer step: rounds are numbered from 0 on each rank.

    Attributes:
        parameters: parameters as they were at first.
        locals: gradients as the ranks' backward passes have them, by round and name.
        reduced: gradients before they are clipped, by round and name.
        final: gradients as the optimizer finds them.
        losses: scalars at which backward passes began.
        clipping: norms that clipping used.
        named: tensors that the program named.
        updated: parameters as optimizers leave them, by name.
        num_passes: most gradients of a parameter that a rank's backward passes have.
    """

    parameters: SketchRows
    locals: Mapping[tuple[int, str], SketchRows]
    reduced: Mapping[tuple[int, str], SketchRows]
    final: ByRound
    losses: ByRound
    clipping: ByRound
    named: ByRound
    updated: Mapping[str, SketchRows]
    num_passes: Mapping[int, int]

    def stays_equal(self, name: str, ranks: Collection[int]) -> bool:
        """Return whether optimizers leave ranks equal values of a parameter, or do not step it."""
        rows = [row for row in self.updated.get(name, ()) if row.rank in ranks]
        if not rows:
            return bool(self.updated)
        by_rank: dict[int, list[bytes]] = {}
        for row in rows:
            by_rank.setdefault(row.rank, []).append(row.sketches.tobytes())
        return len(by_rank) > 1 and len({tuple(own) for own in by_rank.values()}) == 1


def _fingerprints(part: Frames) -> pd.DataFrame:
    table = part.fingerprints
    rows = table.loc[table["role"].isin(_ROLES), list(_COLUMNS)]
    return rows.astype(dict.fromkeys(_TEXTS, str))


@cached_per_run
def gradient_rows(frames: Frames) -> GradientRows:
    """Return the rows of a run."""
    table = joined(frames.by_ranks(_fingerprints)).sort_values(["rank", "id"], kind="stable")
    roles, ranks = table["role"].tolist(), table["rank"].tolist()
    columns = [table[name].tolist() for name in _OF_ROW]
    rows = list(map(SketchRow, *columns, table[list(SKETCHES)].to_numpy()))
    parameters: list[SketchRow] = []
    updated: dict[str, list[SketchRow]] = {}
    by_name: dict[str, dict[tuple[int, str], list[SketchRow]]] = {}
    by_round: dict[str, dict[int, list[SketchRow]]] = {role: {} for role in _ROLES}
    for role, row, number in zip(roles, rows, _rounds(roles, ranks), strict=True):
        if role == PARAMETER:
            parameters.append(row)
        elif role == UPDATED:
            updated.setdefault(row.name, []).append(row)
        elif role in (LOCAL_GRADIENT, UNCLIPPED, GRADIENT):
            by_name.setdefault(role, {}).setdefault((number, row.name), []).append(row)
        by_round[role].setdefault(number, []).append(row)
    unclipped, final = by_name.get(UNCLIPPED, {}), by_name.get(GRADIENT, {})
    # Without clipping, the optimizer finds what was reduced.
    reduced = {
        key: _first_of_ranks([*unclipped.get(key, ()), *final.get(key, ())])
        for key in dict.fromkeys([*final, *unclipped])
    }
    return GradientRows(
        parameters,
        by_name.get(LOCAL_GRADIENT, {}),
        reduced,
        by_round[GRADIENT],
        by_round[LOSS],
        by_round[CLIPPING],
        by_round[NAMED],
        updated,
        _num_passes(by_name.get(LOCAL_GRADIENT, {})),
    )


def _num_passes(locals_: Mapping[tuple[int, str], SketchRows]) -> dict[int, int]:
    found: dict[int, int] = {}
    for (number, _), rows in locals_.items():
        most = max(Counter(row.rank for row in rows).values())
        found[number] = max(found.get(number, 1), most)
    return found


def _first_of_ranks(rows: SketchRows) -> SketchRows:
    return list({row.rank: row for row in reversed(rows)}.values())[::-1]


def _rounds(roles: Sequence[str], ranks: Sequence[int]) -> list[int]:
    """Return for each row how many optimizer steps of its rank were over before it.

    A round ends at the first loss or gradient of a backward pass after an optimizer's step, so that
    optimizers that step in sequence, each with parameters of its own, form a single round.
    """
    rounds: list[int] = []
    number, has_stepped, latest_rank = 0, False, -1
    for role, rank in zip(roles, ranks, strict=True):
        if rank != latest_rank:
            number, has_stepped, latest_rank = 0, False, rank
        if role == GRADIENT:
            has_stepped = True
        elif has_stepped and role in (LOSS, LOCAL_GRADIENT):
            number, has_stepped = number + 1, False
        rounds.append(number)
    return rounds
