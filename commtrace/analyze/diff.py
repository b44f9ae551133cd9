"""What changed from one run to another, by module, operator, kind, group and phase.

Numbers are what one rank does: means over each run's ranks. Where both runs mark steps, what
happens in steps is counted per step (`scope` "step"), so that runs of different length compare;
everything else is counted over the run (`scope` "run"). A group goes by its mesh axis, and by its
name where it has none. Sizes and times that a run does not know count nothing.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.analysis import Analysis, typed
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import with_group_facts
from commtrace.schema import Column

KEYS = ("scope", "module", "op", "kind", "group", "phase")
MEASURED = {"calls": "", "payload_bytes": "bytes", "wire_bytes": "bytes", "blocked_ns": "ns"}
METRICS = {"calls": "calls", "bytes": "wire_bytes", "time": "blocked_ns"}
"""What an increase can be looked for in, and the measure that it is of."""

ADDED, REMOVED, CHANGED, SAME = "added", "removed", "changed", "same"
_ORDER = (ADDED, REMOVED, CHANGED, SAME)

COLUMNS = (
    Column("change", str, "", "added, removed, changed (in calls or bytes) or same"),
    Column("scope", str, "", "step: per step; run: over the whole run"),
    Column("module", str, "", "path of the module"),
    Column("op", str, "", "operator that needed it"),
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
            ("change", "second less first"),
        )
    ),
)


def diff(before: Frames, after: Frames) -> pd.DataFrame:
    """One row per place that communicates in either run: added, removed, changed, then the same."""
    per_step = bool(len(before.steps)) and bool(len(after.steps))
    return compare(*(_sums(frames, per_step) for frames in (before, after)))


def compare(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """`diff` of two runs' measures (columns `MEASURED`) by place (index `KEYS`)."""
    table = first.add_suffix("_before").join(second.add_suffix("_after"), how="outer")
    is_old = table["calls_before"].notna()
    is_new = table["calls_after"].notna()
    table = table.fillna(0.0)
    for name in MEASURED:
        table[f"{name}_change"] = table[f"{name}_after"] - table[f"{name}_before"]
    differs = table[["calls_change", "payload_bytes_change", "wire_bytes_change"]].abs().max(axis=1)
    table["change"] = SAME
    table.loc[differs > 1e-9, "change"] = CHANGED
    table.loc[~is_old, "change"] = ADDED
    table.loc[~is_new, "change"] = REMOVED
    table = table.reset_index()
    table["order"] = table["change"].map(_ORDER.index)
    table["by"] = -table["wire_bytes_change"].abs()
    return typed(table.sort_values(["order", "by", *KEYS]), COLUMNS)


def _sums(frames: Frames, per_step: bool) -> pd.DataFrame:
    comm = with_group_facts(frames).comm
    in_step = (comm["step"] >= 0) & per_step
    num_steps = max(frames.steps["step"].nunique(), 1)
    weight = (1.0 / max(frames.num_ranks, 1)) / in_step.map({True: num_steps, False: 1})
    axis = comm["mesh_axis"].astype(object)
    keys = {name: comm[name].astype(object) for name in ("module", "op", "kind", "phase")}
    keys["scope"] = in_step.map({True: "step", False: "run"}).astype(object)
    keys["group"] = axis.where(axis != "", comm["group"].astype(object))
    sums = pd.DataFrame({"calls": weight})
    for name in ("payload_bytes", "wire_bytes", "blocked_ns"):
        sums[name] = comm[name].clip(lower=0) * weight
    return sums.groupby([keys[name].rename(name) for name in KEYS]).sum()


def increases(
    table: pd.DataFrame, metric: str, tolerance: float = 0.0
) -> dict[str, tuple[float, float]]:
    """By scope, the sums before and after of a metric that grew by more than a part of itself."""
    measure = METRICS[metric]
    sums = table.groupby("scope")[[f"{measure}_before", f"{measure}_after"]].sum()
    return {
        str(scope): (before, after)
        for scope, before, after in sums.itertuples()
        if after > before * (1 + tolerance) + 1e-9
    }


def differences_of_runs(before: Frames, after: Frames) -> list[str]:
    """Sentences on what makes the two runs hard to compare."""
    told = []
    if before.num_ranks != after.num_ranks:
        told.append(
            f"The runs have {before.num_ranks} and {after.num_ranks} ranks: what one rank sends "
            "depends on their number."
        )
    if bool(len(before.steps)) != bool(len(after.steps)):
        told.append("Only one of the runs marks steps, so numbers are of the whole runs.")
    for frames, name in ((before, "first"), (after, "second")):
        dropped = int(frames.ranks["num_dropped"].clip(lower=0).sum())
        if dropped:
            told.append(f"The {name} run has lost {dropped} calls: its numbers are too low.")
    return told


def _itself(frames: Frames) -> pd.DataFrame:
    """A run compared with itself: what an analysis of one run can say."""
    return diff(frames, frames)


DIFF = Analysis(
    "diff",
    "Difference",
    "What changed from the first run to the second?",
    _itself,
    COLUMNS,
)
