"""A rank that is always late: far more often the last one than chance would have it.

Of n ranks that do alike, each comes last to 1/n of the collectives. A late rank comes last to at
least half of the rest, too, beyond three standard deviations, and that costs a share of the steps'
time, or of the run where none are marked.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.arrivals import NEEDS_EVERYONE, arrivals
from commtrace.analyze.findings.finding import Finding, Rule
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import counted_ns
from commtrace.units import text_of_duration

LEAST_LAST = 10
LEAST_BEYOND_CHANCE = 0.5
NUM_DEVIATIONS = 3
LEAST_SHARE = 0.01


def late_ranks(frames: Frames) -> list[Finding]:
    """Ranks that come last to most of their collectives and cost a share of the steps' time."""
    arrived = arrivals(frames)
    comm = frames.comm[(arrived["wait_ns"] >= 0) & frames.comm["kind"].isin(NEEDS_EVERYONE)]
    arrived = arrived.loc[comm.index]
    is_last = arrived["last_rank"] == comm["rank"]
    sizes = frames.groups.set_index("name")["size"]
    chance = 1.0 / comm["group"].astype(object).map(sizes).astype("float64")
    times = pd.DataFrame({"last": is_last, "num": 1, "expected": chance})
    times = times.groupby(comm["rank"]).sum()
    waited = arrived["wait_ns"].groupby(arrived["last_rank"]).sum()
    counted = counted_ns(frames)
    found = []
    for rank, num_last, num, expected in times.itertuples():
        caused = float(waited.get(rank, 0))
        often = num_last / num
        beyond = num_last - expected
        deviation = (expected * (1 - expected / num)) ** 0.5
        if num_last < LEAST_LAST or caused < LEAST_SHARE * counted:
            continue
        if beyond < max(LEAST_BEYOND_CHANCE * (num - expected), NUM_DEVIATIONS * deviation):
            continue
        found.append(
            Finding(
                title=f"Rank {rank} came last to {often:.0%} of its collectives; the others waited "
                f"{text_of_duration(caused)} for it in all.",
                advice="Look at what that rank does more than others (data loading, logging, an "
                "uneven shard) or at its machine.",
                rows=comm.index[(comm["rank"] == rank) & is_last],
                cost_bytes=0.0,
                cost_ns=caused,
            )
        )
    return found


def lacks_waits(frames: Frames) -> str:
    """Whether arrivals can be compared."""
    if not len(frames.comm) or (arrivals(frames)["wait_ns"] >= 0).any():
        return ""
    return "No collective could be matched across its ranks, so nobody is known to be late."


LATE = Rule("late_rank", "a rank that is always late", late_ranks, lacks_waits)
