"""Timeline in letters: one row per rank, one column per time interval.

    R   most of the column is transfer of an all_reduce      r   most of it is waiting in one
    ▂   less than half of it is communication                ·   none of it
    ?   a call is in flight, or begins, and it is unknown whether it blocks the rank

Letters distinguish kinds without colours; capitals distinguish transfer from waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len

from commtrace.escaping import visible
from commtrace.units import text_of_duration
from commtrace_cli.terminal import Text, colour_of_kind

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.analyze import Frames

LETTERS: dict[str, str] = {
    "all_reduce": "R",
    "all_gather": "G",
    "reduce_scatter": "S",
    "all_to_all": "A",
    "broadcast": "B",
    "send": "P",
    "recv": "Q",
    "reduce": "E",
    "gather": "H",
    "scatter": "C",
    "barrier": "I",
}
OTHER_LETTER = "O"
PHASE_LETTERS = {"forward": "f", "backward": "b", "recompute": "r", "optimizer": "o"}
OTHER_PHASE = "-"
LEVELS = "▁▂▃▄"
"""Bars for less than half of a column's time, in four steps."""
NOTHING, BEFORE, UNKNOWN = "·", " ", "?"

LEAST_COLUMNS = 20
_SHARES = 16
_TICK_EVERY = 16


def cells(
    frames: Frames, table: pd.DataFrame, window_ns: tuple[int, int], num_columns: int
) -> pd.DataFrame:
    """Return the time that each rank spends in the columns of a window, from analysis `activity`.

    One row per rank, column and kind, with `waiting`, `transferring` and `unknown` in nanoseconds.
    """
    import pandas as pd

    first, last = (edge + frames.start_ns for edge in window_ns)
    begin, end = table["start_ns"], table["start_ns"] + table["duration_ns"]
    busy = (table["kind"] != "") & (end > first) & (begin < last)
    table, begin, end = table[busy], begin[busy].clip(lower=first), end[busy].clip(upper=last)
    edges = _points(first, last, range(num_columns + 1), num_columns)
    from_column = np.searchsorted(edges, begin, side="right") - 1
    to_column = np.searchsorted(edges, end, side="left") - 1
    num_columns_of = to_column - from_column + 1
    pieces = np.repeat(np.arange(len(table)), num_columns_of)
    firsts = np.cumsum(num_columns_of) - num_columns_of
    within = np.arange(len(pieces)) - np.repeat(firsts, num_columns_of)
    column = from_column[pieces] + within
    lasts = np.minimum(end.to_numpy()[pieces], edges[column + 1]) - np.maximum(
        begin.to_numpy()[pieces], edges[column]
    )
    activity = table["activity"].to_numpy()[pieces]
    found = pd.DataFrame(
        {
            "rank": table["rank"].to_numpy()[pieces],
            "column": column,
            "kind": table["kind"].to_numpy()[pieces],
            **{part: np.where(activity == part, lasts, 0) for part in _PARTS},
        }
    )
    return found.groupby(["rank", "column", "kind"], as_index=False).sum()


_PARTS = ("waiting", "transferring", "unknown")


def unended(frames: Frames, window_ns: tuple[int, int], num_columns: int) -> dict[int, set[int]]:
    """Return, by rank, the columns in which calls of unknown end and blocked time begin."""
    from commtrace.analyze.measures.arrivals import has_known_end

    comm = frames.comm
    begins = comm[(comm["issue_ns"] >= 0) & ~has_known_end(comm)]
    first, last = (edge + frames.start_ns for edge in window_ns)
    begins = begins[begins["issue_ns"].between(first, last, inclusive="left")]
    edges = _points(first, last, range(num_columns + 1), num_columns)
    columns = np.searchsorted(edges, begins["issue_ns"], side="right") - 1
    found: dict[int, set[int]] = {}
    for rank, column in zip(begins["rank"].tolist(), columns.tolist(), strict=True):
        found.setdefault(rank, set()).add(column)
    return found


