"""Passes over the parts of a run that other processes answer, as they are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import local
from typing import Any, Generic, TypeVar

from commtrace.analyze.shared_passes import Function
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
    """Questions about the parts of a run, all of the same sort.

    Attributes:
        recipe: How to open the run.
        sort: Sort of the parts.
        questions: Functions of a part, and their further arguments.
        values: Values of the whole run that are known.
    """

    recipe: Recipe
    sort: str
    questions: Sequence[tuple[Function, tuple[Any, ...]]]
    values: Mapping[Function, Any]


class Opened(local, Generic[T]):
    """The run that this thread of a worker has opened, if any; workers of Dask have several."""

    recipe: Recipe | None = None
    run: T | None = None
