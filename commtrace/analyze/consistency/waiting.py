"""Hanging ranks, and deadlock cycles of ranks that wait for each other.

A rank hangs in the last call of a thread if that call has not completed. In a collective it waits
for the members that never arrived, in a transfer for the other end that was never issued. A cycle
of such waits is a deadlock: none of its ranks can proceed, because they issued their calls in
different orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd

from commtrace.analyze.consistency.absences import Absence
from commtrace.analyze.consistency.coverage import Coverage, source_of
from commtrace.analyze.consistency.deadlock_cycle import components, graph_of, shortest_cycle
from commtrace.analyze.consistency.problem import Problem, call_text, numbers_text
from commtrace.analyze.consistency.stuck import MembersProgress
from commtrace.analyze.frame import Frames, joined
from commtrace.analyze.matching import RECV, is_transfer, numbers, partners

_Call: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """One rank that hangs in a call, waiting for others.

    Attributes:
        row: The call's row in table `comm`; -1 if it has none.
        others: Ranks it waits for.
        group: Group of a collective; empty for a transfer.
        number: The collective's number in its group; -1 for a transfer.
    """

    rank: int
    row: int
    others: tuple[int, ...]
    group: str
    number: int
    text: str
    source: str
    at_ns: int

    @property
    def call(self) -> _Call:
        """Key that waits for the same ranks share: group and number, or a transfer's peer."""
        return (self.group, self.number) if self.group else ("", self.others[0])


def waits_by_numbers(groups: Iterable[MembersProgress]) -> list[Wait]:
    """Return every rank that waits for others in a collective, by the numbers of their last calls.

    Nothing is known of groups with transfers, nor of calls that are not listed.
    """
    found = []
    for each in groups:
        if each.transfers or not each.is_listed:
            continue
        for rank, number in sorted(each.waiting.items()):
            if others := each.behind(number):
                text, at_ns = each.text_of(number), each.since_ns(number)
                found.append(Wait(rank, -1, tuple(others), each.group, number, text, "", at_ns))
    return sorted(found, key=lambda wait: (wait.at_ns, wait.rank))


_OF_CALL = ["rank", "group", "kind", "peer", "issue_ns", "source_file", "source_line"]


def hanging_calls(frames: Frames) -> pd.DataFrame:
    """Return the last call of each thread that has not completed it."""
    return joined(frames.by_ranks(_hanging)).sort_index()


def waits(hanging: pd.DataFrame, covered: Coverage, absent: list[Absence]) -> list[Wait]:
    """Return every rank that hangs in a call at which others did not arrive."""
    if hanging.empty:
        return []
    number, transfer, partner = (hanging[name] for name in ("number", "is_transfer", "partner"))
    lost = {rank for each in absent for rank in each.lost} | covered.unrecorded
    behind = {
        name: rows
        for name, rows in covered.reached[~covered.reached["rank"].isin(lost)].groupby("group")
    }
    found = []
    # Dictionaries, since a row of a DataFrame takes a millisecond, and all ranks may hang.
    for row, call in zip(hanging.index, hanging[_OF_CALL].to_dict("records"), strict=True):
        group = str(call["group"])
        others: list[int] = []
        if transfer[row]:
            if partner[row] < 0 <= call["peer"] and call["peer"] not in lost | covered.partial:
                others = [int(call["peer"])]
            towards = "from" if call["kind"] == RECV else "to"
            text = f"{call['kind']} {towards} rank {call['peer']}"
        else:
            if number[row] >= 0 and group in behind:
                rows = behind[group]
                others = rows.loc[rows["last"] < number[row], "rank"].tolist()
            named = covered.names.get(group, "")
            text = call_text(str(call["kind"]), int(number[row]), group, named)
        if others:
            found.append(
                Wait(
                    rank=int(call["rank"]),
                    row=int(row),
                    others=tuple(others),
                    group="" if transfer[row] else group,
                    number=int(number[row]),
                    text=text,
                    source=source_of(call),
                    at_ns=int(call["issue_ns"]),
                )
            )
    return sorted(found, key=lambda wait: (wait.at_ns, wait.rank))


