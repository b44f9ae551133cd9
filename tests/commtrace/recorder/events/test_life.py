"""The life of a call is what its methods say; no other file writes its fields."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path
from threading import get_native_id
from types import SimpleNamespace
from typing import Any

import pytest

from commtrace.recorder.clock import now
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.request import Request
from commtrace.recorder.interception.waits import work_wait
from tests.commtrace.recorder.recorded import unplaced_call

RECORDER = Path(__file__).parents[4] / "commtrace" / "recorder"


def written_fields(source: str, name: str) -> set[str]:
    """Fields that a source text assigns on variables and attributes called `name`."""
    return {
        target.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign))
        for each in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(each)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and ast.unparse(target.value).rpartition(".")[2].strip("_") == name
    }


@pytest.mark.parametrize(("cls", "name"), [(Call, "call"), (Request, "request")])
def test_only_its_own_file_writes_the_fields_of_a_call(cls: type, name: str) -> None:
    files = [file for file in RECORDER.rglob("*.py") if file.name != f"{name}.py"]
    assert len(files) > 30
    written = {file.name: written_fields(file.read_text(), name) for file in files}
    assert {file: fields for file, fields in written.items() if fields} == {}
    assert written_fields(f"self.{name}.a, x = 1, 2\n{name}.b += 1", name) == {"a", "b"}


def test_a_call_that_raised_is_over() -> None:
    call = unplaced_call()
    call.issued(5)
    assert not call.is_over()
    call.raised()
    assert call.is_over()
    assert (call.issue_ns, call.complete_ns) == (5, -1)


def test_a_wait_completes_a_call_on_the_cpu_unless_its_completion_is_known() -> None:
    first, second = unplaced_call(), unplaced_call()
    second.completed(7)
    for call in (first, second):
        call.waited(3, 10, 1)
        assert (call.is_over(), call.waited_ns, call.num_waits) == (True, 7, 1)
    assert (first.complete_ns, second.complete_ns) == (10, 7)


def test_a_call_is_not_over_while_its_completion_or_its_blocked_time_is_outstanding() -> None:
    call = unplaced_call()
    call.returned_work(set())  # dropped at once
    assert call.is_over()
    call.watch()
    assert not call.is_over()
    call.unwatch()
    call.expect_blocked_time()
    assert not call.is_over()
    call.blocked_time_reported()
    assert call.is_over()


def test_a_wait_in_progress_counts_as_blocked_so_far() -> None:
    call = unplaced_call()
    call.request.is_async = True
    call.issued(now())
    call.returned()
    assert (call.blocked_ns(), call.state_in_flight()) == (-1, (0, False))
    begin = now() - 5_000
    call.begun_wait(begin, 1)
    assert call.blocked_ns() >= 5_000
    assert call.state_in_flight() == (0, True)
    call.waited(begin, begin + 7_000, 1)
    assert (call.blocked_ns(), call.state_in_flight()) == (7_000, (0, False))


@pytest.mark.parametrize("fails", [False, True])
def test_a_wait_is_in_progress_until_it_returns_or_raises(fails: bool) -> None:
    call, seen = unplaced_call(), []

    def original(work: object) -> bool:
        seen.append(call.state_in_flight())
        if fails:
            raise RuntimeError("a rank has left")
        return True

    pending: Any = SimpleNamespace(
        call_of_work=lambda _: call,
        waited_for_work=lambda each, begin, _: each.waited(begin, now(), get_native_id()),
        wait_raised=lambda each, begin: each.wait_ended(begin, now(), get_native_id()),
    )
    wait = work_wait(pending, lambda _: None, original)
    with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
        wait(object())
    assert seen == [(0, True)]
    assert call.state_in_flight() == (0, False)
    assert call.wait_begin_ns >= 0
    assert call.first_wait_ns >= 0


def test_only_the_wait_that_began_first_is_the_call_s() -> None:
    call = unplaced_call()
    call.begun_wait(10, 1)
    call.begun_wait(12, 2)
    assert not call.waited(12, 20, 2)
    assert (call.wait_begin_ns, call.first_wait_ns, call.wait_thread) == (10, -1, 1)
    assert call.waited(10, 21, 1)
    assert not call.wait_ended(30, 31, 1)
    assert (call.wait_begin_ns, call.first_wait_ns, call.wait_thread) == (10, 11, 1)


def test_a_synchronous_call_has_no_wait() -> None:
    call = unplaced_call()
    call.request.set_async(False)
    call.begun_wait(10, 1)
    assert call.waited(10, 20, 1)
    assert (call.wait_begin_ns, call.first_wait_ns, call.wait_thread) == (-1, -1, -1)
    assert call.waited_ns == 10
