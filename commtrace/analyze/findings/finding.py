"""The `Finding` and `Rule` types, and helpers that rules share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.arrivals import arrivals
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import counted_ns
from commtrace.schema import Column
from commtrace.tracefile import RECORDING, STEPS_FROM
from commtrace.units import counted_mean

COLUMNS = (
    Column("rule", str, "", "name of the rule that found it"),
    Column("title", str, "", "the observation, in a sentence"),
    Column("advice", str, "", "the suggested remedy"),
    Column("module", str, "", "path of the module, if all calls share one"),
    Column("op", str, "", "operator that needed the calls, if they share one", title="Operator"),
    Column("kind", str, "", "all_reduce, all_gather, ..."),
    Column("mesh_axis", str, "", "axis of the DeviceMesh, if all calls share one", title="Axis"),
    Column("source", str, "", "the user's line of the first call"),
    Column("num_calls", float, "", "calls of the finding; mean over ranks", title="Calls"),
    Column("cost_bytes", float, "bytes", "wire bytes that could be saved; mean over ranks"),
    Column("cost_ns", float, "ns", "time that could be saved; mean over ranks"),
    Column(
        "share",
        float,
        "1",
        "cost in steps as a fraction of the steps' time; of the recorded time without steps",
    ),
    Column("evidence", str, "", "the first of these calls, as rank:id, separated by `,`"),
)

MAX_EVIDENCE = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a rule.

    Attributes:
        title: The observation, in a sentence.
        advice: The suggested remedy.
        rows: Labels of the calls in table `comm`.
        cost_bytes: Wire bytes that could be saved, summed over all ranks.
        cost_ns: Time that could be saved, summed over all ranks.
        module: Path of the module; by default, the one that all of the calls share.
    """

    title: str
    advice: str
    rows: pd.Index
    cost_bytes: float
    cost_ns: float
    module: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of avoidable communication.

    Attributes:
        name: Name in tables and settings.
        about: Short description.
        find: Returns the findings of a run.
        lacks: Returns a sentence about data that the rule needs and the trace lacks; "" if none.
    """

    name: str
    about: str
    find: Callable[[Frames], list[Finding]]
    lacks: Callable[[Frames], str]


def lacks_steps(frames: Frames) -> str:
    """Return a sentence if the trace has no steps, neither marked nor detected; else ""."""
    if len(frames.steps) or not len(frames.comm) or (frames.comm["step"] >= 0).any():
        return ""
    if "imported_from" in frames.run:
        return "The trace has no steps."
    return (
        "No steps were marked or detected: no torch optimizer, profiler or LR scheduler stepped "
        "while recording. Call step() on the recording at the end of each step."
    )


def lacks_several_steps(frames: Frames) -> str:
    """Return a sentence if the trace has no steps, or counts the recording as one step; else ""."""
    if len(frames.comm) and frames.run.get(STEPS_FROM) == RECORDING:
        return (
            "The recording counts as one step, since none was marked and no torch optimizer "
            "stepped: "
            "repeated calls may belong to different steps of the program."
        )
    return lacks_steps(frames)


def lacks_layouts(frames: Frames) -> str:
    """Return a sentence if no call recorded its source and target layouts; else ""."""
    if not len(frames.comm) or (frames.comm["source_spec"] != "").any():
        return ""
    return (
        "No call has source and target layouts: only redistributions of dtensor_core and of "
        "torch's DTensor announce them."
    )


def table_row(frames: Frames, rule: Rule, finding: Finding) -> dict[str, object]:
    """Return a finding as a row of the table."""
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
        # The share refers to the time in steps, so the cost outside of steps is left out.
        "share": finding.cost_ns * in_steps / (counted_ns(frames) or float("nan")),
        "evidence": ",".join(f"{r}:{i}" for r, i in zip(few["rank"], few["id"], strict=True)),
    }


def _common(values: pd.Series) -> str:
    """Return the value that all of them share, or "" if they differ."""
    return str(values.iloc[0]) if values.nunique() == 1 else ""


def known(values: pd.Series) -> pd.Series:
    """Return the numbers as floats, unknown ones as 0."""
    return values.clip(lower=0).astype("float64")


def transfer(frames: Frames, rows: pd.DataFrame) -> pd.Series:
    """Return the blocked time of calls without the wait for their peers, where that is known.

    The wait is not counted as a saving: without the call, a late rank would be waited for at the
    next one.
    """
    moved = arrivals(frames).loc[rows.index, "transfer_ns"]
    return known(moved.where(moved >= 0, rows["blocked_ns"]))


def times_each(frames: Frames, num: int) -> str:
    """Format a count over all ranks: `once per rank`, `2 times per rank` or `3 times in all`."""
    mean = num / max(frames.num_ranks, 1)
    return "once per rank" if mean == 1 else _counted(frames, num, "time", " per rank")


def calls_each(frames: Frames, num: int) -> str:
    """Format a number of calls over all ranks as the mean: `12 calls`, or `3 calls in all`."""
    return _counted(frames, num, "call")


_SINGULAR = {"are": "is", "carry": "carries", "send": "sends"}


def calls_that(frames: Frames, num: int, of_what: str, verb: str) -> str:
    """Begin a sentence about calls: `12 calls of send are`, `In all, 1 call of send is`.

    Args:
        frames: The run.
        num: Number of calls over all ranks.
        of_what: Text behind `calls`, with a space before it; may be empty.
        verb: Verb in the plural, a key of `_SINGULAR`.
    """
    calls = calls_each(frames, num)
    number = calls.removesuffix(_IN_ALL)
    start = "In all, " if number != calls else ""
    is_one = number.startswith("1 ")
    return f"{start}{number}{of_what} {_SINGULAR[verb] if is_one else verb}"


_IN_ALL = " in all"


def _counted(frames: Frames, num: int, noun: str, each: str = "") -> str:
    num_ranks = max(frames.num_ranks, 1)
    return counted_mean(num / num_ranks, num_ranks, noun, each)
