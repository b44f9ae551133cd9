"""Where communication comes from: phase -> module -> operator -> kind, as a flame graph.

`flame_nodes` makes the tree as a table; `flame` draws it. Its size follows the model, not the
number of events, and what is smaller than `SMALLEST` of the whole is left blank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.analyze.by_module import ancestors, natural_key, parts
from commtrace.analyze.cached_per_run import once
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import totals
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
from commtrace.units import text_of_bytes, text_of_duration

VALUES: dict[str, str] = {
    "wire_bytes": "Bytes sent",
    "time_ns": "Time",
    "blocked_ns": "Exposed time",
    "num_calls": "Calls",
}

SMALLEST = 1 / 4000
PATH_BAR = 32
"""Pixels above the blocks for the bar that leads back out of a zoomed one."""
NO_MODULE = "(outside of modules)"

_KEYS = ["phase", "module", "module_class", "op", "kind"]
_RUN, _PHASE, _MODULE, _OP, _KIND = "run", "phase", "module", "op", "kind"
_Place = tuple[tuple[str, str], ...]
_ROLE_ORDER = {_PHASE: 0, _OP: 1, _KIND: 1, _MODULE: 2}


@once
def flame_nodes(frames: Frames) -> pd.DataFrame:
    """The nodes of the tree, each before its children.

    Columns: `id` and `parent` (numbers, -1 above the root), `role` (run, phase, module, op, kind),
    `name` (module path, class of the root module, operator or kind), `phase`, and `VALUES`,
    inclusive and summed over ranks.
    """
    sums = totals(frames, _KEYS)[list(VALUES)].fillna(0.0)
    places: dict[_Place, list[float]] = {}
    for keys, row in zip(sums.index, sums.itertuples(index=False), strict=True):
        for place in _places(*keys):
            held = places.setdefault(place, [0.0] * len(VALUES))
            for column, value in enumerate(row):
                held[column] += value
    whole = places.get((), [0.0] * len(VALUES))
    kept = [
        place
        for place, held in places.items()
        if any(value > SMALLEST * total for value, total in zip(held, whole, strict=True))
    ]
    kept.sort(key=lambda place: [_sort_key(*part) for part in place])
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
    return pd.DataFrame(rows, columns=["id", "parent", "role", "name", "phase", *VALUES])


def _places(phase: str, module: str, module_class: str, op: str, kind: str) -> list[_Place]:
    """Every node that a call counts for, from the whole run to the call's kind.

    The root module has no path, so it goes by its class. What no operator needed stands right in
    its module.
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
    """The flame graph of a run: widths by `value`, of one phase or (by default) of all.

    `value` is one of `VALUES`, by default the first that is not zero. A click zooms into a node;
    the bar on top leads back. The layout's `meta` says which node each phase is, so that a page can
    switch between them. `because` says why, where there is nothing to draw.

    Raises UsageError where there is no such value, or the phase does not communicate.
    """
    theme = theme_of(theme)
    if value and value not in VALUES:
        raise UsageError(f"no flame graph by {value!r}", attempt=f"one of {', '.join(VALUES)}")
    nodes = flame_nodes(frames)
    value = value or first_value(nodes)
    level = level_of(nodes, phase)
    lacking = _lacking(nodes, value, level)
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
        branchvalues="total",
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
    """A line for each kind, below."""
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
    """The first of `VALUES` that is not zero."""
    return next((value for value in VALUES if nodes[value].max() > 0), next(iter(VALUES)))


def _levels(nodes: pd.DataFrame) -> dict[str, int]:
    """The node of each phase."""
    by_phase = nodes[nodes["role"] == _PHASE]
    return dict(zip(by_phase["name"].tolist(), by_phase["id"].tolist(), strict=True))


def level_of(nodes: pd.DataFrame, phase: str = "") -> int:
    """The node of a phase; of no phase, that of the whole run.

    Raises UsageError where the phase does not communicate.
    """
    levels = _levels(nodes)
    if phase and phase not in levels:
        raise UsageError(
            f"no flame graph of the phase {phase!r}",
            found=f"communication in {', '.join(levels) or 'no phase'}",
            attempt=closest(phase, levels),
        )
    return levels[phase] if phase else 0


def _lacking(nodes: pd.DataFrame, value: str, level: int) -> str:
    """What there is not to be drawn; empty where there is something."""
    if nodes.empty:
        return "No communication is in this trace"
    if nodes[value].iloc[level] <= 0:
        return f"Nothing to draw by {VALUES[value].lower()}, which is zero or not in this trace"
    return ""


def flame_height(nodes: pd.DataFrame) -> int:
    """A height in pixels at which the deepest branch has readable rows."""
    if nodes.empty:
        return 120
    depth: dict[int, int] = {-1: 0}
    for node, parent in zip(nodes["id"], nodes["parent"], strict=True):
        depth[node] = depth[parent] + 1
    return min(48 + 34 * max(depth.values()), 720)


def block_names(nodes: pd.DataFrame) -> list[str]:
    """The name of each block as it is, not made safe for a picture."""
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
    """The last name of a path, with the one before it where it is a number."""
    names = parts(path)
    return ".".join(names[-2:] if names[-1].isdigit() else names[-1:])


def _paths(nodes: pd.DataFrame) -> list[str]:
    """The names on the way to each block, its own included; empty for the whole and the phases."""
    paths: list[list[str]] = []
    for parent, name in zip(nodes["parent"], block_names(nodes), strict=True):
        paths.append([*(paths[parent] if parent > 0 else []), name])
    return [" > ".join(path) if len(path) > 1 else "" for path in paths]


def _hover_texts(nodes: pd.DataFrame, num_ranks: int) -> list[str]:
    rows: list[Any] = list(nodes.itertuples(index=False))
    whole = rows[0]
    return [
        lines(
            (
                bold(_title(node.role, node.name)),
                wrapped(path),
                "what one rank does, on average:",
                _amount("sent", text_of_bytes, node.wire_bytes, whole.wire_bytes, num_ranks),
                _amount("time", text_of_duration, node.time_ns, whole.time_ns, num_ranks),
                _amount("exposed", text_of_duration, node.blocked_ns, whole.blocked_ns, num_ranks),
                _amount("calls", "{:,.6g}".format, node.num_calls, whole.num_calls, num_ranks),
            )
        )
        for node, path in zip(rows, _paths(nodes), strict=True)
    ]


def _title(role: str, name: str) -> str:
    return plain(name) if role == _MODULE and name else _label(role, name)


def _amount(
    what: str, text: Callable[[float], str], total: float, whole: float, num_ranks: int
) -> str:
    share = f" ({total / whole:.1%} of all)" if whole else ""
    return f"{what} {text(total / num_ranks)}{share}"


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
