"""Comparison of two runs of one program: the first tensor that is wrong, and all that differ.

The left run is taken for right. Tensors are paired in its order of time (`alignment`), so that
whatever a tensor was computed from comes before it. The first one whose distance exceeds what
rounding explains (`tolerance`) is where the runs part; its relation to the right one (`faults`),
the layouts of both, the line, and the communication that led to it are its evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.analyze.values.alignment import aligned
from commtrace.analyze.values.described_pairs import described
from commtrace.analyze.values.faults import Relation, relation, sketches_of
from commtrace.analyze.values.global_values import OWN_DATA, SKETCHES, by_number, parts
from commtrace.analyze.values.tolerance import Tolerance, distances, scales, sizes
from commtrace.errors import UsageError

_MOST_EARLIER = 8
_MOST_COMMUNICATION = 5
_MOST_RANKS = 64

_PROPERTIES = (
    "step", "phase", "role", "module", "module_call", "name", "op", "dtype", "shape", "layout",
    "source_file", "source_line", "norm", "num_nan", "num_inf",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """The first tensor that is wrong.

    Attributes:
        left: its properties in the run that is taken for right, by name.
        right: its properties in the other one.
        distance: distance, relative to the norm.
        tolerance: distance that rounding explains there.
        relation: relation to the right tensor.
        communication: calls of the right run that led to it, as dictionaries.
        before: the last tensor that agrees; None if there is none.
        is_certain: False if its layout is unknown, so that ranks may hold parts of it.
    """

    left: dict[str, Any]
    right: dict[str, Any]
    distance: float
    tolerance: float
    relation: Relation
    communication: tuple[dict[str, Any], ...]
    before: dict[str, Any] | None
    is_certain: bool


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """Result of a comparison.

    Attributes:
        num_left: tensors of the first run.
        num_right: tensors of the second run.
        num_paired: pairs that were compared.
        num_unknown: pairs of which a value is unknown, such as an unreduced maximum.
        num_wrong: pairs whose distance exceeds the tolerance.
        num_doubtful: those of them whose layout is unknown.
        fault: the first of these whose layout is known, or else the first; None if the runs agree.
        pairs: step, phase, role, module, name, op, distance, tolerance, is_wrong and is_certain of
            each pair, and the columns of `described_pairs`.
        has_reference: a reference in float64 decided on the tolerance.
    """

    num_left: int
    num_right: int
    num_paired: int
    num_unknown: int
    num_wrong: int
    num_doubtful: int
    fault: Fault | None
    pairs: pd.DataFrame
    has_reference: bool

    @property
    def agrees(self) -> bool:
        """True if no tensor is wrong."""
        return self.fault is None


def compare(left: Frames, right: Frames, reference: Frames | None = None) -> ValueComparison:
    """Compare the tensors of two runs of one program.

    Args:
        left: the run that is taken for right, such as one on a single device.
        right: the other run, in any layout.
        reference: the left run in float64, which decides how large rounding errors are.

    Raises:
        UsageError: a run has no values, or nothing in them can be paired.
    """
    tables = [_table_of(run, name) for run, name in ((left, "first"), (right, "second"))]
    pairs = aligned(*tables)
    if pairs.empty:
        raise _nothing_in_common(left, right)
    ours, theirs = (
        table.loc[pairs[side]].reset_index(drop=True)
        for table, side in zip(tables, ("left", "right"), strict=True)
    )
    errors = _errors(ours, pairs["left"], tables[0], reference)
    judged = _judged(ours, theirs, errors)
    judged = described(judged, ours, theirs)
    wrong = np.flatnonzero(judged["is_wrong"])
    certain = np.flatnonzero(judged["is_wrong"] & judged["is_certain"])
    fault = None
    if len(wrong):
        place = int(certain[0] if len(certain) else wrong[0])
        fault = _fault(place, ours, theirs, judged, right)
    return ValueComparison(
        len(tables[0]), len(tables[1]), len(pairs), int(judged["distance"].isna().sum()),
        len(wrong), len(wrong) - len(certain), fault, judged, reference is not None,
    )  # fmt: skip


def _table_of(run: Frames, name: str) -> pd.DataFrame:
    if parts(run).empty:
        raise UsageError(
            f"cannot compare the tensors of {run.path or f'the {name} run'}",
            found="no values",
            why="fingerprints of tensors are recorded on demand",
            attempt='`commtrace run --values ...`, or commtrace.record(..., values="op")',
        )
    return by_number(run)


def _nothing_in_common(left: Frames, right: Frames) -> UsageError:
    names = [
        sorted({str(name) for name in parts(run)["module"]} - {""})[:3] for run in (left, right)
    ]
    return UsageError(
        f"cannot compare {left.path or 'the first run'} and {right.path or 'the second run'}",
        found=f"modules {', '.join(names[0]) or 'without names'} in the first run, "
        f"{', '.join(names[1]) or 'without names'} in the second one",
        why="no tensor of one has a counterpart of its name and global shape in the other",
        attempt="record the same model, with steps and inputs that are the same",
    )


def _errors(
    ours: pd.DataFrame, labels: pd.Series, table: pd.DataFrame, reference: Frames | None
) -> np.ndarray:
    """Return the distance of each tensor of the left run from the reference; nan if unknown."""
    errors = np.full(len(ours), np.nan)
    if reference is None:
        return errors
    exact = _table_of(reference, "reference")
    pairs = aligned(table, exact)
    found = distances(table.loc[pairs["left"]], exact.loc[pairs["right"]])
    by_label = pd.Series(found, index=pairs["left"])
    return by_label[~by_label.index.duplicated()].reindex(labels).to_numpy("float64")


def _judged(ours: pd.DataFrame, theirs: pd.DataFrame, errors: np.ndarray) -> pd.DataFrame:
    """Return each pair with its distance, its tolerance and the verdict."""
    apart, size = distances(ours, theirs), sizes(ours, theirs)
    is_certain = ~_has_unknown_layout(ours) & ~_has_unknown_layout(theirs)
    apart[_is_own_data(ours) | _is_own_data(theirs)] = np.nan
    tolerance = Tolerance()
    allowed, verdicts = [], []
    more_bad = [
        (theirs[name] > ours[name].clip(lower=0)).to_numpy() for name in ("num_nan", "num_inf")
    ]
    is_bad = more_bad[0] | more_bad[1]
    # A tensor of numbers that cancel is measured against the others of its role.
    scale = scales(ours, size)
    for place, dtypes in enumerate(zip(ours["dtype"], theirs["dtype"], strict=True)):
        error = errors[place]
        limit = tolerance.of(dtypes, None if np.isnan(error) else error)
        distance = apart[place]
        if not np.isnan(distance):
            distance *= scale[place]
        is_wrong = bool(distance > limit or (is_bad[place] and not np.isnan(distance)))
        if not is_wrong and is_certain[place] and not np.isnan(distance):
            tolerance.accept(distance)
        allowed.append(limit)
        verdicts.append(is_wrong)
    named = ["step", "phase", "role", "module", "module_call", "name", "op"]
    return ours[named].assign(
        distance=apart, tolerance=allowed, is_wrong=verdicts, is_certain=is_certain
    )


def _has_unknown_layout(side: pd.DataFrame) -> np.ndarray:
    return (side["layout"] == "").to_numpy()


def _is_own_data(side: pd.DataFrame) -> np.ndarray:
    """Return which tensors are of a rank's own part of the data, as under data parallelism."""
    return _has_unknown_layout(side) & side["mesh"].str.startswith(OWN_DATA).to_numpy()


