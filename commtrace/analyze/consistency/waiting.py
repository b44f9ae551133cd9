"""Hanging ranks, and the ranks that they wait for.

A thread hangs in a call that has not completed if it is inside the call or waits for it. In a
collective it waits for the members that never arrived, in a transfer for the other end that was
never issued. A chain of waits ends at a rank that waits for nobody, which is the cause, or in a
cycle. A cycle is a deadlock: none of its ranks can proceed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from commtrace.analyze.consistency.absences import Absence
from commtrace.analyze.consistency.coverage import Coverage, source_of
from commtrace.analyze.consistency.creation import waiting_in_creation
from commtrace.analyze.consistency.ends import STUCK, ends
from commtrace.analyze.consistency.numbered import calls_of
from commtrace.analyze.consistency.problem import call_text
from commtrace.analyze.consistency.stuck import MembersProgress
from commtrace.analyze.measures.arrivals import NEEDS_EVERYONE
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.run.matching import RECV, is_transfer, numbers, partners

CallKey: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """One rank that hangs in a call, waiting for others.

    Attributes:
        row: The call's row in table `comm`; -1 if it has none.
        others: Ranks that the rank waits for.
        group: Group of a collective; empty for a transfer and for the creation of a group.
        number: The collective's number in its group; -1 for a transfer.
        tag: Tag of a transfer; -1 if unknown.
        creation: Number of the creation of a group; -1 for a call.
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
        """Key shared by all waits for the same ranks: group and number, or a transfer's peer."""
        if self.creation >= 0:
            return ("new_group", self.creation)
        return (self.group, self.number) if self.group else ("", self.others[0])

    @property
    def is_of_all(self) -> bool:
        """True for a collective or the creation of a group, False for a transfer."""
        return bool(self.group) or self.creation >= 0


def waits_by_numbers(groups: Iterable[MembersProgress]) -> list[Wait]:
    """Return the waits in collectives, from the numbers of the members' last calls.

    Groups with transfers, and groups whose calls are not listed, are left out.
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
    """Return the waits in creations of groups that other ranks have not called."""
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
    """Return the call in which each hanging thread hangs.

    It is the last call of the thread, or an earlier call for which the thread waits. An
    asynchronous call without a wait does not make a thread hang, except in a backward pass, where
    the wait is in C++ and is not recorded.
    """
    on_host = frames.ranks["device"].astype(object).isin(["cpu"])
    hosts = frozenset(frames.ranks.loc[on_host, "rank"].tolist())
    hosts = frozenset() if frames.run.get("imported_from") else hosts
    return joined(frames.by_ranks(_hanging, hosts)).sort_index()


def waits(hanging: pd.DataFrame, covered: Coverage, absent: list[Absence]) -> list[Wait]:
    """Return the waits in calls at which other ranks did not arrive."""
    if hanging.empty:
        return []
    number, transfer, partner = (hanging[name] for name in ("number", "is_transfer", "partner"))
    lost = {rank for each in absent for rank in each.lost} | covered.unrecorded
    behind = {
        name: rows
        for name, rows in covered.reached[~covered.reached["rank"].isin(lost)].groupby("group")
    }
    found = []
    # A row of a DataFrame takes a millisecond to read, a dictionary does not; all ranks may hang.
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
    """Return the calls in which threads hang; ranks in `hosts` wait on the host."""
    comm = frames.comm
    is_open = (comm["complete_ns"] < 0).to_numpy()
    if not is_open.any():  # before further columns of a stored run are read
        return _NOBODY_HANGS
    # By thread, since another thread of the rank may still make calls.
    last_of_thread = pd.Index(comm.groupby(["rank", "thread"], sort=False)["id"].idxmax())
    calls = comm[is_open]
    is_last, is_on_host = calls.index.isin(last_of_thread), calls["rank"].isin(hosts)
    is_async = calls["is_async"] & (calls["call_ns"] >= 0)
    is_waited_for = is_async & (calls["blocked_ns"] >= 0) & is_on_host
    is_ignored = is_on_host & is_async & ~is_waited_for & (calls["phase"] != _BACKWARD)
    hanging = calls[(is_last & ~is_ignored) | is_waited_for]
    if hanging.empty:
        return _NOBODY_HANGS
    # A thread that waits for several calls is in the wait for the first of them.
    order = hanging[["rank", "thread", "id"]].assign(is_async=is_async[hanging.index])
    order = order.sort_values(["is_async", "id"], kind="stable")
    last = hanging.loc[order.drop_duplicates(["rank", "thread"]).index, _OF_CALL]
    return last.assign(
        number=numbers(frames)[last.index],
        is_transfer=is_transfer(frames)[last.index],
        partner=partners(frames)[last.index],
    )


_NOBODY_HANGS = pd.DataFrame(columns=[*_OF_CALL, "number", "is_transfer", "partner"])


def without_held_up(frames: Frames, hanging: pd.DataFrame) -> pd.DataFrame:
    """Return the hanging calls without collectives that have ended on others, and hang in Python.

    The stack of the rank shows another line than the call's: a handler of a signal, for example,
    runs inside of a call, and does not return to it.
    """
    states = ends(frames)
    of_calls = dict(zip(hanging.index, hanging.to_dict("records"), strict=True))
    elsewhere = {
        row: (str(call["group"]), int(call["number"]))
        for row, call in of_calls.items()
        if call["number"] >= 0
        and (end := states.get(int(call["rank"]))) is not None
        and end.state == STUCK
        and end.source not in ("", source_of(call))
    }
    if not elsewhere:
        return hanging
    calls = calls_of(frames, {*elsewhere.values()})
    over = calls[(calls["complete_ns"] >= 0) & calls["kind"].isin(NEEDS_EVERYONE)]
    ended = {*zip(over["group"].astype(str), over["number"], strict=True)}
    return hanging.drop([row for row, key in elsewhere.items() if key in ended])


def hangs_in(hanging: pd.DataFrame, all_waits: list[Wait]) -> dict[int, str]:
    """Return, by rank, the text of the call in which the rank hangs."""
    found = {
        int(call["rank"]): transfer_text(call)
        if call["is_transfer"]
        else f"{call['kind']} {call['number']} of group {call['group']}"
        for call in reversed(hanging.to_dict("records"))
    }
    # Reversed, since later keys replace earlier ones: the first wait of a rank counts.
    return found | {wait.rank: wait.text for wait in reversed(all_waits)}
