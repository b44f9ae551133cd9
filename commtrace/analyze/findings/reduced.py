"""Gradients reduced more than once per step: after each pass, or by a library and the program."""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import (
    REMOVE,
    Finding,
    Rule,
    Selected,
    calls_each,
    calls_in,
    selected,
    times_each,
)
from commtrace.analyze.findings.needs import GRADIENTS, REDUCTIONS
from commtrace.analyze.run.carried import parameters_of
from commtrace.analyze.run.frame import Frames, in_order
from commtrace.units import text_of_bytes

_STEP = ["rank", "group", "step"]


def repeated_reduction(frames: Frames) -> list[Finding]:
    """Gradients that the step has already reduced, identified by the names of their parameters and
    the size; and all-reduces at one line that total as many bytes as a library has reduced in the
    step.
    """
    found = []
    for place, calls in selected(frames, _reduced_again):
        num = len(calls.rows)
        if place in _ADVICE:
            title = (
                f"Gradients of the same parameters are {_DONE[place]} again "
                f"{times_each(frames, num)} within a step."
            )
            held = text_of_bytes(calls.share / max(frames.num_ranks, 1))
            advice = _ADVICE[place].format(held=held)
        else:
            where = " at {}:{}".format(*place) if place[0] else ""
            title = (
                "As many bytes as the step's reduced gradients are all-reduced again, "
                f"in {calls_each(frames, num)}{where}."
            )
            advice = _ONCE_MORE
        found.append(Finding(title, advice, calls))
    return found


_ReducedKey = tuple[str, int]
# Keys of reductions that name their parameters, which no line has.
_REPLICATED: _ReducedKey = ("", -2)
_SHARDED: _ReducedKey = ("", -3)
_REPLICAS: _ReducedKey = ("", -4)
_DONE = {
    _REPLICATED: "reduced",
    _SHARDED: "reduced",
    _REPLICAS: "all-reduced between replicas",
}
_ADVICE: dict[_ReducedKey, str] = {
    _REPLICATED: "With gradient accumulation, reduce after the last pass only: no_sync() of "
    "DistributedDataParallel, set_requires_gradient_sync(False) of replicate().",
    _SHARDED: "With gradient accumulation, reduce after the last pass only, if memory allows: "
    "set_requires_gradient_sync(False) of fully_shard, no_sync() of FullyShardedDataParallel. "
    "Meanwhile each rank keeps unsharded gradients ({held}) instead of its shards.",
    _REPLICAS: "With gradient accumulation, all-reduce after the last pass only: "
    "set_requires_all_reduce(False) of fully_shard. It takes no more memory, since gradients stay "
    "sharded ({held} on each rank): every pass still reduces them within the shards. "
    "set_requires_gradient_sync(False), and no_sync() of FullyShardedDataParallel, save that, too, "
    "but keep unsharded gradients.",
}
_ONCE_MORE = (
    "If these are the same gradients, remove this reduction: the library has reduced them "
    "when the backward pass returns."
)


def _reduced_again(frames: Frames) -> Selected:
    """Return reductions of gradients that the step has reduced before.

    By file and line, or by a key of `_ADVICE`; `share` is then the size of the gradients of all
    ranks.
    """
    comm = frames.comm
    calls = in_order(comm[comm["kind"].isin(REDUCTIONS) & (comm["step"] >= 0)], ["rank", "id"])
    calls = calls.assign(names=parameters_of(frames, calls))
    gradients = calls[(calls["carries"] == "gradients") & (calls["names"] != "")]
    is_again = gradients.duplicated([*_STEP, "kind", "names", "payload_bytes"])
    found: Selected = {}
    if is_again.any():
        again = gradients[is_again]
        sort = _sorts(gradients)[again.index]
        for key in sort.unique():
            rows = again[sort == key]
            once = rows.drop_duplicates(["rank", "group", "names"])["payload_bytes"]
            found[key] = calls_in(frames, rows, share=float(once.clip(lower=0).sum()))
    others = _of_as_many_bytes(calls, gradients[~is_again])
    by = ["source_file", "source_line"]
    return found | {key: calls_in(frames, rows) for key, rows in others.groupby(by, observed=True)}


def _sorts(gradients: pd.DataFrame) -> pd.Series:
    """Return a key of `_ADVICE` for each reduction of gradients.

    All-reduces of gradients that are also reduce-scattered run between replicas. DTensor's own
    all-reduces, of a single parameter of a unit, are due only when the unit reduces its gradients.
    """
    of_names = [gradients["rank"], gradients["step"], gradients["names"]]
    is_scatter = gradients["kind"] == "reduce_scatter"
    has_shards = is_scatter.groupby(of_names).transform("any")
    is_redistributed = gradients["target_spec"] != ""
    keys = np.select([is_scatter | is_redistributed, has_shards], [_SHARDED[1], _REPLICAS[1]], -2)
    return pd.Series([("", int(key)) for key in keys], gradients.index, dtype=object)


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
    """Return the payload by these columns; nan if a call's payload is unknown."""
    payload = calls["payload_bytes"]
    parts = pd.DataFrame({"size": payload.astype("float64"), "unknown": payload < 0})
    sums = parts.groupby([calls[name].astype(object) for name in by]).sum()
    return sums["size"].where(sums["unknown"] == 0)


REPEATED_REDUCTION = Rule(
    "repeated_reduction",
    "gradients reduced more than once per step",
    repeated_reduction,
    (GRADIENTS,),
    cure=REMOVE,
)
