"""The benchmark of fingerprints times both kinds of steps, and reports a missed bar."""

from __future__ import annotations

import sys

import pytest
import torch

from benchmarks import values
from commtrace.recorder.values import observer


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"WIDTH": 8, "BATCH": 4, "NUM_LAYERS": 1}.items():
        monkeypatch.setattr(values, name, size)
    monkeypatch.setattr(values.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["values", "--steps", "3"])


@pytest.mark.parametrize("level", values.BARS)
def test_a_step_is_timed_with_and_without_fingerprints(level: str, small: None) -> None:
    cost = values.cost_of(level, 3)
    assert len(cost.plain_ns) == len(cost.recorded_ns) == 3
    # Tensors are small, so that fingerprints dominate.
    assert cost.ratio > 1


def test_steps_between_have_no_fingerprints(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    num_seen = []
    monkeypatch.setattr(values, "EVERY", 3)
    monkeypatch.setattr(observer, "facts_of", lambda *_: num_seen.append(1) or torch.zeros(9))
    cost = values.cost_between("op", 2)
    assert len(cost.plain_ns) == len(cost.recorded_ns) == 2
    num_of_first = len(num_seen)
    assert num_of_first
    values.cost_between("op", 1)
    assert len(num_seen) == 2 * num_of_first


def test_the_ratio_is_the_median_of_rounds() -> None:
    assert values.Cost("module", [10, 10, 100], [20, 30, 150]).ratio == 2


@pytest.mark.parametrize(("recorded", "code"), [(12, 0), (14, 1)])
def test_a_missed_bar_is_an_error(
    recorded: int,
    code: int,
    small: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(values, "cost_of", lambda level, _: values.Cost(level, [10], [recorded]))
    monkeypatch.setattr(values, "cost_between", lambda level, _: values.Cost(level, [10], [10]))
    assert values.main() == code
    shown = capsys.readouterr().out
    assert f"{recorded / 10:.2f}" in shown
    assert "op, every 50th step" in shown


@pytest.mark.parametrize(("recorded", "between", "code"), [(36, 10, 1), (14, 11, 1), (14, 10, 0)])
def test_the_share_of_sampled_steps_has_a_bar(
    recorded: int, between: int, code: int, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "BARS", {"op": 100.0})
    monkeypatch.setattr(values, "cost_of", lambda level, _: values.Cost(level, [10], [recorded]))
    monkeypatch.setattr(
        values, "cost_between", lambda level, _: values.Cost(level, [10], [between])
    )
    assert values.main() == code