def _points(first: int, last: int, numbers: Sequence[int], num_parts: int) -> np.ndarray:
    """Return the numbered points of a divided interval; products exceed 64 bits."""
    return np.array([first + (last - first) * number // num_parts for number in numbers], "int64")


@dataclass(frozen=True, slots=True)
class Cells:
    """Activity of the ranks of a part in the columns of a window.

    Attributes:
        table: As of `cells`.
        unended: As of `unended`.
        known: By rank with calls, whether any blocked time and any wait of its calls is known.
    """

    table: pd.DataFrame
    unended: dict[int, set[int]]
    known: dict[int, tuple[bool, bool]]


def _cells_of_part(
    part: Frames, ranks: tuple[int, ...], window_ns: tuple[int, int], num_columns: int
) -> Cells:
    import pandas as pd

    from commtrace.analyze import CATALOG

    if not part.comm["rank"].isin(ranks).any():
        return Cells(pd.DataFrame(columns=["rank"]), {}, {})
    table = CATALOG["activity"].function(part)
    found = cells(part, table[table["rank"].isin(ranks)], window_ns, num_columns)
    return Cells(found, unended(part, window_ns, num_columns), _known_of(part))


def timeline_lines(
    frames: Frames,
    window_ns: tuple[int, int],
    ranks: Sequence[int],
    width: int,
) -> list[Text]:
    """Return the lines of a terminal `width` wide: time, steps, phases, and the ranks."""
    label = max(len(f"rank {rank}") for rank in (*ranks, 0)) + 2
    has_shares = has_room_for_shares(width, ranks)
    num_columns = max(width - label - _SHARES * has_shares, LEAST_COLUMNS)
    parts = frames.by_ranks(_cells_of_part, tuple(ranks), window_ns, num_columns)
    lasts = window_ns[1] - window_ns[0]
    rows = [Text(f"{'time':{label}}" + _ruler(window_ns, num_columns), style="dim")]
    if has_shares:
        rows[0].append("blocked waiting".rjust(_SHARES))
    if marks := _steps(frames, window_ns, num_columns):
        rows.append(Text(f"{'step':{label}}{marks}", style="dim"))
    if phases := _phases(frames, window_ns, num_columns):
        rows.append(Text(f"{'phase':{label}}", style="dim").append(phases))
    by_rank: dict[Any, Any] = {}
    without_end: dict[int, set[int]] = {}
    of_calls: dict[int, tuple[bool, bool]] = {}
    for part in parts:
        by_rank |= dict(iter(part.table.groupby("rank")))
        without_end |= part.unended
        of_calls |= part.known
    for rank in ranks:
        row = Text(f"{f'rank {rank}':{label}}")
        of_rank = by_rank.get(rank)
        marks = _marks(of_rank, lasts / num_columns)
        marks = {column: (UNKNOWN, "dim") for column in without_end.get(rank, ())} | marks
        for column in range(num_columns):
            row.append(*marks.get(column, (NOTHING, "dim")))
        if has_shares:
            row.append(_shares(of_rank, lasts, of_calls.get(rank, (True, True))))
        rows.append(row)
    return rows


def _known_of(frames: Frames) -> dict[int, tuple[bool, bool]]:
    """Return, by rank with calls, whether any blocked time and any wait of its calls is known."""
    from commtrace.analyze.measures.arrivals import arrivals

    rank = frames.comm["rank"]
    values = (frames.comm["blocked_ns"], arrivals(frames)["wait_ns"])
    blocked, waits = ((each >= 0).groupby(rank).any() for each in values)
    return {rank: (bool(blocked[rank]), bool(waits[rank])) for rank in blocked.index}


def has_room_for_shares(width: int, ranks: Sequence[int]) -> bool:
    """Return whether a terminal has room for the blocked and waiting shares after a row."""
    label = max(len(f"rank {rank}") for rank in (*ranks, 0)) + 2
    return width >= label + LEAST_COLUMNS + _SHARES


def legend(kinds: Sequence[str], *, has_phases: bool, width: int) -> list[Text]:
    """Return lines that explain the letters; a letter and its kind are never separated."""
    letters = [Text()]
    for kind in map(visible, kinds):
        if letters[-1].cell_len + cell_len(kind) + 4 > width and letters[-1]:
            letters.append(Text())
        letters[-1].append(f" {letter_of(kind)} ", style=_style(kind, is_waiting=False))
        letters[-1].append(f" {kind}   ")
    meaning = (
        f"CAPITAL transfer, lower case waiting for a rank, {LEVELS[:3]} less than half, {NOTHING} "
        f"none, {UNKNOWN} not known"
    )
    lines = [*letters, Text(meaning, style="dim")]
    if has_phases:
        phases = ", ".join(f"{letter} {phase}" for phase, letter in PHASE_LETTERS.items())
        meaning = f"phase of the first rank: {phases}, {OTHER_PHASE} other"
        lines.append(Text(meaning, style="dim"))
    return lines


def letter_of(kind: str) -> str:
    """Return the letter of a kind of communication."""
    return LETTERS.get(kind, OTHER_LETTER)


def _marks(of_rank: Any, column_ns: float) -> dict[int, tuple[str, str]]:
    """Return the characters of a rank's columns with communication, and their styles."""
    if of_rank is None:
        return {}
    parts = list(_PARTS)
    of_rank = of_rank.assign(busy=of_rank[parts].sum(axis=1))
    sums = of_rank.groupby("column")[[*parts, "busy"]].sum()
    kinds = of_rank.sort_values(["busy", "kind"]).groupby("column")["kind"].last()
    return {
        column: _mark(kinds[column], waiting, transferring, unknown, busy / column_ns)
        for column, waiting, transferring, unknown, busy in sums.itertuples()
    }


def _mark(
    kind: str, waiting: int, transferring: int, unknown: int, share: float
) -> tuple[str, str]:
    """Return the character of a column, and its style."""
    if unknown > waiting + transferring:
        return UNKNOWN, _style(kind, is_waiting=True)
    is_waiting = waiting > transferring
    if share >= 0.5:
        letter = letter_of(kind)
        return (letter.lower() if is_waiting else letter), _style(kind, is_waiting=is_waiting)
    return LEVELS[min(int(share * 2 * len(LEVELS)), len(LEVELS) - 1)], _style(kind, is_waiting=True)


def _style(kind: str, *, is_waiting: bool) -> str:
    from commtrace.figures.theme import readable_on

    colour = colour_of_kind(kind)
    return colour if is_waiting else f"{readable_on(colour)} on {colour}"


def _shares(of_rank: pd.DataFrame | None, lasts: int, is_known: tuple[bool, bool]) -> str:
    """Return the blocked and the waiting share of a window; a dash if no call's is known."""
    waiting, busy = 0.0, 0.0
    if of_rank is not None:
        waiting = of_rank["waiting"].sum() / lasts
        busy = waiting + of_rank["transferring"].sum() / lasts
    texts = (
        f"{share:.0%}" if known else "–"
        for share, known in zip((busy, waiting), is_known, strict=True)
    )
    return "".join(text.rjust(_SHARES // 2) for text in texts)


def _ruler(window_ns: tuple[int, int], num_columns: int) -> str:
    """Return the times since the start of the run, each at its tick."""
    first, last = window_ns
    row = [BEFORE] * num_columns
    for column in range(0, num_columns, _TICK_EVERY):
        text = "|" + text_of_duration(first + (last - first) * column / num_columns)
        if column + len(text) <= num_columns:
            row[column : column + len(text)] = text
    return "".join(row)


def _steps(frames: Frames, window_ns: tuple[int, int], num_columns: int) -> str:
    """Return the number of each step at its start, as far as there is room."""
    steps = frames.timed_steps.sort_values(["rank", "step"])
    steps = steps[steps["rank"] == steps["rank"].min()]
    first, last = window_ns
    row, free_from = [BEFORE] * num_columns, 0
    for step, start, end in zip(
        steps["step"],
        steps["start_ns"] - frames.start_ns,
        steps["end_ns"] - frames.start_ns,
        strict=True,
    ):
        if end <= first or start >= last:
            continue
        column = max(int((start - first) * num_columns // (last - first)), 0)
        if start < first and (end - first) * num_columns < 2 * (last - first):
            continue  # only its end would be visible
        text = f"|{step}"
        if column >= free_from and column + len(text) <= num_columns:
            row[column : column + len(text)] = text
            free_from = column + len(text) + 1
    return "".join(row).rstrip()


def _phases_of_part(part: Frames) -> pd.DataFrame:
    """Return the phases of the first rank of a part that has any, by time."""
    from commtrace.figures.spans import phase_spans

    spans = phase_spans(part)
    return spans[spans["rank"] == spans["rank"].min()].sort_values("start_ns")


def _phases(frames: Frames, window_ns: tuple[int, int], num_columns: int) -> Text | None:
    """Return the first rank's phase in the middle of each column, as letters."""
    from commtrace.figures.theme import DARK, readable_on

    firsts = [spans for spans in frames.by_ranks(_phases_of_part) if len(spans)]
    if not firsts:
        return None
    spans = min(firsts, key=lambda spans: spans["rank"].iloc[0])
    first, last = (edge + frames.start_ns for edge in window_ns)
    middles = _points(first, last, range(1, 2 * num_columns, 2), 2 * num_columns)
    place = np.searchsorted(spans["start_ns"].to_numpy(), middles, side="right") - 1
    names = spans["phase"].tolist()
    is_inside = (place >= 0) & (spans["end_ns"].to_numpy()[place] >= middles)
    if not is_inside.any():
        return None
    row = Text()
    for at, inside in zip(place.tolist(), is_inside.tolist(), strict=True):
        if not inside:
            row.append(BEFORE)
        else:
            colour = DARK.phase(names[at])
            letter = PHASE_LETTERS.get(names[at], OTHER_PHASE)
            row.append(letter, style=f"{readable_on(colour)} on {colour}")
    return row
