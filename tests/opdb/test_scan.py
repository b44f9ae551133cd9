"""The scan finds errors, and operators of every family are right in every variant."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from dtensor_core.dispatch.cache import CACHE
from dtensor_core.operators import table
from dtensor_core.operators.rules.elementwise import OPAQUE
from dtensor_core.operators.rules.row import Row
from tests.opdb import __main__ as command
from tests.opdb import derivatives
from tests.opdb.__main__ import line
from tests.opdb.cases import Case, cases
from tests.opdb.judge import difference, tolerances
from tests.opdb.refusals import REFUSALS, why_refused
from tests.opdb.runs import RUNS
from tests.opdb.scan import (
    BAD,
    DEADLINE_S,
    DESYNC,
    ERROR,
    PASS,
    REFUSED,
    WRONG,
    Tally,
    deadline_s,
    scan,
)

INFOS = {f"{info.name} {info.variant_test_name}".strip(): info for info in op_db}
# Run by `make test`; together they cover every family of rules.
CHECKED = (
    *("add", "clamp", "where", "lerp", "to", "float", "tril", "zeros_like", "new_full"),
    *("mm", "addmm", "baddbmm", "linalg.cholesky", "fft.fft", "linalg.vector_norm"),
    *("sum", "amax", "var_mean", "argmax", "cumsum", "sort", "topk", "softmax"),
    *("gather", "scatter_add", "index_add", "index_select", "slice_scatter"),
    *("narrow", "cat", "split", "reshape", "permute", "expand", "unflatten"),
    *("bernoulli", "nn.functional.dropout", "nn.functional.scaled_dot_product_attention"),
    *("nn.functional.layer_norm", "nn.functional.group_norm", "nn.functional.conv2d"),
    *("nn.functional.max_pool2d", "nn.functional.embedding", "nn.functional.embedding_bag"),
    *("nn.functional.cross_entropy", "nn.functional.mse_loss", "nn.functional.pixel_shuffle"),
    *("nn.functional.interpolate nearest", "nn.functional.unfold", "trace", "cdist"),
    *("nn.functional.grid_sample", "index_put", "masked_select", "masked_scatter", "take"),
)


class Rows(TorchDispatchMode):
    """Record the rule rows of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.rows.append(table.row_of(func))
        return func(*args, **(kwargs or {}))


def test_what_is_checked_takes_a_path_through_every_family() -> None:
    with Rows() as met:
        for name in CHECKED:
            for _ in cases(INFOS[name], RUNS["backward"], 2):
                pass
            for _ in cases(INFOS[name], RUNS["forward"], 2):
                pass
    missed = [
        name
        for name, family in table.FAMILIES.items()
        if not any(row is each for row in family.ROWS.values() for each in met.rows)
    ]
    assert not missed, f"CHECKED has no operator of {missed}"


@pytest.mark.parametrize("run", ["uneven", "partial", "backward", "inplace", "out", "mesh2x2"])
@pytest.mark.parametrize("name", CHECKED)
def test_an_operator_is_right_in_every_variant(name: str, run: str) -> None:
    tally = scan(INFOS[name], RUNS[run], samples=2, combinations=4)
    assert tally.verdict in ("all", "untried"), tally.failures[:1]


# Their formulas make plain tensors, or their ranks hold parts of what they have computed.
DIFFERENTIATED = (
    *("nn.functional.silu", "nn.functional.glu", "nn.functional.dropout2d", "scatter", "cumprod"),
    *("nn.functional.max_pool2d", "nn.functional.smooth_l1_loss", "mvlgamma mvlgamma_p_1", "sgn"),
    *("masked.prod", "svd_lowrank", "mul", "prod"),
)


@pytest.mark.parametrize("run", derivatives.BY_NAME)
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_derivatives_of_derivatives_are_those_of_one_device(name: str, run: str) -> None:
    tally = scan(INFOS[name], RUNS[run], samples=2, combinations=3)
    assert tally.verdict in ("all", "untried"), tally.failures[:1]


@pytest.mark.parametrize("run", ["uneven", "bfloat16", "complex64"])
def test_a_wrong_rule_is_found(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.TABLE, "cumsum", OPAQUE)
    CACHE.forget(torch.ops.aten.cumsum.default)
    tally = scan(INFOS["cumsum"], RUNS[run], samples=6, combinations=4)
    CACHE.forget(torch.ops.aten.cumsum.default)
    assert tally.outcomes[WRONG]
    assert not tally.outcomes[DESYNC]
    assert tally.outcomes[PASS]


