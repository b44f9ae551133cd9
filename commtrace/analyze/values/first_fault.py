"""The first wrong tensor of a run: its relation to the right tensor, and the evidence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.program_folder import program_folder, relative_to
from commtrace.analyze.values.axes import sizes_of_axes
from commtrace.analyze.values.between import REDUCED, communication_before
from commtrace.analyze.values.doubts import doubt_of
from commtrace.analyze.values.faults import Relation, relation, sketches_of
from commtrace.analyze.values.global_values import SKETCHES, parts
from commtrace.analyze.values.local_gradients import OwnGradients
from commtrace.analyze.values.losses import steps_with_right_losses
from commtrace.schema import GRADIENT, STATE, UPDATED

_MOST_EARLIER = 8
_MOST_RANKS = 64
_UNREDUCED = "ranks have parts of a sum that is right, and nothing reduces them"
_PROPERTIES = (
    "step", "phase", "role", "module", "module_call", "name", "op", "dtype", "shape", "layout",
    "source_file", "source_line", "norm", "num_nan", "num_inf",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """The first tensor that is wrong.

    Attributes:
        pair: its place among the pairs.
        left: its properties in the run that is taken to be right, by name.
        right: its properties in the other run.
        distance: distance, relative to the norm.
        tolerance: distance that rounding explains there.
        relation: relation to the right tensor.
        communication: calls of the right run that led to it, as dictionaries; `count` is the number
            of equal calls in a row.
        before: the last tensor that agrees; None if there is none.
        is_certain: False if there is a doubt.
        doubt: why it may be right, or the fault may be elsewhere; empty if there is no doubt.
        reduction: what a gradient is the sum of, and its factor, as `compared` adds it.
    """

    pair: int
    left: dict[str, Any]
    right: dict[str, Any]
    distance: float
    tolerance: float
    relation: Relation
    communication: tuple[dict[str, Any], ...]
    before: dict[str, Any] | None
    is_certain: bool
    doubt: str = ""
    reduction: str = ""


def described_fault(
    place: int,
    ours: pd.DataFrame,
    theirs: pd.DataFrame,
    judged: pd.DataFrame,
    table: pd.DataFrame,
    runs: tuple[Frames, Frames],
    own_gradients: OwnGradients,
    *,
    has_reference: bool,
) -> Fault:
    """Return the wrong tensor of a pair with its relation to the right tensor, and the evidence.

    Args:
        place: of the pair.
        ours: tensors of the first run, by pair.
        theirs: tensors of the second run, by pair.
        judged: the pairs.
        table: all tensors of the second run.
        runs: both runs.
        own_gradients: gradients of the ranks' own backward passes.
        has_reference: a reference in float64 decided on the tolerance.
    """
    right = runs[1]
    left_row, right_row = ours.iloc[place], theirs.iloc[place]
    is_right = ~judged["is_wrong"] & judged["distance"].notna()
    agreeing = np.flatnonzero(is_right.to_numpy()[:place])
    before = theirs.iloc[agreeing[-1]] if len(agreeing) else None
    right_on = int(judged["right_on"].iloc[place])
    found = relation(
        left_row,
        right_row,
        judged["tolerance"].iloc[place],
        earlier=_earlier(place, theirs),
        incomplete=_incomplete_sums(right_row, theirs.iloc[:place], right),
        axes=sizes_of_axes(right) if right_on < 0 else {},
    )
    if has_none := [
        name for name, row in (("first", left_row), ("second", right_row)) if not row["num_ranks"]
    ]:
        found = Relation("absent", f"the {has_none[0]} run has none")
    elif bool(judged["is_sum"].iloc[place]):
        found = Relation("missing", _UNREDUCED)
    elif right_on >= 0:
        on = f"it is right on rank {right_on}, but not on rank {right_row['rank']}"
        found = Relation("replica", f"{on}: {found.text}")
    tolerance = judged["tolerance"].iloc[agreeing].to_numpy()
    agreed = theirs.iloc[agreeing].assign(tolerance=tolerance).set_index("tensor")
    communication = communication_before(agreed, right_row, table, right)
    is_right_so_far = _is_right_so_far(place, judged, found, agreed, own_gradients.right)
    of_doubt = () if is_right_so_far else communication
    doubt = doubt_of(
        judged.iloc[: place + 1],
        found,
        of_doubt,
        has_reference=has_reference,
        right_losses=steps_with_right_losses(*runs),
        other_scales=own_gradients.steps_of_other_scales,
    )
    folder = program_folder(right)
    communication = tuple([_with_short_name(call, folder) for call in communication])
    return Fault(
        place,
        _properties(left_row, folder),
        _properties(right_row, folder),
        float(judged["distance"].iloc[place]),
        float(judged["tolerance"].iloc[place]),
        found,
        communication,
        None if before is None else _properties(before, folder),
        not doubt,
        doubt,
    )


def _is_right_so_far(
    place: int,
    judged: pd.DataFrame,
    relation: Relation,
    agreed: pd.DataFrame,
    gradients: Collection[tuple[int, str]],
) -> bool:
    """Return whether a wrong tensor was computed from right tensors.

    That is so for parts of a sum that is right; for a gradient that was right in the ranks' own
    backward passes, or merely has another scale, which no sum of ranks explains; and for the result
    of an optimizer's step if its gradient is right, or if some rank has the right result.

    Args:
        place: of the wrong tensor.
        judged: the pairs.
        relation: to the right tensor.
        agreed: earlier tensors that agree.
        gradients: steps and names of the ranks' own gradients that are right.
    """
    row = judged.iloc[place]
    step, role, name = row["step"], row["role"], row["name"]
    if row["is_sum"]:
        return True
    if role in REDUCED:
        is_scale = relation.kind == "factor" and not relation.is_of_axis
        return is_scale or (step, name) in gradients
    if role in (UPDATED, STATE):
        if row["right_on"] >= 0:
            return True
        owner = name if role == UPDATED else name.rpartition(".")[0]
        of_step = agreed[(agreed["step"] == step) & (agreed["role"] == GRADIENT)]
        return owner in {*of_step["name"]}
    return False


def _with_short_name(values: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return values whose source file is named relative to the folder of the program."""
    return {**values, "source_file": relative_to(folder, values["source_file"])}


