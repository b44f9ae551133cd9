"""Style sheets: the colours of both themes as CSS variables, followed by the hand-written rules."""

from __future__ import annotations

from commtrace.figures.kernel_bars import WORDS as SORTS_OF_WORK
from commtrace.figures.theme import DARK, LIGHT, Theme
from commtrace.report.offline import source

_OF_THE_PAGE = {
    "back": ("#f4f6f9", "#0d1117"),
    "shadow": ("0 1px 2px rgb(20 30 50 / 6%), 0 4px 16px rgb(20 30 50 / 4%)", "none"),
    "warn-back": ("#fff6e3", "#2d2412"),
    "warn-line": ("#e9c46f", "#6b5420"),
    "warn-ink": ("#5f4409", "#f0d595"),
    "accent-ink": ("#2b45ab", "#8ea4f8"),
    "good": ("#1c7a4a", "#5fcf95"),
    "bad": ("#b3401f", "#f0926b"),
}
"""Values that figures do not need, for the light and for the dark theme."""


def style_sheet() -> str:
    """Return all CSS of the page of a run."""
    return "\n".join(
        [
            _page("page.css"),
            *(f".phase-{phase} {{ --own: var(--phase-{phase}); }}" for phase in LIGHT.phases),
            *(f".device-{part} {{ --own: var(--device-{part}); }}" for part in SORTS_OF_WORK),
        ]
    )


def picture_style() -> str:
    """Return all CSS of a picture's page."""
    return _page("picture.css")


def diff_style() -> str:
    """Return all CSS of the page that compares runs."""
    return _page("diff.css")


def values_style() -> str:
    """Return all CSS of the page that compares values."""
    return _page("values.css")


def live_style() -> str:
    """Return all CSS of the page of a run that is watched."""
    return _page("live.css")


def _page(own: str) -> str:
    """Return the colours of both themes, the rules that all pages share, and those of a page.

    The system's theme applies unless the root sets `data-theme`.
    """
    return "\n".join([*_of_both_themes(), source("base.css"), source(own)])


def _of_both_themes() -> list[str]:
    """Return the variables of both themes, and the colours of the kinds."""
    light, dark = (
        f"{_variables(page_colours(theme))} color-scheme: {theme.name};" for theme in (LIGHT, DARK)
    )
    return [
        f":root {{ {light} }}",
        "@media (prefers-color-scheme: dark) {",
        f"  :root:not([data-theme=light]) {{ {dark} }}",
        "}",
        f":root[data-theme=dark] {{ {dark} }}",
        *(f".kind-{kind} {{ --own: var(--kind-{kind}); }}" for kind in LIGHT.kinds),
    ]


def page_colours(theme: Theme) -> dict[str, str]:
    """Return the colours of a theme by their variables in the page's style sheet."""
    place = (LIGHT, DARK).index(theme)
    own = {name: values[place] for name, values in _OF_THE_PAGE.items()}
    return _colours(theme) | own


def _colours(theme: Theme) -> dict[str, str]:
    return {
        "surface": theme.surface,
        "ink": theme.ink,
        "muted": theme.muted,
        "grid": theme.grid,
        "soft": theme.modules[0],
        "operator": theme.operator,
        "grew": theme.uses["exposed"],
        "shrank": theme.uses["overlapped"],
        "unknown": theme.uses["not known"],
        **{f"kind-{kind}": colour for kind, colour in theme.kinds.items()},
        **{f"phase-{phase}": colour for phase, colour in theme.phases.items()},
        **{f"device-{part}": theme.device[part] for part in SORTS_OF_WORK},
    }


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
