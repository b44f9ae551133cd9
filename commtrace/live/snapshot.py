"""State of a run at one time, as frozen values: the output of watching.

Whoever shows it (the terminal, the page, a program) computes nothing. Unknown numbers are nan, -1
or None.
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
        call: the call that it is in, `all_reduce 17 of dp`; empty outside of communication.
        is_blocked: a thread is inside of that call; otherwise the call runs beside the program.
        group: name of the call's group.
        number: number of the call in the group; -1 for a transfer.
        for_s: time that it has been in the call, or outside of communication; nan if unknown.
        stuck_s: time that it has waited for the call, or done nothing else meanwhile.
        num_in_flight: calls in flight.
        source: line of the program that made the call, or the last one.
        module: module that made it.
        step: the last step that it has ended; -1 if none.
        blocked_share: part of the last seconds in which it was blocked; nan if unknown.
        num_restarts: earlier recordings of the rank in the folder.
        is_hanging: it is stuck for longer than a hang takes.
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
    blocked_share: float = float("nan")
    num_restarts: int = 0
    is_hanging: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """The oldest collective that is in flight in a group.

    Attributes:
        name: name of the group, with its mesh axis if it is known.
        call: the collective, `all_reduce 17`.
        arrived: members that have issued it.
        missing: members that have not.
        unknown: members whose calls are not known.
        for_s: time since the first member arrived.
        last_s: time since the last one arrived.
    """

    name: str
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
class Straggler:
    """A rank that delays others, and stands out among those that do.

    Attributes:
        share: part of the last seconds for which all others of a group waited for it.
        num_late: collectives that it delayed.
        spread: number of equal delays that spread as these do; about 1 after one long stall.
        ratio: its delay as a multiple of that of the next rank; infinite if there is none.
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
        ranks: ranks to blame, or that are concerned.
        text: the problem in a sentence or two.
        source: line of the program, if one is known.
        for_s: time since it began; nan if unknown.
    """

    problem: str
    ranks: tuple[int, ...]
    text: str
    source: str = ""
    for_s: float = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at one time.

    Attributes:
        folder: folder of the run.
        command: command line of the program.
        at_ns: time of the snapshot, by the watcher's clock.
        window_s: length of the time that rates refer to.
        world_size: number of ranks of the program, as far as is known.
        unrecorded: ranks that have written nothing.
        bytes_left: bytes that were there when watching began and are not read yet.
        is_over: every rank that was seen has ended or died.
        is_gone: the folder has vanished.
        refresh_s: time that reading took.
        notes: limits of what is shown, and odd things about the run.
        dumps: stacks that ranks have dumped since watching began, the last of each.
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
    stragglers: tuple[Straggler, ...]
    problems: tuple[LiveProblem, ...]
    notes: tuple[str, ...]
    dumps: tuple[StackDump, ...]
    bytes_left: int
    is_over: bool
    is_gone: bool
    refresh_s: float
    blocked_share: float
