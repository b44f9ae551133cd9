"""Completed operators as a spool has them: their numbers and the call sites that they share.

The program only appends each operator's values to a list (see `Buffer`). This is the rest of the
work, done by the thread that writes. It goes column by column, mostly through functions of C.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from typing import Any

from commtrace.recorder.events.call_sites import CallSites
from commtrace.recorder.operator_kinds import LOCAL, OperatorKind
from commtrace.tracefile.encoding import packed_ints

SPAN_FIELDS = 10
"""Number of values of an `OperatorSpan`."""
KIND = 5
"""Position of its kind."""
_NUM_WRITTEN = 9
"""Number of its values without the layouts, which come last and are not written."""
_MAX_KINDS = 1 << 16
_NO_SITE = -1

_Sites = tuple[int, int]
"""Call sites of an operator and of the last local operator that it ran."""


class OperatorSites:
    """Call sites of the kinds of operators in one recording."""

    def __init__(self, call_sites: CallSites) -> None:
        self._call_sites = call_sites
        self._known: dict[OperatorKind, _Sites] = {}

    def numbers_of(
        self, spans: Sequence[Any], step: int, epoch: int, first_op: int, most: int
    ) -> tuple[array[int], int]:
        """Return the numbers of operators, as `spool.NUMBERS` names them, and the number dropped.

        Args:
            spans: the values of `OperatorSpan`s, one span after the other.
            step: the step in which they completed.
            epoch: the number of ns to add to their times.
            first_op: the number of the recording's first operator.
            most: bound on the operators kept. The local operator of the last one is kept with it,
                also beyond the bound.
        """
        columns: list[Any] = [spans[place::SPAN_FIELDS] for place in range(_NUM_WRITTEN)]
        num_dropped = 0
        if 2 * len(columns[KIND]) > most:  # rare, so that operators are counted only then
            has_local = [kind.last_local is not None for kind in columns[KIND]]
            num_kept, num_dropped = _within(most, has_local)
            columns = [column[:num_kept] for column in columns]
        (
            numbers, parents, starts, lengths, module_calls, kinds,
            local_numbers, local_starts, local_lengths,
        ) = columns  # fmt: skip
        sites: list[Any] = list(map(self._known.get, kinds))
        if None in sites:
            sites = [self._sites_of(kind) for kind in kinds]
        numbers = packed_ints(_from_first(numbers, first_op))
        module_calls = packed_ints(module_calls)
        flat = _rows(
            numbers, _from_first(parents, first_op), [start + epoch for start in starts], lengths,
            step, module_calls, [own for own, _ in sites],
        )  # fmt: skip
        has_local = [number >= 0 for number in local_numbers]
        # The row of a last local operator has the numbers of the one that ran it, or its own.
        parts: list[Any] = [
            local_numbers, numbers, local_starts, local_lengths, module_calls,
            [local for _, local in sites],
        ]  # fmt: skip
        if not all(has_local):
            parts = [list(compress(column, has_local)) for column in parts]
        local_numbers, numbers, local_starts, local_lengths, module_calls, local_sites = parts
        flat += _rows(
            _from_first(local_numbers, first_op), numbers,
            [start + epoch for start in local_starts], local_lengths, step, module_calls,
            local_sites,
        )  # fmt: skip
        return flat, num_dropped

    def _sites_of(self, kind: OperatorKind) -> _Sites:
        """Return the call sites of a kind, which are added if they are new."""
        known = self._known.get(kind)
        if known is None:
            if len(self._known) >= _MAX_KINDS:
                self._known.clear()
            own = self._number_of(kind, kind.op, kind.level)
            local = kind.last_local
            last = _NO_SITE if local is None else self._number_of(kind, local, LOCAL)
            known = self._known[kind] = own, last
        return known

    def _number_of(self, kind: OperatorKind, op: Any, level: str) -> int:
        """Return the number of one operator's call site, which is added if it is new."""
        where = kind.where
        place, regions = where.place, where.regions
        # By identity: hashing an operator runs Python code. The call site keeps it alive.
        key = (where.rank, id(op), level, where.phase, regions, place, where.thread)
        number = self._call_sites.number_of(key)
        if number is None:
            region = regions[-1] if regions else ""
            path, class_name = (place.plain, place.class_name) if place else ("", "")
            row = (
                where.rank, str(op), level, where.phase, region, path, class_name, where.thread,
            )  # fmt: skip
            number = self._call_sites.add(key, row, op)
        return number


def _within(most: int, has_local: Sequence[bool]) -> tuple[int, int]:
    """Return how many spans are kept, at most `most` operators, and how many operators are not."""
    num_spans = num_ops = 0
    for is_two in has_local:
        if num_ops >= most:
            break
        num_ops += 1 + is_two
        num_spans += 1
    return num_spans, len(has_local) + sum(has_local) - num_ops


def _from_first(numbers: list[int], first: int) -> list[int]:
    """Return numbers counted from `first`; -1 if one is before it, or none."""
    return (
        numbers if not first else [number - first if number >= first else -1 for number in numbers]
    )


def _rows(
    numbers: Sequence[int],
    parents: Sequence[int],
    starts: Sequence[int],
    lengths: Sequence[int],
    step: int,
    module_calls: Sequence[int],
    call_sites: Sequence[int],
) -> array[int]:
    """Return columns as rows, one after the other."""
    steps = array("q", [step]) * len(numbers)
    columns = (numbers, parents, starts, lengths, steps, module_calls, call_sites)
    width = len(columns)
    flat = array("q", [0]) * (width * len(numbers))
    for place, column in enumerate(columns):
        flat[place::width] = packed_ints(column)
    return flat
