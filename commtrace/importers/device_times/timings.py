"""Timings of operations that another tool measured, as they are joined to recorded calls.

`COUNTERS` says which recorded calls a tool's numbers count: NCCL counts the operations of each
function of a communicator by themselves, and a flight recorder all collectives of a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from commtrace.collective_table import KINDS
from commtrace.torch_names import NOT_KNOWN, TRANSFERS

COLLECTIVES = ""
"""Counter of all collectives of a group."""

COUNTERS: Mapping[str, frozenset[str]] = {
    COLLECTIVES: frozenset(KINDS) - TRANSFERS,
    "AllReduce": frozenset({"all_reduce", "barrier"}),  # a barrier of torch is an all-reduce
    "AllGather": frozenset({"all_gather"}),
    "ReduceScatter": frozenset({"reduce_scatter"}),
    "Broadcast": frozenset({"broadcast"}),
    "Reduce": frozenset({"reduce"}),
}
"""Kinds of the recorded calls that a counter counts, by counter.

Other functions of NCCL are not here, as torch does not call them, or not for each of its calls.
"""


class Timing(NamedTuple):
    """One operation of a tool; unknown numbers are -1.

    Attributes:
        rank: Global rank.
        group: Name of its group in the tool's files.
        counter: Key of `COUNTERS`, kind of a transfer, or another text.
        number: Its number among the operations that the counter counts; -1 if it is not counted.
        kind: Its kind; empty if the counter determines it.
        peer: Global rank of the other end of a transfer.
        device_ns: Time for which a device ran it.
        issued_ns: Time at which the host issued it, by the clock of its host.
        done_ns: Time at which it had completed, likewise.
    """

    rank: int
    group: str
    counter: str
    number: int
    kind: str
    payload_bytes: int
    device_ns: int
    peer: int = NOT_KNOWN
    issued_ns: int = NOT_KNOWN
    done_ns: int = NOT_KNOWN
    algorithm: str = ""
    protocol: str = ""
    channels: int = NOT_KNOWN


class KnownGroup(NamedTuple):
    """A group of the tool's: its size, and the global ranks of its members by group rank."""

    size: int
    ranks: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Timings:
    """All operations that files of a tool have, and their groups by name."""

    groups: Mapping[str, KnownGroup]
    operations: Iterable[Timing]
