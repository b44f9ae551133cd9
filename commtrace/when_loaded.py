"""Call of a function once the program has loaded a module, which is not loaded for it.

when_loaded("torch.distributed.pipelining.schedules", prepare)
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_loaded(name: str, prepare: Callable[[], None]) -> Callable[[], None]:
    """Call `prepare` once the module `name` has run, or now if it has.

    Returns:
        A function that stops waiting for it.
    """
    finder = _Finder(name, prepare)
    if name in sys.modules:
        prepare()
    else:
        sys.meta_path.insert(0, finder)
    return finder.remove


class _Finder(MetaPathFinder):
    """Import hook that calls a function once a module has run."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def remove(self) -> None:
        """Stop waiting for the module."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with a loader that calls the function."""
        if fullname != self._name:
            return None
        # Removed first, or the search below would come back here.
        self.remove()
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
