"""Wait states of each rank, by the names of `wait_states`, beside its transfer time.

The three times add up to the blocked time of the rank: before the last peer arrived, after that,
and in calls with an unknown wait (a peer's call is missing, or times are unknown).
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.analysis import Analysis, addable, typed
from commtrace.analyze.arrivals import arrivals
from commtrace.analyze.frame import Frames
from commtrace.analyze.wait_states import STATES
from commtrace.schema import Column

OTHER = "Other"

COLUMNS = (
    Column("rank", int, "", "global rank"),
    Column("state", str, "", "name of the wait state of its calls, or Other", title="Wait state"),
    Column("num_calls", int, "", "calls of that kind", title="Calls"),
    Column("num_waits", int, "", "calls with a wait", title="Waits"),
    Column(
        "wait_ns", int, "ns", "blocked time before the last required peer arrived", title="Waited"
    ),
    Column("transfer_ns", int, "ns", "blocked time after that", title="Transferred"),
    Column(
        "unknown_ns", int, "ns", "blocked time in calls with an unknown wait", title="Not known"
    ),
)


def rank_waits(frames: Frames) -> pd.DataFrame:
    """Return one row per rank and state, in the order of ranks and of `STATES`."""
    comm, arrived = frames.comm, arrivals(frames)
    known = arrived["wait_ns"] >= 0
    order = {state: place for place, state in enumerate(dict.fromkeys([*STATES.values(), OTHER]))}
    state = comm["kind"].astype(object).map(STATES).fillna(OTHER)
    calls = pd.DataFrame(
        {
            "rank": comm["rank"],
            "order": state.map(order),
            "state": state,
            "num_calls": 1,
            "num_waits": (arrived["wait_ns"] > 0).astype("int64"),
            "wait_ns": addable(arrived["wait_ns"].where(known, 0)),
            "transfer_ns": addable(arrived["transfer_ns"].where(known, 0)),
            "unknown_ns": addable(comm["blocked_ns"].clip(lower=0).mask(known, 0)),
        }
    )
    return typed(calls.groupby(["rank", "order", "state"]).sum().reset_index(), COLUMNS)


RANK_WAITS = Analysis(
    "rank_waits",
    "Waits of each rank",
    "In which wait states is each rank, and for how long?",
    rank_waits,
    COLUMNS,
    topic="Who waits",
    shown="rank state num_calls num_waits wait_ns transfer_ns unknown_ns",
)
