"""References to functions and classes, by name, for use in other processes.

A worker imports the module by name if it can, and otherwise from its file: test modules are often
on no import path, and a script is `__main__`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class Reference:
    """Location of a definition at the top level of a module."""

    module: str
    qualname: str
    file: str | None

    def resolve(self) -> Any:
        """Return the object, importing its module if necessary."""
        found = _module(self.module, self.file)
        for name in self.qualname.split("."):
            found = getattr(found, name)
        return getattr(found, "rank_function", found)


def reference_to(target: Callable[..., Any]) -> Reference:
    """Make a reference to a function or class.

    Raises:
        TypeError: No other process can import it, since it is a lambda or defined in a function.
    """
    module, qualname = target.__module__, target.__qualname__
    if "<" in qualname:
        raise TypeError(
            f"{qualname} of module {module} can't run in another process, because it is defined "
            "inside of a function; define it at the top level of its module, or use run_threads"
        )
    return Reference(module, qualname, getattr(sys.modules.get(module), "__file__", None))


def _module(name: str, file: str | None) -> Any:
    known = sys.modules.get(name)
    if name != _MAIN and (known is None or file is None):
        try:
            return importlib.import_module(name)
        except ImportError:
            if file is None:
                raise
    if known is not None and getattr(known, "__file__", None) == file:
        return known
    return _load(name, file)


def _load(name: str, file: str | None) -> Any:
    """Load a module from its file; a script's `if __name__ == "__main__"` does not run."""
    if file is None:
        raise ImportError(f"module {name} has no file")
    alias = "__mp_main__" if name == _MAIN else name
    spec = importlib.util.spec_from_file_location(alias, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} can't be imported as {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
