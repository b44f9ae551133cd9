"""Tiles at the top of the page: each a title, a value, and a note."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.analyze.gpu_time import SUMS, shares
from commtrace.analyze.measures import recorded_ns
from commtrace.report.answers import Answers
from commtrace.report.cards import ConsistencySummary
from commtrace.units import counted, text_of_bytes, text_of_duration

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
        """Length of the meter in percent; 0 without one."""
        return 0.0 if math.isnan(self.share) else round(100 * min(max(self.share, 0.0), 1.0), 1)

    @property
    def has_meter(self) -> bool:
        """True if there is a share to draw."""
        return not math.isnan(self.share)


def tiles(answers: Answers, found: ConsistencySummary) -> list[Tile]:
    """Return the tiles of a run, in order; `found` is the summary of the consistency check."""
    frames, ranks, steps = answers.frames, answers["by_rank"], answers["by_step"]
    return [
        _bytes(ranks),
        _collectives(frames, ranks),
        _blocked(frames, ranks),
        _share(steps, ranks),
        _late(ranks),
        *_devices(answers),
        _findings(answers.findings),
        _consistency(found),
    ]


def extent(answers: Answers) -> list[str]:
    """Describe the size of the run in short texts: ranks and hosts, steps."""
    return [_ranks(answers.frames, answers["by_rank"]), _steps(answers["by_step"])]


def _bytes(ranks: pd.DataFrame) -> Tile:
    payload = text_of_bytes(int(ranks["payload_bytes"].sum()))
    return Tile(
        "Bytes sent",
        text_of_bytes(int(ranks["wire_bytes"].sum())),
        f"by all ranks, for a payload of {payload}",
    )


def _collectives(frames: Frames, ranks: pd.DataFrame) -> Tile:
    if ranks.empty:
        return Tile("Calls", "0", "no rank was recorded")
    kinds, in_all = counted(frames.comm["kind"].nunique(), "kind"), int(ranks["num_calls"].sum())
    least, most = int(ranks["num_calls"].min()), int(ranks["num_calls"].max())
    if least == most:
        return Tile("Calls per rank", f"{most:,}", f"of {kinds}; {in_all:,} in all")
    return Tile("Calls", f"{in_all:,}", f"of {kinds}; {least:,} to {most:,} per rank")


def _blocked(frames: Frames, ranks: pd.DataFrame) -> Tile:
    recorded = recorded_ns(frames)
    if ranks.empty or recorded.empty:
        return Tile("Time blocked", NOT_KNOWN, "no rank was recorded")
    return Tile(
        "Time blocked",
        text_of_duration(ranks["blocked_ns"].mean()),
        f"per rank, of {text_of_duration(recorded.mean())} recorded",
    )


def _share(steps: pd.DataFrame, ranks: pd.DataFrame) -> Tile:
    inside = steps[steps["step"] >= 0]
    if len(inside):
        share = inside["blocked_ns"].sum() / (inside["duration_ns"].sum() or math.nan)
        note = "of step time is exposed communication"
    elif len(ranks):
        share, note = ranks["share"].mean(), "of the recorded time is exposed communication"
    else:
        share, note = math.nan, "no rank was recorded"
    value = NOT_KNOWN if math.isnan(share) else f"{share:.1%}"
    return Tile("Exposed", value, note, share, target="steps")


def _ranks(frames: Frames, ranks: pd.DataFrame) -> str:
    hosts = len(set(ranks["host"]) - {""})
    missing = len(frames.run.get("missing_ranks") or [])
    where = f" on {hosts} host{'' if hosts == 1 else 's'}" if hosts else ""
    gone = f", {missing} missing" if missing else ""
    return f"{len(ranks)} rank{'' if len(ranks) == 1 else 's'}{where}{gone}"


def _steps(steps: pd.DataFrame) -> str:
    inside = steps[steps["step"] >= 0]
    if inside.empty:
        return "no steps marked"
    median = inside["duration_ns"].median()
    lasts = "" if math.isnan(median) else f", median {text_of_duration(median)}"
    return f"{len(inside)} step{'' if len(inside) == 1 else 's'}{lasts}"


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


def _findings(findings: pd.DataFrame) -> Tile:
    if findings.empty:
        return Tile("Findings", "0", "no rule applies", target="findings")
    most = findings["cost_ns"].max()
    note = f"the first may save {text_of_duration(most)} per rank" if most > 0 else "see below"
    return Tile("Findings", str(len(findings)), note, target="findings", mood="bad")


def _consistency(found: ConsistencySummary) -> Tile:
    if found.word == NOT_KNOWN:
        return Tile("Ranks consistent", NOT_KNOWN, found.text, target="check")
    note = "all ranks agree in kind, size and order" if found.is_good else "see the problems"
    word = "yes" if found.is_good else found.word
    return Tile("Ranks consistent", word, note, target="check", mood=_MOODS[found.is_good])


_MOODS = {True: "good", False: "bad"}


def _late(ranks: pd.DataFrame) -> Tile:
    title = "Worst rank"
    if ranks.empty or not ranks["caused_wait_ns"].max():
        return Tile(title, NOT_KNOWN, "no known waits between ranks")
    worst = ranks.sort_values("caused_wait_ns", ascending=False, kind="stable").iloc[0]
    share = worst["caused_wait_ns"] / ranks["wait_ns"].sum()
    waited = text_of_duration(int(worst["caused_wait_ns"]))
    note = f"others waited {waited} for it, {share:.0%} of the total wait"
    return Tile(title, f"rank {worst['rank']}", note, target="waits")
