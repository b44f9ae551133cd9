"""Changes between runs as Markdown, for a pull request or the summary of a CI job.

`commtrace diff main.json branch.json --markdown >> "$GITHUB_STEP_SUMMARY"`
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from commtrace.escaping import visible
from commtrace.units import counted, text_of_value

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = (
    ("calls", "", "calls"),
    ("wire_bytes", "bytes", "bytes sent"),
    ("blocked_ns", "ns", "blocked"),
)
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def markdown(
    labels: Sequence[str],
    tables: Mapping[str, pd.DataFrame],
    totals: Mapping[str, Sequence[str]],
    grown: Sequence[str],
    rows: int,
) -> str:
    """Return the changes from a baseline to other runs.

    Args:
        labels: Names of the baseline and of the other runs.
        tables: Changes by place (`DIFF`), by the run that is compared.
        totals: Total changes of each of these, in sentences.
        grown: Sentences about guarded metrics that grew.
        rows: Number of places that are listed at most.
    """
    from commtrace.analyze.comparisons.diff import SAME

    parts = []
    for label, table in tables.items():
        changed = table[table["change"] != SAME]
        parts.append(f"### Communication of {_plain(label)}, compared with {_plain(labels[0])}")
        parts += [f"**{_plain(sentence)}**" for sentence in grown] if label == labels[-1] else []
        if changed.empty:
            parts.append(f"No difference in {counted(len(table), 'place')} that communicate.")
            continue
        parts.append("\n".join(f"- {_plain(line)}" for line in totals[label]))
        parts.append(_table(changed.head(rows)))
        if len(changed) > rows:
            parts.append(f"{counted(len(changed) - rows, 'more place')} changed.")
    return "\n\n".join(parts) + "\n"


def _table(changed: pd.DataFrame) -> str:
    headings = ["change", "module", "operator", "kind", *(title for *_, title in _COLUMNS)]
    lines = [_row(headings), _row(["---"] * 4 + ["---:"] * len(_COLUMNS))]
    for row in changed.to_dict("records"):
        names = [_code(str(row[name])) for name in ("module", "op", "kind")]
        lines.append(_row([row["change"], *names, *(_change(row, *each) for each in _COLUMNS)]))
    return "\n".join(lines)


def _change(row: Mapping[Any, Any], name: str, unit: str, _: str) -> str:
    """Format a measure before and after: `4 → 6`, or once if it is equal."""
    values = [row[f"{name}_{side}"] for side in ("before", "after")]
    before, after = ("–" if math.isnan(value) else text_of_value(value, unit) for value in values)
    return before if before == after else f"{before} → {after}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Return text without any meaning in Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", visible(text).replace("->", "→"))


def _code(text: str) -> str:
    """Return a name as code, which nothing in it can leave."""
    shown = visible(text).replace("|", "\\|").replace("`", "'")
    return f"`{shown}`" if shown else "–"
