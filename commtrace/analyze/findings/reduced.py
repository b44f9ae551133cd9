"""Gradients reduced more than once per step: after each pass, or by a library and the program."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.findings.finding import (
    Finding,
    Rule,
    calls_each,
    known,
    lacks_several_steps,
    times_each,
    transfer,
)
from commtrace.analyze.frame import Frames

_REDUCTIONS = ("all_reduce", "reduce_scatter")
_STEP = ["rank", "group", "step"]


def repeated_reduction(frames: Frames) -> list[Finding]:
    """Gradients that the step has already reduced, identified by the names of their parameters; and
    all-reduces at one line that total as many bytes as a library has reduced in the step.
    """
    comm = frames.comm
    calls = comm[comm["kind"].isin(_REDUCTIONS) & (comm["step"] >= 0)].sort_values(["rank", "id"])
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
        cost_bytes=known(rows["wire_bytes"]).sum(),
        cost_ns=transfer(frames, rows).sum(),
    )


def _of_as_many_bytes(calls: pd.DataFrame, gradients: pd.DataFrame) -> pd.DataFrame:
    """Return all-reduces that, by line and step, total as many bytes as the step's gradients."""
    others = calls[
        (calls["kind"] == "all_reduce") & (calls["carries"] == "") & (calls["phase"] != "forward")
    ]
    reduced = known(gradients["payload_bytes"]).groupby([gradients[name] for name in _STEP]).sum()
    by = [others[name] for name in (*_STEP, "source_file", "source_line")]
    sizes = known(others["payload_bytes"]).groupby(by, observed=True).transform("sum")
    gradient_bytes = pd.MultiIndex.from_frame(others[_STEP]).map(reduced.to_dict())
    return others[
        (sizes > 0) & (sizes.to_numpy() == pd.Series(gradient_bytes, dtype="float64").to_numpy())
    ]


def _lacks_gradients(frames: Frames) -> str:
    comm = frames.comm
    reduces = comm["kind"].isin(_REDUCTIONS)
    named = reduces & (comm["carries"] == "gradients") & (comm["parameters"] != "")
    if not reduces.any() or named.any():
        return lacks_several_steps(frames) if reduces.any() else ""
    return (
        "No reduction names the parameters of its gradients (those of DistributedDataParallel and "
        "FSDP do), so repeated reductions cannot be identified."
    )


REPEATED_REDUCTION = Rule(
    "repeated_reduction",
    "gradients reduced more than once per step",
    repeated_reduction,
    _lacks_gradients,
)
