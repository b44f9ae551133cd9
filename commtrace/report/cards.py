"""Cards at the top of the page: findings, and consistency problems, each with its evidence.

A card is a finding, or a problem of the consistency check. Its `evidence` are calls, `rank:id`,
which the timeline shows and marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from commtrace.analyze.consistency import GOOD, PROPERTIES, compared, result_of
from commtrace.analyze.consistency.problem import blame_text
from commtrace.analyze.divergence import first_verdict
from commtrace.analyze.findings import by_missing_data, unanswered
from commtrace.analyze.findings.table_rows import savings, share_text
from commtrace.report.answers import MAX_CARDS, Answers
from commtrace.units import counted, counted_mean


@dataclass(frozen=True, slots=True)
class Card:
    """One finding or problem.

    Attributes:
        saves: Time and bytes that could be saved, as text.
        share: Share of the run's time, as text.
        facts: Short texts on place and extent, and on the change that was replayed.
        evidence: Calls as `rank:id`, separated by commas.
        is_fault: It is a fault of the program.
    """

    name: str
    title: str
    advice: str
    saves: str
    share: str
    facts: tuple[str, ...]
    evidence: str
    is_fault: bool = False


@dataclass(frozen=True, slots=True)
class ConsistencySummary:
    """Result of the consistency check, in a word and in a sentence; `cards` are the problems.

    Attributes:
        verdict: The first fault in a line, as `commtrace check` prints it; empty without a fault.
        word: "consistent", the number of faults, the number of compared calls, or a dash.
        note: The result in a clause.
        text: The result and the extent of the check, in sentences.
        mood: "good", "bad", or empty if not all calls could be compared.
    """

    verdict: str
    word: str
    note: str
    text: str
    mood: str
    cards: tuple[Card, ...]
    num_left_out: int


def finding_cards(answers: Answers) -> list[Card]:
    """Return the findings as cards, the costliest first, at most `MAX_CARDS`."""
    table = answers.findings.head(MAX_CARDS)
    of_what = "of its steps" if len(answers.frames.steps) else "of its time"
    num_ranks = max(answers.frames.num_ranks, 1)
    return [_finding(row, of_what, num_ranks) for row in table.to_dict("records")]


def unevaluated_rules(answers: Answers) -> dict[str, list[str]]:
    """Return the rules that could not be evaluated, grouped by the data that the trace lacks."""
    return by_missing_data(unanswered(answers.frames))


def consistency_summary(answers: Answers) -> ConsistencySummary:
    """Summarize the consistency check of the whole run."""
    whole, problems = answers.whole, answers["consistency"]
    num_faults = int(problems["is_fault"].sum())
    extent = compared(whole)
    note, mood = result_of(whole, extent, num_faults)
    if num_faults:
        word = counted(num_faults, "fault")
    elif not extent.num_compared:
        word = "–"
    elif extent.is_complete:
        word = "consistent"
    else:
        word = f"{extent.num_compared:,} of {counted(extent.num_calls, 'call')}"
    checked = ", ".join(["kind", *(name for name in PROPERTIES if name not in extent.unknown)])
    checked = f": {checked} and order" if mood == GOOD else ""
    sentences = [f"{each[0].upper()}{each[1:]}." for each in (note + checked, *extent.lines())]
    rows = problems.head(MAX_CARDS)
    divergences = answers["divergences"]
    parted = _partings(divergences) if num_faults else {}
    cards = tuple(
        _problem(
            row,
            calls,
            parted.get(_identity(row), ""),
        )
        for row, calls in zip(rows.to_dict("records"), answers.evidence, strict=True)
    )
    num_left_out = len(problems) - len(rows)
    verdict = first_verdict(problems, divergences)
    return ConsistencySummary(verdict, word, note, " ".join(sentences), mood, cards, num_left_out)


def _finding(row: Mapping[Any, Any], of_what: str, num_ranks: int) -> Card:
    places = (row["module"], row["op"], row["kind"], row["source"])
    axis = f"axis {row['mesh_axis']}" if row["mesh_axis"] else ""
    calls = counted_mean(row["num_calls"], num_ranks, "call", " per rank")
    replayed = f"replayed: {row['change']}" if row["change"] else ""
    return Card(
        name=row["rule"].replace("_", " "),
        title=row["title"],
        advice=row["advice"],
        saves=savings(row, num_ranks),
        share=share_text(row, of_what),
        facts=tuple(filter(None, (*places, axis, calls, replayed))),
        evidence=row["evidence"],
    )


def _identity(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return row["problem"], row["group"], row["number"]


def _partings(table: pd.DataFrame) -> dict[tuple[Any, ...], str]:
    """Return where the ranks parted before each fault, in sentences."""
    return {_identity(row): row["explanation"] for row in reversed(table.to_dict("records"))}


def _problem(row: Mapping[Any, Any], evidence: str, parted: str) -> Card:
    blamed = blame_text(row, "ranks " if "," in row["ranks"] else "rank ")
    group = f"group {row['mesh_axis'] or row['group']}" if row["group"] else ""
    number = f"collective {row['number']} of it" if group and row["number"] >= 0 else ""
    return Card(
        name=row["problem"],
        title=row["explanation"],
        advice=parted if row["is_fault"] else "",
        saves="",
        share="",
        facts=tuple(filter(None, (blamed, group, number, row["source"]))),
        evidence=evidence,
        is_fault=row["is_fault"],
    )
