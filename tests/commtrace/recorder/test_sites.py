"""Common fields of events are written once, and no number is used twice."""

from __future__ import annotations

import pytest

from commtrace.recorder import sites
from commtrace.recorder.sites import Sites


def test_a_site_is_written_when_it_comes_up_first() -> None:
    known = Sites()
    first = known.add("a", (1, "a"))
    second = known.add("b", (2, "b"))
    assert (known.number_of("a"), known.number_of("b"), known.number_of("c")) == (0, 1, None)
    assert (first, second, list(known.new)) == (0, 1, [(1, "a"), (2, "b")])


def test_a_site_that_was_forgotten_gets_another_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Sites()
    known.add("a", (1,))
    with monkeypatch.context() as patched:
        patched.setattr(sites, "_MAX_KNOWN", 1)
        known.add("b", (2,))
    assert known.number_of("a") is None
    assert known.add("a", (1,)) == 2
    assert list(known.new) == [(1,), (2,), (1,)]
