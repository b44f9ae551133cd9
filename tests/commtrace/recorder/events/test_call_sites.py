"""Common fields of events are written once, and no number is used twice."""

from __future__ import annotations

import pytest

from commtrace.recorder.events import call_sites
from commtrace.recorder.events.call_sites import CallSites


def test_a_call_site_is_written_when_it_comes_up_first() -> None:
    known = CallSites()
    first = known.add("a", (1, "a"))
    second = known.add("b", (2, "b"))
    assert (known.number_of("a"), known.number_of("b"), known.number_of("c")) == (0, 1, None)
    assert (first, second, list(known.new)) == (0, 1, [(1, "a"), (2, "b")])


def test_a_call_site_that_was_forgotten_gets_another_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = CallSites()
    known.add("a", (1,))
    with monkeypatch.context() as patched:
        patched.setattr(call_sites, "_MAX_KNOWN", 1)
        known.add("b", (2,))
    assert known.number_of("a") is None
    assert known.add("a", (1,)) == 2
    assert list(known.new) == [(1,), (2,), (1,)]
