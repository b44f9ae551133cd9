"""Wait states of each rank, by the names of `wait_states`, beside its transfer time.

The three times add up to the blocked time of the rank: before the last peer arrived, after that,
and in calls with an unknown wait (a peer's call is missing, or its times are unknown). Calls of
unknown blocked time are counted in `num_untimed`; a time without any call that has it is unknown.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.measures.wait_state import STATES
from commtrace.analyze.run.analysis import Analysis, addable, typed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import NOT_KNOWN
from commtrace.analyze.run.sums import sums_by
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
    Column("num_untimed", int, "", "calls of unknown blocked time", title="Not timed"),
)


def rank_waits(frames: Frames) -> pd.DataFrame:
    """Return a row per rank and state, in the order of ranks and of `STATES`."""
    return typed(pd.concat(frames.by_ranks(_of_ranks)).sort_index().reset_index(), COLUMNS)


def _of_ranks(frames: Frames) -> pd.DataFrame:
    """Return the rows of some ranks, by rank and the state's place in their order."""
    comm, arrived = frames.comm, arrivals(frames)
    known = arrived["wait_ns"] >= 0
    states = [*dict.fromkeys([*STATES.values(), OTHER])]
    kind = comm["kind"].cat
    orders = [states.index(STATES.get(each, OTHER)) for each in kind.categories]
    order = pd.Series(np.asarray(orders, "int64")[kind.codes], comm.index, name="order")
    times = {
        "wait_ns": arrived["wait_ns"],
        "transfer_ns": arrived["transfer_ns"],
        "unknown_ns": comm["blocked_ns"].mask(known, 0),
    }
    table = sums_by(
        {
            "num_calls": np.ones(len(comm), "int64"),
            "num_waits": (arrived["wait_ns"] > 0).astype("int64"),
            "num_untimed": (comm["blocked_ns"] < 0).astype("int64"),
            **{name: addable(each.clip(lower=0)) for name, each in times.items()},
            **{f"known {name}": (each >= 0).astype("int64") for name, each in times.items()},
        },
        [comm["rank"], order],
    )
    for name in times:
        table[name] = table[name].where(table[f"known {name}"] > 0, NOT_KNOWN)
    table["num_waits"] = table["num_waits"].where(table["wait_ns"] >= 0, NOT_KNOWN)
    table["state"] = [states[order] for order in table.index.get_level_values("order")]
    return table


RANK_WAITS = Analysis(
    "rank_waits",
    "Waits of each rank",
    "In which wait states is each rank, and for how long?",
    rank_waits,
    COLUMNS,
    topic="Who waits",
    shown="rank state num_calls num_waits wait_ns transfer_ns unknown_ns num_untimed",
)
