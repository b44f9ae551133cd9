"""A module that only one of two ranks ran in the forward pass before a call of its backward.

Where a rank leaves out a call of the backward pass, such as the reduction of a gradient, no line of
the backward pass decided that: the graph lacks the parts that the forward pass left out. The
forward passes of both ranks are aligned by the number of the call of their first module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.divergence.program_text import (
    CallChain,
    CallFrame,
    ProgramText,
    files_beside,
)
from commtrace.analyze.divergence.sequences import Parting
from commtrace.analyze.divergence.syntax import names_of
from commtrace.analyze.run.frame import Frames, joined

_COLUMNS = ["rank", "id", "phase", "start_ns", "module", "module_class", "module_call"]


@dataclass(frozen=True, slots=True)
class UnlikeModule:
    """A module that one rank ran and another did not.

    Attributes:
        ran: The rank that ran it.
        lacked: The rank that did not.
        name: Path of the module.
        parent: Path of the nearest module around it that both ran, or had run before.
        parent_class: Class of `parent`.
        inner: A module within it that is the next to lack, as its parent may have returned early.
    """

    ran: int
    lacked: int
    name: str
    parent: str
    parent_class: str
    inner: UnlikeModule | None = None

    def text_of(self, rank: int) -> str:
        """Return it in words that follow the name of a rank."""
        if rank == self.lacked:
            return f"ran no module {self.name} in its forward pass, but rank {self.ran} did"
        return f"ran module {self.name} in its forward pass, but rank {self.lacked} did not"


def unlike_module(frames: Frames, parted: Parting, ranks: tuple[int, int]) -> UnlikeModule | None:
    """Return the first module that only one rank ran before a call in its backward pass.

    None if neither next call is in a backward pass, or operators were not all recorded.
    """
    about = frames.ranks[frames.ranks["rank"].isin(ranks)]
    if (about["num_ops_dropped"] > 0).any():
        return None
    pairs = ((parted.own, parted.others, *ranks), (parted.others, parted.own, *ranks[::-1]))
    for call, other, ran, lacked in pairs:
        if call is not None and call["phase"] == "backward" and ran != lacked:
            ops = joined(frames.by_ranks(_ops_of, ranks)).sort_values(["rank", "id"])
            within = _module_of(other)
            found = _unlike(ops, ran, lacked, int(call["issue_ns"]), within)
            if found is not None:
                return found
    return None


def _module_of(call: pd.Series | None) -> str | None:
    """Return the module in whose forward pass a call is made; None if it is in none."""
    if call is None or call["phase"] != "forward":
        return None
    return str(call["module"]) or None


def _ops_of(part: Frames, ranks: tuple[int, int]) -> pd.DataFrame:
    rows = part.ops.loc[part.ops["rank"].isin(ranks), _COLUMNS]
    return rows.astype({name: object for name in ("phase", "module", "module_class")})


def _unlike(
    ops: pd.DataFrame, ran: int, lacked: int, until_ns: int, within: str | None
) -> UnlikeModule | None:
    """Return the first module that a rank ran in its latest pass, and another rank did not.

    Args:
        ops: Operators of both ranks.
        ran: The rank that ran it.
        lacked: The rank that did not.
        until_ns: The time of the call of `ran`.
        within: Module in whose forward pass `lacked` is; it may still run the modules that follow.
    """
    own = _latest_pass(ops[(ops["rank"] == ran) & (ops["start_ns"] <= until_ns)])
    if own.empty:
        return None
    first = own.iloc[0]
    others = ops[(ops["rank"] == lacked) & (ops["phase"] == "forward")]
    calls_of_first = others.loc[others["module"] == first["module"], "module_call"]
    if not (calls_of_first == first["module_call"]).any():
        return None
    begin = calls_of_first.index[calls_of_first == first["module_call"]][0]
    others = others.loc[begin:]
    last = _before_next(others, first)
    if last is None and within is not None:
        reached = own["module"] == within
        own = own.iloc[: int(reached.to_numpy().argmax())]  # none if it was not run
    others = others.loc[:last]
    made = set(others["module"])
    left_out = [name for name in dict.fromkeys(own["module"]) if name not in made]
    if not left_out:
        return None
    inside = ops[ops["module_class"] != ""]  # the root's path is empty, as of code in no module
    classes = dict(zip(inside["module"], inside["module_class"], strict=True))
    found = None
    name = left_out[0]
    while name:
        parent = name.rpartition(".")[0]
        while parent and parent not in classes:  # a container, which is not called
            parent = parent.rpartition(".")[0]
        found = UnlikeModule(ran, lacked, name, parent, str(classes.get(parent, "")), found)
        name = parent if parent in left_out else ""
    return found


def _latest_pass(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the forward pass before a backward pass in progress."""
    forward = rows.index[rows["phase"] == "forward"]
    if forward.empty:
        return rows.iloc[:0]
    rows = rows.loc[: forward[-1]]
    others = rows.index[rows["phase"].isin(("backward", "optimizer"))]
    rows = rows.loc[others[-1] :].iloc[1:] if len(others) else rows
    return rows[(rows["phase"] == "forward") & (rows["module"] != "")]


