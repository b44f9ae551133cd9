"""State of a run at a point in time, as frozen values: the output of watching.

The terminal, the page and programs show it without further computation. Unknown numbers are nan,
-1 or None.
"""

from __future__ import annotations

from dataclasses import dataclass

from commtrace.live.step_times import StepTimes
from commtrace.tracefile.dump_files import StackDump


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank.

    Attributes:
        life: a key of `life.MEANINGS`.
        sign_age_s: time since its last sign of life.
        call: the call in flight, `all_reduce 17 of dp`; empty outside of communication.
        is_blocked: a thread is inside the call; otherwise the call runs beside the program.
        group: name of the call's group.
        number: number of the call in the group; -1 for a transfer.
        for_s: time in the call, or outside of communication; nan if unknown.
        stuck_s: time for which the rank has waited for the call, or made no other call.
        num_in_flight: calls in flight.
        source: line of the program that made the call, or the last call.
        module: module that made the call.
        step: the last step that the rank has ended; -1 if none.
        step_s: duration of that step; nan if unknown.
        blocked_share: part of the last seconds in which the rank was blocked; nan if unknown.
        sent_bytes: bytes sent by the ended calls; nan if the size of one is unknown.
        num_restarts: earlier recordings of the rank in the folder.
        is_hanging: `stuck_s` is long enough for a hang.
    """

    rank: int
    host: str
    pid: int
    life: str
    sign_age_s: float
    call: str = ""
    is_blocked: bool = False
    group: str = ""
    number: int = -1
    for_s: float = float("nan")
    stuck_s: float = float("nan")
    num_in_flight: int = 0
    source: str = ""
    module: str = ""
    step: int = -1
    step_s: float = float("nan")
    blocked_share: float = float("nan")
    sent_bytes: float = float("nan")
    num_restarts: int = 0
    is_hanging: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """The oldest collective that is in flight in a group.

    Attributes:
        name: name of the group, with its mesh axis if it is known.
        label: mesh axis of the group, or else its description, or else its name.
        call: the collective, `all_reduce 17`.
        arrived: members that have issued the collective.
        missing: members that have not issued it.
        unknown: members whose calls are not known.
        for_s: time since the first member arrived.
        last_s: time since the latest arrival.
    """

    name: str
    label: str
    call: str
    arrived: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    for_s: float
    last_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRate:
    """Traffic of a kind of communication, summed over ranks."""

    kind: str
    bytes_per_s: float
    calls_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraffic:
    """Traffic of a kind of communication in the groups of a label, summed over ranks.

    Attributes:
        group: label of the groups, as in `GroupState`.
        num_calls: calls that have ended since the recording began.
        sent_bytes: bytes that they sent; nan if the size of one is unknown.
    """

    group: str
    kind: str
    num_calls: int
    sent_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank whose delays of other ranks stand out.

    Attributes:
        share: part of the last seconds for which all others of a group waited for it.
        num_late: collectives that it delayed.
        spread: effective number of equal delays; about 1 after a single long stall.
        ratio: ratio of its delay to the next rank's delay; infinite if there is none.
    """

    rank: int
    share: float
    num_late: int
    spread: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveProblem:
    """One finding about the run as it is now.

    Attributes:
        problem: `hang`, `waiting` (not yet a hang), `mismatch`, `straggler`, or a key of
            `life.MEANINGS`.
        ranks: blamed ranks, or the ranks concerned.
        text: the problem in a sentence or two.
        source: line of the program, if known.
        for_s: time since the problem began; nan if unknown.
    """

    problem: str
    ranks: tuple[int, ...]
    text: str
    source: str = ""
    for_s: float = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at a point in time.

    Attributes:
        folder: folder of the run.
        command: command line of the program.
        at_ns: time of the snapshot, by the watcher's clock.
        window_s: length of the time that rates refer to.
        world_size: number of ranks of the program, as far as is known.
        unrecorded: ranks that have written nothing.
        bytes_left: number of bytes present when watching began and not read yet.
        is_over: every rank that was seen has ended or died.
        is_gone: the folder has vanished.
        refresh_s: time that reading took.
        notes: limits of the snapshot, and unusual facts about the run.
        dumps: the last stack that each rank has dumped since watching began.
    """

    folder: str
    command: str
    at_ns: int
    window_s: float
    world_size: int
    ranks: tuple[RankState, ...]
    unrecorded: tuple[int, ...]
    groups: tuple[GroupState, ...]
    steps: StepTimes
    kinds: tuple[KindRate, ...]
    traffic: tuple[GroupTraffic, ...]
    stragglers: tuple[Straggler, ...]
    problems: tuple[LiveProblem, ...]
    notes: tuple[str, ...]
    dumps: tuple[StackDump, ...]
    bytes_left: int
    is_over: bool
    is_gone: bool
    refresh_s: float
    blocked_share: float
