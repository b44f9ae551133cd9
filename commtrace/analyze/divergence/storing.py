"""The call by which a rank would have set the key of a store that others wait for.

No recording has a key that was not set. The program's text has the call that sets it: its key, as a
pattern, matches the awaited key. It is searched for in the functions around the wait, and in
functions that they call, so that the frames of the missing call are known.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pandas as pd

from commtrace.analyze.divergence.program_text import (
    CallChain,
    CallFrame,
    ProgramText,
    files_beside,
    frames_of_text,
)
from commtrace.analyze.divergence.syntax import functions_called, name_of
from commtrace.analyze.run.frame import Frames
from commtrace.schema import STORE

_SETTERS = ("set", "add", "append", "compare_set", "multi_set", "queue_push")
_WITH_ANY_KEY = ("set", "compare_set", "multi_set")
"""Those that nothing but stores have, or seldom, so that a key may be unknown."""
_MOST_DEEP = 4


def chain_to_setter(frames: Frames, text: ProgramText, rank: int) -> CallChain:
    """Return the frames of the call that sets the key which a rank waits for at the end.

    Empty if the rank does not wait for a key, or if no call, or several, may set it.
    """
    wait = open_wait(frames, rank)
    if wait is None:
        return ()
    chain = frames_of_text(str(wait["stack"]))
    key = str(wait["text"]).partition(" ")[2].partition(",")[0]
    files = files_beside(each.file for each in chain)
    known = [each for file in files for each in _setters(text, file, key)]
    setters = [each for each, is_known in known if is_known] or [each for each, _ in known]
    if len(setters) != 1:
        return ()
    for most in range(_MOST_DEEP):  # the shortest way counts
        for place in reversed(range(len(chain))):
            inner = _path(text, chain[place], setters[0], most)
            if inner:
                return *chain[:place], *inner
    return ()


def open_wait(frames: Frames, rank: int) -> pd.Series | None:
    """Return the event of a rank's wait for the store that has not ended; None if it has none."""
    events = frames.host_events
    rows = events[
        (events["rank"] == rank) & (events["kind"] == STORE) & (events["duration_ns"] < 0)
    ]
    return None if rows.empty else rows.iloc[-1]


def _setters(text: ProgramText, file: str, key: str) -> Iterator[tuple[CallFrame, bool]]:
    """Yield the calls of a file that may set a key, each as a frame of its function.

    With each, whether a part of its key is known.
    """
    tree = text.tree(file)
    functions = (
        [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)] if tree else []
    )
    for function in functions:
        for each in ast.walk(function):
            if isinstance(each, ast.Call) and name_of(each) in _SETTERS and each.args:
                pattern = _pattern(function, each.args[0])
                may_be_any = not pattern and name_of(each) in _WITH_ANY_KEY
                if may_be_any or (pattern and re.fullmatch(pattern, key)):
                    yield CallFrame(file, each.lineno, function.name), bool(pattern)


def _pattern(function: ast.FunctionDef, argument: ast.expr) -> str:
    """Return a pattern of the keys that an expression can be; empty if all of it is unknown."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return re.escape(argument.value)
    if isinstance(argument, ast.JoinedStr):
        return "".join(_pattern(function, each) or ".+" for each in argument.values)
    if isinstance(argument, ast.Name):
        values = [
            each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and name_of(each.targets[0]) == argument.id
        ]
        return _pattern(function, values[0]) if len(values) == 1 else ""
    return ""


def _path(text: ProgramText, start: CallFrame, target: CallFrame, left: int) -> CallChain:
    """Return the frames from a function to a call in it, or in a function that it calls."""
    if (start.file, start.function) == (target.file, target.function):
        return (target,)
    graph = text.graph(start) if left else None
    for node in graph.nodes if graph is not None else ():
        for name in functions_called(node.part) if node.part is not None else ():
            for called in text.named(name, start.file):
                inner = _path(text, called, target, left - 1)
                if inner:
                    return CallFrame(start.file, node.first, start.function), *inner
    return ()
