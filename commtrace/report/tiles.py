"""Tiles at the top of the page: each a title, a value, and a note.

A value that no call of the trace has is a dash. The note of a value that some calls lack says how
many calls it covers (`commtrace.analyze.run.known`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.consistency import BAD, GOOD
from commtrace.analyze.devices.gpu_time import SUMS, shares
from commtrace.analyze.findings import RULES, unanswered
from commtrace.analyze.findings.table_rows import time_text
from commtrace.analyze.measures.census import WAIT, census
from commtrace.analyze.measures.measures import recorded_ns
from commtrace.analyze.measures.steady_steps import is_steady, left_out_text
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import is_fake_world, why_incomplete
from commtrace.analyze.waits.stragglers import stands_out
from commtrace.report.answers import Answers
from commtrace.report.cards import ConsistencySummary
from commtrace.units import counted, known_note, text_of_bytes, text_of_duration

NOT_KNOWN = "–"


@dataclass(frozen=True, slots=True)
class Tile:
    """One number.

    Attributes:
        title: Its name.
        value: The number as text.
        note: Its reference or scope.
        share: Drawn as a meter from 0 to 1, unless nan.
        target: Section of the page with details.
        mood: "good" or "bad", which determines its colour; else empty.
    """

    title: str
    value: str
    note: str
    share: float = math.nan
    target: str = ""
    mood: str = ""

    @property
    def percent(self) -> float:
        """Length of the meter in percent; 0 without a share."""
        return 0.0 if math.isnan(self.share) else round(100 * min(max(self.share, 0.0), 1.0), 1)

    @property
    def has_meter(self) -> bool:
        """True if there is a share to draw."""
        return not math.isnan(self.share)


def tiles(answers: Answers, found: ConsistencySummary, opening: Tile | None = None) -> list[Tile]:
    """Return the tiles of a run, in order.

    Args:
        answers: The run's analyses.
        found: Summary of the consistency check.
        opening: First tile, such as the best change. If it has a value, it takes the place of the
            number of findings.
    """
    frames, ranks = answers.frames, answers["by_rank"]
    is_known = opening is not None and opening.value != NOT_KNOWN
    return [
        *([opening] if opening else []),
        _bytes(frames),
        _collectives(frames, ranks),
        _blocked(frames, ranks),
        _exposed(frames, answers["overlap"]),
        _late(frames, ranks),
        *_devices(answers),
        *([] if is_known else [_findings(frames, answers.findings)]),
        _consistency(found),
    ]


def extent(answers: Answers) -> list[str]:
    """Describe the size of the run in short texts: ranks and hosts, steps."""
    return [_ranks(answers.frames, answers["by_rank"]), _steps(answers["by_step"])]


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _nothing(frames: Frames) -> str:
    """Return a note if the trace has no calls, although the program may have made some; else ""."""
    if not len(frames.ranks) and not frames.num_calls:
        return "no rank was recorded"
    return "no call is in the trace" if not frames.num_calls and why_incomplete(frames) else ""


def _bytes(frames: Frames) -> Tile:
    title = "Bytes sent"
    if note := _nothing(frames):
        return Tile(title, NOT_KNOWN, note)
    sent, payload = (census(frames).sums[name] for name in ("wire_bytes", "payload_bytes"))
    of_payload = "" if payload.is_unknown else f"for a payload of {payload.text('bytes')}"
    note = "" if of_payload and sent.note == payload.note else sent.note
    if sent.is_unknown:
        return Tile(title, NOT_KNOWN, _joined(note, of_payload))
    return Tile(title, text_of_bytes(sent.total), _joined("by all ranks", note, of_payload))


def _collectives(frames: Frames, ranks: pd.DataFrame) -> Tile:
    if ranks.empty:
        return Tile("Calls", "0", "no rank was recorded")
    if note := _nothing(frames):
        return Tile("Calls", "0", note)
    kinds, in_all = counted(len(census(frames).kinds), "kind"), int(ranks["num_calls"].sum())
    least, most = int(ranks["num_calls"].min()), int(ranks["num_calls"].max())
    if least == most:
        return Tile("Calls per rank", f"{most:,}", f"of {kinds}; {in_all:,} in all")
    return Tile("Calls", f"{in_all:,}", f"of {kinds}; {least:,} to {most:,} per rank")


def _blocked(frames: Frames, ranks: pd.DataFrame) -> Tile:
    title = "Time blocked"
    if note := _nothing(frames):
        return Tile(title, NOT_KNOWN, note)
    blocked, recorded = census(frames).sums["blocked_ns"], recorded_ns(frames)
    if blocked.is_unknown:
        return Tile(title, NOT_KNOWN, blocked.note)
    mean = ranks.loc[ranks["blocked_ns"] >= 0, "blocked_ns"].mean()
    of_time = f"of {text_of_duration(recorded.mean())} recorded" if recorded.sum() else ""
    return Tile(title, text_of_duration(mean), _joined("per rank", of_time, blocked.note))


def _exposed(frames: Frames, overlap: pd.DataFrame) -> Tile:
    """Return the exposed part of the time of steady steps, or of the recorded time without steps.

    Ranks and steps whose exposed time is unknown are left out of both times.
    """
    title, inside = "Exposed", overlap[overlap["step"] >= 0]
    if note := _nothing(frames):
        return Tile(title, NOT_KNOWN, note)
    steady = inside[is_steady(frames, inside["step"])]
    rows = steady if len(inside) else overlap
    known = rows[(rows["exposed_ns"] >= 0) & (rows["duration_ns"] >= 0)]
    if len(inside):
        note, time_ns = "of step time is exposed communication", known["duration_ns"].sum()
        note = _joined(note, left_out_text(frames))
    else:
        note, recorded = "of the recorded time is exposed communication", recorded_ns(frames)
        time_ns = recorded.drop(rows["rank"][~rows.index.isin(known.index)], errors="ignore").sum()
    num_calls = int(rows["num_calls"].sum())
    num_known = int((known["num_calls"] - known["num_untimed"]).sum())
    share = known["exposed_ns"].sum() / time_ns if time_ns and len(known) else math.nan
    if math.isnan(share):
        return Tile(title, NOT_KNOWN, known_note(num_known, num_calls) or "no time is known")
    note = _joined(note, known_note(num_known, num_calls))
    return Tile(title, f"{share:.1%}", note, share, target="steps")


def _ranks(frames: Frames, ranks: pd.DataFrame) -> str:
    hosts = len(set(ranks["host"]) - {""})
    missing = len(frames.run.get("missing_ranks") or [])
    where = f" on {counted(hosts, 'host')}" if hosts else ""
    gone = f", {missing} missing" if missing else ""
    if is_fake_world(frames):
        gone = f", of a fake world of {frames.run['world_size']}"
    return f"{counted(len(ranks), 'rank')}{where}{gone}"


def _steps(steps: pd.DataFrame) -> str:
    inside = steps[steps["step"] >= 0]
    if inside.empty:
        return "no steps marked"
    median = inside["duration_ns"].median()
    lasts = "" if math.isnan(median) else f", median {text_of_duration(median)}"
    return f"{counted(len(inside), 'step')}{lasts}"


def _devices(answers: Answers) -> list[Tile]:
    """Return a tile on the time of devices, if the run has kernels."""
    share = shares(answers["gpu_time"])
    if not share:
        return []
    sums = {words: sum(share[part] for part in parts) for words, parts in SUMS.items()}
    note = f"{sums['exposed communication']:.1%} exposed communication, {sums['idle']:.1%} idle"
    return [
        Tile("Devices compute", f"{sums['computing']:.1%}", note, sums["computing"], "gpu_time")
    ]


def _findings(frames: Frames, findings: pd.DataFrame) -> Tile:
    title, num_lacking, num_rules = "Findings", len(unanswered(frames)), len(RULES)
    if note := _nothing(frames):
        return Tile(title, NOT_KNOWN, note, target="findings")
    lacking = f"; {num_lacking} of {num_rules} lack data" if num_lacking else ""
    if findings.empty and num_lacking == num_rules:
        return Tile(title, NOT_KNOWN, "all rules lack data", target="findings")
    if findings.empty:
        return Tile(title, "0", f"no rule applies{lacking}", target="findings")
    saves = findings[findings["most_ns"] > 0].sort_values("cost_ns", ascending=False).head(1)
    notes = [f"{row['change']}: saves {time_text(row)}" for row in saves.to_dict("records")]
    note = next(iter(notes), "see below")
    return Tile(title, str(len(findings)), note, target="findings", mood=BAD)


def _consistency(found: ConsistencySummary) -> Tile:
    title, target = "Ranks consistent", "check"
    if found.mood == GOOD:
        note = "all ranks agree in kind, size and order"
        return Tile(title, "yes", note, target=target, mood=GOOD)
    return Tile(title, found.word, found.note, target=target, mood=found.mood)


def _late(frames: Frames, ranks: pd.DataFrame) -> Tile:
    title, waits = "Worst rank", census(frames).sums[WAIT]
    if ranks.empty or ranks["caused_wait_ns"].max() <= 0:
        none = "no known waits between ranks"
        return Tile(title, NOT_KNOWN, none if waits.is_unknown else _joined("no waits", waits.note))
    worst = ranks.sort_values("caused_wait_ns", ascending=False, kind="stable").iloc[0]
    share = worst["caused_wait_ns"] / waits.total
    if not stands_out(share, frames.num_ranks):
        waited = text_of_duration(waits.total / frames.num_ranks)
        note = f"no rank stands out: each waited {waited} for others on average"
        return Tile(title, "none", _joined(note, waits.note), target="waits")
    waited = text_of_duration(int(worst["caused_wait_ns"]))
    note = _joined(f"others waited {waited} for it, {share:.0%} of the total wait", waits.note)
    return Tile(title, f"rank {worst['rank']}", note, target="waits")
