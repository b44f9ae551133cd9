"""Changes between two runs, by module, operator, kind, group and phase.

Numbers are means over each run's ranks. If both runs mark steps, calls in steps are counted per
step (`scope` "step"), so that runs of different length can be compared; all other calls are counted
over the run (`scope` "run"). Times per step leave out the steps that are not steady.

A group is identified by its mesh axis, or by its name if it has none. An unknown size or time is
nan, and so is its change. If a sum covers different parts of a place's calls in the two runs, its
change is also unknown: otherwise, values that only one run knows would appear as growth.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from commtrace.analyze.measures.census import census
from commtrace.analyze.measures.measures import summed, with_group_facts
from commtrace.analyze.measures.steady_steps import is_counted, left_out_text
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.frame import Frames
from commtrace.schema import Column
from commtrace.tracefile import EVERY, REPLAYED
from commtrace.units import counted, ordinal

KEYS = ("scope", "module", "op", "kind", "group", "phase")
MEASURED = {"calls": "", "payload_bytes": "bytes", "wire_bytes": "bytes", "blocked_ns": "ns"}
KNOWN = {name: f"known_{name}" for name in MEASURED if name != "calls"}
"""Columns with the number of calls whose measure is known, in the same unit as `calls`."""
_ROUNDING = 1e-9
"""Most by which equal means over ranks and steps differ, which are not exact."""
METRICS = {"calls": "calls", "bytes": "wire_bytes", "time": "blocked_ns"}
"""Metrics that can be checked for an increase, and the measure that each refers to."""

ADDED, REMOVED, CHANGED, SAME = "added", "removed", "changed", "same"
_ORDER = (ADDED, REMOVED, CHANGED, SAME)

COLUMNS = (
    Column("change", str, "", "added, removed, changed (in calls or bytes) or same"),
    Column("scope", str, "", "step: per step; run: over the entire run"),
    Column("module", str, "", "path of the module"),
    Column("op", str, "", "operator that needed the calls", title="Operator"),
    Column("kind", str, "", "all_reduce, all_gather, ..."),
    Column("group", str, "", "mesh axis, or name of the group"),
    Column("phase", str, "", "forward, backward, recompute, optimizer or other"),
    *(
        Column(
            f"{name}_{when}", float, unit, f"{name.partition('_')[0]} {meaning}; mean over ranks"
        )
        for name, unit in MEASURED.items()
        for when, meaning in (
            ("before", "in the first run"),
            ("after", "in the second run"),
            ("change", "second minus first"),
        )
    ),
)


def diff(before: Frames, after: Frames) -> pd.DataFrame:
    """Return a row per place that communicates in either run.

    Added places come first, then removed, changed and unchanged places.
    """
    (table,) = compare_all((before, after))
    return table


def compare_all(runs: Sequence[Frames]) -> list[pd.DataFrame]:
    """Return `diff` of the first run and each later run, all normalized in the same way."""
    per_step = in_steps_of_all(runs)
    first, *others = (per_rank(frames, KEYS[1:], per_step) for frames in runs)
    return [compare(first, each) for each in others]


def in_steps_of_all(runs: Sequence[Frames]) -> bool:
    """Return whether all runs mark steps, so that what happens in them is counted per step."""
    return all(len(frames.steps) for frames in runs)


def compare(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return `diff` of two runs' measures (columns `MEASURED`) by place (index `KEYS`).

    Both may have columns of `KNOWN`; without them, a value covers all calls of its place.
    """
    table = first.add_suffix("_before").join(second.add_suffix("_after"), how="outer")
    is_old = table["calls_before"].notna()
    is_new = table["calls_after"].notna()
    for present, when in ((is_old, "before"), (is_new, "after")):
        table.loc[~present, [f"{name}_{when}" for name in MEASURED]] = 0.0
    for name in MEASURED:
        change = table[f"{name}_after"] - table[f"{name}_before"]
        table[f"{name}_change"] = change.where(_is_comparable(table, name))
    differs = table[["calls_change", "payload_bytes_change", "wire_bytes_change"]].abs().max(axis=1)
    table["change"] = SAME
    table.loc[differs > _ROUNDING, "change"] = CHANGED
    table.loc[~is_old, "change"] = ADDED
    table.loc[~is_new, "change"] = REMOVED
    table = table.reset_index()
    table["order"] = table["change"].map(_ORDER.index)
    table["by"] = -table["wire_bytes_change"].abs()
    return typed(table.sort_values(["order", "by", *KEYS]), COLUMNS)


def _is_comparable(table: pd.DataFrame, name: str) -> pd.Series:
    """Return a mask of the places where both runs know the measure for an equal part of calls.

    A place at which a run does not communicate is known entirely.
    """
    if name not in KNOWN or f"{KNOWN[name]}_after" not in table:
        return pd.Series(True, index=table.index)
    parts = (known_part(table, name, f"_{when}") for when in ("before", "after"))
    before, after = parts
    return (before - after).abs() <= _ROUNDING


def known_part(sums: pd.DataFrame, name: str, suffix: str = "") -> pd.Series:
    """Return the fraction of each place's calls for which a measure in `KNOWN` is known."""
    calls, known = sums[f"calls{suffix}"], sums[f"{KNOWN[name]}{suffix}"]
    return (known / calls.where(calls > 0)).fillna(1.0)


