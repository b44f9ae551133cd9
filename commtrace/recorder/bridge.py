"""The one bridge to dtensor_core: it announces why it communicates, and shows what it runs.

Only `dtensor_core.observe` is looked at, and only if the program has loaded it already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

PACKAGE = "dtensor_core"
_modules = sys.modules


def announcement() -> Any:
    """The announcement in force on this thread (`observe.Announcement`), or None."""
    observe = _modules.get("dtensor_core.observe")
    return None if observe is None else observe.current()


def let_run(runner: Callable[..., Any] | None) -> None:
    """Have `runner` run what operators on its tensors run on this rank's parts; None: nobody."""
    observe: Any = _modules.get("dtensor_core.observe")
    if observe is not None:
        observe.runner = runner
