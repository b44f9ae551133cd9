"""The recording benchmark measures as documented, and reports a missed bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from benchmarks import recording
from benchmarks.kit import fake_ranks
from benchmarks.measure import repeated


def test_a_context_is_entered_and_a_first_call_made_in_it_before_the_clock_starts() -> None:
    now = 0.0
    calls: list[str] = []

    @contextmanager
    def context() -> Iterator[None]:
        nonlocal now
        now += 100
        calls.append("enter")
        yield

    def step() -> None:
        nonlocal now
        now += 50 if calls and calls[-1] == "enter" else 0.1
        calls.append("step")

    contender = recording.Within(step, context)
    figures = repeated({"one": contender}, num_rounds=2, turn_s=0.2, clock=lambda: now)
    assert figures["one"].rounds == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize("detail", ["collective", "op"])
def test_a_recorded_step_is_compared_to_the_same_step(detail: str) -> None:
    with fake_ranks():
        result = recording.recorded_step(
            "dtensor_core", recording.NARROW.dim, detail, 1e9, rounds=2
        )
    assert result.kept
    assert float(result.cells[2]) > 0.5


@pytest.mark.parametrize("case", recording.OPCODES, ids=lambda case: f"{case[2]} {case[3]}")
def test_a_recorded_step_takes_few_instructions_of_python(
    case: tuple[str, int, str, int, int],
) -> None:
    with fake_ranks():
        result = recording.recorded_opcodes(*case)
    assert result.kept, result.cells


@pytest.mark.parametrize("case", recording.CALLS, ids=lambda case: case[0])
def test_recording_a_call_takes_few_instructions_of_python(
    case: tuple[str, Callable[[torch.Tensor], object], int],
) -> None:
    with fake_ranks():
        result = recording.opcodes_of_a_call(*case)
    assert result.kept, result.cells


def test_the_time_of_a_recorded_call_is_that_beyond_an_unrecorded_one() -> None:
    with fake_ranks():
        name, call, _ = recording.CALLS[0]
        result = recording.time_of_a_call(name, call, rounds=2)
    assert result.cells[2].endswith("µs")
    assert result.bar == "40 µs"


def test_the_bytes_of_a_call_and_the_growth_are_small() -> None:
    with fake_ranks():
        assert all(each.kept for each in recording.bytes_of_a_call())
        assert all(each.kept for each in recording.bytes_at_rest(num_calls=4_000))
        assert recording.growth(num_calls=2_000).kept


def test_a_missed_bar_ends_with_code_1_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recording, "STEPS", (("plain", 16, "collective", 0.0),))
    monkeypatch.setattr(
        recording, "growth", lambda: recording.Result("growth", ("",) * 3, "", True)
    )
    monkeypatch.setattr(sys, "argv", ["recording", "--rounds", "2", "--check"])
    with pytest.raises(SystemExit) as end:
        recording.main()
    assert end.value.code == 1
    assert "missed" in capsys.readouterr().out
