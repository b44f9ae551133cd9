"""Completed operators as a spool stores them: their numbers and the call sites that they share.

The program only appends each operator's values to a list (see `Buffer`). This is the rest of the
work, done by the thread that writes. It goes column by column, mostly through functions of C.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from commtrace.recorder.events.call_sites import CallSites
from commtrace.recorder.events.sink import SpanKind
from commtrace.recorder.operator_kinds import DTENSOR
from commtrace.tracefile.encoding import packed_ints

SPAN_FIELDS = 6
"""Number of values of an `OperatorSpan`."""
KIND = 5
"""Position of its kind."""
_MAX_KINDS = 1 << 16


class OperatorSites:
    """Call sites of the kinds of operators in a recording."""

    def __init__(self, call_sites: CallSites) -> None:
        self._call_sites = call_sites
        self._known: dict[SpanKind, int] = {}
        self._names: dict[int, str] = {}

    def numbers_of(
        self, spans: Sequence[Any], step: int, epoch: int, first_op: int, most: int
    ) -> tuple[array[int], int]:
        """Return the numbers of operators, as `spool.NUMBERS` names them, and the number dropped.

        Args:
            spans: the values of `OperatorSpan`s, span after span.
            step: the step in which they completed.
            epoch: the number of ns to add to their times.
            first_op: the number of the recording's first operator.
            most: bound on the operators kept. If the last is a local operator, the operator
                that ran it is kept with it, even beyond the bound.
        """
        columns: list[Any] = [spans[place::SPAN_FIELDS] for place in range(SPAN_FIELDS)]
        num_dropped = 0
        if len(columns[KIND]) > most:
            num_kept = max(most, 0) + _is_local_of_next(columns, most - 1)
            num_dropped = len(columns[KIND]) - num_kept
            columns = [column[:num_kept] for column in columns]
        numbers, parents, starts, lengths, calls, kinds = columns
        sites: list[Any] = list(map(self._known.get, kinds))
        if None in sites:
            sites = [self._site_of(kind) for kind in kinds]
        rows = (
            _from_first(numbers, first_op), _from_first(parents, first_op),
            [start + epoch for start in starts], lengths, array("q", [step]) * len(numbers),
            [-1 if call is None else call[1] for call in calls], sites,
        )  # fmt: skip
        flat = array("q", [0]) * (len(rows) * len(numbers))
        for place, column in enumerate(rows):
            flat[place :: len(rows)] = packed_ints(column)
        return flat, num_dropped

    def _site_of(self, kind: SpanKind) -> int:
        """Return the call site of a kind, which is added if it is new."""
        number = self._known.get(kind)
        if number is None:
            if len(self._known) >= _MAX_KINDS:
                self._known.clear()
                self._names.clear()
            number = self._known[kind] = self._number_of(kind)
        return number

    def _number_of(self, kind: SpanKind) -> int:
        where, op = kind.where, kind.op
        place, regions = where.place, where.regions
        # By identity: hashing an operator runs Python code. The call site keeps it alive.
        details = kind.needs, kind.shapes, kind.flops, kind.num_bytes
        key = (where.rank, id(op), kind.level, where.phase, regions, place, where.thread, details)
        number = self._call_sites.number_of(key)
        if number is None:
            region = regions[-1] if regions else ""
            path, class_name = (place.plain, place.class_name) if place else ("", "")
            row = (
                where.rank, self._name_of(op), kind.level, where.phase, region, path, class_name,
                where.thread, *details,
            )  # fmt: skip
            number = self._call_sites.add(key, row, op)
        return number

    def _name_of(self, op: Any) -> str:
        """Return the name of an operator that a known kind keeps alive."""
        name = self._names.get(id(op))
        if name is None:
            name = self._names[id(op)] = str(op)
        return name


def _is_local_of_next(columns: Sequence[Any], row: int) -> bool:
    """Return whether a span is a local operator of the distributed operator that follows."""
    numbers, parents, *_, kinds = columns
    return row >= 0 and kinds[row + 1].level == DTENSOR and parents[row] == numbers[row + 1]


def _from_first(numbers: list[int], first: int) -> list[int]:
    """Return numbers counted from `first`; -1 for any before it, or for none."""
    return (
        numbers if not first else [number - first if number >= first else -1 for number in numbers]
    )
