"""Cards at the top of the page: findings, and consistency problems, each with its evidence.

A card is one finding, or one problem of the consistency check. Its `evidence` are calls, `rank:id`,
which the timeline shows and marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from commtrace.analyze import Frames
from commtrace.analyze.findings import by_missing_data, unanswered
from commtrace.analyze.findings.finding import MAX_EVIDENCE, savings
from commtrace.analyze.matching import numbers
from commtrace.report.answers import Answers
from commtrace.units import contracted, counted, counted_mean

MAX_CARDS = 100


@dataclass(frozen=True, slots=True)
class Card:
    """One finding or problem.

    Attributes:
        saves: Time and bytes that could be saved, as text.
        share: Share of the run's time, as text.
        facts: Short texts on place and extent.
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
    """Result of the consistency check, in a word and in a sentence; `cards` are the problems."""

    word: str
    text: str
    is_good: bool
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
    num_open = len(problems) - num_faults
    of_what = f"{counted(len(whole.comm), 'call')} of {counted(whole.num_ranks, 'rank')}"
    unchecked = f"; {num_open} thing{_s(num_open)} could not be checked" if num_open else ""
    if not len(whole.comm):
        word, text = "–", "There is no call to compare."
    elif whole.num_ranks < 2:
        word, text = "–", "A single rank has no peers to compare with."
    elif num_faults:
        word = f"{num_faults} fault{_s(num_faults)}"
        text = f"{word} in {of_what}{unchecked}."
    else:
        word = "consistent"
        text = f"No fault in {of_what}: kind, reduction, root, type, size and order{unchecked}."
    rows = problems.head(MAX_CARDS)
    evidence = _evidence(answers.frames, rows)
    cards = tuple(
        _problem(row, calls) for row, calls in zip(rows.to_dict("records"), evidence, strict=True)
    )
    return ConsistencySummary(word, text, not num_faults, cards, len(problems) - len(rows))


def _finding(row: Mapping[Any, Any], of_what: str, num_ranks: int) -> Card:
    places = (row["module"], row["op"], row["kind"], row["source"])
    axis = f"axis {row['mesh_axis']}" if row["mesh_axis"] else ""
    calls = counted_mean(row["num_calls"], num_ranks, "call", " per rank")
    return Card(
        name=row["rule"].replace("_", " "),
        title=row["title"],
        advice=row["advice"],
        saves=" and ".join(savings(row, num_ranks)),
        share=f"{row['share']:.1%} {of_what}" if row["share"] >= 0.0005 else "",
        facts=tuple(filter(None, (*places, axis, calls))),
        evidence=row["evidence"],
    )


def _problem(row: Mapping[Any, Any], evidence: str) -> Card:
    ranks = f"rank{'s' if ',' in row['ranks'] else ''} {contracted(row['ranks'])}"
    blamed = f"blamed: {ranks}" if row["ranks"] and row["is_fault"] else ""
    group = f"group {row['mesh_axis'] or row['group']}" if row["group"] else ""
    number = f"collective {row['number']} of it" if group and row["number"] >= 0 else ""
    return Card(
        name=row["problem"],
        title=row["explanation"],
        advice="",
        saves="",
        share="",
        facts=tuple(filter(None, (blamed, group, number, row["source"]))),
        evidence=evidence,
        is_fault=row["is_fault"],
    )


def _evidence(frames: Frames, problems: pd.DataFrame) -> list[str]:
    """Return the calls of each problem that is about one collective."""
    comm, number = frames.comm, numbers(frames)
    group = comm["group"].astype(object)
    asked = set(zip(problems["group"], problems["number"], strict=True))
    few = number.isin([each for _, each in asked if each >= 0])
    found: dict[tuple[str, int], list[str]] = {}
    for key, rank, each in zip(
        zip(group[few], number[few], strict=True), comm["rank"][few], comm["id"][few], strict=True
    ):
        if key in asked:
            found.setdefault(key, []).append(f"{rank}:{each}")
    return [
        ",".join(found.get((name, at), [])[:MAX_EVIDENCE])
        for name, at in zip(problems["group"], problems["number"], strict=True)
    ]


def _s(count: int) -> str:
    return "" if count == 1 else "s"
