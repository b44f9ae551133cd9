"""Functions of a program, parsed from its files or from the lines that a run has recorded."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from commtrace.analyze.divergence.control_flow import FlowGraph, flow_of
from commtrace.analyze.divergence.syntax import (
    ScopeNode,
    constants_of,
    function_at,
    functions_named,
    swallowing,
)
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.source_lines import lines_of_file

MODULE = "<module>"
_INSIDE = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Names of frames of comprehensions, which belong to the enclosing frame's statement.

Python 3.12 has no such frames.
"""
_MANAGER = re.compile(r"def __a?exit__|contextmanager")
_MOST_ATTEMPTS = 30
_MOST_FILES = 200
_MOST_TEXT = 100


class CallFrame(NamedTuple):
    """A frame of the user's code around a call."""

    file: str
    line: int
    function: str


CallChain = tuple[CallFrame, ...]
"""Frames of the user's code, outermost first; the last frame makes the call."""


def chain_of(callers: str, file: str, line: int, function: str) -> CallChain:
    """Return the frames of a call: the frames of column `callers`, and the frame of the call."""
    if not file:
        return ()
    around = frames_of_text(callers)
    if callers and not around:
        return ()
    return tuple([each for each in (*around, CallFrame(file, line, function))
                  if each.function not in _INSIDE])  # fmt: skip


def frames_of_text(text: str) -> CallChain:
    """Return the frames in lines like `train.py:12 main`; empty if any line differs from that."""
    frames = []
    for each in text.split("\n") if text else []:
        place, _, name = each.rpartition(" ")
        path, _, number = place.rpartition(":")
        if not number.isdecimal():
            return ()
        frames.append(CallFrame(path, int(number), name))
    return tuple(frames)


def files_beside(files: Iterable[str]) -> list[str]:
    """Return some files and the other files of Python in their folders, sorted."""
    known = {Path(file) for file in files if file}
    folders = {file.parent for file in known}
    found = {*known, *(each for folder in folders for each in folder.glob("*.py"))}
    return [str(each) for each in sorted(found)[:_MOST_FILES]]


class ProgramText:
    """Source of a run: each file as it is now if the recorded lines match, else these lines."""

    def __init__(self, lines: dict[str, dict[int, str]] | None = None) -> None:
        self._lines = {} if lines is None else lines
        self._frames: Frames | None = None
        self._trees: dict[str, ast.Module | None] = {}
        self._graphs: dict[tuple[str, int], FlowGraph] = {}
        self._functions: dict[CallFrame, FlowGraph | None] = {}
        self._managers: dict[str, set[str]] = {}

    @classmethod
    def of(cls, frames: Frames) -> ProgramText:
        """Return the source of a run."""
        text = cls()
        text._frames = frames
        return text

    def lines(self, file: str) -> dict[int, str]:
        """Return the lines of a file by number, from 1."""
        if file not in self._lines:
            self._lines[file] = {} if self._frames is None else lines_of_file(self._frames, file)
        return self._lines[file]

    def graph(self, at: CallFrame) -> FlowGraph | None:
        """Return the function that a frame is in; None if its source is not known."""
        if at not in self._functions:
            function = self._function(at)
            self._functions[at] = None if function is None else self._flow(at.file, function)
        return self._functions[at]

    def tree(self, file: str) -> ast.Module | None:
        """Return a file's syntax tree; None if not all of its lines are known."""
        if file not in self._trees:
            lines = self.lines(file)
            last = max(lines, default=0)
            is_whole = len(lines) == last > 0
            text = "\n".join(lines[number] for number in range(1, last + 1)) if is_whole else None
            self._trees[file] = None if text is None else _parsed(text)
        return self._trees[file]

    def named(self, name: str, file: str) -> list[CallFrame]:
        """Return a frame in each function of a name, in the files of a file's folder."""
        head = re.compile(rf"^\s*(?:async )?def {re.escape(name)}\b", re.MULTILINE)
        found = []
        for path in files_beside([file]):
            if head.search("\n".join(self.lines(path).values())):
                functions = functions_named(self.tree(path), name)
                found += [CallFrame(path, each.body[0].lineno, name) for each in functions]
        return found

    def _flow(self, file: str, function: ScopeNode) -> FlowGraph:
        key = file, getattr(function, "lineno", 0) * 1000 + getattr(function, "col_offset", 0)
        if key not in self._graphs:
            tree = self.tree(file)
            constants = frozenset() if tree is None else constants_of(tree, function)
            self._graphs[key] = flow_of(function, constants, self._swallowing(file))
        return self._graphs[key]

    def _swallowing(self, file: str) -> set[str]:
        """Return the context managers in a file's folder that may swallow exceptions."""
        folder = str(Path(file).parent)
        if folder not in self._managers:
            self._managers[folder] = {
                name
                for path in files_beside([file])
                if _MANAGER.search("\n".join(self.lines(path).values()))
                for name in swallowing(self.tree(path))
            }
        return self._managers[folder]

    def _function(self, at: CallFrame) -> ScopeNode | None:
        lines = self.lines(at.file)
        if at.line not in lines:
            return None
        tree = self.tree(at.file)
        if tree is not None:
            return function_at(tree, at.line, at.function)
        return None if at.function == MODULE else _excerpt(lines, at)


def _excerpt(lines: dict[int, str], at: CallFrame) -> ScopeNode | None:
    """Return a function from some lines of a file that include all of it."""
    for first in range(at.line, 0, -1):
        text = lines.get(first)
        if text is None:
            return None
        words = text.split("(")[0].split()
        is_head = words[-2:] == ["def", at.function] and words[0] in ("def", "async")
        if not is_head:
            continue
        ends = [number for number in range(first + 1, first + 10_000)
                if _may_end(lines, number, _indent(text))]  # fmt: skip
        for end in [each for each in ends if each > at.line][:_MOST_ATTEMPTS]:
            inner = "\n".join(lines[number] for number in range(first, end))
            tree = _parsed(f"if 1:\n{inner}" if _indent(text) else f"\n{inner}")
            if tree is not None:
                ast.increment_lineno(tree, first - 2)
                return function_at(tree, at.line, at.function)
    return None


def _may_end(lines: dict[int, str], number: int, indent: int) -> bool:
    """Return whether a function of an indentation can end before a line."""
    text = lines.get(number)
    if text is None:
        return number - 1 in lines
    return bool(text.strip()) and _indent(text) <= indent


def _indent(text: str) -> int:
    expanded = text.expandtabs()
    return len(expanded) - len(expanded.lstrip())


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def shown(text: str) -> str:
    """Return a line without indentation and comment, shortened."""
    text = text.strip()
    place = text.find("#")
    while place >= 0:
        before = text[:place]
        if all(before.count(quote) % 2 == 0 for quote in "'\""):
            text = before.rstrip()
            break
        place = text.find("#", place + 1)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
