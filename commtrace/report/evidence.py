"""Calls that the page's cards name as their evidence, as texts `rank:id`."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from commtrace.analyze import Frames
from commtrace.analyze.findings.finding import MAX_EVIDENCE
from commtrace.analyze.run.matching import numbers

Collective = tuple[str, int]
"""Name of a group, and number of a collective in it."""


def evidence_of_problems(frames: Frames, problems: pd.DataFrame) -> list[str]:
    """Return the calls of each problem that is about a collective, separated by commas."""
    places = list(zip(problems["group"], problems["number"], strict=True))
    asked = {(str(group), int(number)) for group, number in places if number >= 0}
    found: dict[Collective, list[str]] = {}
    if asked:
        for part in frames.by_ranks(_calls_of_collectives, asked):
            for key, calls in part.items():
                found.setdefault(key, []).extend(calls)
    return [",".join(found.get(place, [])[:MAX_EVIDENCE]) for place in places]


def _calls_of_collectives(part: Frames, asked: set[Collective]) -> dict[Collective, list[str]]:
    comm, number = part.comm, numbers(part)
    group = comm["group"].astype(object)
    few = number.isin([each for _, each in asked])
    found: dict[Collective, list[str]] = {}
    for key, rank, each in zip(
        zip(group[few], number[few], strict=True), comm["rank"][few], comm["id"][few], strict=True
    ):
        if key in asked:
            found.setdefault(key, []).append(f"{rank}:{each}")
    return found


def spans_of_calls(frames: Frames, names: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the first and last instant of calls of known issue, in ns since the run's start."""
    wanted: dict[int, list[int]] = {}
    for name in names:
        rank, _, number = name.partition(":")
        wanted.setdefault(int(rank), []).append(int(number))
    found: dict[str, tuple[int, int]] = {}
    for part in frames.by_ranks(_spans_of_part, wanted) if wanted else ():
        found |= part
    return found


def _spans_of_part(part: Frames, wanted: dict[int, list[int]]) -> dict[str, tuple[int, int]]:
    from commtrace.analyze.measures.arrivals import end_ns

    comm = part.comm
    is_wanted = pd.Series(False, index=comm.index)
    for rank in set(wanted) & set(comm["rank"].unique().tolist()):
        is_wanted |= (comm["rank"] == rank) & comm["id"].isin(wanted[rank])
    calls = comm[is_wanted & (comm["issue_ns"] >= 0)]
    ends = end_ns(calls) - part.start_ns
    begins = calls["issue_ns"] - part.start_ns
    return {
        f"{rank}:{number}": (begin, end)
        for rank, number, begin, end in zip(
            calls["rank"].tolist(),
            calls["id"].tolist(),
            begins.tolist(),
            ends.tolist(),
            strict=True,
        )
    }
