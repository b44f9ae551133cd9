"""Flame graph of communication: phase -> module -> operator -> kind.

`flame_nodes` computes the tree as a table; `flame` draws it. Its size depends on the model, not on
the number of events. Nodes smaller than `SMALLEST` of the total are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.analyze.measures.measures import MEASURE, totals
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.traffic.by_module import ancestors, natural_key, parts
from commtrace.errors import UsageError, closest
from commtrace.figures.label import bold, lines, plain, wrapped
from commtrace.figures.theme import (
    LEGEND,
    LEGEND_PIXELS,
    LIGHT,
    Theme,
    empty,
    layout,
    legend_entry,
    readable_on,
    theme_of,
    titled,
)
from commtrace.schema import PHASES
from commtrace.units import known_note, text_of_bytes, text_of_duration, text_of_mean

VALUES: dict[str, str] = {
    name: MEASURE[name].long_heading
    for name in ("wire_bytes", "time_ns", "blocked_ns", "num_calls")
}

NUM_UNKNOWN = {"wire_bytes": "num_unsized", "time_ns": "num_unended", "blocked_ns": "num_untimed"}
"""Number of the calls that a measure lacks, by its name; the number of calls lacks none."""

SMALLEST = 1 / 4000
PATH_BAR = 32
"""Height in pixels of the path bar above the blocks, which leads back out of a zoomed block."""
NO_MODULE = "(outside of modules)"

_KEYS = ["phase", "module", "module_class", "op", "kind"]
_RUN, _PHASE, _MODULE, _OP, _KIND = "run", "phase", "module", "op", "kind"
_NodePath = tuple[tuple[str, str], ...]
_ROLE_ORDER = {_PHASE: 0, _OP: 1, _KIND: 1, _MODULE: 2}


@cached_per_run
def flame_nodes(frames: Frames) -> pd.DataFrame:
    """Return the nodes of the tree, each before its children.

    Columns: `id` and `parent` (numbers, -1 above the root), `role` (run, phase, module, op, kind),
    `name` (module path, class of the root module, operator or kind), `phase`, `VALUES` and the
    values of `NUM_UNKNOWN`, inclusive and summed over ranks.
    """
    sums = totals(frames, _KEYS).fillna(0.0)
    for num_known, lacking in (("num_sized", "num_unsized"), ("num_ended", "num_unended")):
        sums[lacking] = sums["num_calls"] - sums[num_known]
    summed = [*VALUES, *NUM_UNKNOWN.values()]
    sums = sums[summed]
    places: dict[_NodePath, list[float]] = {}
    for keys, row in zip(sums.index, sums.itertuples(index=False), strict=True):
        for place in _places(*keys):
            held = places.setdefault(place, [0.0] * len(summed))
            for column, value in enumerate(row):
                held[column] += value
    whole = places.get((), [0.0] * len(summed))[: len(VALUES)]
    kept = [
        place
        for place, held in places.items()
        if any(value > SMALLEST * total for value, total in zip(held, whole, strict=False))
    ]
    # The sort key puts each node before its children, on which the depths and paths rely.
    # Each part's key is made once: places share the modules above them.
    keys = {part: _sort_key(*part) for part in {part for place in kept for part in place}}
    kept.sort(key=lambda place: [keys[part] for part in place])
    ids = {place: number for number, place in enumerate(kept)}
    rows = [
        (
            ids[place],
            ids[place[:-1]] if place else -1,
            place[-1][0] if place else _RUN,
            place[-1][1] if place else "",
            place[0][1] if place else "",
            *places[place],
        )
        for place in kept
    ]
    return pd.DataFrame(rows, columns=["id", "parent", "role", "name", "phase", *summed])


def _places(phase: str, module: str, module_class: str, op: str, kind: str) -> list[_NodePath]:
    """Return every node that a call counts towards, from the whole run to the call's kind.

    The root module has no path, so its class stands for it. A call without an operator is placed
    directly under its module.
    """
    steps = [
        (_PHASE, phase),
        *((_MODULE, path) for path in ancestors(module)[1:] or [module_class]),
        *([(_OP, op)] if op else []),
        (_KIND, kind),
    ]
    return [tuple(steps[:length]) for length in range(len(steps) + 1)]


def _sort_key(role: str, name: str) -> tuple[object, ...]:
    if role == _PHASE:
        return (0, PHASES.index(name) if name in PHASES else len(PHASES), [])
    return (_ROLE_ORDER[role], 0, natural_key(name) if role == _MODULE else [[(1, 0, name)]])


def flame(
    frames: Frames,
    *,
    value: str = "",
    phase: str = "",
    theme: Theme | str = LIGHT,
    title: str = "",
    because: str = "",
) -> go.Figure:
    """Draw the flame graph of a run.

    A click zooms into a node; the bar on top leads back. The layout's `meta` has the node of each
    phase, so that a page can switch between them.

    Args:
        frames: The run.
        value: Measure that determines the widths, one of `VALUES`; by default, the first that is
            not zero.
        phase: Phase to draw; all by default.
        theme: Colours, by name or as a theme.
        title: Heading; none by default.
        because: Reason shown if there is nothing to draw.

    Raises:
        UsageError: There is no such value, or the phase does not communicate.
    """
    theme = theme_of(theme)
    if value and value not in VALUES:
        raise UsageError(f"no flame graph by {value!r}", attempt=f"one of {', '.join(VALUES)}")
    nodes = flame_nodes(frames)
    value = value or first_value(nodes)
    level = level_of(nodes, phase)
    lacking = nothing_to_draw(nodes, value, level)
    levels = {name: str(place) for name, place in _levels(nodes).items()}
    meta = {"phases": levels, "num_ranks": max(frames.num_ranks, 1)}
    if lacking:
        figure = empty(theme, title=title, what=lacking, because=because)
        return figure.update_layout(meta=meta)
    made: Any = layout(
        theme,
        height=flame_height(nodes),
        margin={"l": 8, "r": 8, "t": PATH_BAR if phase or title else 8, "b": 8},
        meta=meta,
        uniformtext={"mode": "hide", "minsize": 10},
    )
    figure = go.Figure(layout=titled(made, title))
    figure.add_trace(_blocks(nodes, value, level, max(frames.num_ranks, 1), theme))
    if title:
        _add_legend(figure, nodes, theme)
    return figure


def _blocks(nodes: pd.DataFrame, value: str, level: int, num_ranks: int, theme: Theme) -> Any:
    colours = _colours(nodes, theme)
    return go.Icicle(
        ids=nodes["id"].astype(str).tolist(),
        parents=["" if parent < 0 else str(parent) for parent in nodes["parent"]],
        labels=[_label(*named) for named in zip(nodes["role"], nodes["name"], strict=True)],
        values=nodes[value].tolist(),
        level=str(level),
        # The values include those of the blocks inside; plotly would add them otherwise.
        branchvalues="total",
        # Keeps the order of the nodes; plotly would sort siblings by size.
        sort=False,
        hovertext=_hover_texts(nodes, num_ranks),
        hoverinfo="text",
        textinfo="label",
        textposition="middle center",
        textfont={"color": [readable_on(colour) for colour in colours]},
        marker={"colors": colours, "line": {"width": 1, "color": theme.surface}},
        tiling={"orientation": "v", "pad": 0},
        pathbar={"visible": True, "thickness": PATH_BAR - 8, "edgeshape": "/"},
        leaf={"opacity": 1},
    )


def _add_legend(figure: Any, nodes: pd.DataFrame, theme: Theme) -> None:
    """Add a legend of the kinds below the blocks."""
    kinds = nodes.loc[nodes["role"] == _KIND, "name"].drop_duplicates()
    figure.add_traces([legend_entry(plain(kind), {"color": theme.kind(kind)}) for kind in kinds])
    figure.update_layout(
        showlegend=True,
        legend=LEGEND | {"y": 0, "yanchor": "top"},
        xaxis={"visible": False},
        yaxis={"visible": False},
        height=figure.layout.height + LEGEND_PIXELS,
        margin={"b": 8 + LEGEND_PIXELS},
    )


def first_value(nodes: pd.DataFrame) -> str:
    """Return the first of `VALUES` that is not zero."""
    return next((value for value in VALUES if nodes[value].max() > 0), next(iter(VALUES)))


def _levels(nodes: pd.DataFrame) -> dict[str, int]:
    """Return the node of each phase."""
    by_phase = nodes[nodes["role"] == _PHASE]
    return dict(zip(by_phase["name"].tolist(), by_phase["id"].tolist(), strict=True))


def level_of(nodes: pd.DataFrame, phase: str = "") -> int:
    """Return the node of a phase; by default, of the whole run.

    Raises:
        UsageError: The phase does not communicate.
    """
    levels = _levels(nodes)
    if phase and phase not in levels:
        raise UsageError(
            f"no flame graph of the phase {phase!r}",
            found=f"communication in {', '.join(levels) or 'no phase'}",
            attempt=closest(phase, levels),
        )
    return levels[phase] if phase else 0


def nothing_to_draw(nodes: pd.DataFrame, value: str, level: int = 0) -> str:
    """Return the reason, without a period, if there is nothing to draw; else ""."""
    if nodes.empty:
        return "No communication is in this trace"
    if nodes[value].iloc[level] <= 0:
        note = value_note(nodes.iloc[level], value)
        reason = note if note.startswith("not") else ", ".join(filter(None, ("zero", note)))
        return f"Nothing to draw by {VALUES[value].lower()}, which is {reason}"
    return ""


def value_note(node: Any, value: str) -> str:
    """Return the number of calls of a node that its value covers; empty if it covers all."""
    num_calls = int(node["num_calls"])
    num_unknown = int(node[NUM_UNKNOWN[value]]) if value in NUM_UNKNOWN else 0
    return known_note(num_calls - num_unknown, num_calls)


def flame_height(nodes: pd.DataFrame) -> int:
    """Return a height in pixels at which the deepest branch has readable rows."""
    if nodes.empty:
        return 120
    depth: dict[int, int] = {-1: 0}
    for node, parent in zip(nodes["id"], nodes["parent"], strict=True):
        depth[node] = depth[parent] + 1
    return min(48 + 34 * max(depth.values()), 720)


def block_names(nodes: pd.DataFrame) -> list[str]:
    """Return the name of each block, unescaped."""
    return [_name(*named) for named in zip(nodes["role"], nodes["name"], strict=True)]


def _name(role: str, name: str) -> str:
    if role == _RUN:
        return "all communication"
    if role == _MODULE:
        return _short(name) if name else NO_MODULE
    return name


def _label(role: str, name: str) -> str:
    return plain(_name(role, name))


def _short(path: str) -> str:
    """Return the last name of a path, preceded by its parent's if it is a number."""
    names = parts(path)
    return ".".join(names[-2:] if names[-1].isdigit() else names[-1:])


