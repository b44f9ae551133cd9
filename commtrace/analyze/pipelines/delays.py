"""Delays of actions after all that they wait for had ended, by their cause.

prev ends, source ends ─┬─ late send ─┬─ blocked receive ─┬─ transfer ─┬─ action begins
                             until its     until its receive   until it is
                             data is sent  is issued, and      there
                                           while the rank is
                                           blocked by others
"""

from __future__ import annotations

from dataclasses import dataclass

from commtrace.analyze.pipelines.rounds import NONE, Round
from commtrace.analyze.pipelines.transfers import StageTransfer, Transfers
from commtrace.schema import FORWARD


@dataclass(frozen=True, slots=True)
class Delay:
    """Delay of an action; times are in ns.

    Attributes:
        late_send: Time until its data was sent, or, without such data, until the rank had sent
            its previous output.
        blocked_receive: Time until its receive was issued, or blocked by another receive.
        other: The rest: the transfer, and the program between two actions.
        sent: The send that was late.
        received: Its receive.
        sender_delay: Time from the end of the source to its send; -1 if unknown.
    """

    late_send: int = 0
    blocked_receive: int = 0
    other: int = 0
    sent: StageTransfer | None = None
    received: StageTransfer | None = None
    sender_delay: int = NONE


def delays_of(of: Round, transfers: Transfers) -> list[Delay]:
    """Return the delay of each action of a round."""
    return [_delay(of, place, transfers) for place in range(len(of.actions))]


def _delay(of: Round, place: int, transfers: Transfers) -> Delay:
    action, source = of.actions[place], of.source(place)
    direction = FORWARD if action.kind == FORWARD else "backward"
    before = of.before[place]
    idle_since = of.actions[before].end if before >= 0 else 0
    ready = max([idle_since, *(of.actions[each].end for each in of.inputs[place])])
    begin = of.start_ns + action.begin
    sent = received = None
    sender_delay = NONE
    if source != NONE and of.actions[source].rank != action.rank:
        sender = of.actions[source]
        span = of.start_ns + sender.begin, max(begin, of.start_ns + sender.end)
        key = action.micro_batch, direction
        sent = transfers.send(sender.rank, sender.stage, *key, span)
        received = transfers.receive(action.rank, action.stage, *key, (of.start_ns, begin))
        if sent is not None:
            sender_delay = max(0, sent.issue_ns - of.start_ns - sender.end)
    own = transfers.last_send(action.rank, of.start_ns + idle_since, begin)
    left = max(0, action.begin - ready)
    at = ready
    late = [each.issue_ns - of.start_ns for each in (sent, own) if each is not None]
    late_send = min(left, max([0, *(each - at for each in late)]))
    if own is not None and own.issue_ns - of.start_ns - at == late_send > 0:
        sent, sender_delay = own, max(0, own.issue_ns - of.start_ns - idle_since)
    left, at = left - late_send, at + late_send
    blocked = 0
    if received is not None:
        blocked = min(left, max(0, received.issue_ns - of.start_ns - at))
        left, at = left - blocked, at + blocked
    if left:
        others = min(left, transfers.blocked_ns(action.rank, of.start_ns + at, begin, received))
        blocked, left = blocked + others, left - others
    return Delay(late_send, blocked, left, sent, received, sender_delay)
