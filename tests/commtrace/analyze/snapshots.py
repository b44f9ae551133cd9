"""Random snapshots of the members of communicators: `snapshot_trace(seed)`."""

from __future__ import annotations

import random

from commtrace.event import CommunicatorRow
from commtrace.schema import ABORTED, DEAD, NO_MEMBER, UNRESPONSIVE
from commtrace.tracefile import Trace
from tests.commtrace.analyze.rows import START_NS, group, trace_of

NUM_RANKS = 5
GROUPS = {"all": range(NUM_RANKS), "pair": (1, 3), "even": (0, 2, 4)}
STATES = ("running",) * 12 + (ABORTED, DEAD, NO_MEMBER, UNRESPONSIVE)


def snapshot_trace(seed: int) -> Trace:
    """Up to three snapshots; some members have no state, and some kinds no count.

    In the snapshots of an even seed some ranks launch nothing more, and the others one call of each
    kind; with an odd seed each rank may launch some.
    """
    chance = random.Random(seed)
    rows: list[CommunicatorRow] = []
    for name, members in GROUPS.items():
        stuck = set(chance.sample(list(members), chance.randrange(len(members))))
        counts = {rank: chance.choice((7, 7, 7, 6)) for rank in members}
        uncounted = {(rank, "broadcast") for rank in members if chance.random() < 0.2}
        for at in range(chance.randrange(1, 4)):
            for rank in members:
                state, error = chance.choice(STATES), chance.choice((0,) * 9 + (2, 5))
                counts[rank] += rank not in stuck if seed % 2 == 0 else chance.randrange(2)
                for kind in ("all_reduce", "broadcast"):
                    count = -1 if chance.random() < 0.05 else counts[rank]
                    if (rank, kind) not in uncounted:
                        rows.append(
                            CommunicatorRow(
                                rank, name, START_NS + 1000 * at, state, error, kind, count
                            )
                        )
    groups = [group(name, ranks) for name, ranks in GROUPS.items()]
    return trace_of(num_ranks=NUM_RANKS, groups=groups, communicators=rows)
