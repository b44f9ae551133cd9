"""Members of a group that wait in a collective, by how far each has come in the group.

A rank waits in collective N if N - 1 have completed and it has issued more, or if the trace has its
call N, which does not end. Numbers count the collectives of a group from 1, as torch's watchdog
prints them (SeqNum):

    a member that has issued fewer than N      did not issue it: it is blamed
    all members have issued N                  no desync: the ones whose device completed less
    members without a line or a dump           unknown, and named as such

Called by `progress`, which reads the table of communicators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from commtrace.analyze.consistency.problem import Problem, at_the_start, numbers_text
from commtrace.units import counted, text_of_ranks

SEQ_NUM = "SeqNum"
"""Name by which torch's watchdog prints the number of a collective, which counts from 1."""


@dataclass(frozen=True, slots=True)
class RankProgress:
    """One member; unknown numbers are -1.

    Attributes:
        issued: Collectives that it has issued, at least.
        completed: Those that have completed.
        in_flight: Kind and numbers of elements, by number of a collective that has not ended.
    """

    issued: int
    completed: int
    in_flight: Mapping[int, tuple[str, str]]

    @property
    def waits_in(self) -> int:
        """Number of the collective in which it waits; -1 if it is unknown or none."""
        if self.completed >= 0:
            return self.completed + 1 if self.issued > self.completed else -1
        return min(self.in_flight, default=-1)


@dataclass(frozen=True, slots=True)
class MembersProgress:
    """The members of a group, by rank; `silent` ones have no line.

    Attributes:
        has_all: The group has no other members; of a log, the number of ranks is unknown.
    """

    group: str
    of_ranks: Mapping[int, RankProgress]
    silent: tuple[int, ...]
    has_all: bool


def stuck_members(progress: MembersProgress, differs_at: int | None) -> Iterator[Problem]:
    """Yield the problem of the first collective in which members wait, if any.

    Args:
        progress: How far each member has come.
        differs_at: Number, from 0, of the first call in which members are known to disagree.
    """
    of_ranks = progress.of_ranks
    waiting = {rank: each.waits_in for rank, each in of_ranks.items() if each.waits_in > 0}
    if not waiting:
        return
    number = min(waiting.values())
    if differs_at is not None and differs_at < number:
        return  # the disagreement is the cause
    inside = sorted(rank for rank, each in waiting.items() if each == number)
    behind = sorted(rank for rank, each in of_ranks.items() if each.issued < number)
    passed = sorted(rank for rank, each in of_ranks.items() if each.completed >= number)
    kinds = {of_ranks[rank].in_flight.get(number, ("", ""))[0] for rank in inside} - {"", "unknown"}
    named = f"{_one(kinds) or 'collective'} {SEQ_NUM} {number:,} of group {progress.group}"
    unknown = (
        f" {at_the_start(progress.silent)} wrote nothing: progress unknown."
        if progress.silent
        else ""
    )
    common = {"group": progress.group, "number": number - 1}
    if behind:
        yield _missing(progress, inside, behind, named, unknown)
        return
    sizes = {rank: of_ranks[rank].in_flight.get(number, ("", ""))[1] for rank in inside}
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
        " No desync: the network, a device or a process that died may be the cause."
        if every
        else f" No desync among the {counted(len(issued), 'rank')} with lines; another one may "
        "lack it."
    )
    yield Problem(
        problem="hanging call", is_fault=True, ranks=numbers_text(inside if passed else ()),
        found=f"issued by {text_of_ranks(sorted(of_ranks))}, not completed",
        explanation=f"{who} issued {named}, which did not end.{less}{verdict}{unknown}", **common,
    )  # fmt: skip


def as_seq_num(problem: Problem) -> Problem:
    """Return a problem whose explanation has the number that torch's watchdog prints."""
    if problem.number < 0 or SEQ_NUM in problem.explanation:
        return problem
    added = f" In the log, its number is {SEQ_NUM} {problem.number + 1:,}."
    return replace(problem, explanation=problem.explanation + added)


def _missing(
    progress: MembersProgress, inside: list[int], behind: list[int], named: str, unknown: str
) -> Problem:
    is_extra, is_tie = len(behind) > len(inside), len(behind) == len(inside)
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
        number=min(each.waits_in for each in progress.of_ranks.values() if each.waits_in > 0) - 1,
        ranks=numbers_text(() if is_tie else inside if is_extra else behind),
        expected=f"not by {text_of_ranks(behind)}" if is_extra else f"by {text_of_ranks(inside)}",
        found=f"made by {text_of_ranks(inside)}" if is_extra else f"not by {text_of_ranks(behind)}",
        explanation=f"{text}: last issued {last}.{unknown}",
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
