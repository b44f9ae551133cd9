"""The scan finds what is wrong, and operators of every family are right in every variant."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from dtensor_core.dispatch import dispatcher
from dtensor_core.rules import table
from dtensor_core.rules.families import pointwise
from tests.opdb import __main__ as command
from tests.opdb.__main__ import line
from tests.opdb.judge import tolerances
from tests.opdb.runs import RUNS
from tests.opdb.scan import DESYNC, ERROR, PASS, WRONG, Tally, scan

INFOS = {f"{info.name} {info.variant_test_name}".strip(): info for info in op_db}
OF_FAMILY = {
    "attention": ["nn.functional.scaled_dot_product_attention"],
    "bags": ["nn.functional.embedding_bag"],
    "batched": ["linalg.cholesky", "fft.fft"],
    "conv": ["nn.functional.conv2d", "nn.functional.max_pool2d"],
    "convert": ["to", "float"],
    "embedding": ["nn.functional.embedding"],
    "factory": ["zeros_like", "new_full"],
    "index": ["gather", "scatter_add", "index_add", "index_select", "cumsum", "sort", "topk"],
    "loss": ["nn.functional.cross_entropy", "nn.functional.mse_loss"],
    "matmul": ["mm", "addmm", "baddbmm"],
    "norm": ["nn.functional.layer_norm", "nn.functional.group_norm", "softmax"],
    "pointwise": ["add", "clamp", "where", "lerp"],
    "random": ["bernoulli", "nn.functional.dropout"],
    "reduction": ["sum", "amax", "var_mean", "linalg.vector_norm", "argmax"],
    "slices": ["narrow", "cat", "split", "slice_scatter"],
    "triangle": ["tril"],
    "view": ["reshape", "permute", "expand", "unflatten"],
}
CHECKED = [name for names in OF_FAMILY.values() for name in names]


def test_every_family_has_operators_that_are_checked() -> None:
    assert set(table.FAMILIES) <= set(OF_FAMILY), "a family has no operators in OF_FAMILY"


@pytest.mark.parametrize("run", ["uneven", "partial", "backward", "inplace", "out", "mesh2x2"])
@pytest.mark.parametrize("name", CHECKED)
def test_an_operator_is_right_in_every_variant(name: str, run: str) -> None:
    tally = scan(INFOS[name], RUNS[run], samples=2, combinations=4)
    assert tally.verdict in ("all", "untried"), tally.failures[:1]


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.TABLE, "cumsum", pointwise.OPAQUE)
    dispatcher.forget(torch.ops.aten.cumsum.default)
    tally = scan(INFOS["cumsum"], RUNS["uneven"], samples=6, combinations=4)
    dispatcher.forget(torch.ops.aten.cumsum.default)
    assert tally.outcomes[WRONG]
    assert not tally.outcomes[DESYNC]
    assert tally.outcomes[PASS]


def test_the_tolerance_is_that_of_the_dtype_unless_the_opinfo_asks_for_more() -> None:
    assert tolerances(INFOS["add"], torch.float32) == (1.3e-6, 1e-5)
    assert tolerances(INFOS["cholesky_inverse"], torch.float32) == (1e-4, 5e-3)


def test_a_line_says_what_passed_what_did_not_and_what_was_left_out() -> None:
    tallies = {
        "add": Tally(Counter({PASS: 3})),
        "resize_": Tally(Counter({PASS: 1, ERROR: 2}), reasons=Counter({"it keeps its shape": 2})),
        "empty": Tally(left_out=Counter({"no tensor": 4})),
    }
    assert line(RUNS["forward"], tallies) == (
        "forward: 1 operators pass in all that was tried, 1 in some, 0 in none, 1 untried; "
        "6 combinations: 4 pass, 0 wrong values, 0 desynchronised, 0 refused, 2 error; "
        "errors: 2 it keeps its shape; samples left out: 4 no tensor"
    )


@pytest.mark.parametrize("outcome", [PASS, ERROR, WRONG, DESYNC])
def test_wrong_values_and_ranks_out_of_step_are_a_failure_of_the_command(
    outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"add": Tally(Counter({outcome: 1}))}
    monkeypatch.setattr(command, "tallies_of", lambda *_: [("forward", found, 0.0)])
    monkeypatch.setattr(sys, "argv", ["opdb", "forward"])
    assert command.main() == (outcome in (WRONG, DESYNC))
