"""One thing that could be better: what it is, how it is known, what it costs and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.arrivals import arrivals
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import counted_ns
from commtrace.schema import Column
from commtrace.tracefile import RECORDING, STEPS_FROM

COLUMNS = (
    Column("rule", str, "", "name of the rule that found it"),
    Column("title", str, "", "what was found, in a sentence"),
    Column("advice", str, "", "what to do about it"),
    Column("module", str, "", "path of the module, where it is one"),
    Column("op", str, "", "operator that needed it, where it is one"),
    Column("kind", str, "", "all_reduce, all_gather, ..."),
    Column("mesh_axis", str, "", "axis of the DeviceMesh, where it is one"),
    Column("source", str, "", "the user's line of the first call"),
    Column("num_calls", float, "", "calls that it is about; mean over ranks"),
    Column("cost_bytes", float, "bytes", "wire bytes that could be saved; mean over ranks"),
    Column("cost_ns", float, "ns", "time that could be saved; mean over ranks"),
    Column(
        "share",
        float,
        "1",
        "the part of it in steps, of the steps' time; where none are marked, of the recorded time",
    ),
    Column("evidence", str, "", "the first of these calls, as rank:id, by `,`"),
)

MAX_EVIDENCE = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; `rows` are labels of table `comm`, costs are sums over all ranks."""

    title: str
    advice: str
    rows: pd.Index
    cost_bytes: float
    cost_ns: float
    module: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """`find` looks; `lacks` says in a sentence what a trace would need for it, "" if it has it."""

    name: str
    about: str
    find: Callable[[Frames], list[Finding]]
    lacks: Callable[[Frames], str]


def lacks_steps(frames: Frames) -> str:
    """The lack of a rule about steps in a trace in which none were marked, nor found."""
    if len(frames.steps) or not len(frames.comm) or (frames.comm["step"] >= 0).any():
        return ""
    if "imported_from" in frames.run:
        return "The trace has no steps."
    return (
        "No steps were marked, and none were found: no optimizer of torch, no profiler and no LR "
        "scheduler stepped while recording. Call step() on the recording at the end of each step."
    )


def lacks_several_steps(frames: Frames) -> str:
    """The same, where a recording that marks no step does not do for one either."""
    if len(frames.comm) and frames.run.get(STEPS_FROM) == RECORDING:
        return (
            "The recording counts as one step, for none was marked and no optimizer of torch "
            "stepped: what comes again in it may be in another step of the program."
        )
    return lacks_steps(frames)


def lacks_layouts(frames: Frames) -> str:
    """Whether any call says between which layouts it goes."""
    if not len(frames.comm) or (frames.comm["source_spec"] != "").any():
        return ""
    return (
        "No call says between which layouts it goes: only redistributions of dtensor_core and of "
        "torch's DTensor announce that. What becomes of a result is known by the next call only."
    )


def table_row(frames: Frames, rule: Rule, finding: Finding) -> dict[str, object]:
    """A finding as a row of the table."""
    num_ranks = max(frames.num_ranks, 1)
    rows = frames.comm.loc[finding.rows].sort_values(["id", "rank"])
    first = rows.iloc[0]
    in_steps = (rows["step"] >= 0).mean() if len(frames.steps) else 1.0
    axes = dict(zip(frames.groups["name"], frames.groups["mesh_axis"], strict=True))
    place = f"{first['source_file']}:{first['source_line']}" if first["source_file"] else ""
    few = rows.head(MAX_EVIDENCE)
    return {
        "rule": rule.name,
        "title": finding.title,
        "advice": finding.advice,
        "module": finding.module or _common(rows["module"]),
        "op": _common(rows["op"]),
        "kind": _common(rows["kind"]),
        "mesh_axis": _common(rows["group"].astype(object).map(axes).fillna("")),
        "source": place,
        "num_calls": len(rows) / num_ranks,
        "cost_bytes": finding.cost_bytes / num_ranks,
        "cost_ns": finding.cost_ns / num_ranks,
        "share": finding.cost_ns * in_steps / (counted_ns(frames) or float("nan")),
        "evidence": ",".join(f"{r}:{i}" for r, i in zip(few["rank"], few["id"], strict=True)),
    }


def _common(values: pd.Series) -> str:
    """The value of all of them, else nothing."""
    return str(values.iloc[0]) if values.nunique() == 1 else ""


def known(values: pd.Series) -> pd.Series:
    """Numbers, of which those that are not known count nothing."""
    return values.clip(lower=0).astype("float64")


def transfer(frames: Frames, rows: pd.DataFrame) -> pd.Series:
    """How long calls block, but for the time before their peers come, where that is known.

    Without the call, who is late is waited for at the next one.
    """
    moved = arrivals(frames).loc[rows.index, "transfer_ns"]
    return known(moved.where(moved >= 0, rows["blocked_ns"]))


def per_rank(frames: Frames, num: float) -> str:
    """A count over all ranks as one rank has it: `12` or `0.5`."""
    each = num / max(frames.num_ranks, 1)
    return f"{each:,.0f}" if each == round(each) else f"{each:,.2f}"
