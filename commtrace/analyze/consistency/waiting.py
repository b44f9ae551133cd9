"""Hanging ranks, and whom they wait for.

A thread hangs in a call that has not completed if it is inside of it or waits for it. In a
collective it waits for the members that never arrived, in a transfer for the other end that was
never issued. A rank that is waited for and waits itself is a victim, too: the cause is at the end
of such a chain, at a rank that waits for nobody, or in a cycle. A cycle is a deadlock: none of its
ranks can proceed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from commtrace.analyze.consistency.absences import Absence
from commtrace.analyze.consistency.coverage import Coverage, source_of
from commtrace.analyze.consistency.creation import waiting_in_creation
from commtrace.analyze.consistency.problem import call_text
from commtrace.analyze.consistency.stuck import MembersProgress
from commtrace.analyze.frame import Frames, joined
from commtrace.analyze.matching import RECV, is_transfer, numbers, partners

CallKey: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """One rank that hangs in a call, waiting for others.

    Attributes:
        row: The call's row in table `comm`; -1 if it has none.
        others: Ranks it waits for.
        group: Group of a collective; empty for a transfer and for the creation of a group.
        number: The collective's number in its group; -1 for a transfer.
        tag: Tag of a transfer; -1 if unknown.
        creation: Number of the creation of a group that it waits in; -1 for a call.
    """

    rank: int
    row: int
    others: tuple[int, ...]
    group: str
    number: int
    text: str
    source: str
    at_ns: int
    tag: int = -1
    creation: int = -1

    @property
    def call(self) -> CallKey:
        """Key that waits for the same ranks share: group and number, or a transfer's peer."""
        if self.creation >= 0:
            return ("new_group", self.creation)
        return (self.group, self.number) if self.group else ("", self.others[0])

    @property
    def is_of_all(self) -> bool:
        """True if all ranks of a group should be in the call, rather than two."""
        return bool(self.group) or self.creation >= 0


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


def waits_for_groups(frames: Frames) -> list[Wait]:
    """Return every rank that waits in the creation of a group for ranks that did not come to it."""
    return [
        Wait(
            rank=each.rank,
            row=-1,
            others=others,
            group="",
            number=-1,
            text=f"new_group of {each.members}",
            source=each.source,
            at_ns=each.at_ns,
            creation=number,
        )
        for each, number, others in waiting_in_creation(frames)
    ]


_BACKWARD = "backward"
_OF_CALL = [
    "rank", "group", "kind", "peer", "issue_ns", "source_file", "source_line", "stage",
    "micro_batch", "direction", "tag",
]  # fmt: skip


def hanging_calls(frames: Frames) -> pd.DataFrame:
    """Return the call that each thread hangs in, of those that do.

    It is the last one, or an earlier one for which the thread waits. One that was issued
    asynchronously, and is not waited for, stops nobody, but in a backward pass: what waits for it
    there is in C++.
    """
    on_host = frames.ranks["device"].astype(object).isin(["cpu"])
    hosts = frozenset(frames.ranks.loc[on_host, "rank"].tolist())
    hosts = frozenset() if frames.run.get("imported_from") else hosts
    return joined(frames.by_ranks(_hanging, hosts)).sort_index()


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
            text = transfer_text(call)
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
                    tag=int(call["tag"]),
                )
            )
    return sorted(found, key=lambda wait: (wait.at_ns, wait.rank))


def transfer_text(call: Mapping[Any, Any]) -> str:
    """Return `recv from rank 1 (tag 3; micro-batch 2 of stage 1, forward)`."""
    towards = "from" if call["kind"] == RECV else "to"
    peer = f"rank {call['peer']}" if call["peer"] >= 0 else "any rank"
    facts = [f"tag {call['tag']}"] if call["tag"] > 0 else []
    if call["micro_batch"] >= 0:
        of_pass = f", {call['direction']}" if call["direction"] else ""
        facts.append(f"micro-batch {call['micro_batch']} of stage {call['stage']}{of_pass}")
    return f"{call['kind']} {towards} {peer}" + (f" ({'; '.join(facts)})" if facts else "")


def _hanging(frames: Frames, hosts: frozenset[int]) -> pd.DataFrame:
    """Return the calls that threads hang in; those of ranks in `hosts` wait on the host."""
    # By thread, since another thread of the rank may still make calls.
    comm = frames.comm
    is_last = np.zeros(len(comm), dtype=bool)
    of_thread = comm.groupby(["rank", "thread"], sort=False)["id"]
    is_last[comm.index.get_indexer(pd.Index(of_thread.idxmax()))] = True
    is_open = (comm["complete_ns"] < 0).to_numpy()
    is_on_host = comm["rank"].isin(hosts).to_numpy() if hosts else np.zeros(len(comm), dtype=bool)
    is_async = comm["is_async"].to_numpy(dtype=bool) & (comm["call_ns"] >= 0).to_numpy()
    is_waited_for = is_async & (comm["blocked_ns"] >= 0).to_numpy() & is_on_host
    is_ignored = is_on_host & is_async & ~is_waited_for & (comm["phase"] != _BACKWARD).to_numpy()
    last = comm[is_open & ((is_last & ~is_ignored) | is_waited_for)]
    if last.empty:  # so that no column is read for nothing
        return _NOBODY_HANGS
    # Of several that are waited for, the thread is in the wait for the first.
    is_async = last["is_async"] & (last["call_ns"] >= 0)
    order = last.assign(is_async=is_async).sort_values(["is_async", "id"], kind="stable")
    last = last.loc[order.drop_duplicates(["rank", "thread"]).index, _OF_CALL]
    return last.assign(
        number=numbers(frames)[last.index],
        is_transfer=is_transfer(frames)[last.index],
        partner=partners(frames)[last.index],
    )


_NOBODY_HANGS = pd.DataFrame(columns=[*_OF_CALL, "number", "is_transfer", "partner"])


def hangs_in(hanging: pd.DataFrame, all_waits: list[Wait]) -> dict[int, str]:
    """Return the call that each rank hangs in, by rank; also of those that wait for nobody."""
    found = {
        int(call["rank"]): transfer_text(call)
        if call["is_transfer"]
        else f"{call['kind']} {call['number']} of group {call['group']}"
        for call in reversed(hanging.to_dict("records"))
    }
    # Reversed, since later keys replace earlier ones: the first wait of a rank counts.
    return found | {wait.rank: wait.text for wait in reversed(all_waits)}
