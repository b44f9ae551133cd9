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
from commtrace.analyze.measures.census import census
from commtrace.analyze.measures.measures import recorded_ns
from commtrace.analyze.measures.steady_steps import left_out_text
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import is_fake_world, why_incomplete
from commtrace.analyze.waits.exposed_share import ExposedShare, exposed_share
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


def answer_tiles(
    answers: Answers, found: ConsistencySummary | None, best: Tile | None = None
) -> list[Tile]:
    """Return the tiles of the first row: what a step is lost to, what helps, and what is wrong.

    Args:
        answers: The run's analyses.
        found: Summary of the consistency check; None if the run was not checked.
        best: The best change. If it has a value, it takes the place of the number of findings.
    """
    frames = answers.frames
    helps = best if best is not None and best.value != NOT_KNOWN else None
    return [
        _exposed(frames),
        _late(frames),
        *_devices(answers),
        helps or _findings(frames, answers.findings),
        *([_consistency(found)] if found else []),
    ]


def size_tiles(answers: Answers) -> list[Tile]:
    """Return the tiles of the second row: the size of the communication."""
    frames, ranks = answers.frames, answers["by_rank"]
    return [_collectives(frames, ranks), _bytes(frames), _blocked(frames, ranks)]


def extent(answers: Answers) -> list[str]:
    """Describe the size of the run in short texts: ranks and hosts, steps and their time."""
    return [_ranks(answers.frames, answers["by_rank"]), _steps(answers.frames, answers["by_step"])]


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


def _exposed(frames: Frames) -> Tile:
    """Return the exposed part of steady steps, or of the recorded time without steps."""
    title, share = "Exposed communication", exposed_share(frames)
    if note := _nothing(frames):
        return Tile(title, NOT_KNOWN, note)
    known = known_note(share.num_timed, share.num_calls)
    if math.isnan(share.exposed):
        return Tile(title, NOT_KNOWN, known or "no time is known")
    note = _joined(_of_time(share), left_out_text(frames), known)
    return Tile(title, f"{share.exposed:.1%}", note, share.exposed, target="steps")


def _of_time(share: ExposedShare) -> str:
    if not share.num_steps:
        return "of the recorded time"
    return f"of a step of {text_of_duration(share.step_ns)}"


def _ranks(frames: Frames, ranks: pd.DataFrame) -> str:
    hosts = len(set(ranks["host"]) - {""})
    missing = len(frames.run.get("missing_ranks") or [])
    where = f" on {counted(hosts, 'host')}" if hosts else ""
    gone = f", {missing} missing" if missing else ""
    if is_fake_world(frames):
        gone = f", of a fake world of {frames.run['world_size']}"
    return f"{counted(len(ranks), 'rank')}{where}{gone}"


def _steps(frames: Frames, steps: pd.DataFrame) -> str:
    num_steps, step_ns = int((steps["step"] >= 0).sum()), exposed_share(frames).step_ns
    if not num_steps:
        return "no steps marked"
    lasts = "" if math.isnan(step_ns) else f", median {text_of_duration(step_ns)}"
    return f"{counted(num_steps, 'step')}{lasts}"


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


def _late(frames: Frames) -> Tile:
    title, share = "Waiting for late ranks", exposed_share(frames)
    if note := _nothing(frames):
        return Tile(title, NOT_KNOWN, note)
    known = known_note(share.num_met, share.num_calls)
    if math.isnan(share.waiting):
        return Tile(title, NOT_KNOWN, _joined("no known waits between ranks", known))
    if not share.waiting:
        return Tile(title, "0%", _joined("no rank waits for another", known), target="waits")
    caused = f"{share.caused:.0%} of it for rank {share.worst_rank}"
    by = caused if share.worst_rank >= 0 else "no rank stands out as their cause"
    of = "of step time" if share.num_steps else "of the recorded time"
    return Tile(title, f"{share.waiting:.1%}", _joined(of, by, known), share.waiting, "waits")
