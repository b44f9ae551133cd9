"""Creations of process groups: all ranks make them together, in the same order.

Every rank takes part in the creation of every group, as a member or not. A rank waits in
`new_group` for the ranks that have not called it yet. If ranks create groups in different orders,
groups with different members get the same name, and calls of different groups are matched.

Recordings have an event for each creation. For dumps, the importer finds groups that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from commtrace.analyze.consistency.coverage import Coverage, source_of
from commtrace.analyze.consistency.problem import Problem, numbers_text, ranks_in
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.group_request import parsed_request
from commtrace.schema import NEW_GROUP
from commtrace.units import text_of_ranks

_WHY = "Ranks must create groups in the same order; otherwise they communicate in the wrong groups."


@dataclass(frozen=True, slots=True)
class Creation:
    """One call of `new_group` of a rank.

    Attributes:
        members: Text of the ranks passed to the call.
        callers: Frames of the user around the call, as in column `callers`.
        is_open: The call had not returned.
    """

    rank: int
    members: str
    source: str
    file: str
    line: int
    function: str
    callers: str
    thread: int
    at_ns: int
    is_open: bool


@of_run
def creations(frames: Frames) -> dict[int, list[Creation]]:
    """Return the creations of groups of each rank that made some, in order."""
    events = frames.host_events
    rows = events[events["kind"] == NEW_GROUP]
    # A long creation also has a row of its begin; the last row is written at its end.
    rows = rows.drop_duplicates(["rank", "thread", "at_ns"], keep="last")
    everyone = tuple(sorted(frames.ranks["rank"].tolist()))
    found: dict[int, list[Creation]] = {}
    for row in rows.sort_values(["rank", "at_ns"], kind="stable").to_dict("records"):
        found.setdefault(int(row["rank"]), []).append(
            Creation(
                rank=int(row["rank"]),
                members=_members_text(str(row["text"]), everyone),
                source=source_of(row),
                file=str(row["source_file"]),
                line=int(row["source_line"]),
                function=str(row["source_function"]),
                callers=str(row["stack"]).rpartition("\n")[0],
                thread=int(row["thread"]),
                at_ns=int(row["at_ns"]),
                is_open=int(row["duration_ns"]) < 0,
            )
        )
    return found


def _members_text(text: str, everyone: tuple[int, ...]) -> str:
    request = parsed_request(text)
    if request is None:
        return "unknown ranks"
    members = request.ranks
    return "all ranks" if members in (None, everyone) else text_of_ranks(members or ())


def waiting_in_creation(frames: Frames) -> list[tuple[Creation, int, tuple[int, ...]]]:
    """Return the creations that ranks wait in, their number, and the missing ranks."""
    made = creations(frames)
    everyone = sorted(frames.ranks["rank"].tolist())
    waits = []
    for own in made.values():
        if not own[-1].is_open:
            continue
        number = len(own) - 1
        lacking = tuple(rank for rank in everyone if len(made.get(rank, ())) <= number)
        if lacking:
            waits.append((own[-1], number, lacking))
    return waits


def inside_creation(frames: Frames) -> dict[int, str]:
    """Return, by rank, the text of the creation that the rank waits in."""
    last = {rank: own[-1] for rank, own in creations(frames).items()}
    return {rank: f"new_group of {each.members}" for rank, each in last.items() if each.is_open}


def unlike_groups(frames: Frames, covered: Coverage, wait: str) -> Iterator[Problem]:
    """Yield a problem for each group whose creation differs between ranks.

    Args:
        frames: The run.
        covered: Coverage of the run.
        wait: Text of the waits that follow from a creation; empty without any.
    """
    for group, ranks, text in frames.run.get("unlike_groups") or ():
        yield Problem(
            problem="group order",
            is_fault=True,
            group=group,
            mesh_axis=covered.axes.get(group, ""),
            ranks=numbers_text(ranks_in(ranks.replace(";", ","))),
            is_one_of_ranks=";" in ranks,
            found=text,
            explanation=f"{text}. {_WHY}",
        )
    unlike = unlike_creation(frames)
    if unlike is not None:
        problem = unlike[1]
        then = f" Since then, {wait}." if wait else ""
        yield replace(problem, explanation=problem.explanation + then)


@of_run
def unlike_creation(frames: Frames) -> tuple[int, Problem] | None:
    """Return the first creation whose members, or whose lines, differ between ranks.

    Different lines count only if every rank creates a group at each of these lines: programs often
    create a group in a different branch on each rank.
    """
    made = creations(frames)
    for number in range(min((len(own) for own in made.values()), default=0)):
        at = {rank: own[number] for rank, own in made.items()}
        by_members = {rank: each.members for rank, each in at.items()}
        by_line = {rank: each.source for rank, each in at.items()}
        lines = {rank: {each.source for each in own} for rank, own in made.items()}
        are_swapped = len(set(by_line.values())) > 1 and all(
            set(by_line.values()) <= known for known in lines.values()
        )
        if len(set(by_members.values())) > 1:
            line_of = {each.members: each.source for each in reversed(at.values())}
            passed = {
                rank: f"passes {text} at {line_of[text]}" for rank, text in by_members.items()
            }
            return number, _problem(at, passed, number)
        if are_swapped and len(set(map(len, made.values()))) == 1:
            made_at = {rank: f"makes it at {line}" for rank, line in by_line.items()}
            return number, _problem(at, made_at, number)
    return None


def _problem(at: dict[int, Creation], values: dict[int, str], number: int) -> Problem:
    """Return the problem of a creation, given a verb phrase for each rank."""
    votes = Counter(values.values()).most_common()
    usual = votes[0][0] if votes[0][1] > votes[1][1] else None
    blamed = [rank for rank, value in values.items() if usual is not None and value != usual]
    texts = []
    for value, _ in votes:
        ranks = [rank for rank, each in values.items() if each == value]
        each = "each of " if len(ranks) > 1 else ""
        texts.append(f"{each}{text_of_ranks(ranks)} {value}")
    first = at[min(blamed or values)]
    text = "; ".join(texts)
    return Problem(
        problem="group order",
        is_fault=True,
        ranks=numbers_text(blamed or values),
        is_one_of_ranks=usual is None,
        found=text,
        source=first.source,
        explanation=f"Creation {number} of a group differs between ranks: {text}. {_WHY}",
        at_ns=min(each.at_ns for each in at.values()),
    )
