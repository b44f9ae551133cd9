"""Second computation of the progress of communicators, member by member."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.commtrace.analyze.second.run import Run

FAULTY_STATES = {
    "dead": "dead rank",
    "unresponsive": "unresponsive rank",
    "aborted": "aborted rank",
}

Progress = tuple[str, bool, str, list[int]]


def unlike_progress(run: Run) -> Iterator[Progress]:
    """Yield problem, whether it is a fault, group and ranks."""
    for name in {row.group for row in run.communicators}:
        snapshots: dict[int, list[Any]] = {}
        for row in run.communicators:
            if row.group == name:
                snapshots.setdefault(row.at_ns, []).append(row)
        newest, *older = (snapshots[at] for at in sorted(snapshots, reverse=True))
        yield from _states(name, newest)
        counts, before = _counts(newest), _counts(older[0]) if older else {}
        behind = [rank for rank in counts if _is_behind(rank, counts)]
        stuck = [
            rank
            for rank in behind
            if all(before.get(rank, {}).get(kind) == n for kind, n in counts[rank].items())
        ]
        if behind:
            yield "missing call" if stuck else "behind", bool(stuck), name, stuck or behind


def _states(name: str, newest: list[Any]) -> Iterator[Progress]:
    found: dict[tuple[str, bool, int], set[int]] = {}
    for row in newest:
        if row.state in FAULTY_STATES:
            found.setdefault((FAULTY_STATES[row.state], True, 0), set()).add(row.rank)
        if row.state == "no member":
            found.setdefault(("missing rank", False, 0), set()).add(row.rank)
        if row.error > 0:
            found.setdefault(("failed rank", True, row.error), set()).add(row.rank)
    for (problem, is_fault, _), ranks in found.items():
        yield problem, is_fault, name, sorted(ranks)


def _counts(rows: list[Any]) -> dict[int, dict[str, int]]:
    """Known counts of each rank, by kind."""
    counts: dict[int, dict[str, int]] = {}
    for row in rows:
        if row.num_calls >= 0:
            counts.setdefault(row.rank, {})[row.kind] = row.num_calls
    return counts


def _is_behind(rank: int, counts: dict[int, dict[str, int]]) -> bool:
    return any(
        number < max(of_rank.get(kind, -1) for of_rank in counts.values())
        for kind, number in counts[rank].items()
    )
