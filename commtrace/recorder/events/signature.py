"""Positions of the arguments of a communication operator, which `Request` reads by them.

The table of all operators is `SIGNATURES` in `interception.signatures`.
"""

from __future__ import annotations

from dataclasses import dataclass

RESULT = -1
"""Position that stands for the operator's result."""

SENT, RECEIVED = "sent", "received"


@dataclass(frozen=True, slots=True)
class Signature:
    """Argument positions of an operator; None if it has no such argument.

    Attributes:
        group: a process group or its name.
        sent: a tensor, a list of tensors, or a list of lists.
        received: like `sent`.
        reduce_op: the reduction; a sum if omitted.
        root: rank within the group.
        peer: rank within the group.
        tag: the tag of a transfer.
        split: number of rows sent to each rank (all_to_all); rows received come before it.
        is_async: a flag, true if omitted; operators without it are always asynchronous.
        payload: the tensors on which the payload is counted, `SENT` or `RECEIVED`.
        payload_per_rank: count the payload once for each rank of the group.
    """

    kind: str
    group: int
    sent: int | None = None
    received: int | None = None
    reduce_op: int | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    split: int | None = None
    is_async: int | None = None
    payload: str = SENT
    payload_per_rank: bool = False
    is_blocking: bool = False
