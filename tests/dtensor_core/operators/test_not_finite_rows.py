"""Pending sums through a linear operator whose other arguments are not finite, for all rows.

docs/operators.md guarantees that an element of the result is finite if and only if it is finite on
a single device; which of the infinities and nan it is may differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from dtensor_core.operators import table
from dtensor_core.operators.rules.elementwise import pointwise
from dtensor_core.operators.table import TABLE
from dtensor_core.placement import Partial
from tests.dtensor_core.operators.brute_force import Offer, Sample, check, offers
from tests.dtensor_core.operators.test_table import ROWS, passing, samples_of

LINEAR = sorted(name for name in ROWS if "linear" in TABLE[name].algebra.split())
SINGULAR = (math.inf, -math.inf, math.nan, 0.0)


def _with_singular_factors(sample: Sample, offer: Offer) -> Iterator[Sample]:
    """Yield calls with non-finite values in a floating argument that is not Partial."""
    leaves, structure = tree_flatten((sample.args, sample.kwargs))
    tensors = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    for place, placement in zip(tensors, offer.candidate.inputs, strict=True):
        leaf = leaves[place]
        if isinstance(placement, Partial) or not leaf.is_floating_point() or not leaf.numel():
            continue
        changed = leaf.clone(memory_format=torch.contiguous_format)
        flat = changed.view(-1)
        for number, value in enumerate(SINGULAR[: flat.numel()]):
            flat[number * (flat.numel() // len(SINGULAR) or 1)] = value
        args, kwargs = tree_unflatten([*leaves[:place], changed, *leaves[place + 1 :]], structure)
        yield replace(sample, args=args, kwargs=kwargs)


def _is_finite_alike(value: torch.Tensor, full: torch.Tensor, near: float) -> None:
    finite = full.isfinite()
    assert torch.equal(value.isfinite(), finite)
    torch.testing.assert_close(value[finite], full[finite], atol=near, rtol=near)


@pytest.mark.parametrize("name", LINEAR)
def test_a_result_of_partial_sums_is_finite_where_that_of_one_device_is(name: str) -> None:
    for sample in samples_of(name):
        for offer in offers(sample, ("sum", "avg")):
            if passing(offer):
                for changed in _with_singular_factors(sample, offer):
                    try:
                        check(changed, offer, _is_finite_alike)
                    except Exception as error:
                        message = f"{changed.op} of {changed.args}: {offer.candidate}"
                        raise AssertionError(message) from error


def test_a_factor_that_hides_an_overflow_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.TABLE, "minimum", pointwise("0", "linear"))
    with pytest.raises(AssertionError, match="minimum"):
        test_a_result_of_partial_sums_is_finite_where_that_of_one_device_is("minimum")