def _fault(
    place: int, ours: pd.DataFrame, theirs: pd.DataFrame, judged: pd.DataFrame, right: Frames
) -> Fault:
    left_row, right_row = ours.iloc[place], theirs.iloc[place]
    agreeing = judged.index[:place][~judged["distance"].iloc[:place].isna()]
    before = theirs.iloc[agreeing[-1]] if len(agreeing) else None
    found = relation(
        left_row,
        right_row,
        judged["tolerance"].iloc[place],
        earlier=_earlier(place, theirs),
        addends=_addends(right_row, theirs.iloc[:place], right),
        axes=_axes(right),
    )
    return Fault(
        _properties(left_row), _properties(right_row), float(judged["distance"].iloc[place]),
        float(judged["tolerance"].iloc[place]), found, _communication(before, right_row, right),
        None if before is None else _properties(before),
        bool(judged["is_certain"].iloc[place]),
    )  # fmt: skip


def _properties(row: pd.Series) -> dict[str, Any]:
    return {name: _plain(row[name]) for name in _PROPERTIES}


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python."""
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
        found.append((f"it is that of {when}", sketches_of(each)))
    return found


def _addends(row: pd.Series, before: pd.DataFrame, right: Frames) -> list[tuple[str, np.ndarray]]:
    """Return sums that lack ranks: of the latest partial sum of the same shape and module."""
    partial = before[before["layout"].str.contains("P(", regex=False)]
    partial = partial[(partial["shape"] == row["shape"]) & (partial["step"] == row["step"])]
    if partial.empty:
        return []
    latest = partial.iloc[-1]
    rows = parts(right)
    for name in ("step", "phase", "role", "module", "module_call", "name", "op", "occurrence"):
        rows = rows[rows[name] == latest[name]]
    rows = rows[rows["counts"]]
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


def _axes(run: Frames) -> dict[str, int]:
    """Return the sizes of the mesh axes and groups of a run, of more than one rank."""
    groups = run.groups
    axes = {
        str(axis) or str(name): int(size)
        for name, axis, size in zip(
            groups["name"], groups["mesh_axis"], groups["size"], strict=True
        )
        if size > 1
    }
    for mesh in parts(run)["mesh"].unique():
        for axis in str(mesh).partition(":")[0].split(","):
            name, _, size = axis.rpartition("=")
            is_named = bool(name) and not name.isdigit() and name not in ("data", "replicas")
            if is_named and size.isascii() and size.isdigit() and int(size[:9]) > 1:
                axes.setdefault(name, int(size))
    return axes


def _communication(
    before: pd.Series | None, wrong: pd.Series, run: Frames
) -> tuple[dict[str, Any], ...]:
    """Return the calls of a rank between the last tensor that agrees and the wrong one."""
    rows = parts(run)
    at = [_time_of(rows, row) for row in (before, wrong)]
    rank = int(rows["rank"].min())
    comm = run.comm
    found = comm[(comm["rank"] == rank) & (comm["issue_ns"] > at[0]) & (comm["issue_ns"] <= at[1])]
    names = ["kind", "group", "reduce_op", "op", "argument", "source_spec", "target_spec", "reason",
             "source_file", "source_line", "parameters"]  # fmt: skip
    axis_of = dict(
        zip(run.groups["name"].astype(str), run.groups["mesh_axis"].astype(str), strict=True)
    )
    return tuple(
        {
            **{name: _plain(each[name]) for name in names},
            "axis": axis_of.get(str(each["group"]), ""),
        }
        for each in found.iloc[-_MOST_COMMUNICATION:].to_dict("records")
    )


def _time_of(rows: pd.DataFrame, row: pd.Series | None) -> int:
    if row is None:
        return -1
    own = rows
    for name in ("step", "phase", "role", "module", "module_call", "name", "op", "occurrence"):
        own = own[own[name] == row[name]]
    first = own[own["rank"] == rows["rank"].min()]
    return int((first if len(first) else own)["at_ns"].min()) if len(own) else -1
