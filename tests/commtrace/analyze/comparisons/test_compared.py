"""A wrong gradient has the contributions that it is the sum of."""

from __future__ import annotations

from commtrace.analyze.values import evidence
from tests.commtrace.analyze.values.test_between import reduction, wrong_gradient


def test_the_contributions_and_the_factor_of_a_gradient_are_named() -> None:
    found = wrong_gradient(reduction(40))
    assert found.reduction == (
        "it is the sum over tp (ranks 0, 1) of 1 of 1 different contributions, times 2"
    )
    assert found.reduction in evidence(found)
