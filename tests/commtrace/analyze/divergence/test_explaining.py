"""Statements by which two ranks part, in functions whose comments mark calls and the answer.

`s` marks the last common call, `o` rank 1's next call, `t` rank 0's next call, and `d` the first
statement to be found; what follows it is marked `j`. Numbers are levels of frames, from 0: `s0` is
a line in the outermost function, from which the function with `s1` is called.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from textwrap import dedent

import pytest

from commtrace.analyze.divergence.deciding import (
    lines_freezing,
    lines_grouping,
    lines_reducing,
    lines_skipping,
)
from commtrace.analyze.divergence.explaining import Explainer
from commtrace.analyze.divergence.program_text import CallChain, CallFrame, ProgramText
from commtrace.analyze.divergence.splits import Seen

from .branch_cases import CASES, EITHER, NO_BRANCH

FILE = "train.py"


def marks_of(text: str) -> dict[str, int]:
    """Lines by mark."""
    found = {}
    for number, line in enumerate(text.split("\n"), 1):
        _, _, comment = line.partition("#")
        for mark in re.findall(r"\b[sotdj]\d?\b", comment):
            found[mark if mark[1:] or mark in "dj" else f"{mark}0"] = number
    return found


def function_around(text: str, line: int) -> str:
    """Name of the innermost function of a line."""
    around = [
        each
        for each in ast.walk(ast.parse(text))
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
        and each.lineno <= line <= (each.end_lineno or 0)
    ]
    return max(around, key=lambda each: each.lineno).name if around else "<module>"


def chain_at(text: str, marks: dict[str, int], mark: str) -> CallChain:
    """Frames that a mark names."""
    lines = [line for name, line in sorted(marks.items()) if name[0] == mark]
    return tuple([CallFrame(FILE, line, function_around(text, line)) for line in lines])


def found_in(text: str, **known: object) -> tuple[list[int], dict[str, int]]:
    """Lines that are found in a text, and its marks."""
    text = dedent(text).lstrip("\n")
    marks = marks_of(text)
    looped, has_left_loop = known.pop("looped", None), bool(known.pop("has_left_loop", False))
    seen = Seen(**{"ranks": (1, 0), **known})  # type: ignore[arg-type]
    lines = dict(enumerate(text.split("\n"), 1))
    explainer = Explainer(
        ProgramText({FILE: lines}),
        lambda *_: seen,
        looped,  # type: ignore[arg-type]
        has_left_loop=has_left_loop,
    )
    own, others = (chain_at(text, marks, mark) or None for mark in "ot")
    lines_found = explainer.lines(chain_at(text, marks, "s"), own, others)
    assert all(each.is_alternative for each in lines_found[1:]) or not explainer.is_doubtful
    return [each.line for each in lines_found], marks


@pytest.mark.parametrize("name", CASES)
def test_the_statement_that_decided_is_found(name: str) -> None:
    text, known = CASES[name]
    found, marks = found_in(text, **known)
    expected = [marks[mark] for mark in "dj" if mark in marks]
    assert found == expected


@pytest.mark.parametrize("name", EITHER)
def test_of_two_statements_that_are_as_likely_both_are_named(name: str) -> None:
    text, known = EITHER[name]
    found, marks = found_in(text, **known)
    assert found == [marks["d"], marks["j"]]


@pytest.mark.parametrize("name", NO_BRANCH)
def test_where_no_statement_can_have_decided_none_is_named(name: str) -> None:
    text, known = NO_BRANCH[name]
    assert found_in(text, **known)[0] == []


def test_of_three_statements_that_are_as_likely_none_is_named() -> None:
    conditions = "".join(f"\n        if losses[{n}] > 3:\n            break" for n in range(3))
    text = f"""def f(losses):
    for step in range(6):
        reduce()  # s{conditions}
        gather()  # t
    barrier()  # o
