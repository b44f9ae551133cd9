"""Blocked time of each rank: waits by wait state, hatched, and transfer, stacked.

Above `MAX_RANKS` ranks, only those blocked longest are drawn. A rank without timed calls has a note
in place of a bar; if only some of its calls were not timed, the note is in its bar's text.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.figures.label import bold, lines
from commtrace.figures.stacked_bars import fill, row_layout
from commtrace.figures.theme import LIGHT, Theme, empty, theme_of, titled
from commtrace.units import known_note, text_of_duration

MAX_RANKS = 128
TRANSFER, UNKNOWN = "transfer", "not known"

PATTERNS: dict[str, str] = {
    "Wait at N x N": "/",
    "Wait at Barrier": "x",
    "Late Broadcast": "\\",
    "Early Reduce": "-",
    "Late Sender": "|",
    "Late Receiver": "+",
}
"""Hatching of each wait state, so that they are distinguishable without colours."""


def waits(
    table: pd.DataFrame, *, theme: Theme | str = LIGHT, title: str = "", because: str = ""
) -> go.Figure:
    """Draw the bars of the analysis `rank_waits`: the blocked time of each rank.

    `because` is the reason shown if there is nothing to draw.
    """
    theme = theme_of(theme)
    parts = wait_parts(table)
    counts: Any = table.groupby("rank")[["num_calls", "num_untimed"]].sum()
    num_known = counts["num_calls"] - counts["num_untimed"]
    blocked = parts.groupby("rank")["lasts_ns"].sum()
    untimed = counts.index[(num_known == 0) & (counts["num_calls"] > 0)]
    blocked = blocked.reindex(blocked.index.union(untimed), fill_value=0)
    if parts.empty:
        note = known_note(int(num_known.sum()), int(counts["num_calls"].sum()))
        what = f"The blocked time is {note}" if note else "No rank is blocked in this trace"
        return empty(theme, title=title, what=what, because=because)
    notes = {
        rank: known_note(known, num)
        for rank, known, num in zip(counts.index, num_known, counts["num_calls"], strict=True)
    }
    chosen = sorted(blocked.nlargest(MAX_RANKS).index)
    figure = go.Figure(layout=titled(_layout(theme, chosen, len(blocked)), title))
    of_chosen = parts[parts["rank"].isin(chosen)]
    rows = {rank: place for place, rank in enumerate(chosen)}
    for part in (*PATTERNS, TRANSFER, UNKNOWN):
        drawn = of_chosen[of_chosen["part"] == part]
        if drawn.empty:
            continue
        figure.add_trace(
            go.Bar(
                name=part if part != UNKNOWN else "wait or transfer, not known which",
                orientation="h",
                x=(drawn["lasts_ns"] / 1e9).tolist(),
                y=drawn["rank"].map(rows).tolist(),
                marker=fill(theme, theme.use(part), PATTERNS.get(part, ""), solidity=0.45),
                hovertext=[
                    _hover_text(row, blocked[row.rank], notes[row.rank])
                    for row in drawn.itertuples(index=False)
                ],
                hoverinfo="text",
                meta={"part": part},
            )
        )
    for rank in untimed.intersection(chosen):
        figure.add_annotation(
            text=notes[rank],
            x=0,
            y=rows[rank],
            xanchor="left",
            showarrow=False,
            font={"size": 11, "color": theme.muted},
        )
    return figure


def wait_parts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per part of a rank's bar: `rank part lasts_ns num_calls num_waits`.

    A part is a wait state, `TRANSFER` or `UNKNOWN`; parts without any time are left out.
    """
    by_part = (
        table.assign(part=table["state"], lasts_ns=table["wait_ns"]),
        table.assign(part=TRANSFER, lasts_ns=table["transfer_ns"]),
        table.assign(part=UNKNOWN, lasts_ns=table["unknown_ns"]),
    )
    parts = pd.concat([each[each["lasts_ns"] > 0] for each in by_part])
    parts["num_waits"] = parts["num_waits"].clip(lower=0)
    sums: Any = parts.groupby(["rank", "part"])[["lasts_ns", "num_calls", "num_waits"]].sum()
    return sums.reset_index()


def _layout(theme: Theme, ranks: list[int], num_ranks: int) -> go.Layout:
    several = f"; {len(ranks)} of {num_ranks} ranks, those blocked longest"
    title = "time blocked" + (several if num_ranks > len(ranks) else "")
    return row_layout(theme, [f"rank {rank}" for rank in ranks], title, left=72)


def _hover_text(row: Any, blocked_ns: int, note: str) -> str:
    lasts = f"{text_of_duration(row.lasts_ns)} of {text_of_duration(blocked_ns)} blocked"
    calls = f"{row.num_calls:,} call{'' if row.num_calls == 1 else 's'}"
    if row.part in PATTERNS:
        calls = f"in {row.num_waits:,} of {calls}"
    known = f"blocked time {note}" if note else ""
    return lines((bold(f"{row.part} on rank {row.rank}"), lasts, calls, known))
