"""Notice of the first default process group of this process.

    when_c10d_is_loaded(lambda: call_for_default_group(begin_recording))

Neither torch nor its process groups are imported for this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from commtrace.when_loaded import when_loaded

_C10D = "torch.distributed.distributed_c10d"


def call_for_default_group(on_group: Callable[[], None]) -> None:
    """Call `on_group` once this process has created its first default group."""
    c10d: Any = sys.modules[_C10D]
    update = c10d._update_default_pg
    update = getattr(update, "before", update)  # a forked process has its parent's wrapper
    pid = os.getpid()

    def watched_update(group: Any) -> None:
        update(group)
        if group is not None and os.getpid() == pid:
            c10d._update_default_pg = update
            on_group()

    watched_update.before = update  # pyright: ignore[reportFunctionMemberAccess]
    c10d._update_default_pg = watched_update


def is_c10d_loaded() -> bool:
    """Return whether torch's process groups are imported."""
    return _C10D in sys.modules


def when_c10d_is_loaded(prepare: Callable[[], None]) -> None:
    """Call `prepare` once torch's process groups are imported, or now if they are."""
    when_loaded(_C10D, prepare)
