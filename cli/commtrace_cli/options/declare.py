"""Declaration of arguments and options, and their completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


def argument(metavar: str, help: str, **more: Any) -> Any:
    """Declare an argument, without a note on its default."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


def option(usage: str, help: str, **more: Any) -> Any:
    """Declare an option by its names and the word for its value: `--limit N`, `--force -f`."""
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(names) :])
    return typer.Option(*names, metavar=metavar or None, help=help, **more)


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Return the completion of an option with these values."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]
