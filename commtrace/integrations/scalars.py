"""Numbers of a run, or of some of its steps, under the names by which trainers log them.

They are of steady steps, and equal to those that the page and `commtrace summary` open with. A
number that is unknown is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.run.matching import is_transfer
from commtrace.analyze.waits.exposed_share import exposed_share

STEP_MS = "commtrace/step_ms"
EXPOSED_SHARE = "commtrace/exposed_share"
LATE_RANK_SHARE = "commtrace/late_rank_share"
BYTES_PER_STEP = "commtrace/bytes_per_step"
FINDINGS = "commtrace/findings"

MEANINGS: Mapping[str, str] = {
    STEP_MS: "time of a step in ms; mean over ranks, median over steps",
    EXPOSED_SHARE: "blocked time of communication as a fraction of the steps' time",
    LATE_RANK_SHARE: "waits for late ranks as a fraction of the steps' time",
    BYTES_PER_STEP: "bytes that a rank sends in a step, under the ring algorithm",
    FINDINGS: "number of findings; at the end only",
}


def scalars_of(frames: Frames) -> dict[str, float]:
    """Return the known numbers by name, without the number of findings."""
    steps = CATALOG["by_step"].function(frames)
    share = exposed_share(frames)
    # The nth send is matched with the nth recv, which a part of a run may begin between.
    is_unmatched = "part" in frames.run and bool(is_transfer(frames).any())
    found = {
        STEP_MS: share.step_ns / 1e6,
        EXPOSED_SHARE: share.exposed if share.num_steps else nan,
        LATE_RANK_SHARE: nan if is_unmatched else share.waiting,
        BYTES_PER_STEP: steps["wire_bytes"][is_steady(frames, steps["step"])].mean(),
    }
    return {name: float(value) for name, value in found.items() if isfinite(value)}


def titles_of_findings(frames: Frames) -> list[str]:
    """Return the titles of the findings that are not muted, in the order of the page."""
    return list(map(str, CATALOG["findings"].function(frames)["title"]))
