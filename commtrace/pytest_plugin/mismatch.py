"""Comparison of claims with a test's communication, and the text of the failure.

Returns None or an `ExpectationError` with expected and found numbers, and the table of the recorded
calls with their source lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commtrace.errors import CommtraceError
from commtrace.escaping import visible
from commtrace.pytest_plugin.expectation import EXPOSED, SUM, Claim, text_of
from commtrace.pytest_plugin.exposed import rows_of_losses
from commtrace.pytest_plugin.observed import Observed, Row, unknown_modules
from commtrace.pytest_plugin.short_names import short
from commtrace.units import runs_of, text_of_bytes

DEFAULT_ROWS = 20
_COLUMNS = ("calls", "kind", "payload", "wire", "phase", "module", "operator", "group", "line")
_NUMBERS = frozenset({"calls", "payload", "wire", "exposed", "could hide"})


class ExpectationError(CommtraceError, AssertionError):
    """A test communicated otherwise than expected, or this cannot be determined."""


class IncompleteRecordingError(ExpectationError):
    """The communication of a test was not recorded, or not completely."""


_LINES = "see the source lines of the calls below; --comms-report=DIR saves the trace"
_NOTHING = "nothing communicated: check that the test reaches the communicating code"


def check(
    claims: Sequence[Claim], found: Observed, *, caller: str, rows: int = DEFAULT_ROWS
) -> ExpectationError | None:
    """Return the failure if a claim does not hold; None if all do."""
    lines: list[tuple[str, ...]] = []
    differences: list[str] = []
    why, attempt = "", _LINES if found.rows else _NOTHING
    for claim in claims:
        unknown = unknown_modules(found, claim)
        if unknown:
            differences.append(f"no module {unknown[0]!r}, for which {claim} was expected")
            lines.append((str(claim), "no such module", ""))
            why = "a bound on a module that does not exist always holds"
            attempt = (
                f"one of {', '.join(sorted(found.modules or ())[:8]) or 'none: no module ran'}"
            )
            continue
        if claim.quantity == EXPOSED and -1 in found.measure(claim).values():
            return IncompleteRecordingError(
                f"{caller} cannot be checked",
                found=_ranks_text([r for r, s in found.measure(claim).items() if s < 0], found),
                why="the time of these ranks, or for how long calls blocked them, is unknown",
                attempt="wait for asynchronous calls in the body of the test",
            )
        broken = _broken(claim, found)
        differences += [f"{number}, expected {claim.expectation}" for _, number, _ in broken]
        lines += broken
    if not lines:
        return None
    error = ExpectationError(
        f"{caller} does not hold", found="; ".join(differences), why=why, attempt=attempt
    )
    table = text_table(("expected", "found", "on ranks"), lines)
    texts = [error.args[0], table, text_of_observed(found, rows)]
    if any(line[0].startswith(EXPOSED) for line in lines):
        columns, losses = rows_of_losses(found.traces, rows)
        texts.insert(2, f"why it was not hidden:\n{text_table(columns, losses)}")
    error.args = ("\n\n".join(texts),)
    return error


def _broken(claim: Claim, found: Observed) -> list[tuple[str, ...]]:
    """Return a line for each number that violates a claim, with its ranks."""
    by_number: dict[int, list[int | None]] = {}
    for rank, number in found.measure(claim).items():
        if not claim.holds(number):
            by_number.setdefault(number, []).append(rank)
    return [
        (
            str(claim),
            f"{claim.quantity} {text_of(claim.quantity, number)}",
            "all, summed" if claim.ranks == SUM else _ranks_text(ranks, found),
        )
        for number, ranks in sorted(by_number.items())
    ]


def _ranks_text(ranks: Sequence[int | None], found: Observed) -> str:
    known = [rank for rank in ranks if rank is not None]
    if len(found.ranks) > 1 and set(known) == set(found.ranks):
        return f"all {len(known)}"
    return spans(known)


def spans(numbers: Iterable[int]) -> str:
    """Format numbers in order, with runs contracted.

    >>> spans([3, 0, 1, 2, 7])
    '0-3, 7'
    """
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs_of(numbers))


def text_of_observed(found: Observed, rows: int = DEFAULT_ROWS) -> str:
    """Format the table of recorded calls: alike calls share a row, with the ranks making them."""
    if not found.rows:
        return f"recorded: no communication, on {_on_ranks(found)}"
    by_place: dict[tuple[str, ...], dict[int, list[Row]]] = {}
    for row in found.rows:
        by_place.setdefault(_place(row), {}).setdefault(row.rank, []).append(row)
    lines: dict[tuple[str, ...], list[int]] = {}
    for place, by_rank in by_place.items():
        for rank, calls in by_rank.items():
            lines.setdefault((*_measures(calls), *place), []).append(rank)
    table = [_line(values, ranks, found) for values, ranks in lines.items()]
    columns = (*_COLUMNS, "ranks")
    if all(line[-1] == "" for line in table):
        columns, table = columns[:-1], [line[:-1] for line in table]
    shown = [name for name in columns if any(line[columns.index(name)] for line in table)]
    keep = [columns.index(name) for name in shown]
    drawn = [tuple([line[place] for place in keep]) for line in table[:rows]]
    more = len(table) - len(drawn)
    return "\n".join(
        [
            f"recorded, per rank, of {_on_ranks(found)}:",
            text_table(shown, drawn),
            *([f"... {more} more lines: --comms-rows={len(table)}"] * bool(more)),
        ]
    )


def _on_ranks(found: Observed) -> str:
    num = len(found.ranks)
    return f"{num} ranks" if num != 1 else f"rank {found.ranks[0]}"


def _place(row: Row) -> tuple[str, ...]:
    line = f"{short(row.source_file)}:{row.source_line}" if row.source_file else ""
    function = f" {row.source_function}" if row.source_function else ""
    return row.kind, row.phase, row.module, row.op, row.group_text, line + function


def _measures(calls: Sequence[Row]) -> tuple[str, ...]:
    payload = sum(max(row.payload_bytes, 0) for row in calls)
    wire = sum(max(row.wire_bytes, 0) for row in calls)
    return str(len(calls)), text_of_bytes(payload), text_of_bytes(wire)


def _line(values: tuple[str, ...], ranks: list[int], found: Observed) -> tuple[str, ...]:
    calls, payload, wire, kind, *where = values
    return (
        calls,
        kind,
        payload,
        wire,
        *where,
        "" if len(ranks) == len(found.ranks) else spans(ranks),
    )


def text_table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format columns side by side, numbers right-aligned; control characters become visible."""
    table = [tuple(map(visible, line)) for line in (columns, *lines)]
    widths = [max(len(line[place]) for line in table) for place in range(len(columns))]
    return "\n".join(
        "  "
        + "  ".join(
            text.rjust(width) if name in _NUMBERS else text.ljust(width)
            for name, text, width in zip(columns, line, widths, strict=True)
        ).rstrip()
        for line in table
    )
