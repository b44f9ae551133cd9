"""Patching of a module once the program loads it, to avoid the cost of importing it here."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def when_loaded(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call `change` with a module: now if it is loaded, or right after it has been."""
    loaded = sys.modules.get(name)
    if loaded is None:
        sys.meta_path.insert(0, _Changer(name, change))
    else:
        change(loaded)


class _Changer(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self.name, self.change = name, change

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's own spec, with a loader that patches the module once executed."""
        if fullname != self.name:
            return None
        # The finders behind this one, so that several of a module pass it on in turn.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            found = finder.find_spec(fullname, path, target)
            if found is not None:
                break
        else:
            return None
        if found.loader is not None:
            execute = found.loader.exec_module

            # Stays until the module is executed, since a program may only ask where it is.
            def exec_module(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                self.change(module)

            found.loader.exec_module = exec_module
        return found
