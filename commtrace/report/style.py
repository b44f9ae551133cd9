"""Style sheets: the colours of both themes as variables, then the hand-written rules."""

from __future__ import annotations

from commtrace.figures.theme import DARK, LIGHT, Theme
from commtrace.report.offline import source


def style_sheet() -> str:
    """All CSS of the page; the system's theme holds until `data-theme` on the root says another."""
    return "\n".join(
        [
            f":root {{ {_variables(LIGHT)} color-scheme: light; }}",
            "@media (prefers-color-scheme: dark) {",
            f"  :root:not([data-theme=light]) {{ {_variables(DARK)} color-scheme: dark; }}",
            "}",
            f":root[data-theme=dark] {{ {_variables(DARK)} color-scheme: dark; }}",
            *(f".kind-{kind} {{ --own: var(--kind-{kind}); }}" for kind in LIGHT.kinds),
            *(f".phase-{phase} {{ --own: var(--phase-{phase}); }}" for phase in LIGHT.phases),
            source("page.css"),
        ]
    )


def picture_style() -> str:
    """All CSS of a picture's page; the script says which theme holds."""
    return "\n".join(
        [
            f":root {{ {_variables(LIGHT)} color-scheme: light; }}",
            f":root[data-theme=dark] {{ {_variables(DARK)} color-scheme: dark; }}",
            source("picture.css"),
        ]
    )


def _variables(theme: Theme) -> str:
    """The colours of a theme as CSS variables."""
    named = {
        "surface": theme.surface,
        "ink": theme.ink,
        "muted": theme.muted,
        "grid": theme.grid,
        "soft": theme.modules[0],
        "operator": theme.operator,
        **{f"kind-{kind}": colour for kind, colour in theme.kinds.items()},
        **{f"phase-{phase}": colour for phase, colour in theme.phases.items()},
    }
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())
