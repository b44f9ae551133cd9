"""Views of distributed tensors that are wrong are found, against the same program on one rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from commtrace.analyze import Frames
from commtrace.analyze.values import compare
from tests.values.layouts import LAYOUTS, Layout
from tests.values.located import result_of
from tests.values.operator_mutants import KINDS, Call, calls, wrong_at
from tests.values.programs import recorded

_SAVED = {"aten.detach.default"}
"""Views that autograd and losses save; the program reads none of their numbers."""
OF_VIEWS = ("mixture experts", "encoder-decoder tp", "convolution cp")


def _recorded(layout: Layout) -> Frames:
    return recorded(layout.model, layout=layout, num_steps=1)


def _views(run: Frames) -> list[Call]:
    """Return the first and the last call of each operator in each phase."""
    every = [each for each in calls(run, are_views=True) if each.op not in _SAVED]
    first, last = (
        {(each.op, each.phase): each for each in order} for order in (every[::-1], every)
    )
    return list(dict.fromkeys([*first.values(), *last.values()]))


@cache
def results(name: str) -> dict[str, str]:
    """Return the result of each mutant: located, in doubt, mislocated or missed."""
    layout, found = LAYOUTS[name], {}
    alone = _recorded(replace(layout, axes=dict.fromkeys(layout.axes, 1)))
    right = _recorded(layout)
    assert compare(alone, right).agrees
    names = list(KINDS)
    for place, call in enumerate(_views(right)):
        kind = names[place % len(names)]
        with wrong_at(call, kind) as has_effect:
            run = _recorded(layout)
        if has_effect():
            where = f"{call.op} {call.number} in {call.module}, {call.phase}: {kind}"
            found[where] = result_of(compare(alone, run).fault, call.has)
    return found


@pytest.mark.parametrize("name", OF_VIEWS)
def test_no_wrong_view_is_mislocated_without_doubt(name: str) -> None:
    found = results(name)
    assert len(found) >= 3
    assert {where: each for where, each in found.items() if each.startswith("mis")} == {}


def test_nearly_all_wrong_views_are_located() -> None:
    counted = Counter(
        each.partition(":")[0] for name in OF_VIEWS for each in results(name).values()
    )
    assert counted.total() >= 30
    assert counted["located"] >= 0.95 * counted.total(), counted