def _case(name: str, dtype: torch.dtype, *args: torch.Tensor) -> Case:
    info = INFOS[name]
    structure = tree_flatten((args, {}))[1]
    given = [each.to(dtype) for each in args]
    call: Any = lambda args, kwargs, _: [info.op(*args, **kwargs)]  # noqa: E731
    return Case(info, call, given, structure, given, call(given, {}, 0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_is_rounded_on_the_way_is_right_and_what_is_left_out_is_not(
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(16, 64, generator=generator), torch.randn(64, generator=generator)
    case = _case("mv", dtype, x, y)
    pieces = zip(*(each.chunk(4, -1) for each in case.tensors), strict=True)
    parts = [x @ y for x, y in pieces]
    in_turn = parts[0] + parts[1] + parts[2] + parts[3]
    assert difference(case, [[in_turn]]) == ("", dtype is not torch.float32)
    for lost in range(4):
        others = sum(part for number, part in enumerate(parts) if number != lost)
        assert difference(case, [[others]])[0]
    assert difference(case, [[in_turn + parts[0] / 8]])[0]


@pytest.mark.parametrize("agrees", [True, False])
def test_a_result_without_a_digit_beyond_doubt_is_right_if_it_is_in_wider_numbers(
    agrees: bool,
) -> None:
    case = _case("dot", torch.float32, torch.tensor([0.1, 0.7]), torch.tensor([0.7, -0.1]))
    case.tensors = case.leaves = [1e4 * each for each in case.tensors]
    case.expected = case.run(*case.arguments(case.leaves), 0)
    exact = float(case.exact[0])
    moved = max(float(abs(nudged[0] - case.expected[0])) for nudged in case.nudged())
    assert abs(exact) < moved  # no digit is sure
    found = difference(case, [[case.expected[0] + moved / 2]], lambda: agrees)
    assert (found == ("", True)) == agrees
    assert difference(case, [[case.expected[0] + 1e4 * moved]], lambda: agrees)[0]


def test_numbers_are_nudged_in_forward_mode_as_well() -> None:
    case = next(cases(INFOS["cov"], RUNS["jvp of grad"], 1))
    assert [len(each) for each in case.nudged()] == 16 * [len(case.expected)]


def test_rounding_is_no_excuse_where_it_decides_half_of_the_digits() -> None:
    x, y = torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0 + 2**-23])
    case = _case("dot", torch.float32, x, y)
    assert case.expected[0] == 2**-23
    assert difference(case, [[case.expected[0] + 1e-4]])[0]


def test_the_tolerance_is_that_of_the_dtype_unless_the_opinfo_asks_for_more() -> None:
    assert tolerances(INFOS["add"], torch.float32) == (1.3e-6, 1e-5)
    assert tolerances(INFOS["cholesky_inverse"], torch.float32) == (1e-4, 5e-3)


def test_a_line_reports_what_passed_what_did_not_and_what_was_left_out() -> None:
    tallies = {
        "add": Tally(Counter({PASS: 3}), rounded=1),
        "resize_": Tally(
            Counter({PASS: 1, ERROR: 2, REFUSED: 1}),
            reasons=Counter({"it keeps its shape": 2}),
            refusals=Counter({"it has no indices": 1}),
        ),
        "empty": Tally(left_out=Counter({"no tensor": 4})),
    }
    assert line(RUNS["forward"], tallies) == (
        "forward: 1 operators pass in all that was tried, 1 in some, 0 in none, 1 untried; "
        "7 combinations: 4 pass, 0 wrong values, 0 desynchronised, 1 refused, 2 error; "
        "1 pass within rounding only; errors: 2 it keeps its shape; refused: 1 it has no indices; "
        "samples left out: 4 no tensor"
    )


@pytest.mark.parametrize("outcome", [PASS, REFUSED, ERROR, WRONG, DESYNC])
def test_wrong_values_errors_and_ranks_out_of_step_are_a_failure_of_the_command(
    outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"add": Tally(Counter({outcome: 1}))}
    monkeypatch.setattr(command, "tallies_of", lambda *_: [("forward", found, 0.0)])
    monkeypatch.setattr(sys, "argv", ["opdb", "forward"])
    assert command.main() == (outcome in BAD)


REFUSED_IN = {
    "resize_": "forward",
    "addbmm": "inplace",
    "unravel_index": "int64",
    "nn.functional.linear_cross_entropy chunked_none": "backward",
    "to_sparse": "grad of grad",
}


@pytest.mark.parametrize("name", REFUSED_IN)
def test_expected_errors_are_raised_and_named_in_the_documentation(name: str) -> None:
    """An entry that has become stale, or that hides other errors, is found here."""
    tally = scan(INFOS[name], RUNS[REFUSED_IN[name]], samples=8, combinations=2)
    assert tally.outcomes[REFUSED]
    assert not tally.failures
    page = Path(__file__).parents[2] / "docs" / "moving-over.md"
    assert f"`{INFOS[name].name.rpartition('.')[2]}" in page.read_text()


def test_every_expected_error_of_an_operator_is_tested() -> None:
    operators = [name for each in REFUSALS for name in each.operators]
    assert sorted(operators) == sorted(name.partition(" ")[0] for name in REFUSED_IN)


def test_an_error_of_another_text_or_operator_is_not_expected() -> None:
    text = "RuleError: the shape of a written argument cannot change"
    assert why_refused("resize_", text) == "an in-place result keeps its shape"
    assert why_refused("add", text) is None
    assert why_refused("resize_", "RuleError: no placement") is None


def test_the_deadline_of_a_call_grows_with_the_time_of_its_kernels() -> None:
    case = _case("mul", torch.float32, torch.ones(2), torch.ones(2))
    assert deadline_s(case, RUNS["forward"]) == DEADLINE_S
    assert deadline_s(replace(case, seconds=10.0), RUNS["mesh2x2"]) == DEADLINE_S + 2 * 4 * 10.0
    (timed, *_) = cases(INFOS["mul"], RUNS["forward"], 1)
    assert timed.seconds > 0
