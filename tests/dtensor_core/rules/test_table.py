"""The whole table, row by row, against the full run; and the checker against planted errors."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

from dtensor_core.errors import NotationError
from dtensor_core.placement import Partial, Replicate, Shard, _StridedShard
from dtensor_core.rules import table
from dtensor_core.rules.families import pointwise
from dtensor_core.rules.row import notation
from dtensor_core.rules.rule import Candidate
from tests.dtensor_core.rules.brute_force import Sample, check, offered
from tests.dtensor_core.rules.samples import SAMPLES

RANKS = 3
# Fused optimizers and unscaling are checked as list operators.
ROWS = {name for name in table.TABLE if not name.startswith(("_fused_", "_amp_foreach_"))}
PRESENT = (
    Replicate(),
    Shard(0),
    _StridedShard(0, split_factor=2),
    *(Partial(op) for op in ("sum", "avg", "max", "min", "norm2")),
)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_every_candidate_of_a_row_gives_the_full_run(name: str) -> None:
    for sample in SAMPLES[name]:
        seen = set()
        for present in PRESENT:
            for candidate in offered(sample, RANKS, present):
                if candidate in seen or _has_unsplittable_partial(candidate, sample):
                    continue
                seen.add(candidate)
                try:
                    check(sample, candidate, RANKS)
                except Exception as error:
                    raise AssertionError(f"{sample.op} {candidate}") from error


def _has_unsplittable_partial(candidate: Candidate, sample: Sample) -> bool:
    """Some reductions have no sample split, and norms only one of numbers that are not negative."""
    names = ("sum", "avg", "max", "min", "norm2")
    partials = [p for p in candidate.inputs if isinstance(p, Partial)]
    if any(p.reduce_op == "norm2" for p in partials):
        tensors = [leaf for leaf in tree_leaves(sample.args) if isinstance(leaf, torch.Tensor)]
        return any(bool((tensor < 0).any()) for tensor in tensors)
    return any(p.reduce_op not in names for p in partials)


def test_a_wrong_row_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = notation("m k, k n -> m n", algebra="max")
    monkeypatch.setitem(table.TABLE, "mm", wrong)
    (sample,) = SAMPLES["mm"]
    caught = 0
    for candidate in offered(sample, RANKS, Partial("max")):
        try:
            check(sample, candidate, RANKS)
        except AssertionError:
            caught += 1
    assert caught == 2


def test_a_row_that_lets_a_nonlinear_operator_take_partials_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(table.TABLE, "tanh", pointwise.pointwise("0", "linear"))
    sample = SAMPLES["tanh"][0]
    (candidate,) = [c for c in offered(sample, RANKS, Partial()) if c.inputs[0].is_partial()]
    with pytest.raises(AssertionError):
        check(sample, candidate, RANKS)


def test_a_row_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    doubled = {**pointwise.ROWS, "mm": pointwise.OPAQUE}
    monkeypatch.setattr(pointwise, "ROWS", doubled)
    with pytest.raises(NotationError, match="operator mm has two rows"):
        table._gather()


def test_in_place_and_out_variants_use_the_functional_row() -> None:
    aten = torch.ops.aten
    assert table.row_of(aten.add_.Tensor) is table.row_of(aten.add.Tensor)
    assert table.row_of(aten.mm.out) is table.row_of(aten.mm.default)


def test_an_overload_row_goes_before_its_operator() -> None:
    assert table.row_of(torch.ops.aten.max.dim) is table.TABLE["max.dim"]


def test_pointwise_operators_of_torch_need_no_row() -> None:
    assert table.row_of(torch.ops.aten.digamma.default) is pointwise.OPAQUE


def test_an_operator_without_row_has_none() -> None:
    assert table.row_of(torch.ops.aten.linalg_lstsq.default) is None


def test_every_sample_has_a_row() -> None:
    assert set(SAMPLES) == ROWS