def _properties(row: pd.Series, folder: str) -> dict[str, Any]:
    return _with_short_name({name: _plain(row[name]) for name in _PROPERTIES}, folder)


def _plain(value: Any) -> Any:
    """Return a numpy number as a Python number."""
    return value.item() if isinstance(value, np.generic) else value


def _earlier(place: int, theirs: pd.DataFrame) -> list[tuple[str, np.ndarray]]:
    """Return the wrong run's earlier tensors of the same module, role, name and operator."""
    row, before = theirs.iloc[place], theirs.iloc[:place]
    same = before
    for name in ("role", "module", "name", "op", "shape"):
        same = same[same[name] == row[name]]
    found = []
    for _, each in same.iloc[-_MOST_EARLIER:].iterrows():
        when = f"step {each['step']}" if each["step"] != row["step"] else "an earlier call"
        found.append((f"it is the tensor of {when}", sketches_of(each)))
    return found


def _incomplete_sums(
    row: pd.Series, before: pd.DataFrame, right: Frames
) -> list[tuple[str, np.ndarray]]:
    """Return sums of the latest partial sums of the same shape that leave out some ranks."""
    partial = before[before["layout"].str.contains("P(", regex=False)]
    partial = partial[(partial["shape"] == row["shape"]) & (partial["step"] == row["step"])]
    if partial.empty:
        return []
    latest = partial.iloc[-1]
    rows = parts(right)
    rows = rows[(rows["tensor"] == latest["tensor"]) & rows["counts"]]
    if not 1 < len(rows) <= _MOST_RANKS:
        return []
    each = rows[[*SKETCHES]].to_numpy("float64") * rows[["weight"]].to_numpy()
    ranks = rows["rank"].tolist()
    what = f"of the partial sum {latest['op'] or latest['name']}"
    alone = [
        (f"it is rank {rank}'s part {what}", own) for rank, own in zip(ranks, each, strict=True)
    ]
    lacking = [
        (f"it lacks rank {rank}'s part {what}", each.sum(axis=0) - own)
        for rank, own in zip(ranks, each, strict=True)
    ]
    return alone + lacking
