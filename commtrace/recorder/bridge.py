"""The only connection to dtensor_core, which announces its communication and the operators it runs.

Only `dtensor_core.observe` is accessed, and only if the program has already loaded it. The
exception is `set_rank_context`, which must be in place before a test loads it.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any

PACKAGE = "dtensor_core"
_modules = sys.modules
_issuer: Callable[..., Any] | None = None


def announced_reason() -> Any:
    """Return the reason in force on this thread (`observe.Reason`), or None."""
    observe: Any = _modules.get("dtensor_core.observe")
    if observe is None:
        return None
    if observe.issuer is not _issuer:  # dtensor_core was loaded after the recording began
        observe.issuer = _issuer
    return observe.current()


def set_runner(runner: Callable[..., Any] | None) -> None:
    """Set the function that runs operators on local tensors for dtensor_core; None resets it."""
    observe: Any = _modules.get("dtensor_core.observe")
    if observe is not None:
        observe.runner = runner


def set_issuer(issuer: Callable[..., Any] | None) -> None:
    """Set the function that issues dtensor_core's collectives.

    With None they are issued directly and pass the interception.
    """
    global _issuer
    _issuer = issuer
    observe: Any = _modules.get("dtensor_core.observe")
    if observe is not None:
        observe.issuer = issuer


def set_rank_context(context: Callable[..., Any] | None) -> None:
    """Set the context around the runs of dtensor_core's test harness; None resets it."""
    observe: Any = None
    with contextlib.suppress(ImportError):
        observe = importlib.import_module("dtensor_core.observe")
    if observe is not None:
        observe.harness_observer = context
