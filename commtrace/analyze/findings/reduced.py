"""Gradients reduced more than once a step: after each pass, or by two independent parties."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.findings.finding import (
    Finding,
    Rule,
    known,
    lacks_several_steps,
    per_rank,
    transfer,
)
from commtrace.analyze.frame import Frames

_REDUCTIONS = ("all_reduce", "reduce_scatter")
_STEP = ["rank", "group", "step"]


def reduced_again(frames: Frames) -> list[Finding]:
    """Reductions of gradients that the step has reduced before, by their parameters' names; and
    all-reduces at one line of as many bytes as a library has reduced gradients in the step.
    """
    comm = frames.comm
    calls = comm[comm["kind"].isin(_REDUCTIONS) & (comm["step"] >= 0)].sort_values(["rank", "id"])
    gradients = calls[(calls["carries"] == "gradients") & (calls["parameters"] != "")]
    is_again = gradients.duplicated([*_STEP, "parameters"])
    found = []
    if is_again.any():
        rows = gradients[is_again]
        num = per_rank(frames, len(rows))
        found.append(
            _again(
                frames,
                rows,
                f"Gradients of the same parameters are reduced {num} times more than once a step.",
                "If passes add up to one step, reduce after the last one only: no_sync() of "
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
                "As many bytes as gradients have been reduced in the step are all-reduced once "
                f"more, in {per_rank(frames, len(rows))} calls{where}.",
                "If these are the gradients again, leave it out: the library has them reduced when "
                "the backward pass returns.",
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
    wanted = pd.MultiIndex.from_frame(others[_STEP]).map(reduced.to_dict())
    return others[(sizes > 0) & (sizes.to_numpy() == pd.Series(wanted, dtype="float64").to_numpy())]


def _lacks_gradients(frames: Frames) -> str:
    comm = frames.comm
    reduces = comm["kind"].isin(_REDUCTIONS)
    named = reduces & (comm["carries"] == "gradients") & (comm["parameters"] != "")
    if not reduces.any() or named.any():
        return lacks_several_steps(frames) if reduces.any() else ""
    return (
        "No reduction says which parameters' gradients it carries (those of "
        "DistributedDataParallel and FSDP do), so what is reduced again cannot be told."
    )


REDUCED_AGAIN = Rule(
    "reduced_again", "gradients reduced more than once a step", reduced_again, _lacks_gradients
)
