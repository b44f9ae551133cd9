"""Changes that would make a step shorter, at the top of the page, from table `whatif`."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from commtrace.analyze.replay.basis import basis_of
from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.lines import folded
from commtrace.analyze.replay.words import (
    LIMIT,
    RANGE,
    change_text,
    saved_text,
    share_text,
    unit_of,
)
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.whatif.table import bound_by, step_text
from commtrace.report.answers import MAX_CARDS, Answers
from commtrace.report.replayed_part import replayed_part
from commtrace.report.tiles import NOT_KNOWN, Tile
from commtrace.selection import Selection
from commtrace.units import counted, text_of_measured

_MARKS = {
    LIMIT: "limit: a change of the program saves at most as much",
    RANGE: "range: the trace does not tell latency from bandwidth, or lacks uses of results",
}
_TARGET = "whatif"


@dataclass(frozen=True, slots=True)
class ChangeCard:
    """A change that saves time.

    Attributes:
        title: The change, in words.
        how: A way to make it; empty if the page has that with a finding.
        finding: Anchor of the finding that it cures; empty if it is no finding of the page.
        times: Step times before and with the change.
        saves: Time of a step that it saves.
        share: That time as a part of the step.
        bound: "limit", "range" or empty.
        meaning: Meaning of `bound`, in a sentence.
        facts: Short texts on its extent.
        commands: Commands that replay it.
    """

    title: str
    how: str
    finding: str
    times: str
    saves: str
    share: str
    bound: str
    meaning: str
    facts: tuple[str, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Help:
    """The changes that would help, and what the time of a step is spent on.

    Attributes:
        tile: The best change, for the top of the page.
        step: The step time in a sentence; empty if the run cannot be replayed.
        bound_by: Shares of the critical path, in a clause; empty if unknown.
        lacking: Reason why the run cannot be replayed, in a sentence; else empty.
        cards: The changes, best first, at most `MAX_CARDS`.
        num_left_out: Number of changes beyond these.
    """

    tile: Tile
    step: str
    bound_by: str
    lacking: str
    cards: tuple[ChangeCard, ...]
    num_left_out: int


def help_of(answers: Answers, selection: Selection) -> Help:
    """Return the changes that would help a run, or the part of it that is selected."""
    part = replayed_part(answers.frames)
    frames, lacking = part.frames, part.lacking
    if frames is None or not len(work_graph(basis_of(frames)).calls):
        lacking = lacking or "The run cannot be replayed: the times of all calls are unknown."
        return Help(
            Tile(_TITLE, NOT_KNOWN, _clause(lacking), target=_TARGET), "", "", lacking, (), 0
        )
    rows = folded(answers["whatif"].to_dict("records"))
    bound = ", ".join(bound_by(frames))
    step = step_text(frames)
    if part.steps:
        selection = replace(selection, steps=part.steps, window_ns=None)
        step = f"{step}, from {part.steps[0]} to {part.steps[1]}"
    shown = answers.findings.head(MAX_CARDS)["change"]
    anchors = {change: f"finding-{number}" for number, change in enumerate(shown, 1) if change}
    command = _command(frames, selection)
    cards = tuple([_card(row, command, anchors) for row in rows[:MAX_CARDS]])
    return Help(_tile(frames, rows, bound), step, bound, "", cards, max(len(rows) - MAX_CARDS, 0))


_TITLE = "Best change saves"
_LONGEST_NOTE = 130


def _clause(sentence: str) -> str:
    clause = sentence.rpartition(": ")[2].rstrip(".")
    return clause[:1].lower() + clause[1:]


def _tile(frames: Frames, rows: list[dict[Any, Any]], bound: str) -> Tile:
    best = rows[0] if rows else None
    if best is None or best["bound"] == LIMIT:
        at_stake = f"; {best['change']}: {saved_text(best)}" if best else ""
        note = f"no change that was replayed saves more than steps vary; {bound}{at_stake}".rstrip(
            "; "
        )
        return Tile(_TITLE, "nothing", note, target=_TARGET)
    time = text_of_measured(best["before_ns"], best["error_ns"])
    unit = unit_of(len(frames.steps))
    note = f"of a {unit} of {time} ({share_text(best)}): {best['change']}"
    short = textwrap.shorten(note, _LONGEST_NOTE, placeholder=" …")
    return Tile(_TITLE, saved_text(best), short, target=_TARGET)


def _card(
    row: Mapping[Any, Any], command: tuple[str, str], anchors: Mapping[str, str]
) -> ChangeCard:
    finding = next((anchors[text] for text in row["texts"] if text in anchors), "")
    unknown = f"the trace lacks what it needs for {row['num_unknown']:,}"
    before, after = command
    return ChangeCard(
        title=row["change"],
        how="" if finding else row["how"],
        finding=finding,
        times=change_text(row).replace("->", "→"),
        saves=saved_text(row),
        share=share_text(row),
        bound=row["bound"],
        meaning=_MARKS.get(row["bound"], ""),
        facts=(
            counted(row["num_calls"], "call"),
            *([unknown] if row["num_unknown"] else []),
        ),
        commands=tuple([f"{before} {shlex.quote(text)}{after}" for text in row["texts"]]),
    )


def _command(frames: Frames, selection: Selection) -> tuple[str, str]:
    """Return what comes before and behind a change in the command that replays it."""
    trace = shlex.quote(str(frames.path)) if frames.path else "RUN"
    part = ""
    if selection.steps is not None:
        part = f" --steps {selection.steps[0]}:{selection.steps[1]}"
    if selection.window_ns is not None:
        part += " --window " + ":".join(f"{edge}ns" for edge in selection.window_ns)
    return f"commtrace whatif {trace}", part
