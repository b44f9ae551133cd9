"""Fixtures of several operators' tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dtensor_core import propagate
from dtensor_core.mesh import forget_decisions
from dtensor_core.operators.rules.sharding_rule import Candidate


@pytest.fixture
def rows_move(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the cost model exchange rows wherever possible, despite the latency."""

    def exchange_seconds(specs: Any, candidate: Candidate) -> float:
        return 0.0 if candidate.exchange is None else -1.0

    monkeypatch.setattr(propagate, "_exchange_seconds", exchange_seconds)
    monkeypatch.setattr(propagate._Costs, "pending_seconds", lambda *_, **__: 0.0)
    forget_decisions()
    yield
    forget_decisions()
