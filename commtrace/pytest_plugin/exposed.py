"""Part of a test's time in which communication blocked each rank, and the reasons for it.

Takes the traces of a test. The analyses are loaded only if a test bounds this time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commtrace.pytest_plugin.expectation import PER_MILLION
from commtrace.pytest_plugin.short_names import short
from commtrace.tracefile import Trace
from commtrace.units import text_of_duration


def exposed_shares(traces: Mapping[str, Trace]) -> dict[int, int]:
    """Return the exposed share of each rank with steps or calls, in millionths; -1 if unknown.

    It refers to the rank's steady steps, or to its recorded time if there are none.
    """
    from commtrace.analyze import CATALOG, load
    from commtrace.analyze.measures.steady_steps import is_steady

    lasted: dict[int, int] = {}
    exposed: dict[int, int] = {}
    unknown: set[int] = set()
    for trace in traces.values():
        frames = load(trace)
        table = CATALOG["overlap"].function(frames)
        table = table[(table["step"] < 0) | is_steady(frames, table["step"])]
        for rank, of_rank in table.groupby("rank"):
            inside = of_rank[of_rank["step"] >= 0]
            rows = inside if (inside["duration_ns"] > 0).any() else of_rank
            # A step without duration is one that calls name and nothing marks.
            whole = rows["duration_ns"].clip(lower=0).sum()
            number = int(str(rank))
            lasted[number] = lasted.get(number, 0) + int(whole)
            exposed[number] = exposed.get(number, 0) + int(rows["exposed_ns"].clip(lower=0).sum())
            if not whole or (rows["exposed_ns"] < 0).any():
                unknown.add(number)
    return {
        rank: -1 if rank in unknown else round(PER_MILLION * exposed[rank] / lasted[rank])
        for rank in lasted
    }


def rows_of_losses(
    traces: Mapping[str, Trace], most: int
) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return names of columns, and the first rows of table `overlap_lost`, as text."""
    from commtrace.analyze import CATALOG, load

    found: list[dict[Any, Any]] = []
    for trace in traces.values():
        table = CATALOG["overlap_lost"].function(load(trace))
        found += table[table["exposed_ns"] > 0].to_dict("records")
    found.sort(key=lambda row: (-max(row["could_hide_ns"], 0), -row["exposed_ns"]))
    columns = ("exposed", "could hide", "reason", "kind", "phase", "module", "line")
    return columns, [_texts(row) for row in found[:most]]


def _texts(row: Mapping[Any, Any]) -> tuple[str, ...]:
    could = row["could_hide_ns"]
    return (
        text_of_duration(row["exposed_ns"]),
        text_of_duration(could) if could == could else "unknown",
        row["reason"],
        row["kind"],
        row["phase"],
        row["module"],
        f"{short(row['source_file'])}:{row['source_line']}" if row["source_file"] else "",
    )
