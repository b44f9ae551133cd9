"""Fixtures of several operators' tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dtensor_core import propagate
from dtensor_core.mesh import forget_decisions
from dtensor_core.operators.sharding_rule import Candidate


@pytest.fixture
def rows_move(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the cost model exchange rows wherever possible, despite the latency."""

    def seconds(specs: Any, axis: int, candidate: Candidate) -> float:
        return float(candidate.exchange is None)

    monkeypatch.setattr(propagate, "_seconds", seconds)
    monkeypatch.setattr(propagate, "_pending_seconds", lambda *_, **__: 0.0)
    forget_decisions()
    yield
    forget_decisions()
