"""Facts about a run as a whole."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from commtrace.analyze.measures.census import census
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.frame import Frames
from commtrace.schema import Column
from commtrace.units import counted, text_of_duration

COLUMNS = (
    Column("fact", str, "", "name of the fact"),
    Column("value", str, "", "its value, as text"),
)


def facts(frames: Frames) -> pd.DataFrame:
    """Return a row per fact: first the facts derived from the tables, then the recorded facts."""
    rows = [*_from_tables(frames), *_from_recording(frames)]
    return typed(pd.DataFrame(rows, columns=[column.name for column in COLUMNS]), COLUMNS)


_KNOWN = {
    "sizes": "payload_bytes",
    "bytes sent": "wire_bytes",
    "ends": "complete_ns",
    "blocked times": "blocked_ns",
}
"""Columns of calls whose number of known values is a fact, unless all are known."""


FACTS = Analysis(
    "facts",
    "Run facts",
    "Which facts describe the run?",
    facts,
    COLUMNS,
)


def _from_tables(frames: Frames) -> list[tuple[str, str]]:
    ranks, counts = frames.ranks, census(frames)
    hosts = sorted(set(ranks["host"].astype(object)))
    devices = sorted(set(ranks["device"].astype(object)) - {""})
    backends = sorted(set(frames.groups["backend"].astype(object)) - {""})
    begun, ended = ranks["start_ns"], ranks["end_ns"]
    is_timed = (begun >= 0).any() and (ended >= 0).any()
    lasted = text_of_duration(int(ended.max() - begun[begun >= 0].min())) if is_timed else ""
    dropped = ranks["num_dropped"]
    num_dropped = "" if "imported_from" in frames.run else str(int(dropped.clip(lower=0).sum()))
    return [
        ("ranks recorded", str(frames.num_ranks)),
        ("hosts", ", ".join(hosts)),
        ("devices", ", ".join(devices)),
        ("backends", ", ".join(backends)),
        ("steps", str(int(frames.steps["step"].nunique()))),
        ("recorded time", lasted),
        ("communication calls", str(counts.num_calls)),
        *(
            (
                f"{name} known",
                f"of {counts.known[column]:,} of {counted(counts.num_calls, 'call')}",
            )
            for name, column in _KNOWN.items()
            if counts.known[column] < counts.num_calls
        ),
        ("operators", str(counts.num_ops)),
        ("process groups", str(len(frames.groups))),
        ("calls dropped", num_dropped),
    ]


def _from_recording(frames: Frames) -> list[tuple[str, str]]:
    return [(str(name).replace("_", " "), _text(value)) for name, value in frames.run.items()]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return json.dumps(value, ensure_ascii=False, default=str)
