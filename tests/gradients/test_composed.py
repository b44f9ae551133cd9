"""Faults of parallelism in composition are found with their module or parameter and axis."""

from __future__ import annotations

from functools import cache

import pytest

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.comparisons.compared import compare
from commtrace.analyze.gradients import gradients
from tests.gradients.composed import recorded

COMPARED = {
    # fault: (role, module)
    "scattered over the wrong group": ("output", "scatter"),
    "gathered over the group of the build": ("output", "decoder"),
    "mask of the wrong group": ("output", "decoder"),
    "gradient of a gathered output reduced": ("output_gradient", "decoder"),
    "gathered logits taken for a shard": ("output", "loss"),
    "divided by local counts": ("output", "loss"),
}


@cache
def on_one_device() -> Frames:
    return recorded(is_parallel=False)


def test_the_right_program_agrees_and_is_reduced_right() -> None:
    run = recorded()
    found = compare(on_one_device(), run)
    assert found.agrees, found.fault
    assert found.num_unknown == 0
    table = gradients(run)
    assert set(table["state"]) == {"right"}
    assert {"gradient", "gradient norm", "clipping"} <= set(table["what"])


@pytest.mark.parametrize("fault", COMPARED)
def test_a_fault_of_values_is_found_at_its_module(fault: str) -> None:
    found = compare(on_one_device(), recorded(fault)).fault
    assert found is not None
    assert (found.right["role"], found.right["module"]) == COMPARED[fault]
    # Gradients pass through the modules behind, whose communication is named, too.
    assert found.is_certain or "gather" in found.doubt


def test_a_gradient_that_is_reduced_where_it_is_replicated_is_twice_what_it_should_be() -> None:
    found = compare(on_one_device(), recorded("gradient of a gathered output reduced")).fault
    assert found is not None
    assert found.relation.factor == pytest.approx(2)
    assert "tp" in found.relation.text
    assert "gather" in {call["module"] for call in found.communication}


def test_a_weight_of_all_heads_lacks_the_contributions_of_other_heads() -> None:
    run = recorded("norm of heads not reduced")
    table = gradients(run)
    wrong = table[table["is_fault"]]
    assert set(wrong["name"]) == {"decoder.norm"}
    assert set(wrong["state"]) == {"missing"}
    assert wrong["explanation"].str.contains("not over tp").all()
    found = compare(on_one_device(), run).fault
    assert found is not None
    assert (found.right["role"], found.right["name"]) == ("unclipped", "decoder.norm")
    # The ranks' own gradients add up to the right one, so that the fault is behind them.
    assert found.is_certain
    assert {call["axis"] for call in found.communication if call["has_carried"]} == {"dp"}
    assert "of 2 of 4 different contributions, times 1" in found.reduction
    assert CATALOG["consistency"].function(run)["is_fault"].any()


def test_a_norm_without_the_sinks_of_other_ranks_is_named() -> None:
    table = gradients(recorded("sinks left out of the norm"))
    norm = table[table["what"] == "gradient norm"]
    assert set(table.loc[table["what"] == "gradient", "state"]) == {"right"}
    assert set(norm["state"]) == {"missing"}
    assert norm["is_fault"].all()
    text = "as if all parts of decoder.sink but rank 0's are left out"
    assert norm["explanation"].str.endswith(text).all()