def _hanging(frames: Frames) -> pd.DataFrame:
    """Return the last calls of threads that have not completed."""
    # By thread, since another thread of the rank may still make calls.
    comm = frames.comm
    last = comm.loc[comm.groupby(["rank", "thread"], sort=False)["id"].idxmax()]
    last = last[last["complete_ns"] < 0]
    if last.empty:  # so that no column is read for nothing
        return _NOBODY_HANGS
    last = last[_OF_CALL]
    return last.assign(
        number=numbers(frames)[last.index],
        is_transfer=is_transfer(frames)[last.index],
        partner=partners(frames)[last.index],
    )


_NOBODY_HANGS = pd.DataFrame(columns=[*_OF_CALL, "number", "is_transfer", "partner"])


def deadlock_cycles(all_waits: list[Wait]) -> list[list[Wait]]:
    """Return shortest deadlock cycles without common ranks or calls, one for each deadlock.

    In each, a rank waits for the next. The graph has a node for each wait and one for each call, so
    that all waits in a call share its edges to the waits of the ranks that it lacks.
    """
    of_rank: dict[int, list[Wait]] = {}
    calls: dict[_Call, tuple[int, ...]] = {}
    for wait in all_waits:
        of_rank.setdefault(wait.rank, []).append(wait)
        calls[wait.call] = wait.others
    # Without a rank that hangs and is waited for, there is no cycle.
    stuck = {rank for others in calls.values() for rank in others} & of_rank.keys()
    if not stuck:
        return []
    graph = graph_of(_edges(all_waits, calls, of_rank))
    in_cycles = set[Wait | _Call]().union(*components(graph))
    found, taken = [], set[int | _Call]()
    for wait in all_waits:
        if wait not in in_cycles or not taken.isdisjoint((wait.rank, wait.call)):
            continue
        cycle = [each for each in shortest_cycle(graph, wait) if isinstance(each, Wait)]
        parts = {part for each in cycle for part in (each.rank, each.call)}
        if taken.isdisjoint(parts):
            taken |= parts
            found.append(cycle)
    return found


def _edges(
    all_waits: list[Wait], calls: dict[_Call, tuple[int, ...]], of_rank: dict[int, list[Wait]]
) -> Iterator[tuple[Wait | _Call, Wait | _Call]]:
    """Yield an edge from each wait to its call, and from each call to the waits it depends on."""
    yield from ((wait, wait.call) for wait in all_waits)
    for call, others in calls.items():
        yield from ((call, wait) for other in others for wait in of_rank.get(other, ()))


def deadlocks(covered: Coverage, found: list[list[Wait]]) -> Iterator[Problem]:
    """Yield one problem for each deadlock cycle."""
    for cycle in found:
        links = [
            f"rank {wait.rank} waits in {wait.text} for rank {cycle[(i + 1) % len(cycle)].rank}"
            for i, wait in enumerate(cycle)
        ]
        group = next((wait.group for wait in cycle if wait.group), "")
        yield Problem(
            problem="deadlock",
            is_fault=True,
            group=group,
            mesh_axis=covered.axes.get(group, ""),
            number=next((wait.number for wait in cycle if wait.group == group), -1),
            ranks=numbers_text({wait.rank for wait in cycle}),
            found="; ".join(wait.text for wait in cycle),
            source=cycle[0].source,
            explanation=f"Deadlock cycle: {'; '.join(links)}.",
            at_ns=int(np.min([wait.at_ns for wait in cycle])),
        )


def explained_by(found: list[list[Wait]]) -> set[tuple[str, int]]:
    """Return the collectives whose absences are explained by these deadlock cycles."""
    return {(wait.group, wait.number) for cycle in found for wait in cycle}


def rows_of(found: list[list[Wait]]) -> set[int]:
    """Return the rows of the calls in deadlock cycles; a transfer there lacks its other end."""
    return {wait.row for cycle in found for wait in cycle}


def hangs_in(all_waits: list[Wait]) -> dict[int, str]:
    """Return the call that each rank hangs in, by rank."""
    # Reversed, since later keys replace earlier ones: the first wait of a rank counts.
    return {wait.rank: wait.text for wait in reversed(all_waits)}
