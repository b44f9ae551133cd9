"""Colours of all figures and of the page, in a light and a dark theme.

Each kind of communication has a colour. The six in `MAIN_KINDS`, which are likely to occur in the
same figure, remain distinguishable with protanopia, deuteranopia and tritanopia. Every colour of a
kind has a contrast of 3:1 to the surface it is drawn on. Both themes have the same entries, and
within a theme no colour has two roles, so a figure can be recoloured by mapping its colours
(`recolouring`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import plotly.graph_objects as go

from commtrace.figures.label import wrapped

MAIN_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")

EMPTY_PIXELS = 120

SANS = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a theme.

    Attributes:
        modules: Colours of modules at even and odd depth.
        kinds: Colours of the kinds of communication.
        phases: Faint background colours of phases.
        uses: Colours of uses of time, among them the wait states by name.
        actions: Colours of the actions of pipeline stages.
        device: Colours of the parts of a device's time.
        scale: Colours for amounts, from low to high.
        excess: Colours for amounts above the limit, from low to high.
    """

    name: str
    surface: str
    ink: str
    muted: str
    grid: str
    operator: str
    modules: tuple[str, str]
    kinds: dict[str, str]
    phases: dict[str, str]
    uses: dict[str, str]
    actions: dict[str, str]
    device: dict[str, str]
    scale: tuple[str, ...]
    excess: tuple[str, ...]

    def kind(self, kind: str) -> str:
        """Return the colour of a kind, or of `other` if it has none."""
        return self.kinds.get(kind, self.kinds["other"])

    def phase(self, phase: str) -> str:
        """Return the colour of a phase, or of `other` if it has none."""
        return self.phases.get(phase, self.phases["other"])

    def use(self, use: str) -> str:
        """Return the colour of a use of time, or of `not known` if it has none."""
        return self.uses.get(use, self.uses["not known"])


_COLOURS: dict[str, Any] = {
    "surface": ("#ffffff", "#151a22"),
    "ink": ("#17202c", "#e8ecf2"),
    "muted": ("#586374", "#9ba6b6"),
    "grid": ("#e4e8ee", "#2a323e"),
    "operator": ("#cfd6e1", "#3d4858"),
    "modules": [("#e9edf3", "#252d39"), ("#dfe5ed", "#2d3643")],
    "kinds": {
        "all_reduce": ("#2b45ab", "#5f7df2"),
        "all_gather": ("#d97a24", "#e39a4a"),
        "reduce_scatter": ("#2ba09d", "#63dcb8"),
        "all_to_all": ("#7d1047", "#a3628f"),
        "broadcast": ("#b5394b", "#d6542f"),
        "send": ("#8d63d6", "#bda4f5"),
        "recv": ("#5a2d8c", "#8a5fd0"),
        "reduce": ("#946f43", "#b98d5a"),
        "gather": ("#77801c", "#d6cc5e"),
        "scatter": ("#35400f", "#6f7d24"),
        "barrier": ("#7b8391", "#8992a3"),
        "other": ("#4f5763", "#bcc4d0"),
    },
    "phases": {
        "forward": ("#dde9fb", "#213549"),
        "backward": ("#fbead6", "#463722"),
        "recompute": ("#efe3f8", "#3d2f4a"),
        "optimizer": ("#dff1e1", "#233f2b"),
        "other": ("#f1f3f6", "#323b48"),
    },
    "uses": {
        "exposed": ("#b8431f", "#f2794b"),
        "overlapped": ("#4a90d2", "#4889c9"),
        "working": ("#d3dae4", "#384353"),
        "Wait at N x N": ("#c8551f", "#ef8a5c"),
        "Wait at Barrier": ("#8a6a00", "#d8bb48"),
        "Late Broadcast": ("#9c2f6c", "#e180b5"),
        "Early Reduce": ("#1c7a58", "#5bc89e"),
        "Late Sender": ("#2d6db0", "#6eb2ef"),
        "Late Receiver": ("#5a4ab2", "#a89af4"),
        "transfer": ("#64738a", "#8795aa"),
        "not known": ("#b4bdc9", "#4c5868"),
    },
    "actions": {
        "forward": ("#3a78bd", "#7fb4ee"),
        "backward": ("#cf7f10", "#efa948"),
        "backward_input": ("#b8554e", "#e58a80"),
        "backward_weight": ("#4d8f3c", "#86c274"),
    },
    "device": {
        "compute": ("#25675e", "#74d8c9"),
        "exposed_transfer": ("#dd6a1f", "#ec7323"),
        "exposed_wait": ("#cc5a2c", "#e2703a"),
        "exposed_unknown": ("#a3735c", "#b88a74"),
        "copy": ("#8a45dc", "#a678f0"),
        "other": ("#9a8c3c", "#9c8f45"),
        "idle_host": ("#a98500", "#e6c955"),
        "idle_kernel": ("#5f7188", "#9cabbf"),
        "idle_launch": ("#8391a5", "#7a889c"),
        "idle_unknown": ("#c2cad5", "#465160"),
    },
    "scale": [
        ("#e3edf7", "#1e2c3d"),
        ("#a5c6e6", "#254f7d"),
        ("#5794cc", "#3b80c1"),
        ("#225fa1", "#80b9e9"),
        ("#0b2c5b", "#ddeffe"),
    ],
    "excess": [("#f0a57a", "#7d3823"), ("#d95f32", "#dc6440"), ("#7f1d10", "#ffc7ae")],
}
"""Colours by their role, in the light and in the dark theme."""


