"""Passes over the parts of a run by other processes, as they are sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import local
from typing import Any, Generic, TypeVar

from commtrace.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The facts by which another process opens a stored run.

    Attributes:
        path: Folder of the run.
        settings: Settings of the project.
        rows_of_part: Approximate number of rows of a part.
        folder: Folder of the prepared files.
        identity: Identity of the run and of its division into parts.
    """

    path: Path
    settings: Settings
    rows_of_part: int
    folder: Path
    identity: str


@dataclass(frozen=True, slots=True)
class Pass:
    """A function of the parts of a run.

    Attributes:
        recipe: How to open the run.
        function: Takes a part and `args`.
        args: Its further arguments.
        values: Values of the whole run that are known.
    """

    recipe: Recipe
    function: Callable[..., Any]
    args: tuple[Any, ...]
    values: Mapping[Callable[..., Any], Any]


class Opened(local, Generic[T]):
    """The run that this thread of a worker has opened, if any; workers of Dask have several."""

    recipe: Recipe | None = None
    run: T | None = None
