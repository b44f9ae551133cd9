"""Programs in any layout agree with a single device: no false alarm."""

from __future__ import annotations

import os
from functools import cache

import pytest
import torch

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.values import compare, replicas
from tests.values.layouts import LAYOUTS
from tests.values.programs import recorded

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NUM_STEPS = int(os.environ.get("VALUES_STEPS", "2"))
"""Steps of each run, all recorded. `make check-values` runs ten."""
_WITH_EMPTY_PARTS = ("dense fsdp uneven", "convolution dp uneven", "tables dp uneven")
"""Layouts in which a rank sends nothing in an exchange; thread ranks record no output of it."""


@cache
def _on_one_device(first: str, dtype: str) -> Frames:
    one = LAYOUTS[first]
    return recorded(one.model, dtype=DTYPES[dtype], num_steps=NUM_STEPS, **one.options)


def on_one_device(layout: str, dtype: str) -> Frames:
    """Return the run on a single device, which layouts of a model with the same options share."""
    of = LAYOUTS[layout]
    first = next(
        name
        for name, each in LAYOUTS.items()
        if (each.model, each.options) == (of.model, of.options)
    )
    return _on_one_device(first, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_agrees_with_one_device(layout: str, dtype: str) -> None:
    of = LAYOUTS[layout]
    run = recorded(of.model, layout=of, dtype=DTYPES[dtype], num_steps=NUM_STEPS, **of.options)
    found = compare(on_one_device(layout, dtype), run)
    assert found.agrees, found.fault
    assert set(found.pairs["step"]) == set(range(NUM_STEPS))
    assert found.num_paired > 100
    # Norms that are not reduced yet are the only values without a counterpart.
    assert found.num_unknown <= 0.1 * found.num_paired
    assert replicas(run).empty
    if layout not in _WITH_EMPTY_PARTS:
        assert not CATALOG["consistency"].function(run)["is_fault"].any()


def test_the_layouts_are_twenty_of_five_models() -> None:
    assert len(LAYOUTS) >= 20
    assert len({each.model for each in LAYOUTS.values()}) == 5
