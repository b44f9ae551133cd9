"""The `Finding` and `Rule` types, and helpers that rules share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from commtrace.analyze.findings.call_set import CallSet
from commtrace.analyze.findings.needs import Need
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.measures.measures import counted_ns
from commtrace.analyze.measures.steady_steps import is_counted, is_steady
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.analyze.run.program_folder import relative
from commtrace.schema import Column
from commtrace.units import counted_mean, known_note, text_of_bytes, text_of_duration

COLUMNS = (
    Column("rule", str, "", "name of the rule that found it"),
    Column(
        "concerns",
        str,
        "",
        "fault of the program, program, or machine: they come in this order, and a fault has no "
        "saving",
    ),
    Column("title", str, "", "the observation, in a sentence"),
    Column("advice", str, "", "the suggested remedy"),
    Column("module", str, "", "path of the module that all calls share, if any"),
    Column("op", str, "", "operator that needed all of the calls, if any", title="Operator"),
    Column("kind", str, "", "all_reduce, all_gather, ..."),
    Column(
        "mesh_axis", str, "", "axis of the DeviceMesh that all calls share, if any", title="Axis"
    ),
    Column("source", str, "", "the user's line of the first call"),
    Column("num_calls", float, "", "calls of the finding; mean over ranks", title="Calls"),
    Column(
        "num_untimed",
        float,
        "",
        "calls of unknown blocked time, which the time omits; mean over ranks",
        title="Not timed",
    ),
    Column(
        "cost_bytes",
        float,
        "bytes",
        "wire bytes that could be saved, without steps that are left out; mean over ranks; nan "
        "unknown",
    ),
    Column(
        "cost_ns",
        float,
        "ns",
        "time that could be saved, without steps that are left out, except for stalls; mean over "
        "ranks; nan unknown",
    ),
    Column(
        "share",
        float,
        "1",
        "cost in steps as a fraction of the steps' time; of the recorded time without steps",
    ),
    Column("evidence", str, "", "the first of these calls, as rank:id, separated by `,`"),
)

MAX_EVIDENCE = 20

FAULT, PROGRAM, MACHINE = "fault", "program", "machine"
"""Concerns of findings, in their order."""


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Return findings in order: by concern, then the largest cost in time."""
    place = table["concerns"].map([FAULT, PROGRAM, MACHINE].index)
    by = {"place": True, "cost_ns": False, "cost_bytes": False, "rule": True, "title": True}
    ordered = table.assign(place=place).sort_values([*by], ascending=[*by.values()])
    return ordered.drop(columns="place").reset_index(drop=True)


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Calls of a finding, or its calls in a part of the run.

    Attributes:
        rows: Their labels in table `comm`.
        num_untimed: Number of calls of unknown blocked time.
        num_in_steps: Number of calls in steady steps.
        num_counted: Number of calls in steady steps or outside of steps, which costs refer to.
        shared: Columns in which all have the same value, with that value.
        first: The first of them by id and rank, `MAX_EVIDENCE` at most.
        payload_bytes: Sum of their payload, as far as it is known.
        cost_bytes: Wire bytes that could be saved, summed over the calls; nan if unknown.
        cost_ns: Time that could be saved, summed over the calls; nan if unknown.
        share: Sum over the calls of a share that the rule computes for each.
        waiting: The calls in which ranks were blocked for the time that could be saved: these
            calls, or the calls of the ranks that waited for them.
    """

    rows: CallSet
    num_untimed: int
    num_in_steps: int
    num_counted: int
    shared: Mapping[str, str]
    first: pd.DataFrame
    waiting: CallSet
    payload_bytes: float = 0.0
    cost_bytes: float = 0.0
    cost_ns: float = 0.0
    share: float = 0.0

    @property
    def place(self) -> str:
        """The user's line of the first call, `train.py:12`; empty if unknown."""
        first = self.first.iloc[0]
        return f"{first['source_file']}:{first['source_line']}" if first["source_file"] else ""

    @property
    def at_place(self) -> str:
        """The same for a sentence: `, at train.py:12`; empty if unknown."""
        return f", at {self.place}" if self.place else ""

    def joined(self, other: Evidence) -> Evidence:
        """Return the calls of both."""
        both = [dict(each.shared) for each in (self, other) if len(each.rows)]
        shared = dict(both[0].items() & both[-1].items()) if both else {}
        return Evidence(
            rows=self.rows.joined(other.rows),
            num_untimed=self.num_untimed + other.num_untimed,
            num_in_steps=self.num_in_steps + other.num_in_steps,
            num_counted=self.num_counted + other.num_counted,
            shared=shared,
            first=_first(pd.concat([self.first, other.first])),
            payload_bytes=self.payload_bytes + other.payload_bytes,
            cost_bytes=_sum(self.cost_bytes, other.cost_bytes),
            cost_ns=_sum(self.cost_ns, other.cost_ns),
            share=self.share + other.share,
            waiting=self.waiting.joined(other.waiting),
        )


