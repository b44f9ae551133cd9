"""Numbers of collectives in their groups.

The members of a group issue the same collectives in the same order, so calls with equal group and
number form a collective. `seq` counts point-to-point calls too, although only two ranks make
them; a collective's number does not count the transfers before it. The alignment of clocks and the
analyses match calls by these numbers.
"""

from __future__ import annotations

import numpy as np

UNKNOWN = -1


def collective_numbers(
    member: np.ndarray, seq: np.ndarray, is_transfer: np.ndarray, is_shared: np.ndarray
) -> np.ndarray:
    """Return each call's number among its group's collectives; -1 for transfers and if unknown.

    It is unknown after calls that the trace has lost in a group with transfers.

    Args:
        member: Number of the rank and group of each call: equal for equal rank and group.
        seq: Number of each call among its member's calls; -1 if unknown.
        is_transfer: Marks point-to-point calls.
        is_shared: Marks calls on groups in which any rank makes transfers.
    """
    found = np.full(len(seq), UNKNOWN, dtype=np.int64)
    order = np.lexsort((seq, member))
    order = order[seq[order] >= 0]
    if not len(order):
        return found
    member, seq, transfer = member[order], seq[order], is_transfer[order].astype(np.int64)
    is_first = np.append(True, member[1:] != member[:-1])
    first = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    before = np.cumsum(transfer)
    before -= (before - transfer)[first]
    follows_gap = np.arange(len(order)) - first != seq
    is_known = (transfer == 0) & ~(follows_gap & is_shared[order])
    found[order[is_known]] = (seq - before)[is_known]
    return found
