"""Gradients reduced more than once per step: after each pass, or by a library and the program."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.findings.finding import (
    Finding,
    Rule,
    Selected,
    calls_each,
    calls_in,
    selected,
    times_each,
)
from commtrace.analyze.findings.needs import GRADIENTS, REDUCTIONS
from commtrace.analyze.frame import Frames, in_order

_STEP = ["rank", "group", "step"]


def repeated_reduction(frames: Frames) -> list[Finding]:
    """Gradients that the step has already reduced, identified by the names of their parameters; and
    all-reduces at one line that total as many bytes as a library has reduced in the step.
    """
    found = []
    for place, calls in selected(frames, _reduced_again):
        num = len(calls.rows)
        if place == _OF_PARAMETERS:
            title = (
                f"Gradients of the same parameters are reduced again {times_each(frames, num)} "
                "within a step."
            )
        else:
            where = " at {}:{}".format(*place) if place[0] else ""
            title = (
                "As many bytes as the step's reduced gradients are all-reduced again, "
                f"in {calls_each(frames, num)}{where}."
            )
        found.append(Finding(title, _ADVICE[place == _OF_PARAMETERS], calls))
    return found


_OF_PARAMETERS: tuple[str, int] = ("", -2)
"""Key of reductions that name their parameters, which no line has."""
_ADVICE = {
    True: "With gradient accumulation, reduce after the last pass only: no_sync() of "
    "DistributedDataParallel, set_requires_gradient_sync(False) of FSDP.",
    False: "If these are the same gradients, remove this reduction: the library has reduced them "
    "when the backward pass returns.",
}


def _reduced_again(frames: Frames) -> Selected:
    """Return reductions of gradients that the step has reduced before, by file and line."""
    comm = frames.comm
    calls = in_order(comm[comm["kind"].isin(REDUCTIONS) & (comm["step"] >= 0)], ["rank", "id"])
    gradients = calls[(calls["carries"] == "gradients") & (calls["parameters"] != "")]
    is_again = gradients.duplicated([*_STEP, "parameters"])
    found: Selected = {}
    if is_again.any():
        found[_OF_PARAMETERS] = calls_in(frames, gradients[is_again])
    others = _of_as_many_bytes(calls, gradients[~is_again])
    by = ["source_file", "source_line"]
    return found | {key: calls_in(frames, rows) for key, rows in others.groupby(by, observed=True)}


def _of_as_many_bytes(calls: pd.DataFrame, gradients: pd.DataFrame) -> pd.DataFrame:
    """Return all-reduces that, by line and step, total as many bytes as the step's gradients."""
    others = calls[
        (calls["kind"] == "all_reduce") & (calls["carries"] == "") & (calls["phase"] != "forward")
    ]
    at_line, reduced = (
        _totals(sized, by).reindex(pd.MultiIndex.from_frame(others[by].astype(object))).to_numpy()
        for sized, by in ((others, [*_STEP, "source_file", "source_line"]), (gradients, _STEP))
    )
    return others[(at_line > 0) & (at_line == reduced)]


def _totals(calls: pd.DataFrame, by: list[str]) -> pd.Series:
    """Return the payload by these columns; nan if that of a call is unknown."""
    payload = calls["payload_bytes"]
    parts = pd.DataFrame({"size": payload.astype("float64"), "unknown": payload < 0})
    sums = parts.groupby([calls[name].astype(object) for name in by]).sum()
    return sums["size"].where(sums["unknown"] == 0)


REPEATED_REDUCTION = Rule(
    "repeated_reduction",
    "gradients reduced more than once per step",
    repeated_reduction,
    (GRADIENTS,),
)