def calls_in(
    frames: Frames,
    rows: pd.DataFrame,
    waiting: pd.Index | None = None,
    *,
    part: Any = 1.0,
    cost_bytes: float | None = None,
    cost_ns: pd.Series | float | None = None,
    share: float = 0.0,
) -> Evidence:
    """Return rows of table `comm` as the calls of a finding.

    Costs leave out the steps that are not steady. The table of findings caps the time: see
    `findings.savings`.

    Args:
        frames: The run, or the part of it that has the rows.
        rows: The rows.
        waiting: Labels of the calls in which ranks were blocked for the time; by default, `rows`
            without those in steps that are not steady.
        part: Part of each call that could be saved, a number or a series.
        cost_bytes: Bytes that could be saved; by default, that part of the calls' wire bytes.
        cost_ns: Time that could be saved, of each call or in sum; by default, that part of the time
            of their transfer.
        share: A share of the rule's own.
    """
    values = rows[["module", "op", "kind"]].assign(mesh_axis=mesh_axes(frames, rows["group"]))
    shared = {name: str(values[name].iloc[0]) for name in values if values[name].nunique() == 1}
    counted = is_counted(frames, rows["step"])
    if cost_bytes is None:
        known = rows["wire_bytes"].where(rows["wire_bytes"] >= 0).astype("float64")
        cost_bytes = float((known * part)[counted].sum(min_count=1))
    each = transfer(frames, rows) * part if cost_ns is None else cost_ns
    if isinstance(each, pd.Series):
        each = float(each[rows.index][counted].sum(min_count=1))
    return Evidence(
        rows=CallSet.of(rows.index),
        num_untimed=int((rows["blocked_ns"] < 0).sum()),
        num_in_steps=int(is_steady(frames, rows["step"]).sum()),
        num_counted=int(counted.sum()),
        shared=shared,
        first=_first(rows[_OF_FIRST].astype(dict.fromkeys(["source_file"], object))),
        payload_bytes=float(rows["payload_bytes"].clip(lower=0).astype("float64").sum()),
        waiting=CallSet.of(rows.index[counted] if waiting is None else waiting),
        cost_bytes=cost_bytes,
        cost_ns=each,
        share=share,
    )


_OF_FIRST = ["rank", "id", "source_file", "source_line"]


