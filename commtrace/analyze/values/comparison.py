"""Comparison of two runs of one program: the first tensor that is wrong, and all that differ.

The left run is taken for right. Tensors are paired in its order of time (`alignment`), so that
whatever a tensor was computed from comes before it. The first one whose distance exceeds what
rounding explains (`verdicts`) is where the runs part; its relation to the right one (`faults`),
the layouts of both, the line, and the communication that led to it are its evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.analyze.program_folder import program_folder, relative_to
from commtrace.analyze.values import verdicts
from commtrace.analyze.values.absent_gradients import with_absent_gradients
from commtrace.analyze.values.alignment import aligned, with_first_step
from commtrace.analyze.values.between import REDUCED, communication_before
from commtrace.analyze.values.described_pairs import described
from commtrace.analyze.values.doubts import doubt_of
from commtrace.analyze.values.faults import Relation, relation, sketches_of
from commtrace.analyze.values.first_wrong import first_wrong
from commtrace.analyze.values.global_values import SKETCHES, by_number, parts
from commtrace.analyze.values.gradient_cause import cause_of
from commtrace.analyze.values.in_parts import (
    with_learned_layouts,
    with_lone_ranks,
)
from commtrace.analyze.values.kept_layouts import with_kept_layouts
from commtrace.analyze.values.local_gradients import (
    right_gradients,
    steps_of_other_scales,
    steps_with_right_losses,
)
from commtrace.analyze.values.open_questions import open_questions
from commtrace.analyze.values.own_parts import computed_from_parts
from commtrace.analyze.values.peers import unreduced_before, with_peers
from commtrace.analyze.values.renamed import renamed
from commtrace.analyze.values.tolerance import distances
from commtrace.collective_table import EVERY_RANK_AT_ROOT, needing
from commtrace.errors import UsageError
from commtrace.schema import GRADIENT, STATE, UPDATED

_MOST_EARLIER = 8
_MOST_RANKS = 64
_TO_ROOT = needing(EVERY_RANK_AT_ROOT)
_UNREDUCED = "ranks have parts of a sum that is right, and nothing reduces them"

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
        communication: calls of the right run that led to it, as dictionaries; `count` is the number
            of those that are alike, one after the other.
        before: the last tensor that agrees; None if there is none.
        is_certain: False if there is a doubt.
        doubt: why it may be right, or the fault may be elsewhere; empty if there is no doubt.
        reduction: what a gradient is the sum of, and its factor, as `compared` adds it.
    """

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


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """Result of a comparison.

    Attributes:
        num_left: tensors of the first run.
        num_right: tensors of the second run.
        num_paired: pairs that were compared.
        num_unknown: pairs of which a value is unknown, such as an unreduced maximum.
        num_wrong: pairs whose distance exceeds the tolerance.
        num_doubtful: those of them whose layout is unknown, or that are one of several alike.
        fault: the first of these, without those of unknown layout of which right ones were
            computed; None if the runs agree.
        pairs: step, phase, role, module, name, op, distance, tolerance, is_wrong, is_certain (the
            layout is known, or all ranks should have it), is_sum (partial sums over ranks, which
            are right together), is_ambiguous (one of several alike) and right_on (a rank that has
            it right, if another rank has not; else -1) of each pair, and the columns of
            `described_pairs`.
        has_reference: a reference in float64 decided on the tolerance.
        open_questions: why an agreement does not say that the runs are equal, as sentences.
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
    open_questions: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """True if no tensor is wrong."""
        return self.fault is None

    @property
    def is_conclusive(self) -> bool:
        """True if a tensor is wrong, or if enough was compared to say that none is."""
        return not (self.agrees and self.open_questions)


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
    tables[0] = with_lone_ranks(tables[0])
    tables[1] = with_first_step(*tables)
    tables[1] = with_learned_layouts(tables[0], renamed(*tables))
    tables = [with_absent_gradients(*each) for each in (tables, tables[::-1])]
    pairs = aligned(*tables)
    if pairs.empty:
        raise _nothing_in_common(left, right)
    ours, theirs = (
        table.loc[pairs[side]].rename_axis("tensor").reset_index()
        for table, side in zip(tables, ("left", "right"), strict=True)
    )
    errors = _errors(ours, pairs["left"], tables[0], reference)
    ranks = [run.ranks["rank"].nunique() for run in (left, right)]
    numbers = {ranks[1], ranks[1] / max(1, ranks[0]), *_axes(right).values()}
    is_right_elsewhere = pairs["right_on"] >= 0
    labels = pairs["right"].to_numpy()
    of_parts = partial(computed_from_parts, *tables, labels, run=right)
    is_ambiguous = pairs["is_ambiguous"].to_numpy()
    judged = verdicts.judged(
        ours, theirs, errors, tables, is_right_elsewhere, is_ambiguous, numbers, of_parts
    )
    judged = described(judged, ours, theirs).assign(
        is_ambiguous=pairs["is_ambiguous"], right_on=pairs["right_on"]
    )
    judged["is_certain"] &= ~_may_be_reduced_to_one(judged, right)
    judged["is_certain"] |= _leads_to_a_wrong_module(judged)
    judged = with_kept_layouts(with_peers(judged, ours, theirs), ours, theirs, tables[1])
    wrong = np.flatnonzero(judged["is_wrong"])
    is_doubtful = ~judged["is_certain"] | judged["is_ambiguous"]
    certain = np.flatnonzero(judged["is_wrong"] & ~is_doubtful)
    place = first_wrong(judged, labels, tables[1], left, right)
    if place is not None:
        place = cause_of(place, judged, ours, theirs)
        place = unreduced_before(place, judged, labels, tables[1], right)
    fault = (
        None
        if place is None
        else _fault(place, ours, theirs, judged, left, right, has_reference=reference is not None)
    )
    return ValueComparison(
        len(tables[0]), len(tables[1]), len(pairs), int(judged["distance"].isna().sum()),
        len(wrong), len(wrong) - len(certain), fault, judged, reference is not None,
        tuple(open_questions(left, right, tables, judged, has_reference=reference is not None)),
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
    steps = [set(parts(run)["step"]) for run in (left, right)]
    has_step = bool(steps[0] & steps[1])
    what = "no tensor" if has_step else "no step"
    return UsageError(
        f"cannot compare {left.path or 'the first run'} and {right.path or 'the second run'}",
        found=f"{_contents(left)} in the first run, {_contents(right)} in the second one",
        why=f"{what} of one has a counterpart "
        + ("of its name and global shape in the other" if has_step else "in the other"),
        attempt="record the same model, with steps and inputs that are the same",
    )


def _contents(run: Frames) -> str:
    """Return the modules and steps of a run in words."""
    table = parts(run)
    modules = sorted({str(name) for name in table["module"]} - {""})[:3]
    steps = sorted(set(table["step"]))
    last = f" to {steps[-1]}" if len(steps) > 1 else ""
    return f"modules {', '.join(modules) or 'without names'} in steps {steps[0]}{last}"


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


def _may_be_reduced_to_one(judged: pd.DataFrame, right: Frames) -> np.ndarray:
    """Return which tensors are right on ranks to which the run reduces or gathers something.

    A program that shards its optimizer by hand has each gradient, and each new parameter, on the
    rank alone that owns it.
    """
    rooted = right.comm[right.comm["kind"].isin(_TO_ROOT)]
    return (judged["right_on"] >= 0).to_numpy() & judged["right_on"].isin(rooted["root"]).to_numpy()


def _leads_to_a_wrong_module(judged: pd.DataFrame) -> np.ndarray:
    """Return which results are wrong on some ranks only, as certainly is a tensor of their module.

    Other results may be wrong on some ranks by design, such as the result of a reduction to one.
    """
    is_wrong = judged["is_wrong"] & (judged["right_on"] >= 0)
    of_module = pd.MultiIndex.from_frame(judged[["step", "phase", "module"]])
    return (is_wrong & of_module.isin(of_module[is_wrong & judged["is_certain"]])).to_numpy()


def _fault(
    place: int,
    ours: pd.DataFrame,
    theirs: pd.DataFrame,
    judged: pd.DataFrame,
    left: Frames,
    right: Frames,
    *,
    has_reference: bool,
) -> Fault:
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
        axes=_axes(right) if right_on < 0 else {},
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
    agreed = theirs.iloc[agreeing].set_index("tensor")
    communication = communication_before(agreed, right_row, right)
    is_right_so_far = _is_right_so_far(place, judged, found, agreed, right_gradients(left, right))
    of_doubt = () if is_right_so_far else communication
    doubt = doubt_of(
        judged.iloc[: place + 1],
        found,
        of_doubt,
        has_reference=has_reference,
        right_losses=steps_with_right_losses(left, right),
        other_scales=steps_of_other_scales(left, right),
    )
    folder = program_folder(right)
    communication = tuple([_with_short_name(call, folder) for call in communication])
    return Fault(
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
    """Return whether what a wrong tensor was computed from is right.

    So are the parts of a sum that is right, and what they were computed from; what came before a
    rank's own gradient that is right, or one that only has another scale, which no sum of ranks
    explains; and before an optimizer's step, a right gradient, or a rank that makes the right one.

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


def _incomplete_sums(
    row: pd.Series, before: pd.DataFrame, right: Frames
) -> list[tuple[str, np.ndarray]]:
    """Return the sums of the latest partial sums of the same shape without those of some ranks."""
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
