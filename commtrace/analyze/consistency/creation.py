"""Groups that ranks have created in different orders, as the importer of dumps found them."""

from __future__ import annotations

from collections.abc import Iterator

from commtrace.analyze.consistency.coverage import Coverage
from commtrace.analyze.consistency.problem import Problem
from commtrace.analyze.frame import Frames

_WHY = "Ranks must create groups in the same order, or they communicate with others than meant."


def unlike_groups(frames: Frames, covered: Coverage) -> Iterator[Problem]:
    """Yield one problem for each group on whose identity or order of creation ranks disagree."""
    for group, ranks, text in frames.run.get("unlike_groups") or ():
        yield Problem(
            problem="group order",
            is_fault=True,
            group=group,
            mesh_axis=covered.axes.get(group, ""),
            ranks=ranks,
            found=text,
            explanation=f"{text}. {_WHY}",
        )
