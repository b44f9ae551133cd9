"""Random programs compute on a mesh what they compute on a single device.

A program has 5 to 30 statements: operators of all families and of torch's operator database, over
tensors with random layouts. Every result, the effects of in-place operators, all gradients, and
errors that a single device raises are compared. A failure is shrunk, and printed as a script.
`make programs` runs 20,000; this module runs a few of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from math import prod

import pytest
import torch

from dtensor_core import DTensor
from dtensor_core.dispatch.cache import CACHE
from dtensor_core.operators import table
from dtensor_core.operators.rules.row import Row
from dtensor_core.testing import kept_mesh, run_threads
from tests.programs import __main__ as command
from tests.programs import lists, parts, run, storage
from tests.programs.database import operators
from tests.programs.draw import MESHES, Draw
from tests.programs.generate import OWN, generate
from tests.programs.given import MEMORIES, Given, placements_of
from tests.programs.lay import Held, Mismatch, lay, put_together
from tests.programs.program import Program, Statement
from tests.programs.run import OtherStride, check, is_rounding, is_unstable, on_processes
from tests.programs.shrink import shrink
from tests.programs.tally import Tally, fails_alike, failure, tally_of

pytestmark = pytest.mark.filterwarnings("ignore")  # operators that torch has deprecated

PROGRAMS = 40
ON_PROCESSES = range(0, PROGRAMS, 20)
RARE = {
    "attention", "distance", "embedding", "embedding_bag", "grid_sample", "masked_scatter",
    "pixel_shuffle",
}  # fmt: skip
"""Small families, which are used by more programs than run here."""


@pytest.fixture(scope="module")
def tally() -> Tally:
    """Outcomes of the programs that are run here."""
    return tally_of(range(PROGRAMS))


@pytest.mark.timeout(1200)
def test_programs_compute_on_a_mesh_what_they_compute_on_one_device(tally):
    for seed, text, script in tally.failures:
        pytest.fail(f"seed {seed}: {text}\n\n{script}", pytrace=False)
    assert tally.unstable <= PROGRAMS // 50


@pytest.mark.timeout(1200)
def test_programs_on_processes_compute_what_they_compute_on_one_device():
    for seed in ON_PROCESSES:
        program = generate(seed)
        error = failure(program, on_processes)
        if error is not None and not is_rounding(error):
            pytest.fail(f"{error}\n\n{program.script()}", pytrace=False)


def test_a_seed_always_makes_the_same_program():
    assert generate(3) == generate(3)
    assert generate(3) != generate(4)


@pytest.mark.timeout(1200)  # for the case that this test is the first to use the tally
def test_the_programs_have_all_families_meshes_layouts_and_kinds_of_memory(tally):
    assert set(table.FAMILIES) - set(tally.families) <= RARE, tally.families
    words = {"R", "S", "Tx", "Psum", "Pmax", "Pmin", "Pavg", "Pproduct", "nested", "empty"}
    assert words | set(MEMORIES) | {"normal", "exact", "special"} <= set(tally.layouts)
    dtypes = {"float64", "float32", "bfloat16", "float16", "int64", "bool", "complex128", "uint8"}
    assert dtypes <= set(tally.layouts)
    assert {name.count("x") for name in tally.layouts if name.startswith("mesh")} == {0, 1, 2}
    assert tally.differentiated > PROGRAMS // 2
    assert tally.raising


def test_every_operator_of_the_database_is_drawn():
    size = len(operators())
    turns = Counter((seed * OWN + n) % size for seed in range(size) for n in range(OWN))
    assert set(turns.values()) == {OWN}


def a_program(*code: str) -> Program:
    given = tuple(
        Given(f"a{n}", (4, 3), torch.float64, 5, n, True, placements_of(layout))
        for n, layout in enumerate(("S0 R", "R Psum"))
    )
    statements = tuple(Statement((f"v{n}",), text) for n, text in enumerate(code))
    return Program((2, 2), given, statements, (f"v{len(code) - 1}",))


def faulty_softmax(op, inputs, outputs):
    """Return a local operator that is wrong on a single rank."""
    return lambda *args: op(*args) + (inputs[0].coords[0] == 1)


def test_a_wrong_value_on_one_rank_is_detected_and_shrunk_to_the_operator_at_fault(monkeypatch):
    program = a_program("a0 + a1", "v0.exp()", "v1 * 2", "torch.softmax(v1, 1)", "v3 + v2")
    check(program)
    row = table.TABLE["_softmax"]
    faulty = Row(lambda call: replace(row.build(call), local=faulty_softmax), "faulty")
    monkeypatch.setitem(table.TABLE, "_softmax", faulty)
    CACHE.forget(torch.ops.aten._softmax.default)
    try:
        error = failure(program)
        assert isinstance(error, Mismatch)
        assert str(error).startswith("v3, of v3 = torch.softmax(v1, 1)")
        small = shrink(program, fails_alike(error))
    finally:
        CACHE.forget(torch.ops.aten._softmax.default)
    assert [str(statement) for statement in small.statements][1:] == [
        "v1 = v0.exp()",
        "v3 = torch.softmax(v1, 1)",
    ]
    assert small.mesh_shape == (2,)
    assert small.differentiated == ()


@pytest.mark.usefixtures("preloaded")
def test_a_program_prints_as_a_script_that_runs():
    program = a_program("a0 + a1", "redistribute(v0, 'R S1')")
    done = subprocess.run(
        [sys.executable, "-c", program.script()], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "gradient of a0 DTensor" in done.stdout


@pytest.mark.parametrize(
    "layout",
    [
        "R R",
        "S0 S0",
        "S1 S0",
        "S1 Psum",
        "Pavg Pavg",
        "R Pmax",
        "T0x2 S0",
        "T0x3 T0x2",
        "Pproduct R",
    ],
)
def test_what_is_laid_out_is_put_together_again(layout):
    given = Given("a0", (5, 3), torch.float64, 5, 0, False, placements_of(layout))
    held = run_threads(lambda: Held.of(lay(given, kept_mesh((2, 3)))), 6)
    torch.testing.assert_close(put_together(held, (2, 3)), given.full())


def test_replicas_that_differ_and_pieces_of_a_wrong_size_are_detected():
    def held(local: torch.Tensor, layout: str) -> Held:
        return Held(local, (3,), (1,), local.dtype, placements_of(layout), False)

    with pytest.raises(Mismatch, match="replicas differ"):
        put_together([held(torch.zeros(3), "R"), held(torch.ones(3), "R")], (2,))
    with pytest.raises(Mismatch, match="pieces of"):
        put_together([held(torch.zeros(1), "S0"), held(torch.ones(2), "S0")], (2,))
    with pytest.raises(Mismatch, match="ranks differ"):
        put_together([held(torch.zeros(2), "S0"), held(torch.zeros(3), "R")], (2,))


def test_a_result_with_another_memory_layout_is_detected(monkeypatch):
    program = a_program("a0.t()", "v0.clone()")
    check(program)
    clone = DTensor.clone
    monkeypatch.setattr(DTensor, "clone", lambda x: clone(x.contiguous()))
    with pytest.raises(OtherStride, match="stride"):
        check(program)


def test_what_follows_from_a_stride_of_torchs_meta_kernels_is_left_out(monkeypatch):
    program = a_program("a0.double().t()", "v0.clone()", "v1.t().view(-1)")
    clone = DTensor.clone
    monkeypatch.setattr(DTensor, "clone", lambda x: clone(x.contiguous()))
    with pytest.raises(OtherStride, match="stride"):
        check(program)
    monkeypatch.setattr(run, "is_meta_stride", lambda *_: True)
    compared, left_out = check(program)
    assert compared.targets() == {"v0"}
    assert left_out == ["torch's meta kernel has other strides"]


def test_a_view_that_a_write_has_detached_is_not_compared():
    assert generate(15332)


def test_an_error_is_rounding_if_the_program_without_what_is_documented_is_unstable():
    """The random numbers are left out, and the bits of a sum that rounds are left."""
    pending = Given("a0", (5, 5), torch.float64, 5, 375240908, False, placements_of("Psum Psum"))
    made = a_program("op('exponential', a0, 1)", "a0.view(torch.int16)")
    program = replace(made, mesh_shape=(2, 3), given=(pending,), differentiated=())
    error = failure(program)
    assert error is not None
    assert not is_unstable(program)
    assert is_rounding(error)


def test_what_rounding_of_a_result_decides_is_unstable():
    given = replace(a_program("a0 + a1").given[0], values="exact")
    made = a_program("a0 * 1", "v0.exp()", "v1.log() - v0", "v2 > 0")
    program = replace(made, given=(given,), differentiated=())
    assert is_unstable(program)
    assert not is_unstable(program.without({"v2"}))


def documented() -> list[tuple[str, Program]]:
    matrix = Given("a0", (3, 3), torch.float64, 5, 0, False, placements_of("S0"))
    hidden = (
        Statement(("v0",), "a0.flatten()"),
        Statement(("v1",), "a0.data.mul_(2)", in_place=True),
    )
    special = Given("a0", (5, 10), torch.float64, 5, 941687181, True, placements_of("R"), "special")
    expanded = Given("a0", (3, 3), torch.float64, 5, 376340624, False, placements_of("S0"))
    factor = Given("a1", (4, 1), torch.float64, 5, 451151060, False, placements_of("R"))
    norm = (
        Statement(("v0",), "torch.linalg.vector_norm(a0, 1, [0, 1], keepdim=True).expand([4, 1])"),
        Statement(("v1",), "v0.clone().mul_(a1)", in_place=True),
    )
    return [
        ("signs of norms that are written to", Program((2,), (expanded, factor), norm, ())),
        ("copies of what is written through .data", Program((2,), (matrix,), hidden, ())),
        (
            "gradients with two formulas",
            Program((2,), (special,), (Statement(("v0",), "a0.prod()"),), ("v0",)),
        ),
    ]


@pytest.mark.parametrize(("reason", "program"), documented(), ids=("norm", "data", "prod"))
def test_a_value_that_is_documented_to_differ_is_left_out(monkeypatch, reason, program):
    compared, left_out = check(program)
    assert left_out == [reason]
    assert compared.targets() == {"v0"}
    monkeypatch.setattr(run, "without_documented_values", lambda _: None)
    with pytest.raises(Mismatch):
        check(program)


def refusing(code: str) -> Program:
    program = a_program("a0 + a1")
    statements = (*program.statements, Statement(("e1",), code, raises=True))
    return replace(program, statements=statements)


def test_what_one_device_refuses_every_rank_is_to_refuse_alike(monkeypatch):
    check(refusing("v0.view(5)"))
    monkeypatch.setattr(DTensor, "view", lambda x, size: x)
    with pytest.raises(Mismatch, match="one device raises"):
        check(refusing("v0.view(5)"))

    def refuse(x, size):
        raise ValueError(f"{x.to_local().shape}")

    monkeypatch.setattr(DTensor, "view", refuse)
    program = replace(refusing("v0.view(5)"), mesh_shape=(4, 1))
    with pytest.raises(Mismatch, match="ranks raise"):
        check(replace(program, given=tuple(replace(g, shape=(5, 3)) for g in program.given)))


def test_a_rank_that_raises_alone_is_detected_and_waits_for_no_rank(monkeypatch):
    def alone(x):
        if x.device_mesh.get_coordinate()[0] == 1:
            raise ValueError("not here")
        return x.full_tensor()

    monkeypatch.setattr(DTensor, "sin", alone)
    assert failure(a_program("a0 + a1", "v0.sin()")) is not None


def test_the_summary_lists_what_was_run_and_what_was_not():
    tally = Tally(programs=2, statements=9, operators=Counter({"add": 7}), unstable=1)
    tally.families["view"] = 4
    lines = list(command.summary(tally))
    assert lines[0] == (
        "2 programs of 9 statements, 0 with gradients, 0 statements that one device refuses; "
        "0 failures"
    )
    assert "operators run, by family of rules: view 4" in lines
    assert lines[-1].endswith("1 of them 5 times or more, the median one 0 times")
    tally.programs = 20_000
    tally.refused["addmm", "not stable"] = 3
    assert "  addmm: 0 times; not stable (3)" in list(command.summary(tally))


@pytest.mark.parametrize("failures", [[], [(3, "wrong", "script")]])
def test_a_failure_is_one_of_the_command(failures, monkeypatch, capsys):
    found = Tally(programs=1, failures=failures)
    monkeypatch.setattr(command, "tallies", lambda *_: iter([found]))
    monkeypatch.setattr(sys, "argv", ["programs", "--count", "1"])
    assert command.main() == bool(failures)
    assert ("---- seed 3: wrong\n\nscript" in capsys.readouterr().out) == bool(failures)


class Pool:
    """Executes tasks at once, as a process pool whose process dies of seed 7."""

    def __init__(self) -> None:
        self.died = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function, seeds) -> Future:
        future = Future()
        self.died = self.died or 7 in seeds
        if self.died:
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(Tally(programs=len(seeds)))
        return future


@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_that_dies_costs_its_seed_alone_and_the_others_run_on_together(
    monkeypatch, processes
):
    pools = []

    def pool(processes: int) -> Pool:
        pools.append(processes)
        return Pool()

    monkeypatch.setattr(parts, "_pool", pool)
    chunks = [range(start, start + 3) for start in range(0, 60, 3)]
    found = Tally()
    for each in parts.tallies(chunks, processes):
        found += each
    assert found.programs == 60
    assert found.failures == [(7, "the process died", "")]
    assert len(pools) <= 2 + 3 * 2 * processes


@pytest.mark.usefixtures("preloaded")
def test_a_seed_makes_the_same_program_whatever_the_hashes_of_texts_are(monkeypatch):
    code = "from tests.programs.generate import generate; print(generate(3).script())"
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout.strip() == generate(3).script()


def test_programs_have_lists_numbers_plain_tensors_and_autocast():
    drawn = Draw(0)
    code = "\n".join(
        family(drawn)
        for family in (*lists.FAMILIES, storage.written_view)
        for _ in range(60)
        if drawn.values
    )
    for mark in ("foreach('maximum', ", "foreach('copy_'", "with_plain(torch.where", "autocast("):
        assert mark in code
    assert re.search(r"foreach\('\w+', \[\w+, \w+\], \[[-.\d]+, [-.\d]+\]\)", code)
    assert re.search(r"\.copy_\(-?[\d.]+\)", code)
    assert {prod(mesh) for mesh in MESHES} == set(range(1, 9))
    assert max(map(len, MESHES)) == 3
