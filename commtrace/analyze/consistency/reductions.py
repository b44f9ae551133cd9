"""Gradients, losses and norms with a wrong reduction, from the fingerprints of a run."""

from __future__ import annotations

from collections.abc import Iterator

from commtrace.analyze.consistency.problem import Problem, numbers_text
from commtrace.analyze.gradients import wrong_reductions
from commtrace.analyze.measures.census import census
from commtrace.analyze.run.frame import Frames


def wrongly_reduced(frames: Frames) -> Iterator[Problem]:
    """Yield a single problem for all values that are wrong in the same way."""
    if not census(frames).num_fingerprints:
        return
    for wrong in wrong_reductions(frames):
        first = wrong.first
        expected = first["expected_scale"]
        yield Problem(
            problem="wrong reduction",
            is_fault=True,
            ranks=numbers_text(wrong.ranks),
            expected=f"factor {expected:.4g}" if expected == expected else "",
            found=f"{wrong.title}, {first['state']}",
            source=str(first["source"]),
            explanation=wrong.explanation,
            at_ns=int(first["at_ns"]),
        )
