"""Program that this process runs as Python would have run it.

    run = prepare_main(["train.py", "--steps", "3"])        # or "-m", "my_package.train", ...
    run()

A script, a folder or a zip file with `__main__.py`, or a module becomes `__main__`, and stays that
until the process ends, for its threads, its exit handlers and pickling. Names of files are
absolute, so that they hold if the program changes its folder.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

MODULE_OPTION = "-m"
_RUNPY = (runpy.__file__, "<frozen runpy>")
_PACKAGE = Path(__file__).parents[1]

# The function by which Python itself runs a module, a folder or a zip file.
_run_module: Any = runpy._run_module_as_main  # pyright: ignore[reportAttributeAccessIssue]


def prepare_main(words: Sequence[str]) -> Callable[[], None]:
    """Set `sys.argv`, extend `sys.path` for a program, and return the function that runs it.

    Args:
        words: what follows `python` on a command line.
    """
    is_module = words[0] == MODULE_OPTION
    sys.argv = list(words[is_module:])
    if is_module:
        _begin_path(os.getcwd())
        return partial(_as_main, _run_module, sys.argv[0])
    path = os.path.abspath(words[0])
    if pkgutil.get_importer(path) is not None:
        _begin_path(path, always=True)
        return partial(_as_main, _run_module, "__main__", False)
    _begin_path(os.path.dirname(os.path.realpath(path)))
    return partial(_as_main, _run_script, path)


def _begin_path(path: str, *, always: bool = False) -> None:
    """Put a folder before `sys.path`, unless the option -P leaves it out."""
    if always or not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, path)


def _as_main(run: Callable[..., object], *args: object) -> None:
    """Call a function after replacing `__main__` by an empty module."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    run(*args)


def _run_script(path: str) -> None:
    main = sys.modules["__main__"].__dict__
    main.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    exec(_code_of(path), main)


def _code_of(path: str) -> CodeType:
    with io.open_code(path) as file:
        compiled = pkgutil.read_code(file)
    if compiled is not None:
        return compiled
    return compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)


def is_own(filename: str) -> bool:
    """Return whether a file belongs to commtrace, or to the modules by which Python runs it."""
    return filename in _RUNPY or Path(filename).is_relative_to(_PACKAGE)


def show_no_own_frames() -> None:
    """Show an exception that ends the process without the frames that started the program."""
    show = sys.excepthook

    def show_from_program(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        while trace is not None and is_own(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        show(kind, error.with_traceback(trace), trace)

    sys.excepthook = show_from_program
