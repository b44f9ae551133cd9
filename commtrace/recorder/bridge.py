"""The one bridge to dtensor_core: it announces its communication, and shows what it runs.

Only `dtensor_core.observe` is looked at, and only if the program has loaded it already; but for
`let_begin_ranks`, which has to be there before a test loads it.
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


def announcement() -> Any:
    """The announcement in force on this thread (`observe.Announcement`), or None."""
    observe: Any = _modules.get("dtensor_core.observe")
    if observe is None:
        return None
    if observe.issuer is not _issuer:  # loaded after the recording had begun
        observe.issuer = _issuer
    return observe.current()


def let_run(runner: Callable[..., Any] | None) -> None:
    """Have `runner` run what operators on its tensors run on this rank's parts; None: nobody."""
    observe: Any = _modules.get("dtensor_core.observe")
    if observe is not None:
        observe.runner = runner


def let_issue(issuer: Callable[..., Any] | None) -> None:
    """Have `issuer` issue its collectives; None: nobody, they then pass the interception."""
    global _issuer
    _issuer = issuer
    observe: Any = _modules.get("dtensor_core.observe")
    if observe is not None:
        observe.issuer = issuer


def let_begin_ranks(looker: Callable[..., Any] | None) -> None:
    """Have `looker` look on where its test harness runs a function on many ranks; None: nobody."""
    observe: Any = None
    with contextlib.suppress(ImportError):
        observe = importlib.import_module("dtensor_core.observe")
    if observe is not None:
        observe.looker = looker
