"""A thousand random programs compute on a mesh what they compute on one device.

A program is ten operators of all families over tensors laid out at random: see `operators`. Every
result, what in-place operators leave, and all gradients are compared. What fails is shrunk, and
printed as a script.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from dtensor_core.dispatch.dispatcher import forget
from dtensor_core.rules.row import Row
from dtensor_core.rules.table import TABLE
from dtensor_core.testing import kept_mesh, run_threads
from tests.programs.generate import generate
from tests.programs.lay import Held, Mismatch, lay, put_together
from tests.programs.program import Given, Program, Statement, placements_of
from tests.programs.run import check, on_one_device, on_processes, on_threads
from tests.programs.shrink import shrink

PROGRAMS, BATCHES = 1000, 10
ON_PROCESSES = range(0, 1000, 40)


def failure(program: Program, run=on_threads) -> Exception | None:
    """What is wrong with a program, if anything is."""
    try:
        check(program, run)
    except Exception as error:
        return error
    return None


def fails_alike(error: Exception):
    """Whether a smaller program is one that fails as this does."""

    def fails(program: Program) -> bool:
        try:
            on_one_device(program)
        except Exception:
            return False
        return type(failure(program)) is type(error)

    return fails


def expect_right(program: Program, run=on_threads) -> None:
    error = failure(program, run)
    if error is not None:
        small = shrink(program, fails_alike(error)) if run is on_threads else program
        pytest.fail(f"{failure(small, run) or error}\n\n{small.script()}", pytrace=False)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_programs_compute_on_a_mesh_what_they_compute_on_one_device(batch):
    for seed in range(batch * PROGRAMS // BATCHES, (batch + 1) * PROGRAMS // BATCHES):
        expect_right(generate(seed))


def test_programs_on_processes_compute_what_they_compute_on_one_device():
    for seed in ON_PROCESSES:
        expect_right(generate(seed), on_processes)


def test_a_seed_always_makes_the_same_program():
    assert generate(3) == generate(3)
    assert generate(3) != generate(4)


def test_the_programs_have_all_families_meshes_and_layouts():
    programs = [generate(seed) for seed in range(150)]
    given = [g for program in programs for g in program.given]
    placements = {str(p)[:2] for g in given for p in g.placements}
    assert {"R", "S(", "P("} <= placements
    assert {len(program.mesh_shape) for program in programs} == {1, 2, 3}
    assert any(0 in g.shape for g in given)
    assert sum(bool(program.differentiated) for program in programs) > 75
    assert any(statement.in_place for program in programs for statement in program.statements)


def a_program(*code: str) -> Program:
    given = tuple(
        Given(f"a{n}", (4, 3), torch.float64, 5, n, True, placements_of(layout))
        for n, layout in enumerate(("S0 R", "R Psum"))
    )
    statements = tuple(Statement((f"v{n}",), text) for n, text in enumerate(code))
    return Program((2, 2), given, statements, (f"v{len(code) - 1}",), False)


def faulty_softmax(op, inputs, outputs):
    """A local operator that is wrong on one rank."""
    return lambda *args: op(*args) + (inputs[0].coords[0] == 1)


def test_a_wrong_value_on_one_rank_is_seen_and_shrunk_to_the_operator_at_fault(monkeypatch):
    program = a_program("a0 + a1", "v0.exp()", "v1 * 2", "torch.softmax(v1, 1)", "v3 + v2")
    check(program)
    row = TABLE["_softmax"]
    faulty = Row(lambda call: replace(row.build(call), local=faulty_softmax), "faulty")
    monkeypatch.setitem(TABLE, "_softmax", faulty)
    forget(torch.ops.aten._softmax.default)
    try:
        error = failure(program)
        assert isinstance(error, Mismatch)
        assert str(error).startswith("v3, of v3 = torch.softmax(v1, 1)")
        small = shrink(program, fails_alike(error))
    finally:
        forget(torch.ops.aten._softmax.default)
    assert [str(statement) for statement in small.statements][1:] == [
        "v1 = v0.exp()",
        "v3 = torch.softmax(v1, 1)",
    ]
    assert small.mesh_shape == (2,)
    assert small.differentiated == ()


def test_a_program_prints_as_a_script_that_runs():
    program = a_program("a0 + a1", "redistribute(v0, 'R S1')")
    done = subprocess.run(
        [sys.executable, "-c", program.script()], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "gradient of a0 DTensor" in done.stdout


@pytest.mark.parametrize("layout", ["R R", "S0 S0", "S1 S0", "S1 Psum", "Pavg Pavg", "R Pmax"])
def test_what_is_laid_out_is_put_together_again(layout):
    given = Given("a0", (5, 3), torch.float64, 5, 0, False, placements_of(layout))
    held = run_threads(lambda: Held.of(lay(given, kept_mesh((2, 3)))), 6)
    torch.testing.assert_close(put_together(held, (2, 3)), given.whole())


def test_replicas_that_differ_and_pieces_of_a_wrong_size_are_seen():
    def held(local: torch.Tensor, layout: str) -> Held:
        return Held(local, (3,), local.dtype, placements_of(layout), False)

    with pytest.raises(Mismatch, match="replicas differ"):
        put_together([held(torch.zeros(3), "R"), held(torch.ones(3), "R")], (2,))
    with pytest.raises(Mismatch, match="pieces of"):
        put_together([held(torch.zeros(1), "S0"), held(torch.ones(2), "S0")], (2,))
    with pytest.raises(Mismatch, match="ranks differ"):
        put_together([held(torch.zeros(2), "S0"), held(torch.zeros(3), "R")], (2,))
