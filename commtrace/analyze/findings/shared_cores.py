"""Ranks that were ready to run but had no core, as the operating system counted it.

Each of them computes for that much longer, and the others wait for it. Whoever is late for it is no
culprit, so rules on late ranks leave such delays out (`findings.stragglers`).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import MACHINE, Finding, Rule, Selected, calls_in, selected
from commtrace.analyze.findings.needs import CORES, DURATION, WAITS
from commtrace.analyze.findings.stragglers import least_cost
from commtrace.analyze.measures.intervals import one_at_a_time, without_core
from commtrace.analyze.measures.measures import counted_ns
from commtrace.analyze.measures.step_times import step_windows
from commtrace.analyze.run.frame import Frames
from commtrace.units import text_of_duration


def shared_cores(frames: Frames) -> list[Finding]:
    """Time before calls for which ranks had no core, if it is a large share of the run."""
    least = max(least_cost(frames, "cores_share"), 1)
    hosts = frames.ranks.groupby("host", observed=True)["rank"].nunique()
    most = max(hosts.tolist(), default=1)
    sharing = f"; {most} ranks share a host" if most > 1 else ""
    return [
        Finding(
            title="Ranks were ready to run but had no core for "
            f"{calls.lost_ns / counted_ns(frames):.0%} of the time, "
            f"{text_of_duration(calls.lost_ns / frames.num_ranks)} of each on average{sharing}.",
            advice="Give each rank cores of its own: fewer ranks on a host, fewer threads for each "
            "(OMP_NUM_THREADS, workers of data loaders), no other programs.",
            calls=calls,
        )
        for _, calls in selected(frames, _without_core)
        if calls.lost_ns >= least
    ]


def _without_core(part: Frames) -> Selected:
    spans = without_core(part)
    if len(part.whole.steps):
        windows = step_windows(part).groupby(["rank", "step"])["start"].min()
        of_step = pd.MultiIndex.from_frame(spans[["rank", "step"]])
        begin = windows.reindex(of_step).to_numpy()
        spans = spans.assign(start=np.fmax(spans["start"], begin))[~np.isnan(begin)]
        spans = spans[spans["end"] > spans["start"]]
    # Threads of a rank wait for cores at the same time.
    spans = one_at_a_time(spans).set_index("row")
    rows = part.comm.loc[spans.index.sort_values()]
    delay = (spans["end"] - spans["start"]).astype("float64")
    return {"": calls_in(part, rows, cost_bytes=0.0, lost_ns=delay)} if len(rows) else {}


SHARED_CORES = Rule(
    "shared_cores",
    "ranks that are ready to run but have no core",
    shared_cores,
    (WAITS, CORES, DURATION),
    concerns=MACHINE,
    cure="cores",
)