"""
    assert found_in(text)[0] == []


CHOOSING = {
    "a conditional expression": """
        def schedule(behind):
            return (fake, real) if behind else (real, fake)  # d
    """,
    "an assignment in either branch": """
        def next_of(state):
            if state.is_behind():  # d
                return real
            return fake
    """,
    "cases": """
        def next_of(state):
            match state.mode:  # d
                case 1:
                    return real
                case _:
                    return fake
    """,
    "a count, which is alike": """
        def next_of(step):
            return real if step % 2 else fake
    """,
    "a condition beside the choice": """
        def next_of(state):
            if state.is_known():
                print(state)
            return [real, fake]
    """,
    "two choices": """
        def next_of(state):
            return real if state.is_behind() else fake
        def last_of(state):
            return fake if state.is_behind() else real
    """,
}


@pytest.mark.parametrize("name", CHOOSING)
def test_what_has_chosen_one_of_two_functions_is_found(name: str) -> None:
    calls = """
        def real():
            reduce()  # o1
        def fake():
            reduce()  # t1
        def step(updates):
            for update in updates:
                update()  # o0 t0
    """
    found, marks = found_in(dedent(CHOOSING[name]) + dedent(calls))
    assert found == [marks[mark] for mark in ("d",) if mark in marks]


GROUPING = {
    "a conditional expression": """
        def average(p, grid):
            dist.all_reduce(p, group=grid.tp if p.is_shared else grid.dp)  # o d
    """,
    "a name, assigned in a branch": """
        def average(p, grid):
            group = grid.dp
            if p.is_shared:  # d
                group = grid.tp
            dist.all_reduce(p, group=group)  # o
    """,
    "what a method returns": """
        class Optimizer:
            def pick(self, p):
                return self.tp if p.is_shared else self.dp  # d
            def average(self, p):
                group = self.pick(p)
                dist.all_reduce(p, group=group)  # o
    """,
    "a parameter": """
        def average(p, pg):
            dist.all_reduce(p, group=pg)  # o1
        def step(grid, params):
            for p in params:
                average(p, grid.tp if is_late() else grid.dp)  # o0 d
    """,
    "an attribute": """
        def average(self, p):
            dist.all_reduce(p, group=self.group)  # o
    """,
    "an entry of a table, in a context, from a loop over one of two lists": """
        class Grid:
            @contextmanager
            def axis(self, name):
                yield self.groups[name]
            def average(self, name, p):
                with self.axis(name) as group:
                    dist.all_reduce(p, group=group)  # o1
        def step(grid, users, items):
            plan = [("row", 1), ("col", 2)] if users > items else [("col", 2), ("row", 1)]  # d
            for name, p in plan:
                grid.average(name, p)  # o0
    """,
    "a count": """
        def average(p, step, grid):
            dist.all_reduce(p, group=grid.tp if step % 2 else grid.dp)  # o
    """,
}


@pytest.mark.parametrize("name", GROUPING)
def test_the_condition_by_which_a_group_was_chosen_is_found(name: str) -> None:
    text = dedent(GROUPING[name]).lstrip("\n")
    marks = marks_of(text)
    lines = dict(enumerate(text.split("\n"), 1))
    program = ProgramText({FILE: lines})
    found = lines_grouping(program, chain_at(text, marks, "o"))
    assert [each.line for each in found] == [marks[mark] for mark in ("d",) if mark in marks]


REDUCING = {
    "by the module within the wrapper": """
        def step(self, batch):
            net = self.model if len(batch) == SIZE else self.model.module  # d
            net(batch).backward()  # o
    """,
    "another module of the wrapper": """
        def step(self, batch):
            saved = self.model.module if self.step % 10 else None
            self.model(batch).backward()  # o
    """,
    "in the context": """
        def step(self, batch, last):
            with nullcontext() if last else self.model.no_sync():  # d
                self.model(batch).backward()  # o
    """,
    "in an assignment, around the function": """
        def backward(loss, context):
            with context:
                loss.backward()  # o1
        def step(self, batch):
            if batch.is_bad:
                return
            context = self.model.no_sync() if self.tokens < BUDGET else nullcontext()  # d
            backward(self.model(batch), context)  # o0
    """,
    "in a condition": """
        def step(model, batch, last):
            if last:
                model(batch).backward()
            elif batch.is_whole():
                if batch.is_short():  # d
                    with model.no_sync():
                        model(batch).backward()  # o
    """,
    "of FSDP": """
        def step(model, batch, last):
            if last:  # d
                model.set_requires_gradient_sync(True)
            model(batch).backward()  # o
    """,
    "without one": """
        def step(model, batch, last):
            with nullcontext() if last else profile():
                model(batch).backward()  # o
    """,
}


@pytest.mark.parametrize("name", REDUCING)
def test_the_condition_of_a_reduction_is_found(name: str) -> None:
    text = dedent(REDUCING[name]).lstrip("\n")
    marks = marks_of(text)
    lines = dict(enumerate(text.split("\n"), 1))
    program = ProgramText({FILE: lines})
    found = lines_reducing(program, chain_at(text, marks, "o"))
    assert [each.line for each in found] == [marks[mark] for mark in ("d",) if mark in marks]


FREEZING = {
    "a call": """
        class Embedding:
            def __init__(self, last, pretrained):
                if last <= pretrained:  # d
                    self.weight.requires_grad_(False)
    """,
    "an assignment, in the inner condition": """
        def thaw(block, moved, known):
            if known:
                if moved > 3:  # d
                    block.weight.requires_grad = True
    """,
    "by name, which is alike": """
        def freeze(model):
            for name, param in model.named_parameters():
                if "head" not in name:
                    param.requires_grad_(False)
    """,
    "two": """
        def freeze(a, b, loss):
            if loss > 1:
                a.requires_grad_(False)
            if loss > 2:
                b.requires_grad_(False)
    """,
}


@pytest.mark.parametrize("name", FREEZING)
def test_the_only_condition_of_frozen_parameters_is_found(name: str) -> None:
    text = dedent(FREEZING[name]).lstrip("\n")
    marks = marks_of(text)
    lines = dict(enumerate(text.split("\n"), 1))
    program = ProgramText({FILE: lines})
    found = lines_freezing(program, (CallFrame(FILE, 1, "backward"),))
    assert [each.line for each in found] == [marks[mark] for mark in ("d",) if mark in marks]


@pytest.mark.parametrize(
    ("returned", "line"),
    [
        ("nullcontext() if self.is_last else self.model.no_sync()", 5),
        ("self.model.no_sync()", 3),
    ],
)
def test_the_condition_of_a_reduction_is_found_in_the_maker_of_a_context(
    returned: str, line: int, tmp_path: Path
) -> None:
    texts = {
        "accumulation.py": f"""
