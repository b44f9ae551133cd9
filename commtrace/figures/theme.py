"""Colours of all pictures and of the page, in a light and a dark theme.

Each kind of communication has one colour. The six in `MAIN_KINDS`, which a picture may well hold
together, stay apart for people who see no red, no green or no blue; every colour of a kind has a
contrast of 3:1 to the surface it is drawn on. The two themes name the same things, and within one
theme no colour is used for two things, so a drawn picture can be recoloured from one to the other
by looking its colours up (`recolouring`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import plotly.graph_objects as go

MAIN_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")

SANS = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Theme:
    """`modules` alternate with depth; `phases` are drawn faintly behind what happens in them."""

    name: str
    surface: str
    ink: str
    muted: str
    grid: str
    operator: str
    modules: tuple[str, str]
    kinds: dict[str, str]
    phases: dict[str, str]

    def kind(self, kind: str) -> str:
        """The colour of a kind; kinds that have none of their own share that of `other`."""
        return self.kinds.get(kind, self.kinds["other"])

    def phase(self, phase: str) -> str:
        """The colour of a phase."""
        return self.phases.get(phase, self.phases["other"])


LIGHT = Theme(
    name="light",
    surface="#ffffff",
    ink="#17202c",
    muted="#586374",
    grid="#e4e8ee",
    operator="#cfd6e1",
    modules=("#e9edf3", "#dfe5ed"),
    kinds={
        "all_reduce": "#2b45ab",
        "all_gather": "#d97a24",
        "reduce_scatter": "#2ba09d",
        "all_to_all": "#7d1047",
        "broadcast": "#b5394b",
        "send": "#8d63d6",
        "recv": "#5a2d8c",
        "reduce": "#946f43",
        "gather": "#77801c",
        "scatter": "#35400f",
        "barrier": "#7b8391",
        "other": "#4f5763",
    },
    phases={
        "forward": "#dde9fb",
        "backward": "#fbead6",
        "recompute": "#efe3f8",
        "optimizer": "#dff1e1",
        "other": "#f1f3f6",
    },
)

DARK = Theme(
    name="dark",
    surface="#151a22",
    ink="#e8ecf2",
    muted="#9ba6b6",
    grid="#2a323e",
    operator="#3d4858",
    modules=("#252d39", "#2d3643"),
    kinds={
        "all_reduce": "#5f7df2",
        "all_gather": "#e39a4a",
        "reduce_scatter": "#63dcb8",
        "all_to_all": "#a3628f",
        "broadcast": "#d6542f",
        "send": "#bda4f5",
        "recv": "#8a5fd0",
        "reduce": "#b98d5a",
        "gather": "#d6cc5e",
        "scatter": "#6f7d24",
        "barrier": "#8992a3",
        "other": "#bcc4d0",
    },
    phases={
        "forward": "#213549",
        "backward": "#463722",
        "recompute": "#3d2f4a",
        "optimizer": "#233f2b",
        "other": "#323b48",
    },
)

THEMES: dict[str, Theme] = {theme.name: theme for theme in (LIGHT, DARK)}


def theme_of(theme: Theme | str) -> Theme:
    """A theme given by name or as itself.

    >>> theme_of("dark").name
    'dark'
    """
    return theme if isinstance(theme, Theme) else THEMES[theme]


def readable_on(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour.

    >>> readable_on("#ffcc00")
    '#000000'
    """
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    )
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"


def recolouring(source: Theme, target: Theme) -> dict[str, str]:
    """Each colour of `source` with the colour that stands for the same thing in `target`."""
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
    """What all pictures share: fonts, colours, margins, hover labels; `more` goes on top."""
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
