"""Bytes, bandwidth, latency and dependencies of each kind of communication: `KINDS`.

A call's *payload* S is the size that nccl-tests divides by time. Its *wire bytes* are the bytes
that a rank must send if the n ranks of the group form a ring. *busbw* is payload / time times a
factor that makes it comparable to the speed of a link, whatever the number of ranks. The recorder
and the importers read wire bytes here, and the analyses the rest. The planner of dtensor_core has
the same wire bytes and latencies, which a test compares. docs/bytes.md prints the table. Source:
nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a payload, as a formula and as a function.

    Attributes:
        formula: As docs/bytes.md prints it, in n and, per rank, in its position in the ring.
        of: The part by group size n and the rank's distance d behind the root in the ring (0 is the
            root itself).
    """

    formula: str
    of: Callable[[int, int], Fraction]


def _own_part_but_the_root(size: int, distance: int) -> Fraction:
    return Fraction(distance > 0, size)


def _all_but_one_from_the_root(size: int, distance: int) -> Fraction:
    return Fraction(size - 1, size) if distance == 0 else Fraction(0)


_NOTHING = Share("0", lambda size, distance: Fraction(0))
_ALL = Share("1", lambda size, distance: Fraction(1))
_ALL_BUT_ONE = Share("(n-1)/n", lambda size, distance: Fraction(size - 1, size))
_ALL_BUT_ONE_TWICE = Share("2(n-1)/n", lambda size, distance: Fraction(2 * (size - 1), size))
_FORWARDED = Share("last: 0, others: 1", lambda size, distance: Fraction(distance < size - 1))
_TOWARDS_THE_ROOT = Share("root: 0, others: 1", lambda size, distance: Fraction(distance > 0))
_PART_TO_THE_ROOT = Share("root: 0, others: 1/n", _own_part_but_the_root)
_PARTS_FROM_THE_ROOT = Share("root: (n-1)/n, others: 0", _all_but_one_from_the_root)


EVERY_RANK, ROOT, EVERY_RANK_AT_ROOT, PEER = "every rank", "root", "every rank at root", "peer"
"""Ranks whose call a rank waits for: all, the root, all if it is the root itself, or its peer."""
RING, EACH, TO_ROOT, TO_PEER = "ring", "each", "root", "peer"
"""Receivers of a rank's bytes: the next rank in a ring, each other rank, the root, or the peer."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Cost and dependencies of a kind of communication.

    Attributes:
        payload: The tensor whose size is the payload.
        sent: Part of the payload that a rank sends.
        busbw_factor: Factor of payload / time.
        latencies: Number of phases that begin only once the previous phase has ended.
        needs: Ranks that a call waits for: `EVERY_RANK`, `ROOT`, `EVERY_RANK_AT_ROOT` or `PEER`.
        route: Receivers of the bytes that a rank sends: `RING`, `EACH`, `TO_ROOT` or `TO_PEER`.
        is_uneven: True if ranks may have different sizes.
    """

    payload: str
    sent: Share
    busbw_factor: Share
    latencies: int = 1
    needs: str = EVERY_RANK
    route: str = RING
    is_uneven: bool = False


KINDS: dict[str, Kind] = {
    "all_reduce": Kind("the tensor", _ALL_BUT_ONE_TWICE, _ALL_BUT_ONE_TWICE, 2),
    "all_gather": Kind("the output of one rank", _ALL_BUT_ONE, _ALL_BUT_ONE),
    "reduce_scatter": Kind("the input of one rank", _ALL_BUT_ONE, _ALL_BUT_ONE),
    "all_to_all": Kind(
        "the input of this rank", _ALL_BUT_ONE, _ALL_BUT_ONE, route=EACH, is_uneven=True
    ),
    "gather": Kind(
        "the inputs of all ranks together", _PART_TO_THE_ROOT, _ALL_BUT_ONE,
        needs=EVERY_RANK_AT_ROOT, route=TO_ROOT, is_uneven=True,
    ),
    "scatter": Kind(
        "the outputs of all ranks together", _PARTS_FROM_THE_ROOT, _ALL_BUT_ONE,
        needs=ROOT, route=EACH, is_uneven=True,
    ),
    "broadcast": Kind("the tensor", _FORWARDED, _ALL, needs=ROOT),
    "reduce": Kind("the tensor", _TOWARDS_THE_ROOT, _ALL, needs=EVERY_RANK_AT_ROOT),
    "send": Kind("the tensor", _ALL, _ALL, needs=PEER, route=TO_PEER),
    "recv": Kind("the tensor", _NOTHING, _ALL, needs=PEER, route=TO_PEER),
    "barrier": Kind("nothing", _NOTHING, _NOTHING),
}  # fmt: skip


def needing(ranks: str) -> tuple[str, ...]:
    """Return the kinds that need `ranks`, in the order of the table.

    >>> needing(ROOT)
    ('scatter', 'broadcast')
    """
    return tuple(name for name, kind in KINDS.items() if kind.needs == ranks)


def routed(route: str) -> tuple[str, ...]:
    """Return the kinds whose bytes take a route, in the order of the table."""
    return tuple(name for name, kind in KINDS.items() if kind.route == route)


def wire_bytes(kind: str, payload_bytes: int, size: int, *, distance: int = 0) -> int:
    """Return the bytes that a rank of a ring must send, rounded up.

    Args:
        kind: a key of `KINDS`.
        payload_bytes: payload of the call.
        size: number of ranks in the group.
        distance: position of the rank behind the root in the ring, for rooted kinds.

    >>> wire_bytes("all_reduce", 1000, 4)
    1500
    """
    # In integers, since floats are exact up to 2**53 only.
    numerator, denominator = _sent(kind, size, distance)
    return -(-payload_bytes * numerator // denominator)


# Fractions are slow, and the recorder asks for each call that it writes.
@lru_cache(maxsize=4096)
def _sent(kind: str, size: int, distance: int) -> tuple[int, int]:
    return KINDS[kind].sent.of(size, distance).as_integer_ratio()


def busbw_factor(kind: str, size: int) -> float:
    """Return the factor that makes payload / time comparable to a link's speed.

    >>> busbw_factor("all_reduce", 4)
    1.5
    """
    return float(KINDS[kind].busbw_factor.of(size, 0))
