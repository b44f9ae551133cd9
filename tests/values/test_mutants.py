"""Faults in the communication of dtensor_core are found where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, partial

import pytest

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.values import Fault, compare, name_of
from tests.values import operator_mutants
from tests.values.layouts import LAYOUTS
from tests.values.located import result_of
from tests.values.mutants import KINDS, Place, injected, is_named, noting, places
from tests.values.programs import recorded
from tests.values.rule_faults import RULE_FAULTS

MUTATED = (
    "dense tp", "dense sp", "mixture ep", "mixture experts", "convolution cp", "tables rows",
    "tables columns",
)  # fmt: skip
OF_OPERATORS = (
    "mixture experts", "convolution cp", "tables rows", "tables dp uneven", "encoder-decoder cp",
    "dense dp",
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
def runs(layout: str) -> tuple[Frames, Frames, Callable[..., Frames]]:
    """Return the run on one device, the run in a layout, and a function that records it again."""
    one = LAYOUTS[layout]
    options = one.options | {"num_steps": 1}
    options.pop("max_norm", None)
    record = partial(recorded, one.model, layout=one, **options)
    alone, right = recorded(one.model, **options), record()
    assert compare(alone, right).agrees
    return alone, right, record


def _is_there(place: Place, fault: Fault) -> bool:
    return place.has(fault) or is_named(place, fault)


@cache
def results(layout: str) -> dict[str, str]:
    """Return the result of each mutant: located, in doubt, mislocated or missed."""
    reduced, found = [], {}
    alone, _, record = runs(layout)
    for place in places(record(fault=noting(reduced)), reduced):
        for kind in kinds_of(place):
            with injected(place, kind):
                fault = compare(alone, record()).fault
            where = f"{place.number} {place.op} in {place.module or place.parameter}: {kind}"
            found[where] = result_of(fault, partial(_is_there, place))
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


def results_of_operators() -> dict[str, str]:
    """Return the result of mutants of local results, one for each operator and phase.

    Calls without numbers to change are left out.
    """
    seen, found = set[tuple[str, str]](), dict[str, str]()
    for layout in OF_OPERATORS:
        alone, right, record = runs(layout)
        first = {(call.op, call.phase): call for call in reversed(operator_mutants.calls(right))}
        for place, (key, call) in enumerate(first.items()):
            kind = list(operator_mutants.KINDS)[place % len(operator_mutants.KINDS)]
            if key in seen:
                continue
            seen.add(key)
            with operator_mutants.wrong_at(call, kind) as has_effect:
                run = record()
            if has_effect():
                where = f"{layout}: {call.op} in {call.module}, {call.phase}: {kind}"
                fault = compare(alone, run).fault
                found[where] = result_of(fault, call.has)
    return found


def test_faults_of_operators_are_located() -> None:
    found = results_of_operators()
    assert len(found) >= 35
    assert {where: each for where, each in found.items() if each != "located"} == {}


@pytest.mark.parametrize("fault", RULE_FAULTS)
def test_faults_that_rules_share_are_located(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = RULE_FAULTS[fault]
    alone, _, record = runs(wrong.layout)
    monkeypatch.setattr(wrong.owner, wrong.name, wrong.changed(getattr(wrong.owner, wrong.name)))
    found = compare(alone, record()).fault
    assert found is not None
    assert (found.right["op"], found.right["module"]) == (wrong.op, wrong.module), name_of(
        found.right
    )
    assert found.is_certain


def test_replicas_that_come_apart_are_found_without_a_second_run() -> None:
    layout = LAYOUTS["tables rows"]
    right = recorded(layout.model, layout=layout, num_steps=1)
    (place, *_) = (each for each in places(right, ["", "", ""]) if each.phase == "forward")
    with injected(place, "stale_on_a_rank"):
        run = recorded(layout.model, layout=layout, num_steps=1)
    problems = CATALOG["consistency"].function(run)
    (problem,) = problems[problems["is_fault"]].to_dict("records")
    assert (problem["problem"], problem["ranks"]) == ("replicas differ", "1")
    assert "norm" in problem["explanation"]
