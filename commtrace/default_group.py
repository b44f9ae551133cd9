"""Notice of the first default process group of this process.

    when_c10d_is_loaded(lambda: call_for_default_group(begin_recording))

Neither torch nor its process groups are imported for this.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

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
    if is_c10d_loaded():
        prepare()
    else:
        sys.meta_path.insert(0, _Finder(prepare))


class _Finder(MetaPathFinder):
    """Import hook that calls a function once the module of process groups has run."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with a loader that calls the function."""
        if fullname != _C10D:
            return None
        # Removed first, or the search below would come back here.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = self._executing(loader.exec_module)
        return spec

    def _executing(self, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def execute_then_call(module: ModuleType) -> None:
            execute(module)
            self._then()

        return execute_then_call