def _in_theme(place: int, colours: Any) -> Any:
    """Return the colours of a role in the theme at this place."""
    if isinstance(colours, dict):
        return {name: _in_theme(place, each) for name, each in colours.items()}
    if isinstance(colours, list):
        return tuple(_in_theme(place, each) for each in colours)
    return colours[place]


LIGHT = Theme("light", **_in_theme(0, _COLOURS))
DARK = Theme("dark", **_in_theme(1, _COLOURS))
THEMES: dict[str, Theme] = {theme.name: theme for theme in (LIGHT, DARK)}


def theme_of(theme: Theme | str) -> Theme:
    """Return a theme given by name or as itself.

    >>> theme_of("dark").name
    'dark'
    """
    return theme if isinstance(theme, Theme) else THEMES[theme]


def readable_on(colour: str) -> str:
    """Return black or white, whichever is more readable on a colour.

    >>> readable_on("#ffcc00")
    '#000000'
    """
    return "#000000" if _luminance(colour) > _MIDDLE else "#ffffff"


def readable_anywhere(colours: Iterable[str]) -> str:
    """Return the colour whose contrast to black and to white is most even.

    It is meant for terminals, whose background colour is unknown.

    >>> readable_anywhere(["#ffcc00", "#777777"])
    '#777777'
    """
    return min(colours, key=lambda each: abs(math.log((_luminance(each) + 0.05) / _MIDDLE_RATIO)))


_MIDDLE_RATIO = math.sqrt(0.05 * 1.05)
_MIDDLE = _MIDDLE_RATIO - 0.05
"""Luminance that has the same contrast to black and to white."""


def _luminance(colour: str) -> float:
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


LEGEND = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "y": 1,
    "yanchor": "bottom",
    "traceorder": "normal",
    "bgcolor": "rgba(0,0,0,0)",
}
"""Horizontal legend above the figure."""

LEGEND_PIXELS = 28


def legend_entry(name: str, marker: dict[str, Any], **more: Any) -> go.Bar:
    """Return a trace without data that only adds an entry to the legend."""
    return go.Bar(
        name=name,
        # plotly leaves traces with empty arrays out of the legend.
        x=[None],
        y=[None],
        marker=marker,
        showlegend=True,
        hoverinfo="skip",
        meta={"part": "legend"},
        **more,
    )


def recolouring(source: Theme, target: Theme) -> dict[str, str]:
    """Map each colour of `source` to the colour with the same role in `target`."""
    pairs: dict[str, str] = {}
    for field in fields(Theme):
        before, after = getattr(source, field.name), getattr(target, field.name)
        if isinstance(before, dict):
            pairs |= {colour: after[key] for key, colour in before.items()}
        elif isinstance(before, tuple):
            pairs |= dict(zip(before, after, strict=True))
        elif field.name != "name":
            pairs[before] = after
    return pairs


def layout(theme: Theme, **more: object) -> go.Layout:
    """Return the layout that all figures share: fonts, colours, margins, hover labels.

    `more` overrides it.
    """
    axis = {
        "gridcolor": theme.grid,
        "linecolor": theme.grid,
        "zeroline": False,
        "tickfont": {"color": theme.muted},
        "title": {"font": {"color": theme.muted}},
    }
    return go.Layout(
        {
            "template": "none",
            "paper_bgcolor": theme.surface,
            "plot_bgcolor": theme.surface,
            "font": {"family": SANS, "size": 12, "color": theme.ink},
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "hoverlabel": {
                "bgcolor": theme.surface,
                "bordercolor": theme.muted,
                "font": {"family": SANS, "size": 12, "color": theme.ink},
                "align": "left",
                "namelength": -1,
            },
            "xaxis": axis,
            "yaxis": axis,
            **more,
        }
    )


TITLE_PIXELS = 34


def titled(made: go.Layout, title: str) -> go.Layout:
    """Add a title, unless it is empty, to a layout of known height, with extra room for it."""
    if not title:
        return made
    given: Any = made
    given.margin.t += TITLE_PIXELS
    given.height += TITLE_PIXELS
    given.title = {
        "text": f"<b>{title}</b>",
        "font": {"size": 14},
        "x": 0,
        "xref": "container",
        "xanchor": "left",
        "y": 1,
        "yref": "container",
        "yanchor": "top",
        "pad": {"l": 8, "t": 8},
    }
    return made


def empty(theme: Theme, *, title: str, what: str, because: str = "") -> go.Figure:
    """Return a figure that states what it lacks, and why; `layout.meta` has the text."""
    text = f"{what}: {because}" if because else f"{what}."
    made = titled(layout(theme, height=EMPTY_PIXELS), title)
    made.update(
        meta={"lacking": text},
        xaxis={"visible": False},
        yaxis={"visible": False},
        annotations=[
            {
                "text": wrapped(text),
                "showarrow": False,
                "x": 0.5,
                "y": 0.5,
                "xref": "paper",
                "yref": "paper",
                "font": {"size": 13, "color": theme.muted},
            }
        ],
    )
    return go.Figure(layout=made)
