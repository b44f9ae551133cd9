"""The planner of dtensor_core and the table of commtrace have the same bytes and latencies."""

from __future__ import annotations

from fractions import Fraction

import pytest

from commtrace.collective_table import KINDS
from dtensor_core.redistribute.cost import _RING


@pytest.mark.parametrize("kind", _RING)
def test_a_planned_step_costs_what_is_recorded_of_it(kind: str) -> None:
    wire_factor, latencies, _ = _RING[kind]
    assert latencies == KINDS[kind].latencies
    for ranks in (1, 2, 3, 8):
        assert Fraction(wire_factor * (ranks - 1), ranks) == KINDS[kind].sent.of(ranks, 0)
