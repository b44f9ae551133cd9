"""Reasons are in force in the body only, per thread, and listeners may refuse."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
import torch.distributed as dist

from dtensor_core import observe
from dtensor_core.testing import run_threads

REASON = observe.Reason(
    operator="aten.mm.default",
    argument="mat2",
    source="f32[8,16] tp:S(0)",
    target="f32[8,16] tp:R",
    step="all_gather",
    axis="tp",
    payload_bytes=512,
)


def test_a_reason_is_current_within_its_body_only() -> None:
    assert observe.current() is None
    with observe.announced(REASON):
        assert observe.current() is REASON
    assert observe.current() is None


def test_an_announcement_ends_with_an_exception() -> None:
    with pytest.raises(KeyError), observe.announced(REASON):
        raise KeyError
    assert observe.current() is None


def test_other_threads_do_not_see_it() -> None:
    seen: list[object] = []
    with observe.announced(REASON):
        thread = threading.Thread(target=lambda: seen.append(observe.current()))
        thread.start()
        thread.join(timeout=10)
    assert seen == [None]


def test_listeners_are_reported_while_they_listen() -> None:
    reasons: list[observe.Reason] = []
    with observe.listening(reasons.append), observe.announced(REASON):
        pass
    with observe.announced(REASON):
        pass
    assert reasons == [REASON]


def test_a_listener_that_raises_refuses_the_communication() -> None:
    def refuse(reason: observe.Reason) -> None:
        raise PermissionError(reason.step)

    with (
        observe.listening(refuse),
        pytest.raises(PermissionError, match="all_gather"),
        observe.announced(REASON),
    ):
        pytest.fail("the body must not run")
    assert observe.current() is None


def test_the_reason_in_a_sentence() -> None:
    assert REASON.sentence == (
        "aten.mm.default needs mat2 f32[8,16] tp:S(0) -> f32[8,16] tp:R: all_gather on tp"
    )


def test_who_looks_on_is_around_a_run_of_threads_and_on_each_rank(monkeypatch) -> None:
    seen = []

    @contextmanager
    def harness_observer(world_size):
        seen.append(world_size)
        yield lambda function, *args: [function(*args)]
        seen.append("over")

    monkeypatch.setattr(observe, "harness_observer", harness_observer)
    assert run_threads(lambda x: x + dist.get_rank(), 2, 10) == [[10], [11]]
    assert seen == [2, "over"]
    monkeypatch.undo()
    assert run_threads(dist.get_rank, 2) == [0, 1]
