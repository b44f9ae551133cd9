"""Debugging tools: communication of a program with DTensors, its reasons, and layouts.

`CommDebugMode` counts communication; it is commtrace's, and imported on first access.
`visualize_sharding` draws a layout. `ExplicitRedistributionContext` refuses implicit communication.
`explain` reports the communication of a function, without running it.
"""

from __future__ import annotations

import importlib
from typing import Any

from dtensor_core.debug.explain import ExplainError, Explanation, PlannedOperator, explain
from dtensor_core.debug.explicit import ExplicitRedistributionContext, ImplicitRedistributionError
from dtensor_core.debug.visualize import visualize_sharding
from dtensor_core.errors import four_parts

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    "CommDebugMode",
    "ExplainError",
    "Explanation",
    "ExplicitRedistributionContext",
    "ImplicitRedistributionError",
    "PlannedOperator",
    "explain",
    "visualize_sharding",
]


def __getattr__(name: str) -> Any:
    if name != "CommDebugMode":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module("commtrace").CommDebugMode
    except ModuleNotFoundError as error:
        if error.name != "commtrace":
            raise
        raise ImportError(
            four_parts(
                summary="dtensor_core.debug.CommDebugMode",
                found="no package commtrace",
                why="CommDebugMode is implemented by commtrace",
                hint="install commtrace, or put it on the import path",
            )
        ) from error


def __dir__() -> list[str]:
    return list(__all__)