def _first(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values(["id", "rank"]).head(MAX_EVIDENCE)


def _sum(cost: float, other: float) -> float:
    """Return the sum of two costs; an unknown cost is left out."""
    known = [each for each in (cost, other) if not math.isnan(each)]
    return sum(known) if known else math.nan


Selected = dict[Any, Evidence]
"""Calls that a rule selects, by what they have in common."""


def selected(frames: Frames, select: Callable[[Frames], Selected]) -> list[tuple[Any, Evidence]]:
    """Return the calls that a rule selects, by what they have in common, in its order.

    Args:
        frames: The run.
        select: Selects calls of a part with all rows of some ranks.
    """
    found: Selected = {}
    for part in frames.by_ranks(select):
        for key, calls in part.items():
            found[key] = found[key].joined(calls) if key in found else calls
    return sorted(found.items(), key=lambda item: item[0])


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of a rule.

    Attributes:
        title: The observation, in a sentence.
        advice: The suggested remedy.
        calls: The calls, with the costs over all ranks.
        module: Path of the module; by default, the module that all calls share.
    """

    title: str
    advice: str
    calls: Evidence
    module: str = ""

    @property
    def rows(self) -> CallSet:
        """Labels of the calls in table `comm`."""
        return self.calls.rows


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of avoidable communication.

    Attributes:
        name: Name in tables and settings.
        about: Short description.
        find: Returns the findings of a run.
        needs: Data without which the rule is not evaluated.
        concerns: The subject of its findings: a fault of the program, where nothing could be saved;
            a part of the program; or the machine that it ran on.
    """

    name: str
    about: str
    find: Callable[[Frames], list[Finding]]
    needs: tuple[Need, ...]
    concerns: str = PROGRAM

    def lacks(self, frames: Frames) -> str:
        """Return a sentence about the first of its needs that the trace lacks; "" if none."""
        if not frames.num_calls:
            return ""
        return next(filter(None, (need.lacks(frames) for need in self.needs)), "")


def table_row(frames: Frames, rule: Rule, finding: Finding) -> dict[str, object]:
    """Return a finding as a row of the table."""
    num_ranks = max(frames.num_ranks, 1)
    calls, num_calls = finding.calls, len(finding.rows)
    shared = calls.shared
    in_steps = calls.num_in_steps / max(calls.num_counted, 1) if len(frames.steps) else 1.0
    cost_bytes, cost_ns = (
        0.0 if rule.concerns == FAULT or (math.isnan(cost) and not calls.num_counted) else cost
        for cost in (calls.cost_bytes, calls.cost_ns)
    )
    return {
        "rule": rule.name,
        "concerns": rule.concerns,
        "title": finding.title,
        "advice": finding.advice,
        "module": finding.module or shared.get("module", ""),
        "op": shared.get("op", ""),
        "kind": shared.get("kind", ""),
        "mesh_axis": shared.get("mesh_axis", ""),
        "source": relative(frames, finding.calls.place),
        "num_calls": num_calls / num_ranks,
        "num_untimed": calls.num_untimed / num_ranks,
        "cost_bytes": cost_bytes / num_ranks,
        "cost_ns": cost_ns / num_ranks,
        # The share refers to the time in steps, so the cost outside of steps is left out.
        "share": cost_ns * in_steps / (counted_ns(frames) or float("nan")),
        "evidence": ",".join(map("{}:{}".format, calls.first["rank"], calls.first["id"])),
    }


def transfer(frames: Frames, rows: pd.DataFrame) -> pd.Series:
    """Return the blocked time of calls without the wait for their peers; nan if unknown.

    The wait is not counted as a saving: without the call, a late rank would be waited for at the
    next call. Where the wait is unknown, the whole blocked time is counted.
    """
    moved = arrivals(frames).loc[rows.index, "transfer_ns"]
    time = moved.where(moved >= 0, rows["blocked_ns"])
    return time.where(time >= 0).astype("float64")


def savings(row: Mapping[Any, Any], num_ranks: int, share: str = "") -> str:
    """Return the possible savings of a row of the table: `1 ms (2.0% of the steps) and 5 kB`.

    A saving of 0 is left out. One that is unknown, or known for a part of the calls, is named.

    Args:
        row: The row.
        num_ranks: Number of ranks of the run.
        share: Text of the share of the run's time, shown behind the time.
    """
    num_calls, num_untimed = (round(row[name] * num_ranks) for name in ("num_calls", "num_untimed"))
    details = [text for text in (share, known_note(num_calls - num_untimed, num_calls)) if text]
    costs = {"time": row["cost_ns"], "bytes": row["cost_bytes"]}
    texts = {
        "time": text_of_duration(costs["time"]) + (f" ({', '.join(details)})" if details else ""),
        "bytes": text_of_bytes(costs["bytes"]),
    }
    known = " and ".join(texts[name] for name, cost in costs.items() if cost > 0)
    unknown = " and ".join(name for name, cost in costs.items() if math.isnan(cost))
    if not unknown:
        return known
    return f"{known} ({unknown} not known)" if known else f"an unknown amount of {unknown}"


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
