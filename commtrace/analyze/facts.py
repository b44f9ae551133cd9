"""Facts about a run as a whole."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from commtrace.analyze.analysis import Analysis, typed
from commtrace.analyze.frame import Frames
from commtrace.schema import Column
from commtrace.units import text_of_duration

COLUMNS = (
    Column("fact", str, "", "name of the fact"),
    Column("value", str, "", "its value, as text"),
)


def facts(frames: Frames) -> pd.DataFrame:
    """Return one row per fact: first those derived from the tables, then the recorded ones."""
    rows = [*_from_tables(frames), *_from_recording(frames)]
    return typed(pd.DataFrame(rows, columns=[column.name for column in COLUMNS]), COLUMNS)


FACTS = Analysis(
    "facts",
    "Run facts",
    "Which facts describe the run?",
    facts,
    COLUMNS,
)


def _from_tables(frames: Frames) -> list[tuple[str, str]]:
    ranks, comm = frames.ranks, frames.comm
    hosts = sorted(set(ranks["host"].astype(object)))
    devices = sorted(set(ranks["device"].astype(object)) - {""})
    backends = sorted(set(frames.groups["backend"].astype(object)) - {""})
    lasted = ranks["end_ns"].max() - ranks["start_ns"].min() if len(ranks) else 0
    return [
        ("ranks recorded", str(frames.num_ranks)),
        ("hosts", ", ".join(hosts)),
        ("devices", ", ".join(devices)),
        ("backends", ", ".join(backends)),
        ("steps", str(int(frames.steps["step"].nunique()))),
        ("recorded time", text_of_duration(int(lasted))),
        ("communication calls", str(len(comm))),
        ("operators", str(len(frames.ops))),
        ("process groups", str(len(frames.groups))),
        ("calls dropped", str(int(ranks["num_dropped"].clip(lower=0).sum()))),
    ]


def _from_recording(frames: Frames) -> list[tuple[str, str]]:
    return [(str(name).replace("_", " "), _text(value)) for name, value in frames.run.items()]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return json.dumps(value, ensure_ascii=False, default=str)
