"""Asynchronous calls whose data an operator used or overwrote before the call was complete.

Only recordings that follow results to their uses are judged: at the first use of a result without
a wait, they ask the handle of the call if it is complete.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.consistency.problem import Problem, call_text, numbers_text
from commtrace.analyze.measures.census import census
from commtrace.analyze.measures.selections import FOLLOWED
from commtrace.analyze.run.frame import Frames
from commtrace.units import counted, text_of_duration, text_of_ranks

_COLUMNS = ["rank", "kind", "group", "seq", "source_file", "source_line", "result_used_ns"]


def races(frames: Frames) -> list[Problem]:
    """Return a problem for each line and group with such calls."""
    if not census(frames).selected[FOLLOWED]:
        return []
    rows = pd.concat(list(frames.by_ranks(_raced)))
    axes = dict(zip(frames.groups["name"], frames.groups["mesh_axis"], strict=True))
    by = ["source_file", "source_line", "kind", "group"]
    return [
        _problem(each.sort_values(["result_used_ns", "rank"]), axes)
        for _, each in rows.groupby(by, sort=True)
    ]


def _raced(part: Frames) -> pd.DataFrame:
    comm = part.comm
    used, ended = comm["result_used_ns"], comm["complete_ns"]
    found = comm.loc[comm["is_async"] & (used >= 0) & (used < ended), _COLUMNS]
    text = dict.fromkeys(["kind", "group", "source_file"], object)
    return found.astype(text).assign(early_ns=(ended - used)[found.index])


def _problem(rows: pd.DataFrame, axes: dict[str, str]) -> Problem:
    first, ranks = rows.iloc[0], sorted(set(rows["rank"].tolist()))
    place = call_text(first["kind"], first["seq"], first["group"], axes.get(first["group"], ""))
    file = first["source_file"]
    early = text_of_duration(int(first["early_ns"]))
    return Problem(
        problem="race",
        is_fault=True,
        group=first["group"],
        mesh_axis=axes.get(first["group"], ""),
        ranks=numbers_text(ranks),
        expected="a wait before the data is used",
        found="use before completion",
        source=f"{file}:{first['source_line']}" if file else "",
        explanation=(
            f"an operator used or overwrote the data of {place} on rank {first['rank']}, {early} "
            "before the call was complete, without waiting for its handle: values depend on "
            f"timing ({counted(len(rows), 'call')} at this line, on {text_of_ranks(ranks)})"
        ),
        at_ns=int(first["result_used_ns"]),
    )
