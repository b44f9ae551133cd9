"""Gradients reduced more than once per step: after each pass, or by a library and the program."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.findings.finding import (
    Finding,
    Rule,
    calls_each,
    times_each,
    transfer_ns,
    wire_bytes,
)
from commtrace.analyze.findings.needs import GRADIENTS, REDUCTIONS
from commtrace.analyze.frame import Frames

_STEP = ["rank", "group", "step"]


def repeated_reduction(frames: Frames) -> list[Finding]:
    """Gradients that the step has already reduced, identified by the names of their parameters; and
    all-reduces at one line that total as many bytes as a library has reduced in the step.
    """
    comm = frames.comm
    calls = comm[comm["kind"].isin(REDUCTIONS) & (comm["step"] >= 0)].sort_values(["rank", "id"])
    gradients = calls[(calls["carries"] == "gradients") & (calls["parameters"] != "")]
    is_again = gradients.duplicated([*_STEP, "parameters"])
    found = []
    if is_again.any():
        rows = gradients[is_again]
        times = times_each(frames, len(rows))
        found.append(
            _again(
                frames,
                rows,
                f"Gradients of the same parameters are reduced again {times} within a step.",
                "With gradient accumulation, reduce after the last pass only: no_sync() of "
                "DistributedDataParallel, set_requires_gradient_sync(False) of FSDP.",
            )
        )
    for (file, line), rows in _of_as_many_bytes(calls, gradients[~is_again]).groupby(
        ["source_file", "source_line"], observed=True
    ):
        where = f" at {file}:{line}" if file else ""
        found.append(
            _again(
                frames,
                rows,
                "As many bytes as the step's reduced gradients are all-reduced again, "
                f"in {calls_each(frames, len(rows))}{where}.",
                "If these are the same gradients, remove this reduction: the library has reduced "
                "them when the backward pass returns.",
            )
        )
    return found


def _again(frames: Frames, rows: pd.DataFrame, title: str, advice: str) -> Finding:
    return Finding(
        title=title,
        advice=advice,
        rows=rows.index,
        cost_bytes=wire_bytes(rows),
        cost_ns=transfer_ns(frames, rows),
    )


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
