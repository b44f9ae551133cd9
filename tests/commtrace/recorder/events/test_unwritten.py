from __future__ import annotations

from typing import Any

from commtrace.recorder.events import data_times, unwritten
from commtrace.recorder.events.unwritten import UnwrittenCalls


class _Over:
    """A call that is over, whose result may still be used."""

    def __init__(self, is_used: bool = False) -> None:
        self.is_used = is_used

    def is_over(self) -> bool:
        return True

    def may_be_used(self) -> bool:
        return not self.is_used


def added(calls: list[Any]) -> UnwrittenCalls:
    found = UnwrittenCalls()
    for call in calls:
        found.add(call, 0)
    return found


def test_as_many_calls_wait_for_a_use_as_results_are_followed() -> None:
    """All gradients of a model may be reduced before the optimizer uses the first."""
    most = data_times._MAX_UNUSED
    assert most == unwritten._MAX_UNUSED
    calls = [_Over() for _ in range(most + 10)]
    known, waiting = added(calls).take(all_of_them=False)
    assert [call for call, _ in known] == calls[:10]
    assert [call for call, _ in waiting] == calls[10:]


def test_calls_whose_results_are_used_are_written_in_order() -> None:
    calls = [_Over(is_used=number % 2 == 0) for number in range(9)]
    unwritten_calls = added(calls)
    known, waiting = unwritten_calls.take(all_of_them=False)
    assert [call for call, _ in known] == calls[::2]
    assert [call for call, _ in waiting] == calls[1::2]
    assert [call for call, _ in unwritten_calls.take(all_of_them=True)[0]] == calls[1::2]
