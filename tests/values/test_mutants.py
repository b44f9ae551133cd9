"""Faults in the communication of dtensor_core are found where they are."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from commtrace.analyze import CATALOG
from commtrace.analyze.values import compare, name_of
from tests.values.layouts import LAYOUTS
from tests.values.mutants import KINDS, Place, is_named, noting, places, planted
from tests.values.programs import recorded

MUTATED = (
    "dense tp", "dense sp", "mixture ep", "mixture experts", "convolution cp", "tables rows",
    "tables columns",
)  # fmt: skip
NOT_COMPARED = {"nll_loss_forward", "view"}
"""Operators outside of modules whose arguments are counts and tokens."""
EQUIVALENT = {("native_group_norm", "exchanged"), ("native_layer_norm", "exchanged"),
              ("native_layer_norm_backward", "exchanged")}  # fmt: skip
"""Faults without an effect: the order of ranks does not matter for combined moments."""


def kinds_of(place: Place) -> list[str]:
    """Return a kind of fault for a collective, and two in the forward pass."""
    names = list(KINDS[place.kind])
    chosen = [names[(place.number + shift) % len(names)] for shift in range(2)]
    op = f"{place.op}.".split(".")[1]
    if op in NOT_COMPARED and place.phase == "other":
        return []
    chosen = [each for each in chosen if (op, each) not in EQUIVALENT]
    return chosen if place.phase == "forward" else chosen[:1]


@cache
def results(layout: str) -> dict[str, str]:
    """Return the result of each mutant: located, in doubt, mislocated or missed."""
    one, reduced, found = LAYOUTS[layout], [], {}
    model, options = one.model, {k: v for k, v in one.options.items() if k != "max_norm"}
    options |= {"num_steps": 1}
    alone = recorded(model, **options)
    right = recorded(model, layout=one, fault=noting(reduced), **options)
    assert compare(alone, right).agrees
    for place in places(right, reduced):
        for kind in kinds_of(place):
            with planted(place, kind):
                fault = compare(alone, recorded(model, layout=one, **options)).fault
            where = f"{place.number} {place.op} in {place.module or place.parameter}: {kind}"
            if fault is None:
                found[where] = "missed"
            elif place.has(fault) or is_named(place, fault):
                found[where] = "located"
            else:
                is_known = "mislocated" if fault.is_certain else "in doubt"
                found[where] = f"{is_known}: {name_of(fault.right)}"
    return found


@pytest.mark.parametrize("layout", MUTATED)
def test_no_fault_is_mislocated_without_doubt(layout: str) -> None:
    found = results(layout)
    assert len(found) >= 3
    assert {where: each for where, each in found.items() if each.startswith("mis")} == {}


def test_nearly_all_faults_are_located() -> None:
    counted = Counter(
        each.partition(":")[0] for layout in MUTATED for each in results(layout).values()
    )
    assert counted.total() >= 65
    assert counted["located"] >= 0.95 * counted.total(), counted


def test_replicas_that_come_apart_are_found_without_a_second_run() -> None:
    layout = LAYOUTS["tables rows"]
    right = recorded(layout.model, layout=layout, num_steps=1)
    (place, *_) = (each for each in places(right, ["", "", ""]) if each.phase == "forward")
    with planted(place, "stale_on_a_rank"):
        run = recorded(layout.model, layout=layout, num_steps=1)
    problems = CATALOG["consistency"].function(run)
    (problem,) = problems[problems["is_fault"]].to_dict("records")
    assert (problem["problem"], problem["ranks"]) == ("replicas differ", "1")
    assert "norm" in problem["explanation"]
