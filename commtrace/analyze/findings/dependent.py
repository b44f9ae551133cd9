"""Transfers that nothing can hide, since their data is made right before and used right behind.

Other measures have to make them shorter: fewer ranks on the axis, larger messages, or parts of a
product that are communicated while others are computed.
"""

from __future__ import annotations

from commtrace.analyze.findings.each_step import by_line
from commtrace.analyze.findings.finding import (
    Evidence,
    Finding,
    Rule,
    Selected,
    calls_each,
    calls_in,
    selected,
)
from commtrace.analyze.findings.needs import DEPENDENCIES, DURATION, STEPS, WAITS
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.measures.measures import counted_ns
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.overlap.overlap_lost.reasons import DEPENDENT
from commtrace.analyze.overlap.overlap_lost.windows import windows
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.units import text_of_bytes, text_of_duration

_PASSES = ("forward", "backward", "recompute")
_LEAST_KNOWN = 0.9
"""Least part of the calls whose wait for late ranks is told apart from their transfer."""


def dependent_communication(frames: Frames) -> list[Finding]:
    """Transfers of most steps, of a kind on an axis within passes, that are a large part of the
    steps' time, and whose results are used at once.
    """
    least = max(frames.settings.threshold("dependent_share") * counted_ns(frames), 1)
    return [
        Finding(
            _title(frames, str(kind), str(axis), calls),
            _LEVERS[str(kind)],
            calls,
        )
        for (axis, kind), calls in selected(frames, _dependent)
        if calls.lost_ns >= least and calls.share >= _LEAST_KNOWN * len(calls.rows)
    ]


_BATCH = "A larger batch: with twice of it, which is replayed, a sample has half of the latency."
_ASYNC = (
    "Async tensor parallelism (torch._inductor.config._micro_pipeline_tp, on GPUs) communicates "
    "parts of it while other parts of the product beside it are computed."
)
_FEWER = "Fewer ranks on the axis."
_SEQUENCE = (
    "Sequence parallelism makes of it a reduce-scatter and an all-gather of the same bytes, which "
    "async tensor parallelism can hide."
)
_HALVES = "Two halves of the batch: the exchange of one runs beside the experts of the other."
_LEVERS = {
    "all_reduce": f"{_FEWER} {_SEQUENCE} {_BATCH}",
    "all_gather": f"{_FEWER} {_ASYNC} {_BATCH}",
    "reduce_scatter": f"{_FEWER} {_ASYNC} {_BATCH}",
    "all_to_all": f"{_FEWER} {_HALVES} {_BATCH}",
}
"""Remedies by kind."""


def _title(frames: Frames, kind: str, axis: str, calls: Evidence) -> str:
    share = calls.lost_ns / counted_ns(frames)
    steps = frames.timed_steps["step"]
    num_steps = max(steps[is_steady(frames, steps)].nunique(), 1)
    each = text_of_duration(calls.lost_ns / max(frames.num_ranks, 1) / num_steps)
    num = len(calls.rows)
    size = text_of_bytes(calls.payload_bytes / num)
    return (
        f"Transfers of {kind}{f' on {axis}' if axis else ''} take {share:.0%} of the steps, {each} "
        "of each, and nothing can hide them: their data is made right before, and used at once "
        f"({calls_each(frames, num)}, {size} on average)."
    )


def _dependent(part: Frames) -> Selected:
    """Return such calls of lines of most steady steps, by axis and kind.

    Their share is the number of those whose wait is known.
    """
    comm, calls = part.comm, windows(part)
    is_one = (calls["reason"] == DEPENDENT) & comm["phase"].isin(_PASSES)
    is_one &= (comm["carries"] == "") & (comm["payload_bytes"] > 0) & is_steady(part, comm["step"])
    is_one &= comm["kind"].isin([*_LEVERS])
    lines = [each for _, each in by_line(part, comm[is_one])]
    rows = comm.loc[sorted(row for each in lines for row in each.index)]
    axes = mesh_axes(part, rows["group"]).astype(object)
    moved = arrivals(part)["transfer_ns"][rows.index]
    known = moved.where(moved >= 0).astype("float64")
    return {
        key: calls_in(
            part, own, cost_bytes=0.0, lost_ns=known, share=float(known[own.index].notna().sum())
        )
        for key, own in rows.groupby([axes, rows["kind"].astype(object)])
    }


DEPENDENT_COMMUNICATION = Rule(
    "dependent_communication",
    "transfers within passes that nothing can hide",
    dependent_communication,
    (STEPS, DURATION, WAITS, DEPENDENCIES),
    cure="latency *0.5",
)
