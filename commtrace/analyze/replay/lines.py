"""Answers of replays as lines of text, for the terminal, notebooks and the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from commtrace.analyze.replay.effects import RANK
from commtrace.analyze.replay.prediction import ChangedSteps
from commtrace.analyze.replay.words import (
    after_text,
    critical_text,
    saves_text,
    text_beside,
    unit_of,
    verdict_text,
)
from commtrace.units import counted, text_of_measured, text_of_ranks, text_within

_MOST_RANKS = 8
"""Lines of ranks of an answer; of more, there is their mean."""
_OF = {RANK: "step of ", "kind": "blocked in "}
_TIMES = ("before_ns", "after_ns", "saved_ns")
HEADINGS = ("before", "after", "saved")


def step_line(answer: ChangedSteps) -> str:
    """Return the times of a step before and with the changes: `step 290 ± 15 ms -> 272 ms`."""
    before = answer.before
    time = text_of_measured(before.step_ns, before.error_ns)
    after = after_text(answer.after, before.error_ns)
    vary = "" if before.num_steps > 2 else f" (of {counted(before.num_steps, 'steady step')})"
    return f"{unit_of(before.num_steps)} {time} -> {after}{vary * bool(before.num_steps)}"


def verdict_line(answer: ChangedSteps) -> str:
    """Return the effect of the changes on the step time: `saves 18.4 ms (6.3%)`."""
    return verdict_text(answer.before, answer.after)


def effect_lines(answer: ChangedSteps) -> list[tuple[str, ...]]:
    """Return name, time before, time after and saved time of each effect that is not 0 throughout.

    Ranks of equal texts share a line.
    """
    table = answer.effects()
    rows = table[(table["before_ns"] != 0) | (table["after_ns"] != 0)].to_dict("records")
    ranks = [row for row in rows if row["of"] == RANK]
    equal: dict[tuple[str, ...], list[int]] = {}
    for row in ranks:
        equal.setdefault(_cells(answer, row), []).append(int(row["name"].rpartition(" ")[2]))
    if len(equal) > _MOST_RANKS:
        mean = {name: sum(row[name] for row in ranks) / len(ranks) for name in _TIMES}
        lines = [(f"step of {counted(len(ranks), 'rank')}, mean", *_cells(answer, mean))]
    else:
        lines = [(f"step of {text_of_ranks(each)}", *cells) for cells, each in equal.items()]
    others = [row for row in rows if row["of"] != RANK]
    return lines + [(_OF.get(row["of"], "") + row["name"], *_cells(answer, row)) for row in others]


def _cells(answer: ChangedSteps, row: Mapping[Any, Any]) -> tuple[str, ...]:
    step, error = answer.before.step_ns, answer.before.error_ns
    share = error / step if step else math.nan
    return (
        text_beside(row["before_ns"], step, error),
        text_beside(row["after_ns"], step, error),
        text_within(row["saved_ns"], abs(row["saved_ns"]) * share),
    )


def critical_line(answer: ChangedSteps) -> str:
    """Return what the critical path consists of then; empty if that is nothing."""
    shares = critical_text(answer.time_by_work())
    return f"then on the critical path: {shares}" if shares else ""


def extent_line(answer: ChangedSteps) -> str:
    """Return the extent of the changes, and the number of dependencies that are supposed."""
    notes = [f"{counted(answer.num_changed, 'call')} changed"]
    if answer.num_unknown:
        notes.append(f"for {answer.num_unknown:,} the trace lacks what it needs")
    if answer.runs_ahead():
        notes.append("ranks run ahead of others, which saves once, not in each step")
    num = answer.num_dependencies
    return "; ".join([*notes, f"{answer.num_inferred:,} of {num:,} dependencies are inferred"])


def folded(rows: Sequence[Mapping[Any, Any]]) -> list[dict[Any, Any]]:
    """Return rows of table `whatif` without two that read alike.

    Ranks that are balanced by one finding, and by all of them, are alike if they save as much.
    Column `texts` has the texts of all rows that are alike.
    """
    found: dict[tuple[str, ...], dict[Any, Any]] = {}
    for row in rows:
        is_balance = row["text"].split()[0] == "balance"
        key = (saves_text(row), *(["balance"] if is_balance else [row["change"], row["how"]]))
        found.setdefault(key, {**row, "texts": []})["texts"].append(row["text"])
    return list(found.values())
