"""Calls of a recording, as the numbers of another tool count them.

NCCL runs one operation for most calls of torch, but several for coalesced collectives, none for an
empty tensor, and operations of another function for parts of different sizes. Calls of a rank on a
group are counted only if each is known to be a single operation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from commtrace.importers.device_times.timings import COLLECTIVES, COUNTERS
from commtrace.torch_names import TRANSFERS
from commtrace.tracefile.joining.steps import EVERY
from commtrace.tracefile.trace import Trace


@dataclass(frozen=True, slots=True)
class CountedCalls:
    """Calls of a rank on a recorded group, in order.

    Attributes:
        issue: Times of issue by the clock of the rank's host.
        end: Ends of the issuing calls, likewise.
        recorded: First and last instant of the rank's recording, likewise.
    """

    rows: np.ndarray
    kind: np.ndarray
    payload: np.ndarray
    issue: np.ndarray
    end: np.ndarray
    recorded: tuple[int, int]


class RecordedCalls:
    """Calls of a recording by rank and group."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        comm = trace.tables["comm"]
        self.ranks_of = {
            name: tuple(map(int, ranks.split(","))) if ranks else ()
            for name, ranks in _columns(trace, "groups", "name", "ranks")
        }
        times = ("rank", "clock_offset_ns", "start_ns", "end_ns")
        offsets = {rank: offset for rank, offset, *_ in _columns(trace, "ranks", *times)}
        self._recorded = {
            rank: (start - offset, end - offset)
            for rank, offset, start, end in _columns(trace, "ranks", *times)
        }
        self._rank = np.asarray(comm["rank"])
        self._offset = np.array([offsets.get(rank, 0) for rank in self._rank], dtype=np.int64)
        self._seq = np.asarray(comm["seq"])
        self._rows: dict[tuple[int, str], list[int]] = {}
        for row, key in enumerate(zip(comm["rank"], comm["group"], strict=True)):
            self._rows.setdefault(key, []).append(row)
        self._kind = np.array([*comm["kind"]], dtype=object)
        dropped = _columns(trace, "ranks", "rank", "num_dropped")
        self._dropping = {rank for rank, num_dropped in dropped if num_dropped}
        self._id = np.asarray(comm["id"])
        self._lanes: dict[tuple[Any, ...], list[int]] = {}
        self._counted: dict[tuple[int, str, str], CountedCalls | str] = {}

    def counted(self, rank: int, group: str, counter: str) -> CountedCalls | str:
        """Return the calls of a rank on a group that a counter counts, or why these are unknown."""
        if rank not in self._recorded:
            return "it left no recording"
        key = rank, group, counter
        if key not in self._counted:
            self._counted[key] = self._count(*key)
        return self._counted[key]

    def _count(self, rank: int, group: str, counter: str) -> CountedCalls | str:
        if EVERY in self.trace.run:
            return "not every step was recorded"
        comm = self.trace.tables["comm"]
        rows = np.array(self._rows.get((rank, group), ()), dtype=np.int64)
        rows = rows[np.argsort(self._seq[rows], kind="stable")]
        if not np.array_equal(self._seq[rows], np.arange(len(rows))):
            return "the recording lacks calls between others"
        if counter != COLLECTIVES and any(map(self._is_unclear, rows.tolist())):
            return "some calls are several operations of NCCL: coalesced, or of uneven parts"
        kind, payload = self._kind[rows], np.asarray(comm["payload_bytes"])[rows]
        # NCCL runs nothing for an empty tensor.
        is_run = (payload != 0) | (kind == "barrier") | (counter == COLLECTIVES)
        is_counted = np.isin(kind, sorted(COUNTERS[counter])) & is_run
        return self._calls(rows[is_counted], rank)

    def transfers(self, rank: int, kind: str, peer: int, payload: int) -> CountedCalls | str:
        """Return the sends or receives of a size with a peer, or why these are unknown."""
        if rank not in self._recorded:
            return "it left no recording"
        if rank in self._dropping or EVERY in self.trace.run:
            return "not every call was recorded"
        if not self._lanes:
            comm = self.trace.tables["comm"]
            columns = zip(*(comm[name] for name in _OF_LANE), strict=True)
            for row, lane in enumerate(columns):
                if lane[1] in TRANSFERS:
                    self._lanes.setdefault(lane, []).append(row)
        rows = np.array(self._lanes.get((rank, kind, peer, payload), ()), dtype=np.int64)
        return self._calls(rows[np.argsort(self._id[rows], kind="stable")], rank)

    def _calls(self, rows: np.ndarray, rank: int) -> CountedCalls:
        comm = self.trace.tables["comm"]
        issue = np.asarray(comm["issue_ns"])[rows] - self._offset[rows]
        in_call = np.asarray(comm["call_ns"])[rows].clip(min=0)
        return CountedCalls(
            rows,
            self._kind[rows],
            np.asarray(comm["payload_bytes"])[rows],
            issue,
            issue + in_call,
            self._recorded[rank],
        )

    def _is_unclear(self, row: int) -> bool:
        """Return whether a call is several operations of NCCL, or an operation of another function.

        These are coalesced collectives, and gathers of parts of different sizes.
        """
        comm = self.trace.tables["comm"]
        kind = comm["kind"][row]
        if kind in TRANSFERS or kind in _OF_LISTS:
            return False
        sent, received = (comm[f"{side}_shapes"][row].split(";") for side in _SIDES)
        num_tensors = len(received if kind == "reduce_scatter" else sent)
        is_uneven = max(len(set(sent)), len(set(received))) > 1
        return num_tensors > 1 or is_uneven or "coalesced" in comm["native_op"][row]


_SIDES = ("input", "output")
_OF_LANE = ("rank", "kind", "peer", "payload_bytes")
_OF_LISTS = frozenset({"all_to_all", "gather", "scatter", "barrier"})
"""Kinds that are none of NCCL's counted functions, or have no tensors."""


def _columns(trace: Trace, table: str, *names: str) -> Iterable[tuple[Any, ...]]:
    return zip(*(trace.tables[table][name] for name in names), strict=True)
