"""Ranks that were ready to run but had no core, as the operating system counted it.

Each of them computes for that much longer, and the others wait for it. Whoever is late for it is no
culprit, so rules on late ranks leave such delays out (`findings.stragglers`).
"""

from __future__ import annotations

from commtrace.analyze.findings.finding import Finding, Rule, Selected, calls_in, selected
from commtrace.analyze.findings.needs import CORES, DURATION, WAITS
from commtrace.analyze.findings.stragglers import least_cost
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import counted_ns
from commtrace.units import text_of_duration


def shared_cores(frames: Frames) -> list[Finding]:
    """Time before calls for which ranks had no core, if it is a large share of the run."""
    least = max(least_cost(frames, "cores_share"), 1)
    most = int(frames.ranks.groupby("host", observed=True)["rank"].nunique().max())
    sharing = f"; {most} ranks share a host" if most > 1 else ""
    return [
        Finding(
            title="Ranks were ready to run but had no core for "
            f"{calls.cost_ns / counted_ns(frames):.0%} of the time, "
            f"{text_of_duration(calls.cost_ns / frames.num_ranks)} of each on average{sharing}.",
            advice="Give each rank cores of its own: fewer ranks on a host, fewer threads for each "
            "(OMP_NUM_THREADS, workers of data loaders), no other programs.",
            calls=calls,
        )
        for _, calls in selected(frames, _without_core)
        if calls.cost_ns >= least
    ]


def _without_core(part: Frames) -> Selected:
    comm = part.comm
    rows = comm[comm["run_delay_ns"] > 0]
    if len(part.whole.steps):
        rows = rows[rows["step"] >= 0]
    delay = rows["run_delay_ns"].astype("float64")
    return {"": calls_in(part, rows, cost_bytes=0.0, cost_ns=delay)} if len(rows) else {}


SHARED_CORES = Rule(
    "shared_cores",
    "ranks that are ready to run but have no core",
    shared_cores,
    (WAITS, CORES, DURATION),
)
