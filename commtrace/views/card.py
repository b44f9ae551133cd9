"""Summary of a run, as HTML for a notebook's cell (`card`) and as text (`summary`)."""

from __future__ import annotations

from typing import Any

from commtrace.analyze import CATALOG, Frames, notices_of
from commtrace.analyze.notices import EVERYTHING
from commtrace.escaping import visible
from commtrace.report.answers import Answers
from commtrace.report.cards import consistency_summary
from commtrace.report.tiles import Tile, answer_tiles, size_tiles
from commtrace.units import counted, text_of_mean, text_of_value
from commtrace.views.html import html

_SHOWN = ("kind", "num_calls", "payload_bytes", "wire_bytes", "blocked_ns")
_MOST_CALLS = 200_000
"""Number of calls above which the tiles, which need every rule and rank, are left out for speed."""

_METHODS = "flame(), timeline(), matrix(), table(name), findings(), explain(call), report(path)"

_TEMPLATE = """
<div><b>{{ name }}</b> <span class="about">{{ about }}</span></div>
{% for text in notices %}
<div class="note">{{ text }}</div>
{% endfor %}
<div class="tiles">
{% for tile in tiles %}
<div class="tile"><span class="note">{{ tile.title }}</span><b>{{ tile.value }}</b>
<span class="note">{{ tile.note }}</span></div>
{% endfor %}
</div>
{% if rows %}
<table><tr>{% for heading in headings %}<th{% if not loop.first %} class="number"{% endif %}>
{{- heading }}</th>{% endfor %}</tr>
{% for row in rows %}
<tr>{% for text in row %}<td{% if not loop.first %} class="number"{% endif %}>{{ text }}</td>
{%- endfor %}</tr>
{% endfor %}
</table>
<div class="note">means over ranks</div>
{% endif %}
<div class="note">Look at it with <code>.{{ methods }}</code></div>
"""


def card(frames: Frames) -> str:
    """Return an overview of a run as HTML: its facts, its key numbers, and its kinds."""
    return html(
        _TEMPLATE,
        name=_name(frames),
        about=_about(frames),
        notices=_notices(frames),
        tiles=_tiles(frames),
        headings=tuple(_columns(frames).values()),
        rows=_kinds(frames),
        methods=_METHODS,
    )


def summary(frames: Frames) -> str:
    """Return an overview of a run as text: its facts, and its kinds."""
    table = [tuple(_columns(frames).values()), *_kinds(frames)]
    widths = [max(map(len, texts)) for texts in zip(*table, strict=True)]
    return "\n".join(
        visible(line)
        for line in (
            f"{_name(frames)}, {_about(frames)}",
            *(
                "  ".join(
                    text.rjust(width) if place else text.ljust(width)
                    for place, (text, width) in enumerate(zip(row, widths, strict=True))
                ).rstrip()
                for row in (table if len(table) > 1 else ())
            ),
            *_notices(frames),
            f"Look at it with .{_METHODS}",
        )
    )


def _tiles(frames: Frames) -> list[Tile]:
    """Return the page's tiles."""
    if frames.num_calls > _MOST_CALLS:
        return []
    answers = Answers(frames)
    return answer_tiles(answers, consistency_summary(answers)) + size_tiles(answers)


def _name(frames: Frames) -> str:
    return str(frames.path.name if frames.path else frames.run.get("command") or "a run")


def _about(frames: Frames) -> str:
    return f"{counted(frames.num_calls, 'call')} of {counted(frames.num_ranks, 'rank')}"


def _notices(frames: Frames) -> list[str]:
    """Return the notices that limit everything; the others appear beside what they limit."""
    return [notice.text for notice in notices_of(frames) if EVERYTHING in notice.limits]


def _columns(frames: Frames) -> dict[str, str]:
    """Return the columns of the table of kinds, and their headings."""
    headings = {column.name: column.heading.lower() for column in CATALOG["by_kind"].columns}
    names = (*_SHOWN, "share_of_steps" if len(frames.steps) else "share")
    return {name: headings[name] for name in names}


def _kinds(frames: Frames) -> list[tuple[str, ...]]:
    analysis, columns = CATALOG["by_kind"], _columns(frames)
    units = {column.name: column.unit for column in analysis.columns}
    table = analysis.function(frames)[list(columns)]
    rows: Any = table.itertuples(index=False)
    return [
        tuple(
            text_of_mean(value, max(frames.num_ranks, 1))
            if name == "num_calls"
            else text_of_value(value, units[name])
            for name, value in zip(columns, row, strict=True)
        )
        for row in rows
    ]
