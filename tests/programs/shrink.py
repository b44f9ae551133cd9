"""Reduce a failing program to a minimum, by removing a part at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from dtensor_core import Replicate
from tests.programs.program import Program

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails) -> Program:
    """Return a program that stops failing if any single part is removed."""
    while True:
        smaller = next((each for each in _smaller(program) if fails(each)), None)
        if smaller is None:
            return program
        program = smaller


def _smaller(program: Program) -> Iterator[Program]:
    """Yield programs that lack a part."""
    if program.differentiated:
        yield replace(program, differentiated=())
    count = len(program.statements)
    for kept in sorted({count // 4, count // 2, count * 3 // 4} - {0, count}):
        yield program.without({name for s in program.statements[kept:] for name in s.targets})
    if program.differentiated:
        for name in program.differentiated:
            kept = tuple(each for each in program.differentiated if each != name)
            if kept:
                yield replace(program, differentiated=kept).without(set())
    for statement in program.statements:
        yield program.without(set(statement.targets))
    for axis in range(len(program.mesh_shape) if len(program.mesh_shape) > 1 else 0):
        yield _without_axis(program, axis)
    for index, given in enumerate(program.given):
        for axis, placement in enumerate(given.placements):
            if not placement.is_replicate():
                placements = list(given.placements)
                placements[axis] = Replicate()
                simpler = replace(given, placements=tuple(placements))
                yield _with_given(program, index, simpler)
        for usual in ({"memory": "dense", "tight": True}, {"tight": True}, {"values": "exact"}):
            simpler = replace(given, **usual)
            if simpler != given and given.sample is None:
                yield _with_given(program, index, simpler)
        if given.requires_grad and not program.differentiated:
            yield _with_given(program, index, replace(given, requires_grad=False))


def _with_given(program: Program, index: int, given: object) -> Program:
    changed = list(program.given)
    changed[index] = given  # pyright: ignore
    return replace(program, given=tuple(changed))


def _without_axis(program: Program, axis: int) -> Program:
    """The program on a mesh without this axis."""

    def less(values: tuple) -> tuple:
        return values[:axis] + values[axis + 1 :]

    given = tuple(replace(g, placements=less(g.placements)) for g in program.given)
    fewer = replace(program, mesh_shape=less(program.mesh_shape), given=given)
    statements = tuple(
        replace(each, code=_redistributed_without(each.code, axis)) for each in fewer.statements
    )
    return replace(fewer, statements=statements)


def _redistributed_without(code: str, axis: int) -> str:
    if not code.startswith("redistribute("):
        return code
    head, text, tail = code.split("'")
    words = text.split()
    return f"{head}'{' '.join(words[:axis] + words[axis + 1 :])}'{tail}"
