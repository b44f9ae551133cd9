"""Replicas of a tensor that differ between ranks, where a run has fingerprints of tensors."""

from __future__ import annotations

from collections.abc import Iterator

from commtrace.analyze.consistency.problem import Problem
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values import parts, replicas
from commtrace.units import counted, text_of_ranks


def differing_replicas(frames: Frames) -> Iterator[Problem]:
    """Yield a single problem: the first tensor in time whose replicas differ.

    Later tensors may differ because of it, and are counted.
    """
    found = replicas(frames)
    if found.empty:
        return
    first = found.iloc[0]
    rows = parts(frames)
    own = rows[rows["differs"]]
    what = first["op"] or f"{first['role'].replace('_', ' ')} {first['name']}".strip()
    where = f" in {first['module']}" if first["module"] else ""
    later = f"; {counted(len(found) - 1, 'later tensor')} differ too" if len(found) > 1 else ""
    ranks = [int(rank) for rank in first["ranks"].split(",")]
    by = (
        f" by {first['difference']:.2g} of the norm"
        if first["difference"] == first["difference"]
        else ""
    )
    yield Problem(
        problem="replicas differ",
        is_fault=True,
        ranks=first["ranks"],
        expected="equal replicas",
        found=f"{what}, {first['layout']}",
        source=f"{first['source_file']}:{first['source_line']}" if first["source_file"] else "",
        explanation=(
            f"{what}{where} has the layout {first['layout']}, in which replicas are equal, but in "
            f"step {first['step']}, {first['phase']}, {text_of_ranks(ranks)} differed from the "
            f"first replica{by}{later}"
        ),
        at_ns=int(own["at_ns"].min()),
    )
