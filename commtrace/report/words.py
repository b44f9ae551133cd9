"""Words of the page that a newcomer lacks, each explained in a sentence below what uses it."""

from __future__ import annotations

from collections.abc import Iterable

STATES = {
    "Wait at N x N": "the last rank has not arrived at a collective that needs all of them",
    "Wait at Barrier": "the last rank has not arrived at a barrier",
    "Late Broadcast": "the root, whose data the others need, has not arrived",
    "Early Reduce": "the root waits for the data of the others",
    "Late Sender": "a receive waits for its sender",
    "Late Receiver": "a send waits for its receiver",
}
"""Meaning of each wait state (names of Scalasca)."""

PICTURES = {
    "bandwidth": (
        "busbw: payload per second, times a factor of the kind of collective, so that it compares "
        "with the speed of a link (as in nccl-tests). Payload: the bytes of a call's tensor."
    ),
    "overlap_lost": (
        "Could hide: the part of a transfer that ends up behind other work in a replay that issues "
        "calls once their data is ready and waits where their result is used."
    ),
}
"""Words of pictures, by the picture's name."""

DETAILS = {"op": "operators and communication recorded", "collective": "communication recorded"}
"""Details of a recording, as the page's head has them."""


def of_waits(states: Iterable[str]) -> str:
    """Explain the wait states that occur, in their order above."""
    present = set(states)
    known = [f"{state}: {STATES[state]}." for state in STATES if state in present]
    return " ".join(known)