def per_rank(frames: Frames, by: Sequence[str], per_step: bool) -> pd.DataFrame:
    """Return the measures of a rank, by scope and `by`: `MEASURED` and `KNOWN`.

    Args:
        frames: The run.
        by: Columns of table `comm` to group by, besides `scope`; `group` as `KEYS` has it.
        per_step: Count calls within steps per step (`scope` "step"), not over the run.
    """
    steps = frames.steps["step"]
    num_steps = max(int(steps.nunique()), 1)
    # Only steady steps have times.
    longer = num_steps / max(int(steps[is_counted(frames, steps)].nunique()), 1)
    weight = 1.0 / max(frames.num_ranks, 1)
    return summed(frames.by_ranks(_of_part, tuple(by), per_step, num_steps, longer, weight))


def _of_part(
    part: Frames,
    by: tuple[str, ...],
    per_step: bool,
    num_steps: int,
    longer: float,
    weight_of_call: float,
) -> pd.DataFrame:
    comm = part.comm
    in_step = (comm["step"] >= 0) & per_step
    weight = weight_of_call / in_step.map({True: num_steps, False: 1})
    keys = [in_step.map({True: "step", False: "run"}).astype(object).rename("scope")]
    keys += [
        _names_of_groups(part) if name == "group" else comm[name].astype(object) for name in by
    ]
    of_time = weight.where(~in_step, longer * weight).where(
        ~in_step | is_counted(part, comm["step"]), 0.0
    )
    sums = pd.DataFrame({"calls": weight})
    for name, known in KNOWN.items():
        is_known = comm[name] >= 0
        each = of_time if MEASURED[name] == "ns" else weight
        sums[name] = comm[name].astype("float64").where(is_known) * each
        sums[known] = weight.where(is_known, 0.0)
    return sums.groupby(keys).sum(min_count=1)


def _names_of_groups(part: Frames) -> pd.Series:
    """Return the mesh axis of each call's group, or the group's name if it has none."""
    comm = with_group_facts(part, ["group"])
    axis = comm["mesh_axis"].astype(object)
    return axis.where(axis != "", comm["group"].astype(object)).rename("group")


def increases(
    table: pd.DataFrame, metric: str, tolerance: float = 0.0
) -> dict[str, tuple[float, float]]:
    """Return, by scope, the sums before and after of a metric that grew.

    Places whose change is unknown are left out of both sums.

    Args:
        table: A table of `diff`.
        metric: A key of `METRICS`.
        tolerance: Growth that is accepted, as a fraction of the value before.
    """
    measure = METRICS[metric]
    known = table[table[f"{measure}_change"].notna()]
    sums = known.groupby("scope")[[f"{measure}_before", f"{measure}_after"]].sum(min_count=1)
    return {
        str(scope): (before, after)
        for scope, before, after in sums.itertuples()
        if after > before * (1 + tolerance) + _ROUNDING
    }


def differences_of_runs(*runs: Frames) -> list[str]:
    """Return sentences about properties that make the runs hard to compare."""
    notes = []
    sizes = [str(frames.num_ranks) for frames in runs]
    if len(set(sizes)) > 1:
        notes.append(
            f"The runs have {', '.join(sizes[:-1])} and {sizes[-1]} ranks: numbers are means over "
            "each run's ranks, and the bytes sent per rank depend on the number of ranks."
        )
    marked = [bool(len(frames.steps)) for frames in runs]
    if len(set(marked)) > 1:
        which = "Only one of the runs marks" if sum(marked) == 1 else "Only some of the runs mark"
        notes.append(f"{which} steps, so numbers are over the entire runs.")
    for number, frames in enumerate(runs):
        name = _ORDINALS[number] if number < len(_ORDINALS) else f"{number + 1}th"
        if REPLAYED in frames.run:
            notes.append(f"The {name} run is replayed, not recorded: {frames.run[REPLAYED]}.")
        if all(marked) and (left_out := left_out_text(frames)):
            notes.append(f"Times of the {name} run are per steady step, {left_out}.")
        if EVERY in frames.run:
            which = ordinal(frames.run[EVERY])
            notes.append(f"Of the {name} run, only every {which} step was recorded.")
        dropped = int(frames.ranks["num_dropped"].clip(lower=0).sum())
        if dropped:
            notes.append(f"The {name} run has lost {dropped} calls: its numbers are too low.")
        notes += [
            _note_of_unknown(frames.num_calls, num, name, meaning)
            for column, meaning in _NOT_KNOWN.items()
            if (num := frames.num_calls - census(frames).known[column])
        ]
    return notes


def _note_of_unknown(num_calls: int, num: int, name: str, meaning: str) -> str:
    if num == num_calls:
        return f"The {name} run lacks {meaning} of all calls: not compared."
    return (
        f"The {name} run lacks {meaning} of {num:,} of {counted(num_calls, 'call')}: places where "
        "another run has more or fewer known values are not compared."
    )


_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_NOT_KNOWN = {"wire_bytes": "the bytes sent", "blocked_ns": "the blocked time"}


def _self_comparison(frames: Frames) -> pd.DataFrame:
    """Compare a run with itself, so that the catalog can treat a difference like an analysis."""
    return diff(frames, frames)


DIFF = Analysis(
    "diff",
    "Difference",
    "What changed from the first run to the second?",
    _self_comparison,
    COLUMNS,
)
