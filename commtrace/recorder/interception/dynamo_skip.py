"""Keep torch.compile from compiling the recorder itself.

After a graph break, torch tries to compile every Python frame that runs from there on, including
the recorder's. The recorder's frames are marked to be run uncompiled. The program's own code that
they call is compiled as usual.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from commtrace.torch_internals.compilation import skip_frame

_PACKAGE, _RECORDER = __name__.partition(".")[0], ".".join(__name__.split(".")[:2])
_CALLING_THE_PROGRAM = {
    f"{_RECORDER}.{name}"
    for name in (
        "attribution.modules",
        "attribution.step_calls",
        "interception.kernels",
        "interception.operators",
        "interception.waits",
        "values.observer",
        "values.result_mode",
    )
}
_marked: set[str] = set()
_seen: tuple[int, str] = 0, ""
"""Number of modules loaded at the last call, and the newest module."""


def skip_own_code() -> None:
    """Mark all functions of this package that were loaded since the last call."""
    global _seen
    loaded = len(sys.modules), next(reversed(sys.modules))
    if loaded == _seen:  # usually, and programs load thousands of modules
        return
    _seen = loaded
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE and name not in _marked:
            _marked.add(name)
            is_alone = name.startswith(f"{_RECORDER}.") and name not in _CALLING_THE_PROGRAM
            for code in _codes_of(vars(module).values(), module):
                skip_frame(code, and_its_callees=is_alone)


def _codes_of(values: Iterable[Any], module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of a module's own functions and methods, and of their nested functions."""
    for value in values:
        if isinstance(value, type):
            if value.__module__ == module.__name__:
                yield from _codes_of(vars(value).values(), module)
        elif isinstance(value, property):
            yield from _codes_of([value.fget], module)
        elif isinstance(value, (staticmethod, classmethod)):
            yield from _codes_of([value.__func__], module)
        else:
            code = value.__code__ if isinstance(value, FunctionType) else value
            if isinstance(code, CodeType) and code.co_filename == module.__file__:
                yield code
                yield from _codes_of(code.co_consts, module)
