"""Every row of the table against the full run; and the checker against injected errors.

`RULE_SAMPLES=40 make test PYTEST_ARGS=tests/dtensor_core/operators` checks more calls of each row.
"""

from __future__ import annotations

import os

import pytest
import torch

from dtensor_core.errors import NotationError
from dtensor_core.operators import table
from dtensor_core.operators.pointwise import rule as pointwise_family
from dtensor_core.operators.reduction.rule import reduction
from dtensor_core.operators.rules.elementwise import OPAQUE, pointwise
from dtensor_core.operators.rules.row import Row, notation
from dtensor_core.operators.rules.rule_builders import replicated_rule
from dtensor_core.operators.rules.sharding_rule import PASSING, Candidate
from dtensor_core.placement import Partial, Shard
from tests.dtensor_core.operators.brute_force import REDUCTIONS, Offer, Sample, check, offers
from tests.dtensor_core.operators.recorded import recorded
from tests.dtensor_core.operators.samples import SAMPLES

NUM_SAMPLES = int(os.environ.get("RULE_SAMPLES", "3"))
# Their candidates communicate themselves: rows change ranks, or ranks sum their results.
EXCHANGING = {"slice", "slice_backward", "slice_scatter", "cat", "split", "split_with_sizes"}
EXCHANGING |= {"unsafe_split", "unsafe_split_with_sizes"}
EXCHANGING_FAMILIES = (
    "attention convolution interpolation normalization padding pooling roll_flip_repeat scan "
    "softmax sorting unfold variance"
)
EXCHANGING |= {name for each in EXCHANGING_FAMILIES.split() for name in table.FAMILIES[each].ROWS}
# Fused optimizers and unscaling take lists, and are checked as list operators.
ROWS = {
    name for name in table.TABLE if not name.startswith(("_fused_ad", "_fused_s", "_amp_foreach_"))
}
GONE = {"cholesky"}  # operators of 2.13 that 2.14 no longer has
ROWS -= {name for name in GONE if not hasattr(torch.ops.aten, name)}
SAMPLES_FILE = "tests/dtensor_core/operators/samples.py"
# Operators that need all elements, or whose result's shape or number of draws depends on data.
REPLICATED = {name for name, row in table.TABLE.items() if row.build is replicated_rule}
REPLICATED |= {
    "as_strided_copy",
    "as_strided_scatter",
    "poisson",
    "binomial",
    "_standard_gamma",
    "_sample_dirichlet",
}
SUMMING = {"nll_loss_forward", "nll_loss2d_forward"}


def samples_of(name: str) -> list[Sample]:
    """Return handwritten samples, and some from torch's operator database."""
    return SAMPLES.get(name, []) + recorded().get(name, [])[:NUM_SAMPLES]


@pytest.mark.parametrize("name", sorted(ROWS))
def test_every_candidate_of_a_row_gives_the_full_run(name: str) -> None:
    samples = samples_of(name)
    assert samples, f"nothing calls {name}: write a sample into {SAMPLES_FILE}"
    sharded, passed = False, set[str]()
    for sample in samples:
        for offer in offers(sample):
            passed |= passing(offer)
            sharded |= any(each.sharded_dim is not None for each in offer.candidate.inputs)
            try:
                communicates = check(sample, offer)
            except Exception as error:
                raise AssertionError(f"{sample.op} on {sample.ranks}: {offer.candidate}") from error
            assert not communicates or name in EXCHANGING | SUMMING
    assert sharded is (name not in REPLICATED), "a row is tried in parts"
    assert passed == declared(table.TABLE[name]), "what passes is what the row declares"


def passing(offer: Offer) -> set[str]:
    """Reductions that a candidate passes through by algebra."""
    if offer.candidate.sharding is not None or offer.candidate in offer.rule.extra:
        return set()
    return {each.reduce_op for each in offer.candidate.inputs if isinstance(each, Partial)}


def declared(row: Row) -> set[str]:
    """Reductions that a row passes through by its algebra, among those tested."""
    found = {each for word in row.algebra.split() for each in PASSING.get(word, (word,))}
    if "all" in found:
        return set(REDUCTIONS)
    return {"norm2" if each == "norm" else each for each in found}


def wrong(monkeypatch: pytest.MonkeyPatch, name: str, row: Row) -> list[Candidate]:
    """Return the candidates of an injected row that the checker rejects."""
    monkeypatch.setitem(table.TABLE, name, row)
    found: list[Candidate] = []
    for sample in samples_of(name):
        for offer in offers(sample):
            try:
                check(sample, offer)
            except (AssertionError, RuntimeError):
                found.append(offer.candidate)
    return found


def test_a_sharding_of_what_must_be_replicated_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    found = wrong(monkeypatch, "cumsum", OPAQUE)
    assert any(each.inputs[0].sharded_dim is not None for each in found)


def test_a_result_sharded_along_another_dim_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    found = wrong(monkeypatch, "mm", notation("m k, k n -> n m"))
    assert {each.outputs for each in found} >= {(Shard(0),), (Shard(1),)}


def test_a_wrong_reduction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    found = wrong(monkeypatch, "sum", reduction("max", "linear"))
    assert found
    assert {each.outputs for each in found} == {(Partial("max"),)}


def test_a_partial_that_can_not_pass_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    found = wrong(monkeypatch, "tanh", pointwise("0", "linear"))
    assert {each.inputs for each in found} == {(Partial("sum"),), (Partial("avg"),)}


def test_an_extreme_that_can_not_pass_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    found = wrong(monkeypatch, "mm", notation("m k, k n -> m n", algebra="max"))
    assert any(Partial("max") in each.inputs for each in found)


def test_a_local_operator_that_ignores_where_it_is_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = wrong(monkeypatch, "triu", OPAQUE)
    assert found
    assert {each.inputs[0].sharded_dim for each in found} >= {0, 1}


def test_a_row_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    doubled = {**pointwise_family.ROWS, "mm": OPAQUE}
    monkeypatch.setattr(pointwise_family, "ROWS", doubled)
    with pytest.raises(NotationError, match="operator mm has two rows"):
        table._gather()


def test_in_place_and_out_variants_use_the_functional_row() -> None:
    aten = torch.ops.aten
    assert table.row_of(aten.add_.Tensor) is table.row_of(aten.add.Tensor)
    assert table.row_of(aten.mm.out) is table.row_of(aten.mm.default)


def test_an_overload_row_goes_before_its_operator() -> None:
    assert table.row_of(torch.ops.aten.max.dim) is table.TABLE["max.dim"]


def test_pointwise_operators_of_torch_need_no_row() -> None:
    assert table.row_of(torch.ops.aten.digamma.default) is OPAQUE


def test_an_operator_without_row_has_none() -> None:
    assert table.row_of(torch.ops.aten.linalg_lstsq.default) is None


def test_every_sample_has_a_row() -> None:
    assert set(SAMPLES) <= set(table.TABLE)
