"""Running a program, on one device and on the ranks of a mesh, and comparing everything.

Compared are every result when it is made, every variable at the end (in-place operators change
some), and all gradients. Ranks hand out copies of what they hold and the comparison is made
afterwards: it communicates nothing, which could mend or hide a fault.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F

from dtensor_core import init_device_mesh
from dtensor_core.errors import RuleError
from dtensor_core.testing import kept_mesh, run_processes, run_threads
from tests.dtensor_core.programs.lay import Held, Mismatch, lay, put_together, redistribute
from tests.dtensor_core.programs.program import Program, total

# How far results may differ, relative and absolute: of programs in double precision, and of others.
EXACT, ROUGH = 1e-8, 2e-3
Kept = tuple[str, Any]


class Declined(Exception):
    """An in-place statement is left out, because it was refused."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def outcome(code: CodeType, values: Mapping[str, Any]) -> Any:
    """What an expression makes of a program's values."""
    return eval(code, {"torch": torch, "F": F, "redistribute": redistribute}, dict(values))


def results_of(program: Program, given: Mapping[str, Any]) -> Iterator[Kept]:
    """Each result as it is made, each variable at the end, each gradient, with its description."""
    values: dict[str, Any] = dict(given)
    for number, statement in enumerate(program.statements):
        try:
            result = outcome(statement.compiled(), values)
        except RuleError as error:
            if statement.in_place:
                raise Declined(number) from error
            raise
        results = result if statement.several else [result]
        for name, value in zip(statement.targets, results, strict=True):
            values[name] = value
            yield f"{name}, of {statement}", value
    if any(statement.in_place for statement in program.statements):
        yield from ((f"{name} at the end", value) for name, value in values.items())
    if program.differentiated:
        eval(total(program.differentiated), {}, values).backward()
    for name, each in given.items():
        if each.is_leaf and each.grad is not None:
            yield f"gradient of {name}", each.grad


def on_one_device(program: Program, nudge: float = 0.0) -> list[Kept]:
    """All results as one device computes them, from values that are a little off if wanted."""
    given = {g.name: g.whole(nudge).requires_grad_(g.requires_grad) for g in program.given}
    return [
        (text, value.detach().clone().requires_grad_(value.requires_grad))
        for text, value in results_of(program, given)
    ]


def on_a_rank(program: Program, mesh: Any) -> list[Kept] | int:
    """All results as one rank holds them, or the number of the statement that was declined."""
    given = {g.name: lay(g, mesh) for g in program.given}
    try:
        return [(text, Held.of(value)) for text, value in results_of(program, given)]
    except Declined as declined:
        return declined.number


def _on_a_thread(program: Program) -> list[Kept] | int:
    return on_a_rank(program, kept_mesh(program.mesh_shape))


def _on_a_process(program: Program) -> list[Kept] | int:
    return on_a_rank(program, init_device_mesh("cpu", program.mesh_shape))


def on_threads(program: Program) -> list[list[Kept] | int]:
    """What each rank returned; ranks are threads."""
    return run_threads(_on_a_thread, program.ranks, program, timeout_s=30)


def on_processes(program: Program) -> list[list[Kept] | int]:
    """What each rank returned; ranks are processes that communicate by gloo."""
    return run_processes(_on_a_process, program.ranks, program, timeout_s=30)


def check(
    program: Program, run: Callable[[Program], list[list[Kept] | int]] = on_threads
) -> Program:
    """The program that was compared: the one given, less the in-place statements that are refused.

    Raises Mismatch where a result is not that of one device, and what a rank raises.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranks = run(program)
    refused = {rank for rank in ranks if isinstance(rank, int)}
    if refused:
        if len(refused) > 1 or not all(isinstance(rank, int) for rank in ranks):
            raise Mismatch(f"not all ranks refuse {refused}")
        return check(program.without({program.statements[refused.pop()].targets[0]}), run)
    compare(program, ranks, on_one_device(program))
    return program


def compare(program: Program, ranks: Sequence[Any], expected: list[Kept]) -> None:
    """Raises Mismatch for the first result of the ranks that is not the expected one."""
    texts = [text for text, _ in expected]
    for rank in ranks:
        if [text for text, _ in rank] != texts:
            raise Mismatch(f"results {[text for text, _ in rank]}, expected {texts}")
    for number, (text, whole) in enumerate(expected):
        held = [rank[number][1] for rank in ranks]
        try:
            found = put_together(held, program.mesh_shape)
            same(found, whole, ROUGH if program.rough else EXACT)
            if held[0].requires_grad != whole.requires_grad:
                raise Mismatch(f"requires_grad is {held[0].requires_grad}")
        except AssertionError as error:
            raise Mismatch(f"{text}\n{held[0].placements}\n{error}") from None


def same(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Raises AssertionError if two tensors differ, in type, shape or by more than rounding."""
    scale = 1.0
    if expected.is_floating_point() and expected.numel():
        scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * scale)