def context(self):
    if self.is_full():
        return nullcontext()
    return {returned}
""",
        "train.py": """
def step(model, batch, accumulation):
    with accumulation.context():
        model(batch).backward()
""",
    }
    lines = {}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        lines[str(tmp_path / name)] = dict(enumerate(text.split("\n"), 1))
    program = ProgramText(lines)
    found = lines_reducing(program, (CallFrame(str(tmp_path / "train.py"), 4, "step"),))
    assert [(Path(each.file).name, each.line) for each in found] == [("accumulation.py", line)]


SKIPS = {
    "the only way around": ("""
        for batch in loader:
            loss = model(batch)
            if loss.isnan():  # skip
                continue
            reduce()  # call
            if step % 8 == 0:
                log()
    """, "if loss.isnan():"),
    "every round makes it": ("""
        while step < 60 and not stopped:
            if step % 10 == 0:
                log()
            reduce()  # call
    """, ""),
    "two ways around": ("""
        for step in range(10):
            if loss > 1:
                if grad > 2:
                    reduce()  # call
            gather()
    """, "if grad > 2: | if loss > 1:"),
    "a way around that is alike on all ranks, and one by the rank": ("""
        for step in range(10):
            if step % 2:
                if rank == 0:
                    reduce()  # call
    """, ""),
    "a handler": ("""
        for step in range(10):
            try:
                reduce()  # call
            except OSError:
                log()
    """, "except OSError:"),
    "an inner loop over data, and one over parameters": ("""
        for epoch in range(10):
            for batch in loader:
                for p in params:
                    reduce()  # call
    """, "for batch in loader:"),
    "a loop over parameters in a loop": ("""
        for step in range(10):
            if loss > 1:
                for p in params:
                    reduce()  # call
    """, "if loss > 1:"),
    "a loop over what is named a parameter": ("""
        for step in range(10):
            if loss > 1:
                for parameter in model.shared():
                    reduce()  # call
    """, "if loss > 1:"),
    "a way out of the loop": ("""
        for step in range(10):
            if done():
                break
            reduce()  # call
    """, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SKIPS)
def test_the_statements_by_which_a_round_leaves_out_a_call(name: str) -> None:
    body, expected = SKIPS[name]
    text = "def f(model, loader, rank, params):" + body
    lines = dict(enumerate(text.split("\n"), 1))
    at = next(number for number, line in lines.items() if "# call" in line)
    program = ProgramText({FILE: lines})  # type: ignore[arg-type]
    found = lines_skipping(program, (CallFrame(FILE, at, "f"),), (1, 0))
    assert found is not None
    assert " | ".join(sorted(each.text for each in found[0])) == expected
    assert found[1].line == 2


def test_a_loop_over_parameters_in_a_function_is_part_of_the_call() -> None:
    text = """def sync(params):
    for p in params:
        reduce()
def train(loader):
    for batch in loader:
        try:
            read(batch)
        except ValueError:
            continue
        sync(params)
    gather()
if __name__ == "__main__":
    train(loader)
"""
    lines = dict(enumerate(text.split("\n"), 1))
    program = ProgramText({FILE: lines})  # type: ignore[arg-type]
    frames = CallFrame(FILE, 13, "<module>"), CallFrame(FILE, 10, "train")
    found = lines_skipping(program, (*frames, CallFrame(FILE, 3, "sync")), (1, 0))
    assert found is not None
    assert [each.line for each in (*found[0], found[1])] == [8, 5]


def test_a_function_that_returns_early_leaves_out_a_call_of_the_loop_around() -> None:
    text = """def step(batch):
    if not len(batch):
        return
    reduce()
def train(loader):
    for batch in loader:
        step(batch)
    gather()
"""
    lines = dict(enumerate(text.split("\n"), 1))
    program = ProgramText({FILE: lines})  # type: ignore[arg-type]
    chain = (CallFrame(FILE, 7, "train"), CallFrame(FILE, 4, "step"))
    found = lines_skipping(program, chain, (1, 0))
    assert found is not None
    assert [each.line for each in (*found[0], found[1])] == [2, 6]
    assert lines_skipping(program, (CallFrame(FILE, 8, "train"),), (1, 0)) is None


def test_a_call_without_frames_has_no_lines_that_decided() -> None:
    program = ProgramText({})
    assert lines_grouping(program, ()) == lines_reducing(program, ()) == ()
    assert lines_freezing(program, ()) == ()
    assert lines_skipping(program, (), (1, 0)) is None
