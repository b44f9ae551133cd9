"""The numbers at the top of the page: each a title, a value, and what it is of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.by_rank import by_rank
from commtrace.analyze.by_step import by_step
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import recorded_ns
from commtrace.units import text_of_bytes, text_of_duration

NOT_KNOWN = "–"


@dataclass(frozen=True, slots=True)
class Tile:
    """One number; `share`, where it is not nan, is drawn as a meter from 0 to 1."""

    title: str
    value: str
    note: str
    share: float = math.nan

    @property
    def percent(self) -> float:
        """The meter's length in percent; 0 without one."""
        return 0.0 if math.isnan(self.share) else round(100 * min(max(self.share, 0.0), 1.0), 1)

    @property
    def has_meter(self) -> bool:
        """Whether there is a share to draw."""
        return not math.isnan(self.share)


def tiles(frames: Frames) -> list[Tile]:
    """The tiles of a run, in order."""
    ranks, steps = by_rank(frames), by_step(frames)
    return [
        _bytes(ranks),
        _collectives(frames, ranks),
        _blocked(frames, ranks),
        _share(steps, ranks),
        _ranks(frames, ranks),
        _steps(steps),
        _late(ranks),
    ]


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
    per_rank = ranks["num_calls"].sum() / len(ranks)
    kinds = frames.comm["kind"].nunique()
    return Tile(
        "Calls per rank",
        f"{per_rank:,.4g}" if per_rank < 1000 else f"{per_rank:,.0f}",
        f"of {kinds} kind{'' if kinds == 1 else 's'}; {int(ranks['num_calls'].sum()):,} in all",
    )


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
        note = "of the time of a step is spent blocked"
    elif len(ranks):
        share, note = ranks["share"].mean(), "of the recorded time is spent blocked"
    else:
        share, note = math.nan, "no rank was recorded"
    return Tile("Share of time", NOT_KNOWN if math.isnan(share) else f"{share:.1%}", note, share)


def _ranks(frames: Frames, ranks: pd.DataFrame) -> Tile:
    hosts = len(set(ranks["host"]) - {""})
    missing = len(frames.run.get("missing_ranks") or [])
    where = f"on {hosts} host{'' if hosts == 1 else 's'}" if hosts else "hosts not known"
    return Tile("Ranks", str(len(ranks)), f"{missing} missing, {where}" if missing else where)


def _steps(steps: pd.DataFrame) -> Tile:
    inside = steps[steps["step"] >= 0]
    if inside.empty:
        return Tile("Steps", NOT_KNOWN, "none were marked")
    median = text_of_duration(inside["duration_ns"].median())
    return Tile("Steps", str(len(inside)), f"median {median} each")


def _late(ranks: pd.DataFrame) -> Tile:
    title = "Most waited for"
    if ranks.empty or not ranks["caused_wait_ns"].max():
        return Tile(title, NOT_KNOWN, "no rank is known to have waited for another")
    worst = ranks.sort_values("caused_wait_ns", ascending=False, kind="stable").iloc[0]
    share = worst["caused_wait_ns"] / ranks["wait_ns"].sum()
    waited = text_of_duration(int(worst["caused_wait_ns"]))
    return Tile(
        title, f"rank {worst['rank']}", f"others waited {waited} in all, {share:.0%} of all waiting"
    )
