"""Calls and bytes since the recording began: by kind and group, and by rank.

Ended calls are counted once, in the call site that they share. Sizes that are unknown make their
sums unknown (nan).
"""

from __future__ import annotations

import numpy as np

from commtrace.live.arrivals import Array
from commtrace.live.names import RunNames
from commtrace.live.rates import padded_sum
from commtrace.live.snapshot import GroupTraffic


class Totals:
    """Sums of ended calls, of ranks and call sites given by number."""

    def __init__(self) -> None:
        self._calls: Array = np.zeros(0, dtype=np.int64)
        self._bytes: Array = np.zeros(0)

    def add(self, *, rank: Array, site: Array, wire_bytes: Array) -> None:
        """Add calls; negative sizes are unknown."""
        self._calls = padded_sum(self._calls, np.bincount(site))
        self._bytes = padded_sum(self._bytes, np.bincount(rank, _known(wire_bytes)))

    def sent_bytes(self, rank: int) -> float:
        """Return the bytes that a rank has sent; nan if the size of a call is unknown."""
        return float(self._bytes[rank]) if rank < len(self._bytes) else 0.0

    def traffic(self, names: RunNames) -> tuple[GroupTraffic, ...]:
        """Return the sums by kind and group; groups of the same label are one."""
        labels = [names.label(group) for group in range(len(names.groups))]
        ordered = [*dict.fromkeys(labels)]
        number = {label: each for each, label in enumerate(ordered)}
        used = np.flatnonzero(self._calls)
        group, kind, wire_bytes, *_ = names.table()[used].T
        num_kinds = len(names.kinds)
        cell = np.array([number[label] for label in labels], dtype=np.int64)[group] * num_kinds
        calls, size = self._calls[used], len(ordered) * num_kinds
        num_calls = np.bincount(cell + kind, calls, size)
        sent = np.bincount(cell + kind, calls * _known(wire_bytes), size)
        return tuple(
            GroupTraffic(
                group=ordered[each // num_kinds],
                kind=names.kinds[each % num_kinds],
                num_calls=int(num_calls[each]),
                sent_bytes=float(sent[each]),
            )
            for each in np.flatnonzero(num_calls).tolist()
        )


def _known(wire_bytes: Array) -> Array:
    return np.where(wire_bytes >= 0, wire_bytes, np.nan)
