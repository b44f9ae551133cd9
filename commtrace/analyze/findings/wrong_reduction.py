"""Gradients, losses and norms that are missing contributions, or have the wrong factor."""

from __future__ import annotations

from functools import partial

from commtrace.analyze.findings.finding import FAULT, Finding, Rule, Selected, calls_in, selected
from commtrace.analyze.findings.needs import OWN_GRADIENTS, REDUCTIONS
from commtrace.analyze.gradients import WrongReduction, wrong_reductions
from commtrace.analyze.measures.census import census
from commtrace.analyze.run.frame import Frames


def wrong_reduction(frames: Frames) -> list[Finding]:
    """Values of table `gradients` that are wrong for certain, in a run that has fingerprints."""
    if not census(frames).num_fingerprints:
        return []
    wrong = wrong_reductions(frames)
    if not wrong:
        return []
    return [
        Finding(
            f"{wrong[number].title[0].upper()}{wrong[number].title[1:]} "
            f"{_STATE[str(wrong[number].first['state'])]}: {wrong[number].first['explanation']}.",
            _ADVICE[str(wrong[number].first["state"])],
            calls,
        )
        for number, calls in selected(frames, partial(_calls_of, wrong))
    ]


_STATE = {
    "missing": "lacks contributions of some ranks",
    "scaled": "has the wrong factor",
    "mixed": "has contributions of other parameters",
}
_ADVICE = {
    "missing": "Reduce it over all ranks that hold replicas of it and computed other gradients.",
    "scaled": "Reduce it once over each group, and divide it once by the number of losses. "
    "`commtrace table RUN gradients` has the factor of each parameter.",
    "mixed": "Reduce it over the ranks that hold replicas of it, and no others.",
}


def _calls_of(wrong: list[WrongReduction], part: Frames) -> Selected:
    """Return the reductions of each wrong value's first step and ranks, by its number."""
    comm = part.comm
    reducing = comm[comm["kind"].isin(REDUCTIONS)]
    found: Selected = {}
    for number, each in enumerate(wrong):
        own = reducing[(reducing["step"] == each.first["step"]) & reducing["rank"].isin(each.ranks)]
        if len(own):
            found[number] = calls_in(part, own, cost_bytes=0.0)
    return found


WRONG_REDUCTION = Rule(
    "wrong_reduction",
    "gradients with missing contributions or a wrong factor, in runs with values",
    wrong_reduction,
    (OWN_GRADIENTS,),
    concerns=FAULT,
    cure=None,
)
