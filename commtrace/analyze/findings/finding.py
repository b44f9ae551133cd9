"""The `Finding` and `Rule` types, and helpers that rules share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from commtrace.analyze.findings.call_set import CallSet
from commtrace.analyze.findings.needs import Need
from commtrace.analyze.measures.steady_steps import is_counted
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.schema import Column
from commtrace.units import counted_mean

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
        "calls that the replay leaves alone, since their times are unknown; mean over ranks",
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
        "change",
        str,
        "",
        "the change that was replayed, as `commtrace whatif RUN` takes it; empty if none was",
    ),
    Column(
        "cost_ns",
        float,
        "ns",
        "time that the change saves in all steps, without steps that are left out, except for "
        "stalls; of a range, the least; mean over ranks; nan unknown. If only some steps of a "
        "large stored run are replayed, their mean counts for each step",
    ),
    Column("most_ns", float, "ns", "the most of that time", title="At most"),
    Column(
        "error_ns",
        float,
        "ns",
        "standard error of the most, by the variation between steps; nan unknown",
        title="±",
    ),
    Column(
        "share",
        float,
        "1",
        "saved time as a fraction of the time of these steps; without steps, of the run",
    ),
    Column("evidence", str, "", "the first of these calls, as rank:id, separated by `,`"),
)

MAX_EVIDENCE = 20

REMOVE, SHRINK, EVEN, USUAL = "remove", "shrink", "even", "usual"
"""Cures that several rules have."""

FAULT, PROGRAM, MACHINE = "fault", "program", "machine"
"""Concerns of findings, in their order."""


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Return findings in order, with their labels: by concern, then the largest saved time."""
    place = table["concerns"].map([FAULT, PROGRAM, MACHINE].index)
    by = {"place": True, "cost_ns": False, "most_ns": False, "cost_bytes": False}
    by |= {"rule": True, "title": True}
    ordered = table.assign(place=place).sort_values([*by], ascending=[*by.values()])
    return ordered.drop(columns="place")


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Calls of a finding, or its calls in a part of the run.

    Attributes:
        rows: Their labels in table `comm`.
        num_counted: Number of calls in steady steps or outside of steps, which costs refer to.
        shared: Columns in which all have the same value, with that value.
        first: The first of them by id and rank, `MAX_EVIDENCE` at most.
        payload_bytes: Sum of their payload, as far as it is known.
        cost_bytes: Wire bytes that could be saved, summed over the calls; nan if unknown.
        wire_bytes: Their wire bytes, of those that costs refer to; nan if unknown.
        lost_ns: Time that ranks lost by the calls, in sum, by which a rule decides; nan if unknown.
        share: Sum over the calls of a share that the rule computes for each.
    """

    rows: CallSet
    num_counted: int
    shared: Mapping[str, str]
    first: pd.DataFrame
    payload_bytes: float = 0.0
    cost_bytes: float = 0.0
    wire_bytes: float = 0.0
    lost_ns: float = 0.0
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
            num_counted=self.num_counted + other.num_counted,
            shared=shared,
            first=_first(pd.concat([self.first, other.first])),
            payload_bytes=self.payload_bytes + other.payload_bytes,
            cost_bytes=sum_of_known([self.cost_bytes, other.cost_bytes]),
            wire_bytes=sum_of_known([self.wire_bytes, other.wire_bytes]),
            lost_ns=sum_of_known([self.lost_ns, other.lost_ns]),
            share=self.share + other.share,
        )


def calls_in(
    frames: Frames,
    rows: pd.DataFrame,
    *,
    part: Any = 1.0,
    cost_bytes: float | None = None,
    lost_ns: pd.Series | float = 0.0,
    share: float = 0.0,
) -> Evidence:
    """Return rows of table `comm` as the calls of a finding.

    Costs leave out the steps that are not steady.

    Args:
        frames: The run, or the part of it that has the rows.
        rows: The rows.
        part: Part of each call's bytes that could be saved, a number or a series.
        cost_bytes: Bytes that could be saved; by default, that part of the calls' wire bytes.
        lost_ns: Time that ranks lost, by each call or in sum.
        share: A share of the rule's own.
    """
    values = rows[["module", "op", "kind"]].assign(mesh_axis=mesh_axes(frames, rows["group"]))
    shared = {name: str(values[name].iloc[0]) for name in values if values[name].nunique() == 1}
    counted = is_counted(frames, rows["step"])
    wire = rows["wire_bytes"].where(rows["wire_bytes"] >= 0).astype("float64")
    if cost_bytes is None:
        cost_bytes = float((wire * part)[counted].sum(min_count=1))
    if isinstance(lost_ns, pd.Series):
        lost_ns = float(lost_ns[rows.index][counted].sum(min_count=1))
    return Evidence(
        rows=CallSet.of(rows.index),
        num_counted=int(counted.sum()),
        shared=shared,
        first=_first(rows[_OF_FIRST].astype(dict.fromkeys(["source_file"], object))),
        payload_bytes=float(rows["payload_bytes"].clip(lower=0).astype("float64").sum()),
        cost_bytes=cost_bytes,
        wire_bytes=float(wire[counted].sum(min_count=1)),
        lost_ns=lost_ns,
        share=share,
    )


_OF_FIRST = ["rank", "id", "source_file", "source_line"]


def _first(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values(["id", "rank"]).head(MAX_EVIDENCE)


def sum_of_known(costs: Iterable[float]) -> float:
    """Return the sum of costs; unknown costs are left out."""
    known = [each for each in costs if not math.isnan(each)]
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
        cure: The same as `Rule.cure`, which it replaces; None keeps the cure of the rule.
    """

    title: str
    advice: str
    calls: Evidence
    module: str = ""
    cure: str | None = None

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
        cure: Changes that cure a finding, separated by `; `, as `commtrace whatif` takes them. A
            change without conditions applies to the finding's calls. `shrink` has the part of their
            bytes that is left. Empty if a replay can make none; None if there is nothing to save.
        is_once: True if a finding is a single event, whose steps count even if they are not steady.
    """

    name: str
    about: str
    find: Callable[[Frames], list[Finding]]
    needs: tuple[Need, ...]
    concerns: str = PROGRAM
    cure: str | None = ""
    is_once: bool = False

    def lacks(self, frames: Frames) -> str:
        """Return a sentence about the first of its needs that the trace lacks; "" if none."""
        if not frames.num_calls:
            return ""
        return next(filter(None, (need.lacks(frames) for need in self.needs)), "")


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