def _before_next(rows: pd.DataFrame, first: pd.Series) -> object:
    """Return the index of the last row before the next pass, which begins with the same module."""
    is_next = (rows["module"] == first["module"]) & (rows["module_call"] > first["module_call"])
    return rows.index[max(int(is_next.to_numpy().argmax()) - 1, 0)] if is_next.any() else None


def chain_to(calls: pd.DataFrame, text: ProgramText, unlike: UnlikeModule) -> CallChain:
    """Return the frames from the `forward` of the parent's class to the module's call.

    Empty if the class is not found in the files of the calls and their folders, or in several.
    """
    found = [*_definitions(calls, text, unlike.parent_class)]
    if len(found) != 1:
        return ()
    file, definition = found[0]
    attribute = unlike.name[len(unlike.parent) :].lstrip(".").partition(".")[0]
    methods = {
        each.name: each
        for each in definition.body
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    chain: list[CallFrame] = []
    while "forward" in methods:
        users = {name: _line_of(method, attribute) for name, method in methods.items()}
        lines = {name: line for name, line in users.items() if line and name != "__init__"}
        method = "forward" if "forward" in lines else next(iter(lines), "")
        if not method:
            return ()
        chain.insert(0, CallFrame(file, lines[method], method))
        if method == "forward":
            return tuple(chain)
        del methods[method]
        attribute = method
    return ()


def _definitions(
    calls: pd.DataFrame, text: ProgramText, name: str
) -> Iterator[tuple[str, ast.ClassDef]]:
    head = re.compile(rf"^\s*class {re.escape(name)}\b", re.MULTILINE)
    for file in files_beside(calls["source_file"].unique()):
        if head.search("\n".join(text.lines(file).values())):
            tree = text.tree(file)
            for each in ast.walk(tree) if tree is not None else ():
                if isinstance(each, ast.ClassDef) and each.name == name:
                    yield file, each


def _line_of(function: ast.AST, attribute: str) -> int:
    """Return the first line that uses an attribute of `self`; 0 if there is none.

    In a loop over the attribute, the line that calls the loop's variable counts, if there is one.
    """
    for loop in ast.walk(function):
        if isinstance(loop, ast.For) and _uses(loop.iter, attribute):
            variables = names_of(loop.target)
            lines = [
                each.lineno
                for line in loop.body
                for each in ast.walk(line)
                if isinstance(each, ast.Call)
                and isinstance(each.func, ast.Name)
                and each.func.id in variables
            ]
            if lines:
                return min(lines)
    return min(_uses(function, attribute), default=0)


def _uses(part: ast.AST, attribute: str) -> list[int]:
    return [
        each.lineno
        for each in ast.walk(part)
        if isinstance(each, ast.Attribute)
        and each.attr == attribute
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    ]
