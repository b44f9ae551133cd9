"""Members of a group that wait in a collective, from the progress of each member.

A rank waits in collective N if it has completed N - 1 and issued more, or if the trace has its call
N without an end. Numbers count the collectives of a group from 1, as printed by torch's watchdog
(SeqNum):

    a member has issued fewer than N           it did not issue N, and is blamed
    all members have issued N                  no desync: members that completed less are blamed
    a member has no line or dump               its progress is unknown, and the text says so
    the group has sends and receives           nobody is blamed: each rank numbers them by itself

Called by `progress`, which reads the table of communicators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from commtrace.analyze.consistency.problem import (
    Problem,
    at_the_start,
    call_text,
    fewer_of,
    group_text,
    numbers_text,
)
from commtrace.units import counted, text_of_ranks

SEQ_NUM = "SeqNum"
"""Name by which torch's watchdog prints the number of a collective, which counts from 1."""


@dataclass(frozen=True, slots=True)
class RankProgress:
    """One member; unknown numbers are -1.

    Attributes:
        issued: Least number of collectives that the rank has issued.
        completed: Number of completed collectives.
        in_flight: By number of a collective that has not ended, its kind, numbers of elements and
            time of issue.
    """

    issued: int
    completed: int
    in_flight: Mapping[int, tuple[str, str, int]]

    @property
    def waits_in(self) -> int:
        """Number of the collective in which the rank waits; -1 if unknown or none."""
        if self.completed >= 0:
            return self.completed + 1 if self.issued > self.completed else -1
        return min(self.in_flight, default=-1)


@dataclass(frozen=True, slots=True)
class MembersProgress:
    """The members of a group, by rank; `silent` members have no line.

    Attributes:
        named: Name of the group in sentences; may be empty.
        has_all: The group has no other members; False for logs, which do not state the members.
        transfers: Kinds of the group's sends and receives that have not ended.
        is_listed: The trace lists the calls in flight, with their kinds.
    """

    group: str
    of_ranks: Mapping[int, RankProgress]
    silent: tuple[int, ...]
    named: str = ""
    has_all: bool = True
    transfers: tuple[str, ...] = ()
    is_listed: bool = True

    @property
    def waiting(self) -> dict[int, int]:
        """By rank, the number of the collective in which the rank waits."""
        waits = {rank: each.waits_in for rank, each in self.of_ranks.items()}
        return {rank: number for rank, number in waits.items() if number > 0}

    @property
    def may_be_transfers(self) -> bool:
        """True if no call is listed, and the numbers differ between ranks."""
        issued = {each.issued for each in self.of_ranks.values()}
        return not self.is_listed and len(set(self.waiting.values())) > 1 and len(issued) > 1

    def behind(self, number: int) -> list[int]:
        """Return the ranks that have not issued a collective."""
        return sorted(rank for rank, each in self.of_ranks.items() if each.issued < number)

    def text_of(self, number: int) -> str:
        """Return `all_reduce SeqNum 8 of dp (group 3)`."""
        calls = [
            each.in_flight[number] for each in self.of_ranks.values() if number in each.in_flight
        ]
        kinds = {kind for kind, *_ in calls} - {"", "unknown"}
        kind = _one(kinds) or ("collective" if self.is_listed else "call")
        return call_text(f"{kind} {SEQ_NUM}", number, self.group, self.named)

    def since_ns(self, number: int) -> int:
        """Return when the first rank issued a collective; -1 if unknown."""
        calls = [each.in_flight.get(number, ("", "", -1)) for each in self.of_ranks.values()]
        return min((issue_ns for *_, issue_ns in calls if issue_ns >= 0), default=-1)


