"""Comparison of two runs of the same program: the first wrong tensor, and all that differ.

The left run is taken to be right. Tensors are paired in its order of time (`alignment`), so that
whatever a tensor was computed from comes before it. The runs diverge at the first tensor whose
distance exceeds what rounding explains (`verdicts`). Its relation to the right one (`faults`), the
layouts of both, the line, and the communication that led to it are the evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values import verdicts
from commtrace.analyze.values.absent_gradients import with_absent_gradients
from commtrace.analyze.values.alignment import aligned, with_first_step
from commtrace.analyze.values.axes import sizes_of_axes
from commtrace.analyze.values.described_pairs import described
from commtrace.analyze.values.first_fault import Fault, described_fault
from commtrace.analyze.values.first_wrong import first_wrong
from commtrace.analyze.values.global_values import by_number, parts
from commtrace.analyze.values.gradient_cause import cause_of
from commtrace.analyze.values.in_parts import with_learned_layouts, with_lone_ranks
from commtrace.analyze.values.kept_layouts import with_kept_layouts
from commtrace.analyze.values.local_gradients import own_gradients
from commtrace.analyze.values.open_questions import open_questions
from commtrace.analyze.values.own_parts import computed_from_parts
from commtrace.analyze.values.peers import unreduced_before, with_peers
from commtrace.analyze.values.renamed import renamed
from commtrace.analyze.values.tolerance import distances
from commtrace.collective_table import EVERY_RANK_AT_ROOT, needing
from commtrace.errors import UsageError
from commtrace.schema import OUTPUT

_TO_ROOT = needing(EVERY_RANK_AT_ROOT)


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """Result of a comparison.

    Attributes:
        num_left: tensors of the first run.
        num_right: tensors of the second run.
        num_paired: pairs that were compared.
        num_unknown: pairs with an unknown value, such as an unreduced maximum.
        num_wrong: pairs whose distance exceeds the tolerance.
        num_doubtful: wrong pairs whose layout is unknown, or that are among several alike.
        fault: the first wrong pair, ignoring tensors of unknown layout from which right tensors
            were computed; None if the runs agree.
        pairs: step, phase, role, module, name, op, distance, tolerance, is_wrong, is_certain (the
            layout is known, or all ranks should have it), is_sum (partial sums over ranks, which
            are right together), is_ambiguous (among several alike) and right_on (a rank that has
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
    """Compare the tensors of two runs of the same program.

    Args:
        left: the run that is taken to be right, such as a run on a single device.
        right: the other run, in any layout.
        reference: the left run in float64, which decides how large rounding errors are.

    Raises:
        UsageError: a run has no values, or nothing in them can be paired.
    """
    tables = [_table_of(run, name) for run, name in ((left, "first"), (right, "second"))]
    tables[0] = with_lone_ranks(tables[0])
    tables[1] = with_first_step(*tables)
    tables[1] = with_learned_layouts(tables[0], renamed(*tables))
    tables = [
        with_absent_gradients(*each, run) for each, run in ((tables, left), (tables[::-1], right))
    ]
    pairs = aligned(*tables)
    if pairs.empty:
        raise _nothing_in_common(left, right)
    ours, theirs = (
        table.loc[pairs[side]].rename_axis("tensor").reset_index()
        for table, side in zip(tables, ("left", "right"), strict=True)
    )
    errors = _errors(ours, pairs["left"], tables[0], reference)
    ranks = [run.ranks["rank"].nunique() for run in (left, right)]
    numbers = {ranks[1], ranks[1] / max(1, ranks[0]), *sizes_of_axes(right).values()}
    numbers |= _numbers_of_calls(tables[1])
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
    gradients = own_gradients(left, right)
    place = first_wrong(judged, labels, tables[1], gradients, right)
    if place is not None:
        place = cause_of(place, judged, ours, theirs)
        place = unreduced_before(place, judged, labels, tables[1], right)
    fault = (
        None
        if place is None
        else described_fault(
            place,
            ours,
            theirs,
            judged,
            tables[1],
            (left, right),
            gradients,
            has_reference=reference is not None,
        )
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
        found=f"{_contents(left)} in the first run, {_contents(right)} in the second",
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


def _numbers_of_calls(table: pd.DataFrame) -> set[float]:
    """Return how often modules are called in a step, such as for each micro-batch."""
    outputs = table[(table["role"] == OUTPUT) & (table["step"] >= 0)]
    calls = outputs.groupby(["step", "module", "rank"])["module_call"].nunique()
    return {float(each) for each in calls.unique()}


def _may_be_reduced_to_one(judged: pd.DataFrame, right: Frames) -> np.ndarray:
    """Return which tensors are right on ranks to which the run reduces or gathers something.

    A program that shards its optimizer by hand has each gradient, and each new parameter, on the
    rank alone that owns it.
    """
    rooted = right.comm[right.comm["kind"].isin(_TO_ROOT)]
    return (judged["right_on"] >= 0).to_numpy() & judged["right_on"].isin(rooted["root"]).to_numpy()


def _leads_to_a_wrong_module(judged: pd.DataFrame) -> np.ndarray:
    """Return which results are wrong on some ranks only, as certainly is a tensor of their module.

    Other results may be wrong on some ranks by design, as after a reduction to a single rank.
    """
    is_wrong = judged["is_wrong"] & (judged["right_on"] >= 0)
    of_module = pd.MultiIndex.from_frame(judged[["step", "phase", "module"]])
    return (is_wrong & of_module.isin(of_module[is_wrong & judged["is_certain"]])).to_numpy()
