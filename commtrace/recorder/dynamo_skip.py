"""Keeps torch.compile from compiling the recorder itself.

Where a compiled function breaks off in the middle, torch looks at each Python frame that runs from
there on as something more to compile, the recorder's among them. They are marked as frames to be
run as they are. The program's own code, where they call it, is compiled as without them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch._C._dynamo import eval_frame as _frames

_PACKAGE, _RECORDER = __name__.partition(".")[0], __name__.rpartition(".")[0]
_NAMES = ("intercept", "modules", "operators", "steps")
_CALLING_THE_PROGRAM = {f"{_RECORDER}.{name}" for name in _NAMES}
_marked: set[str] = set()


def run_as_it_is() -> None:
    """Mark all functions of this package that have been loaded since the last time."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE and name not in _marked:
            _marked.add(name)
            strategy = _strategy(name)
            for code in _codes_of(vars(module).values(), module):
                _frames.set_code_exec_strategy(code, strategy)


def _strategy(module: str) -> Any:
    """To skip a frame; and all below it, where these are none of the program's."""
    action = _frames._FrameAction
    is_alone = module.startswith(f"{_RECORDER}.") and module not in _CALLING_THE_PROGRAM
    return _frames._FrameExecStrategy(action.SKIP, action.SKIP if is_alone else action.DEFAULT)


def _codes_of(values: Iterable[Any], module: ModuleType) -> Iterator[CodeType]:
    """The code of a module's own functions and methods, and of the functions inside of these."""
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