def stuck_members(progress: MembersProgress, differs_at: int | None) -> Iterator[Problem]:
    """Yield the problem of the first collective in which members wait, if any.

    Args:
        progress: Progress of the members.
        differs_at: Number of the first call in which members are known to disagree.
    """
    of_ranks, waiting = progress.of_ranks, progress.waiting
    if not waiting:
        return
    if progress.transfers or progress.may_be_transfers:
        yield _of_transfers(progress)
        return
    number = min(waiting.values())
    if differs_at is not None and differs_at <= number:
        return  # the disagreement is the cause
    inside = sorted(rank for rank, each in waiting.items() if each == number)
    behind = progress.behind(number)
    passed = sorted(rank for rank, each in of_ranks.items() if each.completed >= number)
    kinds = {of_ranks[rank].in_flight.get(number, ("", "", -1))[0] for rank in inside}
    kinds -= {"", "unknown"}
    named = progress.text_of(number)
    unknown = (
        f" {at_the_start(progress.silent)} wrote nothing: progress unknown."
        if progress.silent
        else ""
    )
    common = {"group": progress.group, "number": number, "at_ns": progress.since_ns(number)}
    if behind:
        yield _missing(progress, inside, behind, named, unknown)
        return
    sizes = {rank: of_ranks[rank].in_flight.get(number, ("", "", -1))[1] for rank in inside}
    if len(kinds) == 1 and (differing := _minority(sizes)) is not None:
        blamed, expected, found = differing
        yield Problem(
            problem="size", is_fault=True, ranks=numbers_text(blamed), expected=expected,
            found=found, explanation=f"In {named}, {text_of_ranks(blamed or inside)} "
            f"{'have' if len(blamed) != 1 else 'has'} {found}, others {expected}.{unknown}",
            **common,
        )  # fmt: skip
        return
    every = progress.has_all and not progress.silent
    issued = sorted(of_ranks)
    who = "All ranks" if every else at_the_start(issued)
    less = (
        f" It has completed on {text_of_ranks(passed)}, but not on {text_of_ranks(inside)}."
        if passed
        else ""
    )
    verdict = (
        f" {_UNKNOWN_KIND}"
        if not progress.is_listed
        else " No desync: the network, a device or a process that died may be the cause."
        if every
        else f" No desync among the {counted(len(issued), 'rank')} with lines; another rank may "
        "not have issued it."
    )
    yield Problem(
        problem="hanging call", is_fault=True,
        ranks=numbers_text(inside if passed and progress.is_listed else ()),
        found=f"issued by {text_of_ranks(sorted(of_ranks))}, not completed",
        explanation=f"{who} issued {named}, which did not end.{less}{verdict}{unknown}", **common,
    )  # fmt: skip


_UNKNOWN_KIND = (
    "The dumps list no call of the group: its number comes from `pg_status`, which counts sends "
    "and receives, too."
)


def _of_transfers(progress: MembersProgress) -> Problem:
    """Return the problem of a group with transfers; it blames nobody."""
    waiting = sorted(progress.waiting)
    kinds = " or ".join(sorted(progress.transfers)) or "a call"
    where = f"{kinds} of {group_text(progress.group, progress.named)}"
    return Problem(
        problem="hanging call", is_fault=True, group=progress.group, ranks="",
        found=f"issued by {text_of_ranks(waiting)}, not completed",
        explanation=f"{at_the_start(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in "
        f"{where}. The rank that is behind is unknown: torch numbers sends and receives on each "
        "rank separately.",
    )  # fmt: skip


def _missing(
    progress: MembersProgress, inside: list[int], behind: list[int], named: str, unknown: str
) -> Problem:
    is_extra = len(behind) > len(inside)
    number = min(progress.waiting.values())
    blamed, is_either = fewer_of(inside, behind)
    if is_extra and not progress.is_listed:
        blamed = []
    unknown += "" if is_either or progress.is_listed else f" {_UNKNOWN_KIND}"
    most = Counter(progress.of_ranks[rank].issued for rank in behind)
    last = ", ".join(f"{number:,}" for number in sorted(most))
    verb = "has" if len(behind) == 1 else "have"
    text = (
        f"Only {text_of_ranks(inside)} issued {named}; {text_of_ranks(behind)} did not"
        if is_extra
        else f"{at_the_start(behind)} {verb} not issued {named}, in which {text_of_ranks(inside)} "
        f"{'waits' if len(inside) == 1 else 'wait'}"
    )
    return Problem(
        problem="extra call" if is_extra else "missing call",
        is_fault=True,
        group=progress.group,
        number=number,
        ranks=numbers_text(blamed),
        is_one_of_ranks=is_either,
        expected=f"not by {text_of_ranks(behind)}" if is_extra else f"by {text_of_ranks(inside)}",
        found=f"made by {text_of_ranks(inside)}" if is_extra else f"not by {text_of_ranks(behind)}",
        explanation=f"{text}: last issued {last}.{unknown}",
        at_ns=progress.since_ns(number),
    )


def _one(kinds: set[str]) -> str:
    return next(iter(kinds)) if len(kinds) == 1 else ""


def _minority(sizes: Mapping[int, str]) -> tuple[list[int], str, str] | None:
    """Return the ranks whose known size differs from the majority's, and both sizes.

    The ranks are empty if there is no majority.
    """
    num = Counter(size for size in sizes.values() if size)
    if len(num) < 2:
        return None
    (first, most), (second, next_most) = num.most_common(2)
    blamed = sorted(rank for rank, size in sizes.items() if size and size != first)
    return (blamed if most > next_most else []), first, second