def _paths(nodes: pd.DataFrame) -> list[str]:
    """Return the names from the phase to each block; empty for the whole run and for phases."""
    paths: list[list[str]] = []
    for parent, name in zip(nodes["parent"], block_names(nodes), strict=True):
        paths.append([*(paths[parent] if parent > 0 else []), name])
    return [" > ".join(path) if len(path) > 1 else "" for path in paths]


def _hover_texts(nodes: pd.DataFrame, num_ranks: int) -> list[str]:
    rows: list[dict[Any, Any]] = nodes.to_dict("records")
    texts: dict[str, tuple[str, Callable[[float], str]]] = {
        "wire_bytes": ("sent", text_of_bytes),
        "time_ns": ("time", text_of_duration),
        "blocked_ns": ("exposed", text_of_duration),
        "num_calls": ("calls", partial(text_of_mean, num_ranks=num_ranks)),
    }
    return [
        lines(
            (
                bold(_title(node["role"], node["name"])),
                wrapped(path),
                "mean over ranks:",
                *(
                    _amount(
                        what, text, node[value], rows[0][value], num_ranks, value_note(node, value)
                    )
                    for value, (what, text) in texts.items()
                ),
            )
        )
        for node, path in zip(rows, _paths(nodes), strict=True)
    ]


def _title(role: str, name: str) -> str:
    return plain(name) if role == _MODULE and name else _label(role, name)


def _amount(
    what: str, text: Callable[[float], str], total: float, whole: float, num_ranks: int, note: str
) -> str:
    if note.startswith("not"):
        return f"{what} {note}"
    share = f" ({total / whole:.1%} of all)" if whole else ""
    return ", ".join(filter(None, (f"{what} {text(total / num_ranks)}{share}", note)))


def _colours(nodes: pd.DataFrame, theme: Theme) -> list[str]:
    return [
        {
            _RUN: theme.modules[0],
            _PHASE: theme.phase(name),
            _MODULE: theme.modules[len(parts(name)) % 2],
            _OP: theme.operator,
            _KIND: theme.kind(name),
        }[role]
        for role, name in zip(nodes["role"], nodes["name"], strict=True)
    ]
